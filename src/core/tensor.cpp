#include <cstddef>
#include <new>

#include "core/enumerators.h"
#include "core/memory/free_list.h"
#include "core/step_recorder.h"
#include "core/storage_codes.h"
#include "core/tensor_impl.h"

namespace mezzo {

namespace detail {
std::atomic<std::int64_t> live_tensors{0}, live_nodes{0}, live_storages{0};
}

LiveObjects live_objects() {
    return {.tensors = detail::live_tensors.load(),
            .nodes = detail::live_nodes.load(),
            .storages = detail::live_storages.load()};
}

namespace {

// Memory of a T; in a free list, a link.
template <class T> union Memory {
    Memory* next;
    alignas(T) std::byte object[sizeof(T)];

    using List = FreeList<Memory, &Memory::next>;
    static void give(T* destroyed) noexcept { List::put(new (destroyed) Memory); }
};

TensorImpl* new_impl() {
    void* const memory = Memory<TensorImpl>::List::take();
    detail::live_tensors.fetch_add(1, std::memory_order_relaxed);
    return new (memory) TensorImpl;
}

void delete_impl(TensorImpl* impl) noexcept {
    impl->~TensorImpl();
    detail::live_tensors.fetch_sub(1, std::memory_order_relaxed);
    Memory<TensorImpl>::give(impl);
}

bool is_row_major(const Shape& shape, const Strides& strides) {
    std::int64_t step = 1;
    for (int i = shape.size() - 1; i >= 0; --i) {
        if (shape[i] == 0) return true;
        if (shape[i] != 1 && strides[i] != step) return false;
        step *= shape[i];
    }
    return true;
}

TensorImpl& checked(TensorImpl* impl) {
    check(impl != nullptr, ErrorKind::state, "tensor is undefined; assign a tensor to it first");
    return *impl;
}

}  // namespace

TensorImpl::~TensorImpl() {
    if (grad_meta == nullptr) return;
    grad_meta->~GradMeta();
    Memory<GradMeta>::give(grad_meta);
}

GradMeta& result_grads(TensorImpl& impl) {
    if (impl.grad_meta == nullptr) {
        void* const memory = Memory<GradMeta>::List::take();
        impl.grad_meta = new (memory) GradMeta(impl);
    }
    return *impl.grad_meta;
}

void retain(TensorImpl* impl) noexcept {
    if (impl != nullptr) add_reference(impl->refs);
}

void release(TensorImpl* impl) noexcept {
    if (impl != nullptr && drop_reference(impl->refs)) delete_impl(impl);
}

Tensor make_tensor(const Ref<Storage>& storage, const Shape& shape, const Strides& strides,
                   std::int64_t offset, Dtype dtype) {
    const std::int64_t numel = checked_numel("view", shape, size_of(dtype));
    Tensor result(new_impl());
    TensorImpl& impl = *result.impl();
    impl.dtype = dtype;
    impl.view = true;
    impl.contiguous = is_row_major(shape, strides);
    impl.shape = shape;
    impl.strides = strides;
    impl.numel = numel;
    impl.offset = impl.numel != 0 ? offset : 0;  // an empty tensor may have no memory to point into
    impl.storage = storage;
    return result;
}

Tensor alias(const Tensor& x) {
    const TensorImpl& impl = checked(x.impl());
    return make_tensor(impl.storage, impl.shape, impl.strides, impl.offset, impl.dtype);
}

Tensor empty(const Shape& shape, TensorOptions options) {
    check_dtype("empty", options.dtype);
    const std::int64_t numel = checked_numel("empty", shape, size_of(options.dtype));
    Ref<Storage> storage =
        allocate_storage(static_cast<std::size_t>(numel) * size_of(options.dtype), options.device);
    Tensor result(new_impl());
    TensorImpl& impl = *result.impl();
    impl.dtype = options.dtype;
    impl.shape = shape;
    impl.strides = contiguous_strides(shape);
    impl.numel = numel;
    impl.storage = std::move(storage);
    if (options.requires_grad) result.set_requires_grad();
    return result;
}

Tensor empty_like(const Tensor& x) { return empty(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }

const Shape& Tensor::shape() const { return checked(impl_).shape; }
const Strides& Tensor::strides() const { return checked(impl_).strides; }
std::int64_t Tensor::size(std::int64_t dim) const {
    const Shape& sizes = shape();
    check(!sizes.empty(), ErrorKind::shape, "size: a 0-dim tensor has no dimension ", dim);
    return sizes[wrap_dim("size", dim, sizes.size())];
}
int Tensor::dim() const { return shape().size(); }
std::int64_t Tensor::numel() const { return checked(impl_).numel; }
Dtype Tensor::dtype() const { return checked(impl_).dtype; }
Device Tensor::device() const { return checked(impl_).storage->device; }
bool Tensor::is_contiguous() const { return checked(impl_).contiguous; }
bool Tensor::is_view() const { return checked(impl_).view; }
std::uint64_t Tensor::version() const {
    return checked(impl_).storage->version.load(std::memory_order_relaxed);
}

bool Tensor::requires_grad() const {
    const GradMeta* meta = checked(impl_).grad_meta;
    return meta != nullptr && meta->requires_grad;
}

bool Tensor::is_leaf() const {
    const GradMeta* meta = checked(impl_).grad_meta;
    return meta == nullptr || !meta->node;
}

const Tensor& Tensor::set_requires_grad(bool value) const {
    if (value == requires_grad()) return *this;
    check(is_leaf(), ErrorKind::state,
          "set_requires_grad: the tensor is the result of a recorded op; use detach()");
    check(!value || !is_quantized(*this), ErrorKind::dtype,
          "set_requires_grad: an 8-bit weight of quantize_weights() is for inference and has no gradient");
    if (value) check_computes("set_requires_grad", dtype());
    check(!value || is_floating(dtype()), ErrorKind::dtype, "set_requires_grad: ", dtype(),
          " has no gradient; only floating dtypes do");
    impl_->grads().requires_grad = value;
    return *this;
}

Tensor Tensor::grad() const {
    TensorImpl& impl = checked(impl_);
    if (impl.grad_meta == nullptr && thread_state.recorder == nullptr) return {};
    return impl.grads().gradient.read();
}

void Tensor::set_grad(const Tensor& gradient) const {
    TensorImpl& impl = checked(impl_);
    if (!gradient.defined()) {
        if (impl.grad_meta != nullptr || thread_state.recorder != nullptr) impl.grads().gradient.drop();
        return;
    }
    check(!is_quantized(*this), ErrorKind::dtype,
          "set_grad: an 8-bit weight of quantize_weights() is for inference and has no gradient");
    check(gradient.shape() == shape(), ErrorKind::shape, "set_grad: gradient of shape ", gradient.shape(),
          " for a tensor of shape ", shape());
    check(is_floating(gradient.dtype()), ErrorKind::dtype, "set_grad: a gradient of ", gradient.dtype(),
          "; only floating dtypes have gradients");
    check(gradient.device() == device(), ErrorKind::device, "set_grad: gradient on ", gradient.device(),
          " for a tensor on ", device());
    impl.grads().gradient.put({gradient});
}

}  // namespace mezzo
