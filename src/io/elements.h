// The elements of a contiguous CPU tensor as bytes.
#pragma once

#include <cstddef>

#include "mezzo/tensor.h"

namespace mezzo::io {

struct Elements {
    void* data = nullptr;
    std::size_t bytes = 0;
};
Elements elements_of(const Tensor& tensor);

}  // namespace mezzo::io
