// Allocation of the tensors that an optimizer owns (moments, masters, 16-bit copies): each kind is cut from
// one allocation.
#pragma once

#include <vector>

#include "mezzo/tensor.h"

namespace mezzo::optim {

// Allocates tensors together. Each has its own storage, a part of the allocation, which is freed with the
// last of them. Parts are 256-byte aligned unless they follow another without a gap.
class Arena {
public:
    // make() is to assign a tensor to `target`, which must not move until then. adjoining: it begins where
    // the tensor ends that was added before, and has its dtype.
    void add(Tensor& target, const Shape& shape, Dtype dtype, bool adjoining = false) {
        wanted_.push_back({&target, shape, dtype, adjoining});
    }
    // Makes all of them. If memory runs out, throws Error(memory) and makes none.
    void make(Device device, bool zeroed);

private:
    struct Wanted {
        Tensor* target;
        Shape shape;
        Dtype dtype;
        bool adjoining;
    };
    std::vector<Wanted> wanted_;
};

}  // namespace mezzo::optim
