#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "core/system/processors.h"
#include "distributed/control.h"
#include "distributed/environment.h"
#include "distributed/gloo_library.h"
#include "distributed/group_impl.h"
#include "distributed/shared_memory.h"
#include "mezzo/distributed/group.h"
#include "mezzo/error.h"

namespace mezzo::distributed {
namespace {

constexpr double longest = 1e7;  // s

std::atomic<bool> made{false};  // the process' group of several ranks

// This rank's share of the processors that it may use.
int threads_of(const Control& control) {
    return std::clamp(available_processors() / std::max(1, control.sharing()), 1, 1024);
}

Group join(const Launch& launch, const InitOptions& options, int threads) {
    // NCCL reads the variable; it is set before NCCL's first thread starts.
    if (options.deterministic && cuda_device_count() > 0) setenv("NCCL_ALGO", "^NVLS,NVLSTree", 0);
    auto control = std::make_unique<Control>(launch, options);
    set_num_threads(threads > 0 ? threads : threads_of(*control));
    const char* const interface = std::getenv("MEZZO_INTERFACE");
    std::unique_ptr<Collectives> engine;
    try {
        engine = connect_gloo(*control, {.place = launch.place,
                                         .address = control->address(),
                                         .interface = interface != nullptr ? interface : "",
                                         .timeout = options.timeout,
                                         .connect_timeout = options.rendezvous_timeout});
        engine = over_shared_memory(*control, std::move(engine), launch.place, options.timeout);
    } catch (const std::exception& error) {
        // The reason is often another rank, which the store knows.
        fail(ErrorKind::backend, "init: the ranks could not be connected: ", control->lost(error.what()));
    }
    return make_group(launch.place, std::move(engine), std::move(control),
                      {options.timeout, options.rendezvous_timeout});
}

}  // namespace

Group init(const InitOptions& options) {
    for (const double seconds : {options.timeout, options.rendezvous_timeout})
        check(seconds > 0 && seconds <= longest, ErrorKind::value, "init: a timeout of ", seconds,
              " s; it must be above 0 and at most ", longest);
    const int threads = number_or_0("init", std::getenv, "MEZZO_THREADS", 1024);
    const std::optional<Launch> launch = read_environment(std::getenv);
    if (!launch || launch->place.size == 1) {
        if (threads > 0) set_num_threads(threads);
        return make_group({}, nullptr);
    }
    check(!made.exchange(true), ErrorKind::state, "init: this process has its group of ", launch->place.size,
          " ranks already; keep the Group that the first call returned, copies are cheap");
    try {
        return join(*launch, options, threads);
    } catch (...) {
        made = false;
        throw;
    }
}

}  // namespace mezzo::distributed
