// DLPack: tensors of other libraries without a copy, and mezzo's for them.
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::dlpack {

// The structs of DLPack 1.1 (dmlc/dlpack), field by field: a pointer to one of its own header may be cast to
// these, and back.
struct DLDevice {
    std::int32_t device_type;  // DeviceCode
    std::int32_t device_id;
};
struct DLDataType {
    std::uint8_t code;  // TypeCode
    std::uint8_t bits;
    std::uint16_t lanes;
};
struct DLTensor {
    void* data;
    DLDevice device;
    std::int32_t ndim;
    DLDataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null: row-major and without gaps
    std::uint64_t byte_offset;
};
// Before version 1.0.
struct DLManagedTensor {
    DLTensor dl_tensor;
    void* manager_ctx;
    void (*deleter)(DLManagedTensor* self);
};
struct DLPackVersion {
    std::uint32_t major;
    std::uint32_t minor;
};
struct DLManagedTensorVersioned {
    DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(DLManagedTensorVersioned* self);
    std::uint64_t flags;
    DLTensor dl_tensor;
};
enum DeviceCode : std::int32_t { device_cpu = 1, device_cuda = 2, device_cuda_host = 3 };
enum TypeCode : std::uint8_t { type_int = 0, type_uint = 1, type_float = 2, type_bfloat = 4, type_bool = 6 };
inline constexpr std::uint64_t flag_read_only = 1, flag_copied = 2;
inline constexpr DLPackVersion version{1, 1};

// x for another library, which calls the deleter when it is done: until then x's memory stays, even if all of
// mezzo's tensors on it are gone. Nothing is copied. In-place checks, 16-bit copies of weights and marks of
// zero gradients miss the other's writes: after these, call x.mul_(1.0) under NoGrad. On CUDA queued work has
// been waited for. The history is left behind. Throws Error(value) for an undefined tensor, Error(device) for
// devices that DLPack does not know.
[[nodiscard]] DLManagedTensor* to_dlpack(const Tensor& x);
[[nodiscard]] DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x);

// A tensor on another library's memory. It takes over `managed`: the deleter is called once, when the last
// tensor on the memory is gone, or here if this throws. Memory that is marked as read-only is copied, because
// mezzo's tensors may be written to. The producer must have finished its work on the device. Throws
//  - Error(value) for null, another major version, sizes that are negative or do not fit, negative strides,
//    and memory that is not aligned to the size of an element;
//  - Error(dtype) for element types that mezzo lacks, and lanes other than 1;
//  - Error(device) for devices other than the CPU, pinned memory (which becomes the CPU's) and CUDA's that
//    are there.
[[nodiscard]] Tensor from_dlpack(DLManagedTensor* managed);
[[nodiscard]] Tensor from_dlpack(DLManagedTensorVersioned* managed);

}  // namespace mezzo::dlpack

#pragma GCC visibility pop
