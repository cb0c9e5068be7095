// Reads and writes NumPy's files: .npy with one array, .npz with several.
//
//   io::save_npy("x.npy", x);
//   io::save_npz("data.npz", {{"x", x}, {"y", y}});
//   const io::NpzFile file("data.npz");
//   y = file.tensor("y");
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::io {

// Loads an array. Both functions throw Error(io) for a file that cannot be read, is damaged or truncated, and
// Error(dtype) for element types that mezzo lacks: complex numbers, texts, structs, and Python objects, which
// would run code. The result is on the CPU and row-major, also if the file is not. int16 and uint16 become
// int32, uint32 becomes int64, as does uint64: Error(value) if a number does not fit.
[[nodiscard]] Tensor load_npy(const std::string& path);
// Loads all arrays by name, in the order of the file: stored or deflated, also beyond 4 GiB. Checksums are
// verified. Names are not used as paths. Throws Error(io) also for an array whose size differs from its
// header. Throws if one member cannot be read, such as an array of texts; NpzFile can read the others.
[[nodiscard]] StateDict load_npz(const std::string& path);

// Reads the members of a .npz file one by one, also if the file has arrays of texts or Python objects.
// The file stays open. Throws Error(io) for a file that is not an archive, or whose members overlap. May be
// used by several threads at once.
class NpzFile {
public:
    explicit NpzFile(const std::string& path);
    ~NpzFile();
    NpzFile(const NpzFile&) = delete;
    NpzFile& operator=(const NpzFile&) = delete;
    // Names of the members that are .npy files, without that ending, in the order of the file.
    [[nodiscard]] std::vector<std::string> names() const;
    [[nodiscard]] bool contains(std::string_view name) const;
    // Throws as load_npy(), and Error(value) for a name that is not in the file.
    [[nodiscard]] Tensor tensor(std::string_view name) const;

private:
    friend StateDict load_npz(const std::string& path);
    struct [[gnu::visibility("hidden")]] Impl;
    Impl* impl_;
};

// Writes a tensor of any layout and device; waits for the device. bfloat16 and float8, which NumPy lacks, are
// written as float32, exactly. Replaces the file atomically. Error(value) for an undefined tensor, Error(io)
// for the file.
void save_npy(const std::string& path, const Tensor& tensor);
struct NpzOptions {
    bool compressed = false;  // as numpy.savez_compressed()
};
// Writes several tensors. Throws Error(value) also for a name that is empty, used twice, or not valid UTF-8.
void save_npz(const std::string& path, const StateDict& tensors, const NpzOptions& options = {});

}  // namespace mezzo::io

#pragma GCC visibility pop
