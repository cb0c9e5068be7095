// Conversions between dtypes and devices, and copies.
#include "core/backend.h"
#include "core/enumerators.h"
#include "core/memory/staging.h"
#include "core/step_recorder.h"
#include "kernels/copy.h"
#include "mezzo/autograd.h"
#include "ops/common.h"

#include <vector>

namespace mezzo {

namespace {

const Op<kernels::Cast> cast_op{
    {.name = "cast", .saves = save_none, .result = ResultDtype::requested, .strided = true},
    [](const Node& c, const Tensors& g) -> Tensors { return {cast(g[0], c.grad_dtype(0))}; }};

const Op<kernels::Cast> copy_op{{.name = "copy", .saves = save_none, .strided = true},
                                [](const Node&, const Tensors& g) -> Tensors { return {g[0]}; }};

// The copy functions of the backends move the data; there is no kernel.
const Op<NoAttributes> to_device_op{
    {.name = "to_device", .saves = save_none, .strided = true},
    [](const Node& c, const Tensors& g) -> Tensors { return {g[0].to(c.inputs[0].device)}; }};

Tensor copied(const Tensor& x) { return call(copy_op, {x}, {}, x.shape()); }

// Copies all bytes of x to y. Both are contiguous, on different devices.
void transfer(const Tensor& x, const Tensor& y) {
    const std::size_t bytes = std::size_t(x.numel()) * size_of(x.dtype());
    if (bytes == 0) return;
    const Device from = x.device(), to = y.device();
    refuse_in_capture("to", from, "copy to the host or another device");
    refuse_in_capture("to", to, "copy from the host or another device; pass the tensor as an input");
    const Backend *source = backend(from.type()), *target = backend(to.type());
    if (from.type() == DeviceType::cpu) return copy_from_host(to, raw(y), raw(x), bytes);
    if (to.type() == DeviceType::cpu) return source->copy_out(from.index, raw(y), raw(x), bytes);
    std::vector<char> host(bytes);
    source->copy_out(from.index, host.data(), raw(x), bytes);
    target->copy_in(to.index, raw(y), host.data(), bytes);
    target->synchronize(to.index);
}

void check_present(Device device) {
    const Backend* target = backend(device.type());
    check(target != nullptr, ErrorKind::device, "to: this build has no ", name(device.type()), " backend");
    const int count = target->device_count();
    check(device.index >= 0 && device.index < count, ErrorKind::device, "to: no device ", device, ", ", count,
          " of that type found");
}

}  // namespace

Tensor cast(const Tensor& x, Dtype dtype) {
    check_dtype("to", dtype);
    check_defined("cast", x, any_dtype);
    if (x.dtype() == dtype) return x;
    Tensor y = call(cast_op, {x}, {}, x.shape(), dtype);
    y->from_cast = dtype == float32 && is_16bit(x.dtype());
    return y;
}

Tensor Tensor::to(Dtype dtype) const { return cast(*this, dtype); }

Tensor Tensor::to(Device target) const {
    check_defined("to", *this, any_dtype);
    if (target == device()) return *this;
    check_present(target);
    const Tensor x = [&] {
        NoGrad plain;
        return contiguous();
    }();
    Tensor y = empty(shape(), {.dtype = dtype(), .device = target});
    transfer(x, y);
    y->from_cast = (*this)->from_cast;
    return record_view(to_device_op, *this, NoAttributes(), y);
}

Tensor Tensor::clone() const {
    check_defined("clone", *this, any_dtype);
    Tensor y = copied(*this);
    y->from_cast = (*this)->from_cast;
    return y;
}

Tensor Tensor::contiguous() const {
    check_defined("contiguous", *this, any_dtype);
    return is_contiguous() ? *this : clone();
}

Tensor Tensor::detach() const {
    check_defined("detach", *this, any_dtype);
    return alias(*this);
}

}  // namespace mezzo
