// Tensor: a cheap handle to shape, strides, dtype and reference-counted storage.
//
//   const Tensor a = Tensor::from({1, 2, 3, 4}, {2, 2}), b = randn({2, 2}, {.requires_grad = true});
//   const Tensor sum = (a * b).sum();
//   sum.backward();
//   std::cout << sum.item<double>() << '\n' << b.grad() << '\n';
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/device.h"
#include "mezzo/dtype.h"
#include "mezzo/indexing.h"
#include "mezzo/op_options.h"
#include "mezzo/shape.h"

#pragma GCC visibility push(default)

namespace mezzo {

struct [[gnu::visibility("hidden")]] TensorImpl;  // src/core/tensor_impl.h
void retain(TensorImpl* impl) noexcept;
void release(TensorImpl* impl) noexcept;

struct IntegerOptions;

struct TensorOptions {
    Dtype dtype = float32;
    Device device = cpu_device;
    bool requires_grad = false;
    operator IntegerOptions() const;
};

// TensorOptions of the functions whose results are integers if no dtype is given: arange(n, {.device = d}).
struct IntegerOptions {
    Dtype dtype = int64;
    Device device = cpu_device;
    bool requires_grad = false;
    operator TensorOptions() const {
        return {.dtype = dtype, .device = device, .requires_grad = requires_grad};
    }
};

inline TensorOptions::operator IntegerOptions() const {
    return {.dtype = dtype, .device = device, .requires_grad = requires_grad};
}

class Index;
struct BackwardOptions;
struct IndexPutOptions;  // index_ops.h
struct ScatterOptions;
enum class ScatterReduction : std::uint8_t;
struct QuantileOptions;  // reduce_ops.h
struct Sorted;           // sort_ops.h
class TensorIterator;

// A tensor. A handle: copies share the same elements, gradient and graph. A default-constructed tensor is
// undefined: only defined(), copying and assignment work; all other functions throw Error(state) or
// Error(value). a == b compares element by element and gives booleans; all_close() compares whole tensors.
//
// Negative dimensions and indices count from the end: -1 is the last. A dimension or index out of range
// throws Error(shape).
class Tensor {
public:
    Tensor() = default;
    explicit Tensor(TensorImpl* impl) : impl_(impl) { retain(impl_); }
    Tensor(const Tensor& other) : impl_(other.impl_) { retain(impl_); }
    Tensor(Tensor&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
    // Makes the variable refer to another tensor, and writes no element: write with x[0].copy_(y), not x[0] =
    // y.
    Tensor& operator=(const Tensor& other) & {
        Tensor copy(other);
        std::swap(impl_, copy.impl_);
        return *this;
    }
    Tensor& operator=(Tensor&& other) & noexcept {
        std::swap(impl_, other.impl_);
        return *this;
    }
    ~Tensor() { release(impl_); }

    // A tensor with a copy of the values (row-major), converted to options.dtype, on the CPU unless options
    // say otherwise. T is float16_t, bfloat16_t, float, double, int32_t, int64_t, uint8_t or bool. Throws
    // Error(shape) if there are more or fewer values than the shape has elements.
    template <detail::Element T>
    [[nodiscard]] static Tensor from(std::span<const T> values, const Shape& shape, TensorOptions options);
    template <detail::Element T>
    [[nodiscard]] static Tensor from(std::span<const T> values, const Shape& shape) {
        return from<T>(values, shape, {.dtype = dtype_of<T>()});
    }
    template <detail::Element T>
    [[nodiscard]] static Tensor from(const std::vector<T>& values, const Shape& shape) {
        if constexpr (std::is_same_v<T, bool>) {  // whose vector stores bits
            const std::vector<std::uint8_t> bytes(values.begin(), values.end());
            return from<std::uint8_t>(bytes, shape, {.dtype = dtype_of<bool>()});
        } else {
            return from<T>(std::span<const T>(values), shape);
        }
    }
    // A 1-dim tensor of the values.
    template <detail::Element T> [[nodiscard]] static Tensor from(const std::vector<T>& values) {
        return from(values, {std::int64_t(values.size())});
    }
    // A 1-dim float32 tensor of the listed values: Tensor::from({1, 2, 3}).
    [[nodiscard]] static Tensor from(std::initializer_list<float> values);
    [[nodiscard]] static Tensor from(std::initializer_list<float> values, const Shape& shape);

    [[nodiscard]] bool defined() const { return impl_ != nullptr; }
    [[nodiscard]] const Shape& shape() const;
    // Distance between neighbours along each dimension, in elements.
    [[nodiscard]] const Strides& strides() const;
    // Size of one dimension. Error(shape) for a 0-dim tensor.
    [[nodiscard]] std::int64_t size(std::int64_t dim) const;
    // Number of dimensions, 0 to 8.
    [[nodiscard]] int dim() const;
    // Number of elements.
    [[nodiscard]] std::int64_t numel() const;
    [[nodiscard]] Dtype dtype() const;
    [[nodiscard]] Device device() const;
    [[nodiscard]] bool is_contiguous() const;
    // Whether it shares its storage with a tensor that it was made from.
    [[nodiscard]] bool is_view() const;

    // The first element of a CPU tensor, for reading; strides() says where the others are. T is one of the
    // types of from(). Valid for as long as a tensor holds the storage. Throws Error(device) for a tensor
    // elsewhere, Error(dtype) if T is not its dtype.
    template <detail::Element T> [[nodiscard]] const T* data() const;
    // As data(), for writing. The call counts as an in-place write, such as copy_(): it increases version(),
    // so that graphs and Autocast's 16-bit copies see the change, and throws Error(state) where copy_() does.
    // Call it again before writing once more after an op has read the tensor.
    template <detail::Element T> [[nodiscard]] T* mutable_data() const;
    // The one element, converted to T: one of the types of from(), or another standard integer. Fractions are
    // cut off; integers of 8 bits keep the low bits, as by to(). Waits for the device. Throws Error(shape)
    // unless there is exactly one.
    template <detail::HostNumber T> [[nodiscard]] T item() const;
    // All elements in row-major order, converted to T as by item(). Waits for the device.
    template <detail::HostNumber T> [[nodiscard]] std::vector<T> to_vector() const;

    // Copies and conversions. Differentiable. All but clone() return *this if there is nothing to do. int8
    // and float8 are for storage: copies, views, cat() and files take them, other ops need a conversion.
    [[nodiscard]] Tensor to(Dtype dtype) const;
    // Copy on a device. Throws Error(device) for a device that does not exist.
    [[nodiscard]] Tensor to(Device device) const;
    [[nodiscard]] Tensor clone() const;
    // Row-major copy.
    [[nodiscard]] Tensor contiguous() const;

    // Views: they share the storage, and are differentiable.
    // The same elements in row-major order under another shape; one size may be -1 and is computed. Copies
    // where the strides do not allow a view. Throws Error(shape) where the number of elements differs.
    [[nodiscard]] Tensor reshape(const Shape& shape) const;
    // Dimension i of the result is dimension axes[i]. Error(shape) unless axes lists each dimension once.
    [[nodiscard]] Tensor permute(const Axes& axes) const;
    [[nodiscard]] Tensor transpose(std::int64_t dim0, std::int64_t dim1) const;
    // Transpose of a matrix; Error(shape) for anything else.
    [[nodiscard]] Tensor t() const;
    // Elements start, start + step, ... before end of one dimension. As in Python, a negative bound counts
    // from the end, a bound beyond either end is moved to that end, and end <= start gives 0 elements: none
    // of them is an error. Throws Error(value) for a step below 1 and Error(shape) for a 0-dim tensor.
    [[nodiscard]] Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t end,
                               std::int64_t step = 1) const;
    // Element `index` of one dimension, which the result lacks. Unlike bounds of slice(), an index out of
    // range throws Error(shape).
    [[nodiscard]] Tensor select(std::int64_t dim, std::int64_t index) const;
    [[nodiscard]] Tensor operator[](std::int64_t index) const { return select(0, index); }
    template <detail::NoIndex T> Tensor operator[](T) const = delete;  // x[1.7] and x[true] are mistakes
    // One entry per dimension, the rest whole, as in Python: x[{0, Slice(1, 4)}], x[{ellipsis, -1}],
    // x[{newaxis, Slice(0, 10, 2)}], x[Slice(-3)]. Write with x[...].copy_(y). Throws Error(shape) for an
    // integer out of range, for more entries than dimensions and for a second ellipsis.
    //
    // Entries may be tensors, as in PyTorch: x[index], x[{Slice(), index}], x[{rows, columns}], x[x > 0]. The
    // result is then a copy, so that writes to it do not reach x: index_put() writes. An int64 or int32
    // tensor takes one dimension; its values may be negative. Several broadcast to one shape, whose
    // dimensions replace theirs, or come first if other entries than numbers stand between the tensors.
    // A boolean tensor takes as many dimensions as it has, has their sizes, and is nonzero() of it, which
    // waits for the device. An index out of range throws Error(value) on the CPU; on CUDA, where a check
    // would wait for the device, the result is NaN (0 for integers).
    [[nodiscard]] Tensor operator[](std::initializer_list<Index> entries) const;
    [[nodiscard]] Tensor operator[](const Index& entry) const;
    // The elements of the first dimension, as views: for (const Tensor& row : x). Error(shape) for a 0-dim
    // tensor.
    [[nodiscard]] TensorIterator begin() const;
    [[nodiscard]] TensorIterator end() const;
    // Removes dimension dim if its size is 1, else returns *this.
    [[nodiscard]] Tensor squeeze(std::int64_t dim) const;
    // Inserts a dimension of size 1 before dim; dim() puts it last.
    [[nodiscard]] Tensor unsqueeze(std::int64_t dim) const;
    // Repeats dimensions of size 1, and adds dimensions in front, without copying; -1 keeps a size. Throws
    // Error(shape) where the tensor does not broadcast to the shape.
    [[nodiscard]] Tensor expand(const Shape& shape) const;
    // Joins dimensions start_dim to end_dim into one; a 0-dim tensor becomes [1]. Copies where reshape()
    // does.
    [[nodiscard]] Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;

#include "mezzo/methods.def"

    // a += b is a = a + b, dtype and history included: the variable refers to a new tensor, and other handles
    // and views do not change. To write to the elements use a.add_(b).
    Tensor& operator+=(const Tensor& other) &;
    Tensor& operator-=(const Tensor& other) &;
    Tensor& operator*=(const Tensor& other) &;
    Tensor& operator/=(const Tensor& other) &;
    Tensor& operator+=(Scalar other) &;
    Tensor& operator-=(Scalar other) &;
    Tensor& operator*=(Scalar other) &;
    Tensor& operator/=(double other) &;

    // Autograd.
    [[nodiscard]] bool requires_grad() const;
    // Throws Error(state) unless this is a leaf, and Error(dtype) unless its dtype is floating.
    const Tensor& set_requires_grad(bool value = true) const;
    // Whether it is not the result of a recorded op.
    [[nodiscard]] bool is_leaf() const;
    // Gradient of a leaf; undefined before the first backward.
    [[nodiscard]] Tensor grad() const;
    // Clears it with {}. Error(shape) or Error(device) unlike the tensor's, Error(dtype) unless floating.
    void set_grad(const Tensor& gradient) const;
    // Adds d(self)/d(leaf) to grad() of every leaf that requires grad. Throws Error(shape) where the tensor
    // has more than one element and no gradient is given, and Error(state) where it has no history, where a
    // saved tensor was written to since, or where an earlier backward without retain_graph released the
    // graph.
    void backward() const;
    void backward(const BackwardOptions& options) const;
    // Same elements, no history.
    [[nodiscard]] Tensor detach() const;

    // In-place writes for optimizers, running statistics and initialisers. They are not differentiable, and
    // increase version(). All throw Error(state) for a tensor that is part of recorded history, unless a
    // NoGrad scope is open, and for an expanded tensor, whose elements share memory. A second operand is
    // broadcast to this tensor's shape, or throws Error(shape).
    const Tensor& copy_(const Tensor& source) const;  // from any dtype and device
    const Tensor& fill_(Scalar value) const;
    const Tensor& zero_() const { return fill_(0); }
    // self += alpha * other, and self *= other. Error(device) for different devices; Error(dtype) for a
    // floating operand or a fraction with an integral tensor, and for a boolean tensor.
    const Tensor& add_(const Tensor& other, Scalar alpha = 1) const;
    const Tensor& mul_(const Tensor& other) const;
    const Tensor& mul_(Scalar value) const;
    // Fill with random numbers from the stream of manual_seed(). Throw Error(dtype) unless the tensor is
    // floating. Uniform in [low, high), and low if they are equal. Error(value) if low > high, and if a bound
    // or their difference is beyond the dtype (of a 16-bit dtype the difference: beyond float32).
    const Tensor& uniform_(double low, double high) const;
    const Tensor& normal_(double mean, double stddev) const;  // Error(value) for a negative stddev
    // Version of the storage: grows with every in-place write.
    [[nodiscard]] std::uint64_t version() const;

    // Text in PyTorch's format: four digits after the point, scientific if magnitudes differ by more than
    // 1000 times, only the edges beyond 1,000 elements; dtype, device and history if they are not the
    // default. Waits for the device.
    [[nodiscard]] std::string to_string() const;

    [[nodiscard]] TensorImpl* impl() const { return impl_; }
    TensorImpl* operator->() const { return impl_; }

private:
    TensorImpl* impl_ = nullptr;
};

using Tensors = std::vector<Tensor>;

// One entry of an index: an integer, a Slice, ellipsis, newaxis or a tensor.
class Index {
public:
    enum class Kind : std::uint8_t { number, range, dots, axis, tensor };
    Index(detail::Integer auto i) : kind_(Kind::number), slice_(static_cast<std::int64_t>(i)) {}
    Index(const Slice& slice) : kind_(Kind::range), slice_(slice) {}
    Index(Ellipsis) : kind_(Kind::dots) {}
    Index(NewAxis) : kind_(Kind::axis) {}
    Index(const Tensor& tensor) : kind_(Kind::tensor), tensor_(tensor) {}

    [[nodiscard]] Kind kind() const { return kind_; }
    [[nodiscard]] std::int64_t integer() const { return slice_.start; }
    [[nodiscard]] const Slice& slice() const { return slice_; }
    [[nodiscard]] const Tensor& tensor() const { return tensor_; }

private:
    Kind kind_;
    Slice slice_ = {};
    Tensor tensor_ = {};
};
inline Tensor Tensor::operator[](const Index& entry) const { return (*this)[{entry}]; }

std::ostream& operator<<(std::ostream& out, const Tensor& x);  // x.to_string()
std::ostream& operator<<(std::ostream& out, const TensorOptions& options);
namespace detail {
[[nodiscard]] std::string text_of(Device device);
}

// Iterator over the views x[0], x[1], ...
class TensorIterator {
public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Tensor;
    using difference_type = std::int64_t;
    using pointer = void;
    using reference = Tensor;

    TensorIterator() = default;
    TensorIterator(const Tensor& x, std::int64_t at) : x_(x), at_(at) {}
    [[nodiscard]] Tensor operator*() const { return x_[at_]; }
    TensorIterator& operator++() {
        ++at_;
        return *this;
    }
    TensorIterator operator++(int) {
        TensorIterator before = *this;
        ++at_;
        return before;
    }
    friend bool operator==(const TensorIterator& a, const TensorIterator& b) { return a.at_ == b.at_; }

private:
    Tensor x_;
    std::int64_t at_ = 0;
};

inline TensorIterator Tensor::begin() const { return {*this, 0}; }
inline TensorIterator Tensor::end() const { return {*this, size(0)}; }

// Options of Tensor::backward.
struct BackwardOptions {
    Tensor gradient = {};       // d(objective)/d(self); needed unless self has one element
    bool retain_graph = false;  // keep the graph's saved tensors for another backward
    bool create_graph = false;  // record the backward itself, for second derivatives
};

// Factories. All throw Error(shape) for a negative size or more than 2^63 - 1 bytes, Error(device) for a
// device that does not exist, Error(memory) if memory is lacking, and Error(dtype) for requires_grad of a
// dtype that is not floating. Values of empty() are undefined.
[[nodiscard]] Tensor empty(const Shape& shape, TensorOptions options = {});
[[nodiscard]] Tensor zeros(const Shape& shape, TensorOptions options = {});
[[nodiscard]] Tensor ones(const Shape& shape, TensorOptions options = {});
// Error(value) for a value beyond an integral dtype, here and in fill_(); fractions are cut off.
[[nodiscard]] Tensor full(const Shape& shape, Scalar value, TensorOptions options = {});
[[nodiscard]] Tensor scalar(Scalar value, TensorOptions options = {});  // 0-dim
// start, start + step, ... before end: int64 of integers, otherwise float32, computed in float64. start is 0
// and step 1 where they are not given. Error(value) for a step of 0 or one that leads away from end, and for
// numbers that are not finite or integers beyond +-2^53. Error(dtype) for boolean.
[[nodiscard]] Tensor arange(std::int64_t end, IntegerOptions options = {});
[[nodiscard]] Tensor arange(std::int64_t start, std::int64_t end, std::int64_t step = 1,
                            IntegerOptions options = {});
[[nodiscard]] inline Tensor arange(std::int64_t start, std::int64_t end, IntegerOptions options) {
    return arange(start, end, 1, options);
}
[[nodiscard]] Tensor arange_of(Scalar start, Scalar end, Scalar step, TensorOptions options);
template <std::floating_point T> [[nodiscard]] Tensor arange(T end, TensorOptions options = {}) {
    return arange_of(0, end, 1, options);
}
template <class A, class B, class C = int>
requires detail::NotAllIntegers<A, B, C>
[[nodiscard]] Tensor arange(A start, B end, C step = 1, TensorOptions options = {}) {
    return arange_of(start, end, step, options);
}
template <class A, class B>
requires detail::NotAllIntegers<A, B>
[[nodiscard]] Tensor arange(A start, B end, TensorOptions options) {
    return arange_of(start, end, 1, options);
}
// `steps` numbers from start to end, both included, evenly spaced and computed in float64. Error(value) for
// negative steps, for bounds or a difference of them that is not finite, and for integers beyond +-2^53 if
// the dtype is integral. Error(dtype) for boolean.
[[nodiscard]] Tensor linspace(Scalar start, Scalar end, std::int64_t steps, TensorOptions options = {});
// [n, m] with ones on the diagonal, zeros elsewhere; square without m.
[[nodiscard]] Tensor eye(std::int64_t n, TensorOptions options = {});
[[nodiscard]] Tensor eye(std::int64_t n, std::int64_t m, TensorOptions options = {});
// Random numbers from the stream that manual_seed() begins; docs/guide/numerics.md says what is equal on all
// devices. Standard normal, and uniform in [0, 1), also in 16 bit.
// Error(dtype) unless the dtype is floating.
[[nodiscard]] Tensor randn(const Shape& shape, TensorOptions options = {});
[[nodiscard]] Tensor rand(const Shape& shape, TensorOptions options = {});
// Integers from low to high - 1. Error(value) unless low < high, with bounds within +-2^53, at most 2^32
// values, and all of them in the range of the dtype.
[[nodiscard]] Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape,
                             IntegerOptions options = {});
// A random permutation of 0, 1, ..., n - 1. Error(value) unless n is in [0, 2^31) and the dtype's range has n
// - 1.
[[nodiscard]] Tensor randperm(std::int64_t n, IntegerOptions options = {});
// Tensors with the shape, dtype and device of x.
[[nodiscard]] Tensor empty_like(const Tensor& x);
[[nodiscard]] Tensor zeros_like(const Tensor& x);
[[nodiscard]] Tensor ones_like(const Tensor& x);
[[nodiscard]] Tensor full_like(const Tensor& x, Scalar value);
[[nodiscard]] Tensor rand_like(const Tensor& x);
[[nodiscard]] Tensor randn_like(const Tensor& x);
[[nodiscard]] Tensor randint_like(const Tensor& x, std::int64_t low, std::int64_t high);

// Whether all elements differ by at most atol + rtol * |b|. NaN equals NaN, and an infinity itself. Any
// dtypes and devices; waits for them. Throws Error(shape) for different shapes.
[[nodiscard]] bool all_close(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

}  // namespace mezzo

#pragma GCC visibility pop
