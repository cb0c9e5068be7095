#include "core/memory/flat_view.h"

#include <algorithm>

#include "core/memory/allocator.h"
#include "core/tensor_impl.h"

namespace mezzo {

namespace {

// The storage that x shares with its neighbours in memory.
const Ref<Storage>& common_storage(const Tensor& x) {
    const auto& block = static_cast<const Block&>(*x->storage);  // every Storage is one
    return block.part ? block.arena : x->storage;
}

bool same_but_for_first(const Shape& a, const Shape& b) {
    return a.size() == b.size() && a.size() > 0 && std::equal(a.begin() + 1, a.end(), b.begin() + 1);
}

}  // namespace

bool directly_behind(const Tensor& first, const Tensor& second) {
    if (!first.defined() || !second.defined() || first.dtype() != second.dtype()) return false;
    if (!first.is_contiguous() || !second.is_contiguous() || first.numel() == 0 || second.numel() == 0)
        return false;
    return common_storage(first) == common_storage(second) &&
           first->bytes() + first.numel() * std::int64_t(size_of(first.dtype())) == second->bytes();
}

Tensor as_one(std::span<const Tensor> tensors) {
    if (tensors.empty() || !tensors[0].defined()) return {};
    const Tensor& first = tensors[0];
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const bool fits =
            i == 0 ? first.is_contiguous() && first.numel() > 0 : directly_behind(tensors[i - 1], tensors[i]);
        if (!fits || !same_but_for_first(first.shape(), tensors[i].shape())) return {};
        rows += tensors[i].size(0);
    }
    Shape shape = first.shape();
    shape[0] = rows;
    const Ref<Storage>& storage = common_storage(first);
    const std::int64_t offset =
        (first->bytes() - static_cast<char*>(storage->data)) / std::int64_t(size_of(first.dtype()));
    return make_tensor(storage, shape, contiguous_strides(shape), offset, first.dtype());
}

std::vector<Tensor> cut_side_by_side(const Tensor& whole, std::span<const std::int64_t> sizes) {
    const std::int64_t row = whole.size(0) > 0 ? whole.numel() / whole.size(0) : 0;
    const std::size_t element = size_of(whole.dtype());
    std::size_t offset = static_cast<std::size_t>(whole->offset) * element;
    std::vector<Tensor> parts;
    for (const std::int64_t size : sizes) {
        Shape shape = whole.shape();
        shape[0] = size;
        const std::size_t bytes = static_cast<std::size_t>(size * row) * element;
        parts.push_back(make_tensor(part_of(whole->storage, offset, bytes), shape, contiguous_strides(shape),
                                    0, whole.dtype()));
        parts.back()->view = false;
        offset += bytes;
    }
    return parts;
}

}  // namespace mezzo
