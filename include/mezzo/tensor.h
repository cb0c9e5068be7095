// The one tensor type: a cheap handle to shape, strides, dtype and reference-counted storage.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/device.h"
#include "mezzo/dtype.h"
#include "mezzo/shape.h"

namespace mezzo {

struct TensorImpl;  // src/core/tensor_impl.h
void retain(TensorImpl* impl) noexcept;
void release(TensorImpl* impl) noexcept;

struct TensorOptions {
    Dtype dtype = float32;
    Device device = cpu_device;
    bool requires_grad = false;
};

struct BackwardOptions;

// A handle: copies share the same elements, gradient and graph. A default-made one is undefined: only
// defined(), copying and assignment work. There is no ==: eq() compares element by element, all_close() as a
// whole.
class Tensor {
public:
    Tensor() = default;
    explicit Tensor(TensorImpl* impl) : impl_(impl) { retain(impl_); }
    Tensor(const Tensor& other) : impl_(other.impl_) { retain(impl_); }
    Tensor(Tensor&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
    // Makes the variable another handle, and writes no element: that is x[0].copy_(y), not x[0] = y.
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

    // A tensor with a copy of the values (row-major), on the CPU unless options say otherwise.
    template <class T>
    [[nodiscard]] static Tensor from(std::span<const T> values, const Shape& shape, TensorOptions options);
    template <class T> [[nodiscard]] static Tensor from(std::span<const T> values, const Shape& shape) {
        return from<T>(values, shape, {.dtype = dtype_of<T>()});
    }
    template <class T> [[nodiscard]] static Tensor from(const std::vector<T>& values, const Shape& shape) {
        return from<T>(std::span<const T>(values), shape);
    }
    // A 1-dim float32 tensor of the listed values: Tensor::from({1, 2, 3}).
    [[nodiscard]] static Tensor from(std::initializer_list<float> values);
    [[nodiscard]] static Tensor from(std::initializer_list<float> values, const Shape& shape);

    [[nodiscard]] bool defined() const { return impl_ != nullptr; }
    [[nodiscard]] const Shape& shape() const;
    [[nodiscard]] const Strides& strides() const;  // in elements
    [[nodiscard]] std::int64_t size(std::int64_t dim) const;
    [[nodiscard]] int dim() const;
    [[nodiscard]] std::int64_t numel() const;
    [[nodiscard]] Dtype dtype() const;
    [[nodiscard]] Device device() const;
    [[nodiscard]] bool is_contiguous() const;
    [[nodiscard]] bool is_view() const;  // shares its storage with a tensor it was made from

    // Elements. data<T>() needs a contiguous or strided CPU tensor of that dtype and points at its first
    // element.
    template <class T> [[nodiscard]] T* data() const;
    template <class T> [[nodiscard]] T item() const;  // the one element, converted to T; waits for the device
    // All elements in row-major order, converted to T.
    template <class T> [[nodiscard]] std::vector<T> to_vector() const;

    // Copies and conversions (differentiable; return *this unchanged when there is nothing to do, except
    // clone).
    [[nodiscard]] Tensor to(Dtype dtype) const;
    [[nodiscard]] Tensor to(Device device) const;
    [[nodiscard]] Tensor clone() const;
    [[nodiscard]] Tensor contiguous() const;

    // Views (differentiable; share storage). At most one -1 in reshape and expand's kept sizes.
    [[nodiscard]] Tensor reshape(const Shape& shape) const;  // copies when the strides do not allow a view
    [[nodiscard]] Tensor permute(const Axes& axes) const;
    [[nodiscard]] Tensor transpose(std::int64_t dim0, std::int64_t dim1) const;
    [[nodiscard]] Tensor t() const;  // 2-D transpose
    [[nodiscard]] Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t end,
                               std::int64_t step = 1) const;
    [[nodiscard]] Tensor select(std::int64_t dim, std::int64_t index) const;
    [[nodiscard]] Tensor operator[](std::int64_t index) const { return select(0, index); }
    [[nodiscard]] Tensor squeeze(std::int64_t dim) const;
    [[nodiscard]] Tensor unsqueeze(std::int64_t dim) const;
    [[nodiscard]] Tensor expand(const Shape& shape) const;
    [[nodiscard]] Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;

    // Autograd.
    [[nodiscard]] bool requires_grad() const;
    const Tensor& set_requires_grad(bool value = true) const;  // leaves of floating dtype only
    [[nodiscard]] bool is_leaf() const;
    [[nodiscard]] Tensor grad() const;            // undefined before the first backward
    void set_grad(const Tensor& gradient) const;  // undefined clears it; else same shape and device
    void backward() const;  // of a one-element tensor: d(self)/d(leaf) is added to every leaf's grad()
    void backward(const BackwardOptions& options) const;
    [[nodiscard]] Tensor detach() const;  // same elements, no history

    // In-place writes for optimizers, running statistics and initialisers: not differentiable, refused for
    // tensors that take part in recorded history unless a NoGrad scope is open. They bump version().
    const Tensor& copy_(const Tensor& source) const;  // broadcasts and converts
    const Tensor& fill_(double value) const;
    const Tensor& zero_() const { return fill_(0); }
    const Tensor& add_(const Tensor& other, double alpha = 1) const;  // self += alpha * other
    const Tensor& mul_(const Tensor& other) const;
    const Tensor& mul_(double value) const;
    const Tensor& uniform_(double low, double high) const;
    const Tensor& normal_(double mean, double stddev) const;
    [[nodiscard]] std::uint64_t version() const;  // of the storage: grows with every in-place write

    // Values, shape, dtype and device, shortened beyond 1,000 elements.
    [[nodiscard]] std::string to_string() const;

    [[nodiscard]] TensorImpl* impl() const { return impl_; }
    TensorImpl* operator->() const { return impl_; }

private:
    TensorImpl* impl_ = nullptr;
};

using Tensors = std::vector<Tensor>;

// Options of Tensor::backward.
struct BackwardOptions {
    Tensor gradient = {};       // d(objective)/d(self); needed unless self has one element
    bool retain_graph = false;  // keep what the graph holds for another backward
    bool create_graph = false;  // record the backward itself, for second derivatives
};

// Factories. Values of empty() are undefined.
[[nodiscard]] Tensor empty(const Shape& shape, TensorOptions options = {});
[[nodiscard]] Tensor zeros(const Shape& shape, TensorOptions options = {});
[[nodiscard]] Tensor ones(const Shape& shape, TensorOptions options = {});
[[nodiscard]] Tensor full(const Shape& shape, double value, TensorOptions options = {});
[[nodiscard]] Tensor scalar(double value, TensorOptions options = {});                    // 0-dim
[[nodiscard]] Tensor arange(std::int64_t end, TensorOptions options = {.dtype = int64});  // 0, 1, … end-1
[[nodiscard]] Tensor randn(const Shape& shape, TensorOptions options = {});               // standard normal
[[nodiscard]] Tensor rand(const Shape& shape, TensorOptions options = {});                // uniform in [0, 1)
[[nodiscard]] Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape,
                             TensorOptions options = {.dtype = int64});
// A random permutation of 0 … n-1.
[[nodiscard]] Tensor randperm(std::int64_t n, TensorOptions options = {.dtype = int64});
[[nodiscard]] Tensor empty_like(const Tensor& x);
[[nodiscard]] Tensor zeros_like(const Tensor& x);
[[nodiscard]] Tensor ones_like(const Tensor& x);

// Elements differ by at most atol + rtol * |b|, with equal NaN positions counted as equal.
[[nodiscard]] bool all_close(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

}  // namespace mezzo
