// Exports the GEMM service's choices to files, and adopts choices from files.
#include "cuda/gemm/plans.h"
#include "cuda/runtime/runtime.h"
#include "kernels/gemm_plan.h"

namespace mezzo {
namespace {

using namespace cuda;

std::vector<lt::Library> libraries() {
    std::vector<lt::Library> all;
    for (int device = 0; device < device_count(); ++device) {
        const DeviceInfo info = device_info(device);
        all.push_back({info.name, std::uint64_t(info.major), std::uint64_t(info.minor), lt::version()});
    }
    return all;
}

std::vector<lt::TunedGemm> tuned() {
    GemmService& s = gemm_service();
    const std::lock_guard lock(s.mutex);
    std::vector<lt::TunedGemm> all;
    for (const auto& [request, choice] : s.settled)
        if (choice) all.push_back({request, *choice});
    for (const auto& [request, choice] : s.loaded) all.push_back({request, choice});
    return all;
}

void adopt(const lt::TunedGemm& one) {
    GemmService& s = gemm_service();
    const std::lock_guard lock(s.mutex);
    s.settled.erase(one.request);
    s.loaded.insert_or_assign(one.request, one.choice);
}

}  // namespace

const GemmPlanStore cuda::plan_store{.libraries = libraries, .tuned = tuned, .adopt = adopt};

}  // namespace mezzo
