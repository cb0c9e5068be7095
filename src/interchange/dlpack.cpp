#include "mezzo/interchange/dlpack.h"

#include <bit>
#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "core/memory/storage.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/error.h"
#include "mezzo/ops.h"
#include "mezzo/shape.h"

namespace mezzo::dlpack {

static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64 &&
                  sizeof(DLManagedTensorVersioned) == 80,
              "the layout of DLPack's own header");
static_assert(std::endian::native == std::endian::little,
              "DLPack's elements are in the byte order of the machine");

namespace {

struct TypeRow {
    Dtype dtype;
    std::uint8_t code, bits;
};
constexpr TypeRow types[] = {{float16, type_float, 16},
                             {bfloat16, type_bfloat, 16},
                             {float32, type_float, 32},
                             {float64, type_float, 64},
                             {int32, type_int, 32},
                             {int64, type_int, 64},
                             {uint8, type_uint, 8},
                             {boolean, type_bool, 8},
                             {int8, type_int, 8},
                             {float8_e4m3fn, type_float8_e4m3fn, 8},
                             {float8_e5m2, type_float8_e5m2, 8},
                             {float8_e8m0fnu, type_float8_e8m0fnu, 8}};

DLDataType type_of(Dtype dtype) {
    for (const TypeRow& row : types)
        if (row.dtype == dtype) return {row.code, row.bits, 1};
    fail(ErrorKind::dtype, "to_dlpack: DLPack has no type for ", dtype);
}

Dtype dtype_of(DLDataType type) {
    for (const TypeRow& row : types)
        if (row.code == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
    fail(ErrorKind::dtype, "from_dlpack: elements have type code ", int(type.code), ", ", int(type.bits),
         " bits and ", int(type.lanes), " lanes, which mezzo lacks; convert them on the other side");
}

DLDevice device_of(Device device) {
    check(device.type() != DeviceType::custom, ErrorKind::device, "to_dlpack: DLPack has no code for ",
          device, "; move the tensor to the CPU");
    if (device.type() == DeviceType::cpu) return {device_cpu, 0};
    const Backend* cuda = backend(DeviceType::cuda);
    const bool same = cuda == nullptr || cuda->ordinal_of == nullptr;
    return {device_cuda, same ? int(device.index) : cuda->ordinal_of(device.index)};
}

Device device_of(DLDevice given) {
    if (given.device_type == device_cpu || given.device_type == device_cuda_host) return cpu_device;
    check(given.device_type == device_cuda, ErrorKind::device, "from_dlpack: the device has code ",
          given.device_type, "; mezzo takes the CPU (1), pinned memory (3) and CUDA (2)");
    const Backend* cuda = backend(DeviceType::cuda);
    const bool same = cuda == nullptr || cuda->index_of == nullptr;
    const int index = same ? given.device_id : cuda->index_of(given.device_id);
    const char* const absence =
        cuda != nullptr && cuda->device_absence != nullptr ? cuda->device_absence() : "";
    check(index >= 0 && index < cuda_device_count(), ErrorKind::device,
          "from_dlpack: there is no cuda device ", given.device_id, *absence != 0 ? "; " : "", absence);
    return {DeviceType::cuda, index};
}

// A tensor that another library holds, with the data that the struct points to.
template <class Managed> struct Lent {
    explicit Lent(const Tensor& x) : tensor(x.detach()), shape(x.shape().begin(), x.shape().end()) {
        for (int d = 0; d < x.dim(); ++d) strides.push_back(x.strides()[d]);
        managed.dl_tensor = {.data = x.numel() == 0 ? nullptr : raw(x),
                             .device = device_of(x.device()),
                             .ndim = x.dim(),
                             .dtype = type_of(x.dtype()),
                             .shape = shape.data(),
                             .strides = strides.data(),
                             .byte_offset = 0};
        managed.manager_ctx = this;
        managed.deleter = [](Managed* self) { delete static_cast<Lent*>(self->manager_ctx); };
    }
    Tensor tensor;
    std::vector<std::int64_t> shape, strides;
    Managed managed{};
};

template <class Managed> Managed* lend(const Tensor& x) {
    check(x.defined(), ErrorKind::value, "to_dlpack: the tensor is undefined");
    if (x.device().type() != DeviceType::cpu) synchronize(x.device());
    return &(new Lent<Managed>(x))->managed;
}

// Calls the deleter, unless ownership has been transferred to a tensor.
template <class Managed> struct Owner {
    explicit Owner(Managed* m) : managed(m) {}
    ~Owner() {
        if (managed != nullptr) give_back(managed);
    }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    static void give_back(void* context) {
        auto* const own = static_cast<Managed*>(context);
        if (own->deleter != nullptr) own->deleter(own);
    }
    // Called when the last tensor is destroyed. Queued work may still read the memory, so this waits for the
    // device.
    static void release(void* context) {
        const DLDevice device = static_cast<Managed*>(context)->dl_tensor.device;
        try {
            if (device.device_type == device_cuda) synchronize(device_of(device));
        } catch (...) {  // a device that has failed reads nothing
        }
        give_back(context);
    }
    Managed* managed;
};

Strides strides_of(const DLTensor& given, const Shape& shape) {
    if (given.strides == nullptr) return contiguous_strides(shape);
    Strides strides = contiguous_strides(shape);
    for (int d = 0; d < shape.size(); ++d) {
        const std::int64_t stride = given.strides[d];
        if (shape[d] <= 1) continue;
        check(stride >= 0, ErrorKind::value, "from_dlpack: dimension ", d, " has stride ", stride,
              "; mezzo takes no negative strides, pass a copy");
        strides[d] = stride;
    }
    return strides;
}

// Number of elements from the first to the last, both included.
std::int64_t span_of(const Shape& shape, const Strides& strides) {
    std::int64_t last = 0;
    for (int d = 0; d < shape.size(); ++d) {
        std::int64_t step = 0;
        const bool fits = !__builtin_mul_overflow(shape[d] - 1, strides[d], &step) &&
                          !__builtin_add_overflow(last, step, &last) && last < std::int64_t(1) << 58;
        check(fits, ErrorKind::value, "from_dlpack: shape ", shape, " with these strides reaches too far");
    }
    return last + 1;
}

template <class Managed> Tensor borrow(Managed* managed, bool read_only) {
    Owner<Managed> owner(managed);
    const DLTensor& given = managed->dl_tensor;
    const Dtype dtype = dtype_of(given.dtype);
    const Device device = device_of(given.device);
    check(given.ndim >= 0 && given.ndim <= max_dims && (given.ndim == 0 || given.shape != nullptr),
          ErrorKind::value, "from_dlpack: the tensor has ", given.ndim, " dimensions; mezzo takes up to ",
          max_dims);
    Shape shape;
    for (int d = 0; d < given.ndim; ++d) {
        check(given.shape[d] >= 0, ErrorKind::value, "from_dlpack: dimension ", d, " has size ",
              given.shape[d]);
        shape.push_back(given.shape[d]);
    }
    const std::int64_t count = checked_numel("from_dlpack", shape, size_of(dtype));
    if (count == 0) return empty(shape, {.dtype = dtype, .device = device});
    check(given.data != nullptr, ErrorKind::value, "from_dlpack: there is no memory for shape ", shape);
    const Strides strides = strides_of(given, shape);
    const std::size_t bytes = std::size_t(span_of(shape, strides)) * size_of(dtype);
    std::uintptr_t address = 0;
    check(!__builtin_add_overflow(std::bit_cast<std::uintptr_t>(given.data), given.byte_offset, &address),
          ErrorKind::value, "from_dlpack: byte_offset is ", given.byte_offset,
          ", beyond the end of all memory");
    check(address % size_of(dtype) == 0, ErrorKind::value, "from_dlpack: the first ", dtype,
          " is at address ", address, ", which is no multiple of ", size_of(dtype), "; pass a copy");
    char* const data = static_cast<char*>(given.data) + given.byte_offset;
    const Ref<Storage> storage = borrowed_storage(data, bytes, device, Owner<Managed>::release, managed);
    owner.managed = nullptr;
    const Tensor shared = make_tensor(storage, shape, strides, 0, dtype);
    const NoGrad plain;
    return read_only ? shared.clone() : shared;
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& x) { return lend<DLManagedTensor>(x); }

DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x) {
    auto* const managed = lend<DLManagedTensorVersioned>(x);
    managed->version = version;
    return managed;
}

Tensor from_dlpack(DLManagedTensor* managed) {
    check(managed != nullptr, ErrorKind::value, "from_dlpack: the pointer is null");
    return borrow(managed, false);
}

// For another major version only the deleter may be used.
Tensor from_dlpack(DLManagedTensorVersioned* managed) {
    check(managed != nullptr, ErrorKind::value, "from_dlpack: the pointer is null");
    if (managed->version.major != version.major) {
        const std::uint32_t theirs = managed->version.major;
        Owner<DLManagedTensorVersioned>::give_back(managed);
        fail(ErrorKind::value, "from_dlpack: the tensor is of DLPack ", theirs, ", mezzo speaks ",
             version.major);
    }
    return borrow(managed, (managed->flags & flag_read_only) != 0);
}

}  // namespace mezzo::dlpack
