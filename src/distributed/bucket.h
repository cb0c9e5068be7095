// The memory in which gradients travel.
#pragma once

#include <vector>

#include "core/storage.h"
#include "distributed/bucket_layout.h"
#include "mezzo/tensor.h"

namespace mezzo::distributed {

class Bucket {
public:
    // leaves: by place, as in the layout.
    Bucket(const BucketLayout& layout, const Tensors& leaves);

    const BucketLayout& layout() const { return layout_; }
    const Tensor& memory() const { return memory_; }
    // What the last pack() copied into the memory beside the gradients; undefined before the first.
    const Tensor& own_flags() const { return own_flags_; }

    // The place of part i as a tensor of its leaf's shape; undefined while somebody holds a gradient that lay there.
    Tensor home(std::size_t i) const;
    bool at_home(std::size_t i, const Tensor& gradient) const;

    // Puts the gradients, one per part, into their places; undefined ones are zeros. Those that lie there already cost nothing. Returns all of the bucket's
    // elements for the reduction: in host memory, or where they are.
    Tensor pack(const Tensors& gradients, bool in_place = false);
    // What pack() returned has been reduced: brings it to the bucket's device.
    void take_back(const Tensor& host);
    // After take_back(): whether any rank had a gradient of each part.
    std::vector<bool> present() const;
    // The reduced gradient of part i. The gradient that pack() got is given back with the new values; for an undefined one it is a new tensor.
    Tensor unpack(std::size_t i, const Tensor& gradient) const;

private:
    void allocate();
    void write_flags(const std::vector<float>& flags);
    Tensor place(std::size_t i) const;

    BucketLayout layout_;
    std::vector<Shape> shapes_;
    Tensor memory_;
    std::vector<Ref<Storage>> homes_;
    std::vector<float> flags_;  // that own_flags_ has
    Tensor own_flags_;
};

}  // namespace mezzo::distributed
