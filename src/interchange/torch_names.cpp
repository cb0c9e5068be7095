#include "interchange/torch_names.h"

#include <algorithm>
#include <iterator>

namespace mezzo::io {

namespace {

constexpr TorchType types[] = {
    {"float16", "Half", 2, float16},      {"bfloat16", "BFloat16", 2, bfloat16},
    {"float32", "Float", 4, float32},     {"float64", "Double", 8, float64},
    {"int64", "Long", 8, int64},          {"int32", "Int", 4, int32},
    {"int16", "Short", 2, int32, 'i'},    {"int8", "Char", 1, int8},
    {"uint8", "Byte", 1, uint8},          {"bool", "Bool", 1, boolean},
    {"uint16", "", 2, int32, 'u'},        {"uint32", "", 4, int64, 'u'},
    {"uint64", "", 8, int64, 'u'},        {"complex32", "", 4, {}},
    {"complex64", "ComplexFloat", 8, {}}, {"complex128", "ComplexDouble", 16, {}},
    {"quint8", "QUInt8", 1, {}},          {"qint8", "QInt8", 1, {}},
    {"qint32", "QInt32", 4, {}},          {"quint4x2", "QUInt4x2", 1, {}},
    {"quint2x4", "QUInt2x4", 1, {}},      {"float8_e4m3fn", "", 1, float8_e4m3fn},
    {"float8_e4m3fnuz", "", 1, {}},       {"float8_e5m2", "", 1, float8_e5m2},
    {"float8_e5m2fnuz", "", 1, {}},       {"float8_e8m0fnu", "", 1, float8_e8m0fnu},
    {"float4_e2m1fn_x2", "", 1, {}},
};
constexpr TorchType untyped = {"uint8", "Untyped", 1, uint8};

using enum TorchCall;

constexpr TorchName names[] = {
    {"collections.OrderedDict", dict},
    {"collections.Counter", dict},
    {"builtins.set", set},
    {"builtins.frozenset", set},
    {"builtins.bytes", bytes},
    {"builtins.bytearray", bytes},
    {"builtins.complex", other, "a complex number"},
    {"_codecs.encode", encode},
    {"torch.Size", size},
    {"torch.device", device},
    {"torch.Tensor", tensor_class},
    {"torch.nn.parameter.Parameter", first},
    {"torch.serialization._get_layout", first},
    {"torch._utils._rebuild_tensor", rebuild},
    {"torch._utils._rebuild_tensor_v2", rebuild},
    {"torch._utils._rebuild_tensor_v3", rebuild_dtype},
    {"torch._utils._rebuild_parameter", first},
    {"torch._utils._rebuild_parameter_with_state", first},
    {"torch._utils._rebuild_device_tensor_from_cpu_tensor", first},
    {"torch._tensor._rebuild_from_type_v2", rebuild_type},
    {"torch._utils._rebuild_qtensor", unreadable, "a quantized tensor"},
    {"torch._utils._rebuild_sparse_tensor", unreadable, "a sparse tensor"},
    {"torch._utils._rebuild_meta_tensor_no_storage", unreadable, "a tensor of device meta, without elements"},
    {"torch._utils._rebuild_wrapper_subclass", unreadable, "a tensor of a class of its own"},
    {"torch.per_tensor_affine", other, "a quantization scheme"},
    {"torch.per_tensor_symmetric", other, "a quantization scheme"},
    {"torch.per_channel_affine", other, "a quantization scheme"},
    {"torch.per_channel_symmetric", other, "a quantization scheme"},
    {"torch.per_channel_affine_float_qparams", other, "a quantization scheme"},
};

// Finds torch.FloatStorage, torch.cuda.FloatStorage and torch.storage.UntypedStorage.
const TorchType* storage_type_of(std::string_view name) {
    if (name == "storage.UntypedStorage" || name == "UntypedStorage") return &untyped;
    if (!name.ends_with("Storage")) return nullptr;
    name.remove_suffix(7);
    if (name.starts_with("cuda.")) name.remove_prefix(5);
    const auto found = std::find_if(std::begin(types), std::end(types),
                                    [&](const TorchType& t) { return !name.empty() && name == t.storage; });
    return found == std::end(types) ? nullptr : &*found;
}

}  // namespace

TorchName find_torch_name(std::string_view full) {
    for (const TorchName& known : names)
        if (known.name == full) return known;
    if (!full.starts_with("torch.")) return {};
    const std::string_view name = full.substr(6);
    for (const TorchType& type : types)
        if (name == type.name) return {full, TorchCall::dtype, "", &type};
    if (const TorchType* const type = storage_type_of(name)) return {full, storage_type, "", type};
    return {};
}

}  // namespace mezzo::io
