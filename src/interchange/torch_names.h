// The names that a pickle of torch.save() may contain, as torch.load(weights_only=True) has them, and
// PyTorch's dtypes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "mezzo/dtype.h"

namespace mezzo::io {

struct TorchType {
    const char* name;           // "float32"
    const char* storage;        // "Float" for torch.FloatStorage; "" where PyTorch has no such class
    int bytes;                  // of an element
    std::optional<Dtype> read;  // mezzo's dtype for it, if it has one
    char widened = 0;           // 'i' or 'u': integers, with or without sign, which become `read`
};

// Result of a call in a pickle, or of a name alone.
enum class TorchCall : std::uint8_t {
    storage_type,  // not callable
    dtype,         // not callable
    dict,          // collections.OrderedDict() and Counter()
    set,
    bytes,          // bytes() and bytearray()
    encode,         // _codecs.encode(text, "latin1"), bytes of protocols 0 to 2
    size,           // torch.Size(sizes)
    device,         // torch.device(type, index)
    first,          // the first argument: a Parameter's tensor, a layout's name
    rebuild,        // tensor of storage, offset, sizes, strides
    rebuild_dtype,  // the same, with a dtype as argument 6
    rebuild_type,   // call of argument 0 with the arguments in argument 2
    tensor_class,   // not callable: an argument of rebuild_type
    unreadable,     // a tensor that mezzo cannot hold
    other,          // a value that mezzo cannot hold
};

struct TorchName {
    std::string_view name;  // with its module: "torch._utils._rebuild_tensor_v2"
    TorchCall call = TorchCall::other;
    const char* what = "";            // of an unreadable tensor: "a sparse tensor"
    const TorchType* type = nullptr;  // of storage_type and dtype
};

// Returns the entry for a name with its module, with `name` empty if there is none.
TorchName find_torch_name(std::string_view full);

}  // namespace mezzo::io
