// Self-checks of optimized kernels, at first use. A fast path whose setting is `automatic`
// (mezzo/fast_path.h) is used on a device only after its result has matched that of the plain path there, on
// a small problem of odd sizes. Backends list their self-checks in BackendParts::self_checks. A check runs
// when a thread first requests its fast path; other threads wait for it. It has memory and inputs of its own:
// random numbers, statistics, gradients and memory limits of the program are not changed.
//
// The user's cache folder has the results (kernels/choice_file.h), so that the next process need not
// repeat the checks. A process that dies in a check leaves a mark there; the next process then uses the plain
// path.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/internal.h"
#include "kernels/choice_file.h"
#include "mezzo/device.h"
#include "mezzo/dtype.h"

namespace mezzo {

enum class FastPathId : std::uint8_t {
    flash_attention,
    flash_attention_grad,
    implicit_convolution,
    implicit_convolution_input_grad,
    implicit_convolution_weight_grad,
    bias_gradients,  // kernels::ActivationGrad as one kernel
    layers,          // kernels::LinearInputGrad as a product and one kernel
    relu_masks,      // writing and reading them
    prefetch         // copies that overlap the device's work
};
inline constexpr int fast_path_count = 9;

// One self-check: a fast path for one dtype and size. Its result is cached per device.
struct SelfCheck {
    FastPathId path;
    Dtype dtype = float32;  // of the operands; float32 where it makes no difference
    int size = 0;           // dim of attention: 32, 64 or 128; 0 where it makes no difference
};
// Returns its name, such as "flash_attention bfloat16 64".
std::string text_of(const SelfCheck& self_check);

// The self-checks of a backend.
struct SelfChecks {
    std::span<const SelfCheck> all;
    // Key of cached results, one line: the model of the device, and the versions of driver and libraries.
    std::string (*identity)(int device);
    // Whether the calling thread may queue work of its own on the device now. It may not while any thread
    // captures a graph on the device.
    bool (*ready)(int device);
    // Runs the fast path and the plain one on the device. Throws Error(value) with their difference, or the
    // exception of the fast path. After Error(memory) and Error(state) the result stays open.
    void (*run)(const SelfCheck& self_check, int device);
};

// Returns whether the fast path has passed its self-check on the device, and runs the check if there is no
// result yet. Returns false (the plain path) if the check cannot run now, such as in a step that is being
// captured. Does not throw.
MEZZO_INTERNAL bool passes_self_check(FastPathId path, Device device, Dtype dtype = float32,
                                      int size = 0) noexcept;

inline bool uses_fast_path(FastPath choice, FastPathId path, Device device, Dtype dtype = float32,
                           int size = 0) noexcept {
    if (choice == FastPath::automatic) return passes_self_check(path, device, dtype, size);
    return choice == FastPath::on;
}

// Whether this thread runs a self-check. Matrix products then use mezzo's own kernels, because the GEMM
// library would allocate a workspace and store plans.
bool in_self_check() noexcept;

struct ListedCheckResult {
    SelfCheck self_check;
    CheckResult result;
};
// All self-checks of a device with their cached results, of this or an earlier process. Runs none.
std::vector<ListedCheckResult> check_results_of(Device device);
// Runs all self-checks of a device, also those with a result, and stores the results. For users whose device
// or driver has been repaired.
void run_self_checks(Device device);
// Drops the results that this process holds. The cache files are read again, and checks without a result
// there run again.
void forget_check_results();

}  // namespace mezzo
