// Captures whole training steps as CUDA graphs: one launch per step instead of hundreds.
//
//   cuda::CapturedStep step([](const Tensors& batch) {
//       return Tensors{train(batch[0], batch[1])};  // forward, backward, optimizer.step(), zero_grad()
//   });
//   loss = step({x, labels})[0];
#pragma once

#include <cstddef>
#include <cstdint>

#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::cuda {

using StepFunction = autograd::Callback<Tensors(const Tensors&)>;

struct CaptureOptions {
    int warmup = 3;  // >= 1: eager runs before a capture; the last one plans the memory
    // >= 1: cached graphs, one per set of shapes and dtypes; evicts the least recently used
    int max_graphs = 4;
    Device device = best_device();  // where the step runs; inputs are copied there
};

struct CaptureStatistics {
    std::uint64_t eager_runs = 0, captures = 0, replays = 0;  // calls of each kind
    std::size_t graphs = 0;                                   // cached now
    std::size_t planned_bytes = 0;  // device memory that the graphs reserve for the steps' tensors
    // sum of the graphs' peaks of live tensors; a lower bound of planned_bytes
    std::size_t live_peak_bytes = 0;
};

struct [[gnu::visibility("hidden")]] CapturedStepImpl;

// Runs a step (forward, backward, scaler, optimizer, or any part of it), and after a few calls replays it as
// a CUDA graph. Results equal those of eager calls, dropout masks, learning rates and skipped steps included.
//  - The step gets copies of the inputs on options.device, at the same addresses in every call of one shape.
//    Its results are detached. The next call of the same shape overwrites the results of a replay: clone()
//    results that must outlive it.
//  - A replay runs the device work of the captured call again, not the host code. Decisions of the host must
//    be the same in every call: use one CapturedStep for training and one for evaluation, put every
//    micro-batch of an update inside the step, and call schedules and set_lr() after it. Modules must outlive
//    it. The graphs hold the state of optimizers and scalers: replays may outlive these objects, calls that
//    run the step may not.
//  - After load_state_dict(), a move to another device, a changed option of the scaler, or if gradients exist
//    before the step that did not exist at the capture, the step is warmed up and captured again. State other
//    than parameters, gradients, optimizers and scalers must be in tensors that are written in place.
//  - zero_grad() belongs into the step, best at its end: gradients that a call leaves occupy memory, and are
//    unscaled.
//  - Code that reads values on the host, copies from the host, waits for the device, or runs a matrix product
//    for the first time cannot be captured: it throws Error(state) with the cause. As without a capture, the
//    work before the error has been done, and the step's objects stay usable; the next calls are warm-up runs
//    again.
//  - A step with collective calls (mezzo/distributed/group.h) agrees with the other ranks before each call:
//    all run it eagerly, all capture it or all replay it.
//  - An Autocast scope is opened inside the step. Call it from one thread at a time, and let no other thread
//    queue work on the device during a capture.
// On the CPU, and in a build without CUDA, every call runs the step eagerly. See also "What has not run on a
// GPU" in docs/internals/cuda.md.
class CapturedStep {
public:
    // Error(value) for warmup or max_graphs below 1, Error(device) for a device that does not exist.
    explicit CapturedStep(StepFunction step, const CaptureOptions& options = {});
    ~CapturedStep();
    CapturedStep(const CapturedStep&) = delete;
    CapturedStep& operator=(const CapturedStep&) = delete;

    // Throws Error(value) for an undefined input and one that requires grad, Error(state) inside an Autocast
    // scope, and what the step throws.
    Tensors operator()(const Tensors& inputs);
    [[nodiscard]] CaptureStatistics statistics() const;
    // Drops all graphs and the memory they hold; the next calls are warm-up runs.
    void clear();

private:
    CapturedStepImpl* impl_;
};

}  // namespace mezzo::cuda

#pragma GCC visibility pop
