// NVTX ranges for modules and ops, in the timelines of Nsight Systems and other tools.
// docs/guide/profiling.md has an example.
//
//   const insight::EmitNvtx ranges({.model = &net});
//   loss = train(x, labels);  // under: nsys profile ./program
#pragma once

#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::insight {

struct EmitNvtxOptions {
    const nn::Module* model = nullptr;  // to name modules by their paths; must outlive the scope
    bool record_shapes = false;         // put the shapes of an op's inputs into its name
    bool enabled = true;                // false: the scope does nothing
};

struct [[gnu::visibility("hidden")]] NvtxRanges;  // src/insight/nvtx_ranges.cpp

// While alive, each module, op, gradient and RecordFunction of this thread is a range of NVTX's domain
// "mezzo", as under torch.autograd.profiler.emit_nvtx(): "blocks.0" around "blocks.0.fc1" around "linear", in
// backward "blocks.0.fc1" around "linear backward" around "matmul". Ranges are those of the host; a tool that
// also traces CUDA shows the kernels that they launched. Without a tool a range costs two calls that return
// at once; without a scope an op costs only its check for observers. The scope must end in the thread that
// made it.
class [[nodiscard]] EmitNvtx {
public:
    // Error(backend) in a build without NVTX, unless enabled is false.
    [[nodiscard]] explicit EmitNvtx(const EmitNvtxOptions& options = {});
    ~EmitNvtx();
    EmitNvtx(const EmitNvtx&) = delete;
    EmitNvtx& operator=(const EmitNvtx&) = delete;

private:
    NvtxRanges* ranges_ = nullptr;
};

// Whether mezzo was built with NVTX, whose header comes with the CUDA Toolkit.
[[nodiscard]] bool nvtx_available() noexcept;

}  // namespace mezzo::insight

#pragma GCC visibility pop
