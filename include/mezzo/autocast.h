// The autocast scope: inside it, matrix products run in 16 bit and everything that needs range or accuracy in
// float32.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::amp {

struct AutocastOptions {
    std::optional<DeviceType> device = {};  // none: every device; the others stay as they are outside
    // float16 or bfloat16; float32 turns the scope off, so that the precision may be a variable. Others are
    // Error(dtype).
    Dtype dtype = float16;
    bool enabled = true;  // false inside an enabled scope turns it off there; false everywhere equals no
                          // scope, bit for bit
    bool cache = true;    // cast each float32 leaf that requires grad once per scope, not at every use, and
                          // have normalisations write their results in 16 bit beside float32
};
std::ostream& operator<<(std::ostream& out, const AutocastOptions& options);  // AutocastOptions(device=…)

// Runs the ops of this thread in mixed precision until the end of the scope: matrix products, linear layers,
// convolutions and attention read their floating inputs as options.dtype, which makes them faster and halves
// their memory; ops that need range or accuracy, such as exp, softmax, norms and losses, compute in float32,
// and all others in the dtypes that they are given. The list is in docs/numerics.md. Parameters stay float32.
//
//   {
//       const amp::Autocast scope({.dtype = bfloat16});
//       loss = cross_entropy(net(x), y);
//   }
//   loss.backward();  // outside: each gradient runs in the dtype of its op
//
// With float16, amp::GradScaler keeps small gradients from becoming 0. Scopes nest, and end also when an
// exception leaves them. New threads start with autocast off. Weights that an optimizer updates are not cast
// at all after its first step: it keeps a 16-bit copy current. float64 inputs are never lowered.
class [[nodiscard]] Autocast {
public:
    [[nodiscard]] explicit Autocast(const AutocastOptions& options = {});
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

private:
    bool enabled_[device_type_count];  // what was set before
    Dtype dtype_[device_type_count];
    bool cache_;
};

// The state of this thread. The dtype is that of the innermost scope, enabled or not.
[[nodiscard]] bool autocast_enabled(DeviceType device);
[[nodiscard]] Dtype autocast_dtype(DeviceType device);

// What autocast did to one op since the last clear, on this thread, while the report was on.
struct AutocastReportLine {
    std::string op;            // its name
    std::string policy;        // "low", "fp32", "fp32_out", "promote", "keep"
    Dtype computed = float32;  // dtype of the inputs the kernel saw
    Dtype result = float32;
    std::uint64_t calls = 0;
    std::uint64_t casts = 0;       // tensors converted for it
    std::uint64_t cast_bytes = 0;  // bytes written by those conversions
};
// Turns this thread's report on or off (off by default; it costs a table look-up per op). One line per op and
// pair of dtypes.
void collect_autocast_report(bool on);
[[nodiscard]] std::vector<AutocastReportLine> autocast_report();
void clear_autocast_report();

}  // namespace mezzo::amp

#pragma GCC visibility pop
