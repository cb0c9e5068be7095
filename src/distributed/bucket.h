// Flat buffer that a bucket of gradients is packed into for an all-reduce.
#pragma once

#include <vector>

#include "core/memory/storage.h"
#include "distributed/bucket_layout.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

class Bucket {
public:
    // `leaves` are all parameters; the parts of the layout have their indices.
    Bucket(const BucketLayout& layout, const Tensors& leaves);

    const BucketLayout& layout() const { return layout_; }
    const Tensor& memory() const { return memory_; }
    // The flags that the last pack() copied behind the gradients; undefined before the first pack().
    const Tensor& own_flags() const { return own_flags_; }

    // View of part i in the buffer, in the shape of its leaf; undefined while a tensor still refers to that
    // memory.
    Tensor view(std::size_t i) const;
    bool is_view(std::size_t i, const Tensor& gradient) const;

    // Copies the gradients, one per part, into the buffer; undefined gradients become zeros, and a gradient
    // that is a view of its part is not copied. Returns all elements of the bucket for the reduction: the
    // buffer itself if in_place, otherwise a copy in host memory.
    Tensor pack(const Tensors& gradients, bool in_place = false);
    // Copies the reduced tensor that pack() returned back to the bucket's device.
    void take_back(const Tensor& host);
    // After take_back(): whether any rank had a gradient of each part.
    std::vector<bool> present() const;
    // Returns the reduced gradient of part i: the gradient that was passed to pack(), with the new values, or
    // a new tensor if that was undefined.
    Tensor unpack(std::size_t i, const Tensor& gradient) const;

private:
    void allocate();
    void write_flags(const std::vector<float>& flags);
    Tensor place(std::size_t i) const;

    BucketLayout layout_;
    std::vector<Shape> shapes_;
    Tensor memory_;
    std::vector<Ref<Storage>> homes_;
    std::vector<float> flags_;  // the values of own_flags_
    Tensor own_flags_;
};

}  // namespace mezzo::distributed
