// RecordFunction: names parts of a program in the tables and traces of profilers (mezzo/insight/profiler.h).
//
//   {
//       const insight::RecordFunction range("augment");
//       x = flip(x, 2);
//   }
#pragma once

#include <string_view>

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::insight {

// Gives the work of this thread a name until the scope ends, as torch.profiler.record_function. The library
// names "Optimizer.step", "GradScaler.step", "GradScaler.unscale_", "clip_grad_norm_" and "BatchLoader.next".
// Scopes of a thread end in reverse order. Without a profiler it costs one read of a thread-local variable at
// each end.
class [[nodiscard]] RecordFunction {
public:
    // Profilers copy the name, which should be UTF-8.
    [[nodiscard]] explicit RecordFunction(std::string_view name) noexcept;
    ~RecordFunction();
    RecordFunction(const RecordFunction&) = delete;
    RecordFunction& operator=(const RecordFunction&) = delete;
};

}  // namespace mezzo::insight

#pragma GCC visibility pop
