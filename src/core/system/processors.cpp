#include "core/system/processors.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

namespace mezzo {

namespace {

// Processors of one group: quota / period in microseconds. "max", -1 or a missing file: unlimited.
double group_limit(const std::string& folder) {
    double quota = -1, period = 0;
    if (std::ifstream both(folder + "/cpu.max"); both) {
        both >> quota >> period;
    } else {
        std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    return quota > 0 && period > 0 ? quota / period : unlimited_processors;
}

}  // namespace

int quota_processors(const std::string& groups, const std::string& root) {
    double limit = unlimited_processors;
    std::ifstream lines(groups);
    for (std::string line; std::getline(lines, line);) {  // number:controllers:path
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool unified = controllers == ",,";
        if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
        // A group is limited by those that it is in, too. In a container the path may be that of the host.
        for (std::string path = line.substr(second + 1);; path.erase(path.find_last_of('/'))) {
            limit = std::min(limit, group_limit(root + (unified ? path : "/cpu" + path)));
            if (path.find('/') == std::string::npos) break;
        }
    }
    return std::max(1, static_cast<int>(std::ceil(limit)));
}

int available_processors() {
    int count = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
    count = std::min(count, quota_processors());
#endif
    return std::max(1, count);
}

std::string processor_set() {
    std::string text;
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return text;
    for (int i = 0; i < CPU_SETSIZE; i += 4) {
        int digit = 0;
        for (int k = 0; k < 4; ++k) digit |= (CPU_ISSET(i + k, &set) ? 1 : 0) << k;
        text += "0123456789abcdef"[digit];
    }
    text.erase(text.find_last_not_of('0') + 1);
#endif
    return text;
}

}  // namespace mezzo
