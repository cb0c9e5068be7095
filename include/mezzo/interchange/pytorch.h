// Reads PyTorch's own files, the .pt, .pth and .bin of torch.save(). Runs no code of the file.
//
//   net.load_state_dict(io::load_pytorch("model.pth").state_dict());
//   const io::PytorchValue run = io::load_pytorch("run.pt");  // {"model": {…}, "optimizer": {…}, "epoch": 3}
//   io::load_weights(net, run["model"].state_dict());
//   const std::int64_t epoch = run["epoch"].integer();
//   std::cout << run.to_string() << '\n';  // names, dtypes and shapes
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/module.h"
#include "mezzo/shared.h"

#pragma GCC visibility push(default)

namespace mezzo::io {

struct [[gnu::visibility("hidden")]] PytorchFile;  // src/interchange/pytorch_file.h
struct [[gnu::visibility("hidden")]] PytorchNode;  // src/interchange/pytorch.cpp

// Kinds of values. A list stands for Python's list, tuple, set and torch.Size, a dict for dict, OrderedDict
// and Counter. torch.device and torch.dtype are strings, such as "cuda:0" and "torch.float16". A complex
// number or a storage is `other`.
enum class PytorchKind : std::uint8_t {
    none,
    boolean,
    integer,
    real,
    string,
    bytes,
    tensor,
    list,
    dict,
    other
};

// A value of a PyTorch file: the whole content, or a part of it. A handle: copies are cheap. The file stays
// open until the last handle is gone, and elements are read on demand. Several threads may read.
class PytorchValue {
public:
    PytorchValue(const PytorchValue& other);
    PytorchValue& operator=(const PytorchValue& other) &;
    ~PytorchValue();

    [[nodiscard]] PytorchKind kind() const;
    // Number of entries of a list or dict. This function and those below throw Error(value) for a value of
    // another kind.
    [[nodiscard]] std::int64_t size() const;
    // Names of a dict's entries, in the file's order. A number, True, False and None are names as Python
    // prints them, a key of another kind "#" and the number of its entry, also below.
    [[nodiscard]] std::vector<std::string> names() const;
    // Whether a dict has this name.
    [[nodiscard]] bool contains(std::string_view name) const;
    // Entry of a dict with this name. Throws Error(value) for an unknown name; the message lists names.
    [[nodiscard]] PytorchValue operator[](std::string_view name) const;
    // Item of a list, where a negative index counts from the end, or entry of a dict with this integer key.
    [[nodiscard]] PytorchValue operator[](std::int64_t index) const;

    [[nodiscard]] bool flag() const;             // of a boolean
    [[nodiscard]] std::int64_t integer() const;  // Error(value) also for an integer that does not fit
    [[nodiscard]] double number() const;         // of an integer or real
    [[nodiscard]] std::string text() const;      // of a string or bytes

    // A tensor on the CPU, with the strides that it had. int16 and uint16 become int32, uint32 and uint64
    // int64: Error(value) if a number does not fit. Throws Error(dtype) for a tensor that mezzo cannot hold:
    // of complex, quantized or fnuz float8 dtype, sparse, or with more than 8 dimensions; the other values of
    // the file stay readable. Throws Error(io) for damaged elements.
    [[nodiscard]] Tensor tensor() const;
    // All tensors in a dict or list, at any depth. A name consists of the keys and indices on the way, joined
    // by dots: "model.layer.weight". Values of other kinds are left out. As in PyTorch tensors that shared
    // elements share them again, also tied weights. Throws as tensor(); the message contains the name.
    [[nodiscard]] StateDict state_dict() const;
    // A table of the names, kinds, shapes and values, at most 1000 lines. Reads no elements.
    [[nodiscard]] std::string to_string() const;

private:
    friend PytorchValue load_pytorch(const std::string& path);
    PytorchValue(const mezzo::detail::SharedHandle<PytorchFile>& file, std::uint32_t node, std::string path);
    [[nodiscard]] PytorchNode node() const;

    mezzo::detail::SharedHandle<PytorchFile> file_;
    std::uint32_t node_;
    std::string path_;  // of names, for error messages
};

// Opens a file of torch.save(): the zip archive of PyTorch 1.6 and newer, of either byte order, and the older
// form without an archive; pickle protocols 2 to 5. The rules are those of torch.load(weights_only=True): a
// file consists of tensors, parameters, dicts, lists, tuples, sets, numbers, strings, bytes, torch.Size,
// torch.device and torch.dtype. Any other class or function in the file, such as os.system or a whole
// nn.Module, throws Error(io) with its name. Throws Error(io) for a file that cannot be read, is damaged, or
// is of another format, such as the tar archives of PyTorch 0.1 and TorchScript's archives. Checksums of
// archives are verified, unless PyTorch wrote none.
[[nodiscard]] PytorchValue load_pytorch(const std::string& path);

}  // namespace mezzo::io

#pragma GCC visibility pop
