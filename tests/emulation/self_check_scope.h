// CheckResults of fast paths in a temporary folder, as of a process that has just begun, for the length of a
// scope.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/self_check.h"
#include "mezzo/cuda.h"
#include "mezzo/log.h"
#include "tests/support/folder.h"

namespace mezzo::test {

struct SelfCheckScope {
    SelfCheckScope() {
        setenv("MEZZO_CACHE", folder.path.c_str(), 1);
        set_log_sink([this](std::string_view line) { log.emplace_back(line); });
        next_process();
    }
    ~SelfCheckScope() {
        setenv("MEZZO_CACHE", "off", 1);
        set_log_sink(nullptr);
        reset();
    }
    SelfCheckScope(const SelfCheckScope&) = delete;
    SelfCheckScope& operator=(const SelfCheckScope&) = delete;

    // Only what is in the folder is known from now on.
    void next_process() {
        reset();
        log.clear();
    }
    // Nothing is known.
    void restart() {
        for (const auto& entry : std::filesystem::directory_iterator(folder.path))
            std::filesystem::remove(entry.path());
        next_process();
    }

    // Returns the log's lines about a self-check on the first device.
    std::vector<std::string> told(const std::string& self_check) const {
        const std::string begin = "fast path " + self_check + " on cuda:0: ";
        std::vector<std::string> all;
        for (const std::string& line : log)
            if (line.compare(0, begin.size(), begin) == 0) all.push_back(line.substr(begin.size()));
        return all;
    }

    Folder folder;
    std::vector<std::string> log;

private:
    static void reset() {
        set_flash_attention({});
        cuda::set_implicit_convolution({});
        cuda::set_gemm_options({});
        forget_check_results();
    }
};

}  // namespace mezzo::test
