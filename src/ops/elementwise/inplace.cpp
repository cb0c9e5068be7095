// Writes into a tensor's memory, for optimizers, running statistics and initialisers. They are never
// recorded.
#include "autograd/op_observer.h"
#include "core/random_offset.h"
#include "core/step_recorder.h"
#include "kernels/copy.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"
#include "kernels/random.h"
#include "mezzo/autograd.h"
#include "ops/common.h"

#include <cmath>

namespace mezzo {

namespace {

const KernelOf<kernels::add> add_kernel{"add_"};
const KernelOf<kernels::mul> mul_kernel{"mul_"};
const KernelOf<kernels::mul_scalar> mul_scalar_kernel{"mul_"};
const KernelOf<kernels::CopyInto> copy_into{"copy_"};
const KernelOf<kernels::Fill> fill_kernel{"fill_"};
const KernelOf<kernels::RandomUniform> uniform_kernel{"uniform_"};
const KernelOf<kernels::RandomNormal> normal_kernel{"normal_"};

void check_writable(const char* op, const Tensor& x) {
    check_defined(op, x, any_dtype);
    check(!(grad_enabled() && tracked(x)), ErrorKind::state, op,
          ": the tensor takes part in recorded history, and in-place writes are not differentiable; open a "
          "NoGrad scope or use "
          "the function that returns a new tensor");
    const Strides& strides = x.strides();
    for (int d = 0; d < x.dim(); ++d)
        check(strides[d] != 0 || x.size(d) <= 1 || x.numel() == 0, ErrorKind::state, op,
              ": several elements of this expanded tensor share one place; write to a clone()");
}

void check_source(const char* op, const Tensor& x, const Tensor& source) {
    check_defined(op, source, any_dtype);
    check(!(grad_enabled() && tracked(source)), ErrorKind::state, op,
          ": the source has recorded history that the write would lose; detach() it or open a NoGrad scope");
    check(broadcast_shapes(op, x.shape(), source.shape()) == x.shape(), ErrorKind::shape, op, ": ",
          source.shape(), " does not broadcast to ", x.shape());
}

// The other operand of arithmetic must be on x's device, and x's dtype must be able to hold the result.
void check_operand(const char* op, const Tensor& x, const Tensor& other) {
    check_source(op, x, other);
    check_computes(op, x.dtype());
    check_computes(op, other.dtype());
    check(x.device() == other.device(), ErrorKind::device, op, ": tensors are on ", x.device(), " and ",
          other.device(), "; move one with to()");
    check(is_floating(x.dtype()) || !is_floating(other.dtype()), ErrorKind::dtype, op, ": a ", other.dtype(),
          " does not fit into ", x.dtype(), "; convert it with to()");
    check(x.dtype() != boolean, ErrorKind::dtype, op, ": no arithmetic on boolean");
}

void written(const Tensor& x) {
    if (x->storage) x->storage->version.fetch_add(1, std::memory_order_relaxed);
    tell_wrote(x);
}

// Throws for a fractional factor of an integral tensor, which would be truncated silently.
void check_factor(const char* op, const Tensor& x, Scalar factor) {
    const double real = factor.to<double>();
    check(is_floating(x.dtype()) || real == std::floor(real), ErrorKind::dtype, op, ": ", real,
          " is no whole number, and the tensor is ", x.dtype(), "; convert it with to(float32)");
    check_value(op, "the factor", x.dtype() == uint8 && real < 0 ? Scalar(-real) : factor, x.dtype());
}

// out = x * factor, in out's dtype.
void multiply(const Tensor& x, Scalar factor, const Tensor& out) {
    if (out.dtype() == int64 && exceeds_double(factor)) {
        const Tensor operands[] = {x, scalar(factor, {.dtype = int64, .device = x.device()})};
        return mul_kernel(operands, {}, out);
    }
    mul_scalar_kernel(In(&x, 1), {.alpha = kernel_number(factor, out.dtype())}, out);
}

// Whether reading `source` while x is written would see new values.
bool overlaps(const Tensor& x, const Tensor& source) {
    if (!(x->storage == source->storage)) return false;
    return x->offset != source->offset || !(x.strides() == source.strides()) ||
           !(x.shape() == source.shape()) || x.dtype() != source.dtype();
}

// Runs a kernel whose result replaces x; kernels write contiguous results only.
template <class Run> void write_result(const Tensor& x, const Run& run) {
    if (x.is_contiguous()) {
        run(x);
    } else {
        const Tensor result = empty(x.shape(), {.dtype = x.dtype(), .device = x.device()});
        run(result);
        copy_into(In(&result, 1), {}, x);
    }
    written(x);
}

template <class A> void random_write(const KernelOf<A>& kernel, const Tensor& x, std::type_identity_t<A> at) {
    with_random((std::uint64_t(x.numel()) + 3) / 4, [&](const RandomState& stream) {
        at.stream = stream;
        write_result(x, [&](const Tensor& out) { kernel({}, at, out); });
    });
}

void check_random(const char* op, const Tensor& x) {
    check_writable(op, x);
    check_floating(op, x);
}

}  // namespace

template <detail::Element T> T* Tensor::mutable_data() const {
    check_writable("mutable_data", *this);
    check(device().type() == DeviceType::cpu, ErrorKind::device, "mutable_data: the elements are on ",
          device(), "; use copy_()");
    check(dtype() == dtype_of<T>(), ErrorKind::dtype, "mutable_data: the tensor holds ", dtype(),
          ", asked for ", dtype_of<T>());
    refuse_in_capture("mutable_data", device(), "write through a pointer; use copy_()");
    written(*this);
    return reinterpret_cast<T*>(impl_->bytes());
}
#define MEZZO_DTYPE(name, T, ...) template T* Tensor::mutable_data<T>() const;
#include "mezzo/dtypes.def"
#undef MEZZO_DTYPE

const Tensor& Tensor::copy_(const Tensor& source) const {
    check_writable("copy_", *this);
    check_source("copy_", *this, source);
    NoGrad plain;
    Tensor from = source.to(device());
    if (overlaps(*this, from)) from = from.clone();
    if (numel() > 0) copy_into(In(&from, 1), {}, *this);
    written(*this);
    return *this;
}

const Tensor& Tensor::fill_(Scalar value) const {
    check_writable("fill_", *this);
    check_value("fill_", "value", value, dtype());
    if (numel() > 0) fill_kernel({}, {.value = element_value(value, dtype())}, *this);
    written(*this);
    if (Storage* const storage = impl()->storage.get();
        value.to<double>() == 0 && storage &&
        static_cast<std::size_t>(numel()) * size_of(dtype()) == storage->bytes)
        storage->zeroed = version();
    return *this;
}

const Tensor& Tensor::add_(const Tensor& other, Scalar alpha) const {
    check_writable("add_", *this);
    check_operand("add_", *this, other);
    check_factor("add_", *this, alpha);
    NoGrad plain;
    Tensor scaled = overlaps(*this, other) ? other.clone() : other;
    if (alpha.to<double>() != 1) {
        const Dtype wide = is_floating(dtype()) ? promote(dtype(), float32) : dtype();
        scaled = empty(other.shape(), {.dtype = promote(other.dtype(), wide), .device = device()});
        multiply(other, alpha, scaled);
    }
    const Tensor operands[] = {*this, scaled};
    write_result(*this, [&](const Tensor& out) { add_kernel(operands, {}, out); });
    return *this;
}

const Tensor& Tensor::mul_(const Tensor& other) const {
    check_writable("mul_", *this);
    check_operand("mul_", *this, other);
    NoGrad plain;
    const Tensor operands[] = {*this, overlaps(*this, other) ? other.clone() : other};
    write_result(*this, [&](const Tensor& out) { mul_kernel(operands, {}, out); });
    return *this;
}

const Tensor& Tensor::mul_(Scalar value) const {
    check_writable("mul_", *this);
    check_computes("mul_", dtype());
    check(dtype() != boolean, ErrorKind::dtype, "mul_: no arithmetic on boolean");
    check_factor("mul_", *this, value);
    write_result(*this, [&](const Tensor& out) { multiply(*this, value, out); });
    return *this;
}

const Tensor& Tensor::uniform_(double low, double high) const {
    check_random("uniform_", *this);
    check(low <= high, ErrorKind::value, "uniform_: low ", low, " is not <= high ", high);
    const double most = dtype_info(dtype()).max;
    check(low >= -most && high <= most && high - low <= dtype_info(promote(dtype(), float32)).max,
          ErrorKind::value, "uniform_: low ", low, " and high ", high,
          ", or their difference, leave the range of ", dtype());
    random_write(uniform_kernel, *this, {.low = low, .high = high});
    return *this;
}

const Tensor& Tensor::normal_(double mean, double stddev) const {
    check_random("normal_", *this);
    check(stddev >= 0, ErrorKind::value, "normal_: stddev ", stddev, " is negative or not a number");
    random_write(normal_kernel, *this, {.mean = mean, .stddev = stddev});
    return *this;
}

}  // namespace mezzo
