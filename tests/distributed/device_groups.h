// Groups whose ranks are threads, each with its own emulated device, connected by the stand-in for NCCL.
#pragma once

#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/runtime/on_device.h"
#include "mezzo/device.h"
#include "mezzo/log.h"
#include "tests/distributed/thread_group.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/nccl.h"
#include "tests/emulation/streams.h"

namespace mezzo::test {

// Sets up emulated devices for the ranks, and NCCL, while the scope lasts. The end of the scope waits for all
// work, also for work that failed ranks have left behind.
class Devices {
public:
    explicit Devices(int count) : before_(emulation::options) {
        emulation::options.device_count = count;
        emulation::use_nccl_stand_in(MEZZO_NCCL_STAND_IN);
        emulation::reset_nccl_report();
    }
    ~Devices() {
        for (int device = 0; device < emulation::options.device_count; ++device) {
            const cuda::OnDevice scope(device);
            emulation::Streams::get().finish_all();
        }
        setenv("MEZZO_NCCL", "off", 1);
        emulation::nccl_options = {};
        emulation::options = before_;
    }
    Devices(const Devices&) = delete;
    Devices& operator=(const Devices&) = delete;

private:
    const emulation::Options before_;
};

// Delays of the device's work, so that a missing wait gives wrong values.
struct Timing {
    bool late_work, early_communication;
};
inline constexpr Timing timings[] = {{false, false}, {false, true}, {true, false}, {true, true}};
inline void set_timing(const Timing& timing) {
    emulation::options.late_work = timing.late_work;
    emulation::options.early_communication = timing.early_communication;
}

// Records the log lines of groups while the scope lasts.
struct Log {
    Log() {
        set_log_sink([this](std::string_view line) {
            const std::lock_guard lock(mutex);
            if (line.find("distributed: ") == 0) lines.emplace_back(line);
        });
    }
    ~Log() { set_log_sink(nullptr); }
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;

    std::mutex mutex;
    std::vector<std::string> lines;
};

}  // namespace mezzo::test
