// The Autocast scope: runs matrix products in 16 bit, and ops that need range or accuracy in float32.
//
//   {
//       const amp::Autocast scope;
//       loss = cross_entropy(net(x), labels);
//   }
//   loss.backward();  // outside: each gradient runs in the dtype of its op
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mezzo/matmul_precision.h"
#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::amp {

struct AutocastOptions {
    std::optional<DeviceType> device = {};  // none: every device; other devices keep their outer setting
    // float16 or bfloat16; float32 turns the scope off, so that the precision may be a variable. Other dtypes
    // throw Error(dtype).
    Dtype dtype = float16;
    bool enabled = true;  // false inside an enabled scope turns it off there; false everywhere equals no
                          // scope, bit for bit
    bool cache = true;    // cast each float32 leaf that requires grad once per scope, not at every use, and
                          // have normalisations write a 16-bit copy of their float32 results
    std::optional<Fp8> fp8 = {};  // none: no float8 products, also inside a scope that has them
};
std::ostream& operator<<(std::ostream& out, const AutocastOptions& options);  // AutocastOptions(device=…)

// Runs the ops of this thread in mixed precision until the end of the scope: matrix products, linear layers,
// convolutions and attention read their floating inputs as options.dtype, which makes them faster and halves
// their memory; ops that need range or accuracy, such as exp, softmax, norms and losses, compute in float32,
// and all others in the dtypes of their inputs. The list is in docs/guide/numerics.md. Parameters
// stay float32.
//
// With float16, amp::GradScaler keeps small gradients from becoming 0. Scopes nest, and end also when an
// exception leaves them. New threads start with autocast off. Weights that an optimizer updates are not cast
// after its first step: the optimizer writes a 16-bit copy of them with each step. float64 inputs are never
// lowered.
class [[nodiscard]] Autocast {
public:
    [[nodiscard]] explicit Autocast(const AutocastOptions& options = {});
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

private:
    bool enabled_[device_type_count];  // what was set before
    Dtype dtype_[device_type_count];
    std::optional<Fp8> fp8_[device_type_count];
    bool cache_;
};

// Whether autocast is on for a device in this thread, and the dtype of the innermost scope, enabled or not.
[[nodiscard]] bool autocast_enabled(DeviceType device);
[[nodiscard]] Dtype autocast_dtype(DeviceType device);

// Casts of one op by autocast on this thread since the last clear, while the report was on.
struct AutocastReportLine {
    std::string op;      // its name
    std::string policy;  // "low", "fp32", "fp32_out", "promote", "keep"
    // Dtype in which the op computed: of the inputs that its kernel read; float32 for 16-bit inputs of an op
    // without a kernel on the device, which runs as other ops.
    Dtype computed = float32;
    Dtype result = float32;
    std::uint64_t calls = 0;
    std::uint64_t casts = 0;       // tensors converted for it
    std::uint64_t cast_bytes = 0;  // bytes written by those conversions
    // Of a product in 16 bit inside a scope with fp8: why it is not in float8.
    std::string reason = {};
};
// Turns this thread's report on or off (off by default; it costs a table look-up per op). One line per op,
// pair of dtypes and reason.
void collect_autocast_report(bool on);
[[nodiscard]] std::vector<AutocastReportLine> autocast_report();
void clear_autocast_report();

}  // namespace mezzo::amp

#pragma GCC visibility pop
