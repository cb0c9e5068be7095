// The tensors that an optimizer owns - moments, masters, 16-bit copies - each kind cut from one allocation.
#pragma once

#include <vector>

#include "mezzo/tensor.h"

namespace mezzo::optim {

// Tensors to be made together. Each has a storage of its own, 256-byte aligned, which keeps the allocation.
class Arena {
public:
    // Asks for `target`, which must stay where it is until make().
    void add(Tensor& target, const Shape& shape, Dtype dtype) { wanted_.push_back({&target, shape, dtype}); }
    // Makes all of them or, when memory runs out, none.
    void make(Device device, bool zeroed);

private:
    struct Wanted {
        Tensor* target;
        Shape shape;
        Dtype dtype;
    };
    std::vector<Wanted> wanted_;
};

}  // namespace mezzo::optim
