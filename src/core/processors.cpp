#include "core/processors.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <thread>

namespace mezzo {

int available_processors() {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
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
