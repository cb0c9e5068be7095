#include "nn/replace.h"

#include <functional>

#include "core/gradient/leaf_state.h"
#include "core/memory/flat_view.h"
#include "core/sorting.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"

namespace mezzo::nn {

void replace_elements(const Tensor& tensor, const Tensor& value) {
    if (value.impl() == tensor.impl()) return;
    const std::uint64_t version = tensor.version();
    TensorImpl& impl = *tensor.impl();
    const bool converted = impl.dtype != value->dtype;
    impl.storage = value->storage;
    impl.dtype = value->dtype;
    impl.offset = value->offset;
    impl.strides = value->strides;
    impl.contiguous = value->contiguous;
    impl.view = false;
    // Caches that know the tensor at `version` must not take the new elements for the old ones.
    if (impl.storage) impl.storage->version.store(version + 1, std::memory_order_relaxed);
    if (!impl.grad_meta) return;
    impl.grad_meta->copy16.clear();
    drop_frozen16(*impl.grad_meta);
    if (impl.grad_meta->state) impl.grad_meta->state->moved(tensor.device());
    GradMeta::Move& moved = impl.grad_meta->moved;
    if (!converted) moved = {moved.to == version ? moved.from : version, version + 1};
}

void place_side_by_side(const Tensors& tensors) {
    bool placed = true, alike = true;
    for (std::size_t i = 1; i < tensors.size(); ++i) {
        placed = placed && directly_behind(tensors[i - 1], tensors[i]);
        alike =
            alike && tensors[i].dtype() == tensors[0].dtype() && tensors[i].device() == tensors[0].device();
    }
    if (placed || !alike) return;
    NoGrad plain;
    std::vector<std::int64_t> sizes;
    std::int64_t total = 0;
    for (const Tensor& x : tensors) total += sizes.emplace_back(x.numel());
    const Tensor whole = empty({total}, {.dtype = tensors[0].dtype(), .device = tensors[0].device()});
    const Tensors parts = cut_side_by_side(whole, sizes);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Tensor part = parts[i].reshape(tensors[i].shape());
        part.copy_(tensors[i].detach());
        replace_elements(tensors[i], part);
    }
}

std::vector<Tensors> groups_side_by_side(const Tensors& tensors) {
    Tensors sorted = tensors;
    sort_by(sorted, [](const Tensor& a, const Tensor& b) { return std::less<>()(raw(a), raw(b)); });
    std::vector<Tensors> groups;
    for (std::size_t i = 1; i < sorted.size(); ++i) {
        if (!directly_behind(sorted[i - 1], sorted[i])) continue;
        if (groups.empty() || groups.back().back().impl() != sorted[i - 1].impl())
            groups.push_back({sorted[i - 1]});
        groups.back().push_back(sorted[i]);
    }
    return groups;
}

}  // namespace mezzo::nn
