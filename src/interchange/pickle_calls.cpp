// The calls of a pickle of torch.save() that make values: each is done here, none by Python.
#include <fmt/format.h>

#include "interchange/pickle.h"
#include "mezzo/error.h"
#include "mezzo/shape.h"

namespace mezzo::io {

std::int64_t Unpickler::natural(Node node, const char* what) const {
    require(tree_[node].kind == PickleKind::integer && tree_[node].number >= 0, what);
    return tree_[node].number;
}

Unpickler::Node Unpickler::call(Node function, Node arguments) {
    require(tree_[function].kind == PickleKind::global, "a call of a value that is no function");
    require(tree_[arguments].kind == PickleKind::tuple, "the arguments of a call are no tuple");
    const TorchName& known = tree_.globals[std::size_t(tree_[function].number)];
    require(tree_.list(arguments).size() <= 16, "a call with more than 16 arguments");
    const std::vector<Node> given = tree_.list(arguments);
    switch (known.call) {
        case TorchCall::dict:
            return call_dict(given);
        case TorchCall::set:
            return call_set(given);
        case TorchCall::bytes:
        case TorchCall::encode:
            return call_bytes(given);
        case TorchCall::size:
            require(given.size() == 1 && tree_.is_sequence(given[0]), "torch.Size of no list");
            return add(PickleKind::tuple, tree_[given[0]].number);
        case TorchCall::device:
            return call_device(given);
        case TorchCall::first:
            require(!given.empty(), "a call without arguments");
            return given[0];
        case TorchCall::rebuild:
        case TorchCall::rebuild_dtype:
            return rebuild_tensor(given, known.call == TorchCall::rebuild_dtype);
        case TorchCall::rebuild_type: {
            require(given.size() >= 3 && tree_[given[0]].kind == PickleKind::global,
                    "torch._tensor._rebuild_from_type_v2 with other arguments than it has");
            const TorchCall inner = tree_.globals[std::size_t(tree_[given[0]].number)].call;
            require(inner != TorchCall::rebuild_type, "_rebuild_from_type_v2 within itself");
            return call(given[0], given[2]);
        }
        case TorchCall::unreadable:
            tree_.tensors.push_back({.unreadable = known.what});
            return add(PickleKind::tensor, std::int64_t(tree_.tensors.size() - 1));
        case TorchCall::other:
            return add(PickleKind::other, tree_[function].number);
        case TorchCall::storage_type:
        case TorchCall::dtype:
        case TorchCall::tensor_class:
            break;
    }
    refuse("a call of a class that is none of the calls in PyTorch's files");
}

// Python 2 writes an OrderedDict as a call with a list of pairs, and a Counter comes with a dict.
Unpickler::Node Unpickler::call_dict(const std::vector<Node>& given) {
    if (given.empty()) return add_dict();
    require(given.size() == 1, "a dict with several arguments");
    if (tree_[given[0]].kind == PickleKind::dict) return given[0];
    require(tree_.is_sequence(given[0]), "a dict of a value that is no list of pairs");
    const auto [made, is_new] = made_.try_emplace(given[0], 0);
    if (!is_new) return made->second;
    std::vector<Node> items;
    for (const Node pair : tree_.list(given[0])) {
        require(tree_.is_sequence(pair) && tree_.list(pair).size() == 2,
                "a dict of a value that is no list of pairs");
        items.insert(items.end(), tree_.list(pair).begin(), tree_.list(pair).end());
    }
    made->second = add_dict();
    insert(made->second, items);
    return made->second;
}

Unpickler::Node Unpickler::call_set(const std::vector<Node>& given) {
    if (given.empty()) return add_list(PickleKind::set, {});
    require(given.size() == 1 && (tree_.is_sequence(given[0]) || tree_[given[0]].kind == PickleKind::set),
            "a set of a value that is no list");
    return add(PickleKind::set, tree_[given[0]].number);  // the same items, not a copy
}

// bytes(), bytearray(bytes), and encode(text, "latin1") in protocols that have no opcode for bytes.
Unpickler::Node Unpickler::call_bytes(const std::vector<Node>& given) {
    if (given.empty()) return add_text(PickleKind::bytes, "");
    if (given.size() == 1 && tree_[given[0]].kind == PickleKind::bytes) return given[0];
    require(given.size() <= 2 && tree_[given[0]].kind == PickleKind::string,
            "bytes of a value that is no text");
    const auto [made, is_new] = made_.try_emplace(given[0], 0);
    if (is_new) made->second = add_text(PickleKind::bytes, latin1(tree_.text(given[0])));
    return made->second;
}

std::string Unpickler::latin1(std::string_view text) const {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto first = static_cast<unsigned char>(text[i]);
        require(first < 0xc4, "bytes of a text with characters beyond Latin-1");
        // The text is valid UTF-8: 0xc2 and 0xc3 begin the characters from 128 to 255.
        bytes += first < 0x80 ? text[i] : char((first & 3) << 6 | (text[++i] & 0x3f));
    }
    return bytes;
}

Unpickler::Node Unpickler::call_device(const std::vector<Node>& given) {
    require(!given.empty() && given.size() <= 2 && tree_[given[0]].kind == PickleKind::string &&
                tree_.text(given[0]).size() <= 32,
            "torch.device of no name");
    if (given.size() == 1) return given[0];
    return add_string(fmt::format("{}:{}", tree_.text(given[0]), natural(given[1], "a device of no index")));
}

// The persistent id of a storage: ("storage", type, key, location, elements), in files without an archive
// with one value more, None or (key of the view, first element, elements).
Unpickler::Node Unpickler::refer_to_storage(Node id) {
    require(tree_[id].kind == PickleKind::tuple, "a persistent id that is no tuple");
    const std::vector<Node>& fields = tree_.list(id);
    require(fields.size() >= 5 && fields.size() <= 6 && tree_[fields[0]].kind == PickleKind::string &&
                tree_.text(fields[0]) == "storage",
            "a persistent id that is no storage; PyTorch writes others for whole modules");
    require(tree_[fields[1]].kind == PickleKind::global, "a storage without a type");
    const TorchName& type = tree_.globals[std::size_t(tree_[fields[1]].number)];
    require(type.call == TorchCall::storage_type, "a storage without a type");
    require(tree_[fields[2]].kind == PickleKind::string, "a storage without a name");
    const auto bytes_of = [&](Node count) {
        std::int64_t bytes = 0;
        const std::int64_t elements = natural(count, "a storage whose size is no number");
        require(!__builtin_mul_overflow(elements, type.type->bytes, &bytes), "a storage of too many bytes");
        return std::uint64_t(bytes);
    };
    PickleStorage storage{.key = fields[2], .type = type.type, .whole = bytes_of(fields[4])};
    storage.bytes = storage.whole;
    if (fields.size() == 6 && fields[5] != 0) {
        require(tree_[fields[5]].kind == PickleKind::tuple && tree_.list(fields[5]).size() == 3,
                "a view of a storage without its three fields");
        storage.first = bytes_of(tree_.list(fields[5])[1]);
        storage.bytes = bytes_of(tree_.list(fields[5])[2]);
        require(storage.first <= storage.whole && storage.bytes <= storage.whole - storage.first,
                "a view of a storage beyond its end");
    }
    tree_.storages.push_back(storage);
    return add(PickleKind::storage, std::int64_t(tree_.storages.size() - 1));
}

// Whether sizes and strides are lists of as many numbers, and the elements are within the storage.
bool Unpickler::has_extent(const PickleTensor& tensor) const {
    if (!tree_.is_sequence(tensor.sizes) || !tree_.is_sequence(tensor.strides)) return false;
    const std::vector<Node>&sizes = tree_.list(tensor.sizes), &strides = tree_.list(tensor.strides);
    if (sizes.size() != strides.size() || sizes.size() > 64) return false;  // PyTorch's limit
    std::int64_t elements = 1, last = tensor.offset;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        const PickleNode size = tree_[sizes[d]], stride = tree_[strides[d]];
        if (size.kind != PickleKind::integer || size.number < 0) return false;
        if (stride.kind != PickleKind::integer || stride.number < 0) return false;
        elements = size.number == 0 ? 0 : elements;
    }
    if (elements == 0) return true;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        std::int64_t step = 0;
        if (__builtin_mul_overflow(tree_[sizes[d]].number - 1, tree_[strides[d]].number, &step) ||
            __builtin_add_overflow(last, step, &last))
            return false;
    }
    const std::uint64_t bytes = tree_.storages[tensor.storage].bytes;
    return std::uint64_t(last) < bytes / std::uint64_t(tensor.type->bytes);
}

// _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks, metadata), of which old files
// have the first four; _rebuild_tensor_v3 has the dtype before the metadata, and a storage of bytes.
Unpickler::Node Unpickler::rebuild_tensor(const std::vector<Node>& given, bool own_dtype) {
    require(given.size() >= (own_dtype ? 7u : 4u) && given.size() <= 8 &&
                tree_[given[0]].kind == PickleKind::storage,
            "a tensor without storage, offset, sizes and strides");
    PickleTensor tensor{.storage = std::uint32_t(tree_[given[0]].number)};
    tensor.type = tree_.storages[tensor.storage].type;
    if (own_dtype) {
        require(tree_[given[6]].kind == PickleKind::global, "a tensor without a dtype");
        const TorchName& dtype = tree_.globals[std::size_t(tree_[given[6]].number)];
        require(dtype.call == TorchCall::dtype, "a tensor without a dtype");
        tensor.type = dtype.type;
    }
    tensor.offset = natural(given[1], "a tensor whose offset is no number");
    tensor.sizes = given[2];
    tensor.strides = given[3];
    require(has_extent(tensor), "a tensor with sizes and strides that do not fit its storage");
    const std::size_t metadata = own_dtype ? 7 : 6;
    if (given.size() > metadata && tree_[given[metadata]].kind == PickleKind::dict &&
        !tree_.dicts[std::size_t(tree_[given[metadata]].number)].empty())
        tensor.unreadable = "a conjugated or negated view";
    tree_.tensors.push_back(tensor);
    return add(PickleKind::tensor, std::int64_t(tree_.tensors.size() - 1));
}

// Checks the tensors once more at the end: the lists of sizes and strides may grow after the call.
void Unpickler::check_tensors() {
    for (PickleTensor& tensor : tree_.tensors) {
        if (tensor.type == nullptr) continue;  // unreadable, without sizes
        require(has_extent(tensor), "a tensor with sizes and strides that do not fit its storage");
        if (tree_.list(tensor.sizes).size() > std::size_t(max_dims) && *tensor.unreadable == '\0')
            tensor.unreadable = "a tensor of more than 8 dimensions";
    }
}

}  // namespace mezzo::io
