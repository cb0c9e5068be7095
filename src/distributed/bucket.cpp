#include "distributed/bucket.h"

#include "core/memory/memory_hook.h"
#include "core/tensor_impl.h"

namespace mezzo::distributed {

Bucket::Bucket(const BucketLayout& layout, const Tensors& leaves) : layout_(layout) {
    for (const BucketLayout::Entry& part : layout_.parts) shapes_.push_back(leaves[part.place].shape());
    allocate();
}

// The memory outlives the captured step that allocates it.
void Bucket::allocate() {
    const OutsideStep memory;
    memory_ = zeros({layout_.elements}, {.dtype = layout_.dtype, .device = layout_.device});
    homes_.clear();
    const std::size_t element = size_of(layout_.dtype);
    for (std::size_t i = 0; i < shapes_.size(); ++i)
        homes_.push_back(part_of(memory_->storage, std::size_t(layout_.parts[i].offset) * element,
                                 std::size_t(shapes_[i].numel()) * element));
}

Tensor Bucket::place(std::size_t i) const {
    const Tensor result =
        make_tensor(homes_[i], shapes_[i], contiguous_strides(shapes_[i]), 0, layout_.dtype);
    result->view = false;
    return result;
}

Tensor Bucket::view(std::size_t i) const {
    return homes_[i]->refs.load() == 1 && shapes_[i].numel() != 0 ? place(i) : Tensor();
}

bool Bucket::is_view(std::size_t i, const Tensor& gradient) const {
    return gradient->storage == homes_[i] && gradient.is_contiguous();
}

// The flags of the previous step have been overwritten by the reduction. They seldom change, so they are
// copied from a tensor on the device: nothing is copied from the host, which a captured step does not allow.
void Bucket::write_flags(const std::vector<float>& flags) {
    const std::int64_t count = std::int64_t(flags.size());
    if (flags != flags_) {
        const OutsideStep memory;
        own_flags_ = Tensor::from(flags, {count}).to(layout_.dtype).to(layout_.device);
        flags_ = flags;
    }
    memory_.slice(0, layout_.flags, layout_.flags + count).copy_(own_flags_);
}

Tensor Bucket::pack(const Tensors& gradients, bool in_place) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const bool own = gradients[i].defined() && is_view(i, gradients[i]);
        if (own || homes_[i]->refs.load() == 1) continue;
        allocate();  // a caller holds an older gradient, which must not change
        break;
    }
    std::vector<float> flags;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const Tensor& gradient = gradients[i];
        flags.push_back(gradient.defined() ? 1.0f : 0.0f);
        if (!gradient.defined())
            place(i).zero_();
        else if (!is_view(i, gradient))
            place(i).copy_(gradient);
    }
    write_flags(flags);
    return in_place ? memory_ : memory_.to(cpu_device);
}

void Bucket::take_back(const Tensor& host) {
    if (host.impl() != memory_.impl()) memory_.copy_(host);
}

std::vector<bool> Bucket::present() const {
    const std::int64_t count = std::int64_t(shapes_.size());
    std::vector<bool> result;
    for (const float flag : memory_.slice(0, layout_.flags, layout_.flags + count).to_vector<float>())
        result.push_back(flag != 0);
    return result;
}

Tensor Bucket::unpack(std::size_t i, const Tensor& gradient) const {
    if (!gradient.defined()) {
        const Tensor own = view(i);
        return own.defined() ? own : place(i).clone();
    }
    if (is_view(i, gradient))
        gradient->storage->version.fetch_add(1, std::memory_order_relaxed);
    else
        gradient.copy_(place(i));
    return gradient;
}

}  // namespace mezzo::distributed
