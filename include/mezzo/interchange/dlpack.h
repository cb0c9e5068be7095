// Exchange of tensors with other libraries by DLPack, without copies.
//
//   dlpack::DLManagedTensorVersioned* const exported = dlpack::to_dlpack_versioned(x);
//   y = dlpack::from_dlpack(exported);  // a tensor on the memory of x
#pragma once

#include <cstdint>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::dlpack {

// The structs of DLPack 1.1 (dmlc/dlpack), with the same layout: pointers to the structs of DLPack's own
// header may be cast to these, and back.
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
enum TypeCode : std::uint8_t {
    type_int = 0,
    type_uint = 1,
    type_float = 2,
    type_bfloat = 4,
    type_bool = 6,
    type_float8_e4m3fn = 10,
    type_float8_e5m2 = 12,
    type_float8_e8m0fnu = 14
};
inline constexpr std::uint64_t flag_read_only = 1, flag_copied = 2;
inline constexpr DLPackVersion version{1, 1};

// Exports x for another library, which calls the deleter when it is done. Until then x's memory stays
// allocated, even if all of mezzo's tensors on it are destroyed. Nothing is copied. mezzo does not notice the
// other library's writes (version checks, 16-bit copies of weights, flags of zero gradients): after such
// writes call x.mul_(1.0) under NoGrad. On CUDA it waits for queued work. The autograd history is not
// exported. Throws Error(value) for an undefined tensor, Error(device) for devices that DLPack does not
// define.
[[nodiscard]] DLManagedTensor* to_dlpack(const Tensor& x);
[[nodiscard]] DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x);

// Imports a tensor on another library's memory. Takes ownership of `managed`: calls the deleter once, when
// the last tensor on the memory is destroyed, or before it throws. Copies memory that is marked as read-only,
// because mezzo's tensors may be written to. The producer must have finished its work on the device. Throws
//  - Error(value) for null, another major version, sizes that are negative or do not fit, negative strides,
//    and memory that is not aligned to the size of an element;
//  - Error(dtype) for element types that mezzo lacks, and lanes other than 1;
//  - Error(device) for devices other than the CPU, pinned memory (imported as CPU memory) and existing CUDA
//    devices.
[[nodiscard]] Tensor from_dlpack(DLManagedTensor* managed);
[[nodiscard]] Tensor from_dlpack(DLManagedTensorVersioned* managed);

}  // namespace mezzo::dlpack

#pragma GCC visibility pop
