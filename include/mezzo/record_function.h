// Names for parts of a program, in the tables and traces of profilers (mezzo/profiler.h).
#pragma once

#include <string_view>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::insight {

// Names what this thread does until the scope ends, as torch.profiler.record_function does. The library names
// "Optimizer.step", "GradScaler.step", "GradScaler.unscale_", "clip_grad_norm_" and "BatchLoader.next".
// Scopes of a thread end in reverse order. Costs a look at a variable of the thread at both ends while nobody
// profiles it.
class [[nodiscard]] RecordFunction {
public:
    // The name, which should be UTF-8, is copied where it is wanted.
    [[nodiscard]] explicit RecordFunction(std::string_view name) noexcept;
    ~RecordFunction();
    RecordFunction(const RecordFunction&) = delete;
    RecordFunction& operator=(const RecordFunction&) = delete;
};

}  // namespace mezzo::insight

#pragma GCC visibility pop
