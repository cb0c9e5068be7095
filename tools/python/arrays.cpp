#include "arrays.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/interchange/dlpack.h"
#include "mezzo/ops.h"

namespace py = pybind11;

namespace mezzo::python {

namespace {

// An array whose memory a tensor uses, with its DLPack description.
struct Lent {
    py::array array;
    std::vector<std::int64_t> shape;
    dlpack::DLManagedTensor managed;
};

void give_back(dlpack::DLManagedTensor* managed) {
    const py::gil_scoped_acquire lock;  // the last tensor may be destroyed in any thread
    delete static_cast<Lent*>(managed->manager_ctx);
}

dlpack::DLDataType type_of(const py::array& array) {
    // Read through Python: pybind11 before version 2.12 does not find NumPy 2's sizes.
    const char kind = py::cast<char>(array.dtype().attr("kind"));
    const auto size = py::cast<std::size_t>(array.attr("itemsize"));
    const auto bits = std::uint8_t(8 * (size <= 8 ? size : 0));
    if (kind == 'f' && bits > 0) return {dlpack::type_float, bits, 1};
    if (kind == 'i' && bits != 16 && bits > 0) return {dlpack::type_int, bits, 1};
    if (kind == 'u' && bits == 8) return {dlpack::type_uint, bits, 1};
    if (kind == 'b') return {dlpack::type_bool, 8, 1};
    throw py::type_error("mezzo has no dtype " + std::string(py::str(array.dtype())) +
                         "; convert the array with astype()");
}

const char* numpy_name(Dtype dtype) {
    switch (dtype) {
        case float16:
            return "float16";
        case float64:
            return "float64";
        case uint8:
            return "uint8";
        case int8:
            return "int8";
        case int32:
            return "int32";
        case int64:
            return "int64";
        case boolean:
            return "bool";
        default:  // array_of() converts what NumPy lacks to float32
            break;
    }
    return "float32";
}

}  // namespace

Tensor tensor_of(const py::array& given) {
    const dlpack::DLDataType type = type_of(given);
    const py::object order = given.dtype().attr("newbyteorder")("=");
    const py::array array = py::module_::import("numpy").attr("asarray")(given, order, "C");
    auto* const lent = new Lent{array, {array.shape(), array.shape() + array.ndim()}, {}};
    dlpack::DLTensor& x = lent->managed.dl_tensor;
    x.data = const_cast<void*>(array.data());
    x.device = {dlpack::device_cpu, 0};
    x.ndim = std::int32_t(array.ndim());
    x.dtype = type;
    x.shape = lent->shape.data();
    lent->managed.manager_ctx = lent;
    lent->managed.deleter = give_back;
    return dlpack::from_dlpack(&lent->managed);  // releases the array also if it throws
}

py::array array_of(const Tensor& tensor) {
    const NoGrad plain;
    Tensor x = tensor.detach().to(cpu_device);
    if (std::string_view(numpy_name(x.dtype())) == "float32") x = x.to(float32);
    x = x.contiguous();
    auto* const kept = new Tensor(x);
    const py::capsule owner(kept, [](void* one) { delete static_cast<Tensor*>(one); });
    const std::vector<py::ssize_t> shape(x.shape().begin(), x.shape().end());
    std::vector<py::ssize_t> strides(x.strides().begin(), x.strides().end());
    for (py::ssize_t& stride : strides) stride *= py::ssize_t(size_of(x.dtype()));
    const dlpack::DLManagedTensor* const view = dlpack::to_dlpack(x);
    const void* const data = static_cast<const char*>(view->dl_tensor.data) + view->dl_tensor.byte_offset;
    view->deleter(const_cast<dlpack::DLManagedTensor*>(view));
    return {py::dtype(numpy_name(x.dtype())), shape, strides, data, owner};
}

}  // namespace mezzo::python
