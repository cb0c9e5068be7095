// The .npy format: a header with dtype, order and shape, then the elements.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mezzo/tensor.h"

namespace mezzo::io {

// The fields of a header.
struct NpyHeader {
    char kind = 'f';  // of NumPy's dtype: f i u b
    int bytes = 4;    // of an element
    bool big_endian = false;
    bool fortran = false;
    Shape shape;
    std::uint64_t data_begin = 0, data_bytes = 0;
};

// Reads the next bytes of a file; throws if there are fewer.
using NpySource = std::function<void(void* to, std::size_t bytes)>;

// Reads up to the first element. Error messages begin with `where`.
NpyHeader read_npy_header(const std::string& where, const NpySource& next);
// Reads the elements behind the header.
Tensor read_npy_elements(const std::string& where, const NpyHeader& header, const NpySource& next);

// npy_tensor() returns the tensor as save_npy() writes it, contiguous on the CPU; npy_header() returns its
// header.
Tensor npy_tensor(const char* op, const Tensor& tensor);
std::string npy_header(const Tensor& tensor);

}  // namespace mezzo::io
