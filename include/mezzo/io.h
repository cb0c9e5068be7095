// Files: safetensors, checkpoints of a training, and loading of weights under other names.
//
//   io::save_safetensors("net.safetensors", net.state_dict());
//   net.load_state_dict(io::load_state_dict_file("net.safetensors"));
//   io::save_checkpoint("run.ckpt", {.model = net.state_dict(), .optimizer = optimizer.state_dict()});
//   optimizer.load_state_dict(io::load_checkpoint("run.ckpt").optimizer);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/module.h"
#include "mezzo/shard.h"

#pragma GCC visibility push(default)

namespace mezzo::io {

// Description of one tensor in a safetensors file.
struct TensorInfo {
    std::string name;
    std::string dtype;  // as in the file: "F32", "BF16", "I8", …
    Shape shape;
    std::uint64_t offset = 0;  // first byte, counted from the end of the header
    std::uint64_t bytes = 0;
};

// Free text in a file's header.
using Metadata = std::vector<std::pair<std::string, std::string>>;

struct [[gnu::visibility("hidden")]] SafeTensorsData;  // src/io/safetensors.cpp

// A safetensors file (format of huggingface/safetensors), open for reading. The constructor reads and checks
// the whole header, sizes and offsets included, and throws Error(io) if it is invalid; elements are read on
// demand. Several threads may read. If the file at the path is replaced, this object continues to read the
// file that it opened. Files of save_safetensors() have digests (CRC-32) of the header and of each tensor in
// their metadata; a mismatch throws Error(io) with the tensor's name. Files of other programs have no digests
// and are read without this check.
class SafeTensors {
public:
    explicit SafeTensors(const std::string& path);
    SafeTensors(SafeTensors&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
    SafeTensors& operator=(SafeTensors&& other) & noexcept {
        std::swap(data_, other.data_);
        return *this;
    }
    ~SafeTensors();

    // Descriptions of all tensors, in the order of the data.
    [[nodiscard]] const std::vector<TensorInfo>& infos() const;
    [[nodiscard]] std::vector<std::string> names() const;
    [[nodiscard]] bool contains(std::string_view name) const;
    [[nodiscard]] const TensorInfo& info(std::string_view name) const;  // Error(value) for an unknown name
    [[nodiscard]] const Metadata& metadata() const;                     // without the digests

    // A copy on the CPU in the file's dtype: F16, BF16, F32, F64, I32, I64, U8, BOOL (bytes other than 0 are
    // true), and for storage only I8, F8_E4M3, F8_E5M2 and F8_E8M0. I16 and U16 become int32, U32 and U64
    // int64: Error(value) if a number does not fit.
    // Throws Error(value) for an unknown name, Error(dtype) for other dtypes and Error(io) if the digest does
    // not match.
    [[nodiscard]] Tensor tensor(std::string_view name) const;
    // All tensors, in the order of infos(). Throws as tensor().
    [[nodiscard]] StateDict state_dict() const;

private:
    [[nodiscard]] SafeTensorsData& opened() const;  // Error(state) if moved from
    SafeTensorsData* data_;
};

// Writes a safetensors file: tensors of any strides and devices, ordered by dtype and name as the reference
// implementation orders them; tensors that share elements are each written in full. Replaces `path`
// atomically after all data is on the disk: at any moment the path holds the old file or the new one.
// (Meanwhile PATH.mezzo-partial exists, readable only by its owner; PATH keeps its permissions.) Throws
// Error(io), with the old file unchanged, if the disk is full, the folder cannot be written, or the path is a
// folder, a device or a pipe, and Error(value) for a name that is used twice, is not UTF-8 or is
// "__metadata__", and for metadata whose name begins with "mezzo.crc32.", the prefix of the digests.
// {"format", "pt"} makes Python's transformers accept the file.
void save_safetensors(const std::string& path, const StateDict& state,
                      const Metadata& metadata = {{"format", "pt"}});

// Loads all tensors of a safetensors file; if the path ends in .json, of all files that this index
// (model.safetensors.index.json) lists, in its folder. The index must list every tensor of its files. Throws
// as SafeTensors and its tensor() do, and Error(io) for an index that does not match its files.
[[nodiscard]] StateDict load_state_dict_file(const std::string& path);

// without_prefix() returns the entries whose names begin with `prefix`, and removes it; with_prefix() returns
// all entries, with `prefix` before their names.
[[nodiscard]] StateDict without_prefix(const StateDict& state, std::string_view prefix);
[[nodiscard]] StateDict with_prefix(const StateDict& state, std::string_view prefix);

// The complete state of a training, with which it can be resumed bit for bit.
struct Checkpoint {
    StateDict model = {};  // result of its state_dict(), as for the next two
    StateDict optimizer = {};
    StateDict scaler = {};
    StateDict extra = {};                 // counters and other values: {{"epoch", Tensor::from…}, …}
    RandomState random = random_state();  // by default that of the moment the Checkpoint was made
    data::LoaderPosition position = {};   // of the data loader
    // For a training with several ranks: the random states of all, in rank order. `random` is that of one
    // rank.
    std::vector<RandomState> random_states = {};
    // Free text, such as {{"optimizer", "AdamW"}}: in the file's header, readable without its tensors.
    Metadata metadata = {};

    // The random state with which a rank resumes: its own, if the checkpoint has the same number of ranks.
    // Otherwise an unused stream: rank r gets the seed of rank 0 plus r, and all ranks the largest offset.
    [[nodiscard]] RandomState random_of(const data::Shard& rank) const;
};
// Saves a checkpoint as one safetensors file, which is replaced atomically as by save_safetensors(): entries
// "model.…", "optimizer.…", "scaler.…", "extra.…" and "random" (int64 [2], the bits of seed and offset), and
// the entry "mezzo.checkpoint" = "1" of the metadata. A position that is not the start is
// "extra.mezzo.position" (int64 [2], epoch and samples), and random states of several ranks
// "extra.mezzo.random_states" (int64 [ranks, 2]). Throws as save_safetensors(), and Error(value) for an
// `extra` whose name begins with "mezzo.", and for metadata whose name does, or is "format".
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint);
// Loads a checkpoint. Throws Error(io) for a file that is not a checkpoint or has a newer version. Does not
// change the random stream of the process; call set_random_state(checkpoint.random).
[[nodiscard]] Checkpoint load_checkpoint(const std::string& path);

struct ShapeMismatch {
    std::string name;  // in the model
    Shape in_file, in_model;
};
struct LoadReport {
    std::vector<std::string> loaded, missing;  // names in the model
    std::vector<std::string> unexpected;       // names in the file
    std::vector<ShapeMismatch> mismatched;
    // A table of counts, and of every name that was not loaded.
    [[nodiscard]] std::string to_string() const;
};

// Converts a name in the file to a name in the model; an empty result skips the entry, and it is not
// reported.
using NameMap = autograd::Callback<std::string(const std::string&)>;

struct LoadOptions {
    NameMap rename = [](const std::string& name) { return name; };
    bool strict = false;             // throw, with nothing loaded, when the model has names that are missing
    bool ignore_mismatched = false;  // leave entries of another shape out instead of throwing
};
// Copies the entries that the module has into its parameters and buffers, converting dtype and device. A tied
// weight loads by each of its names. Throws, with nothing loaded: Error(shape) when shapes differ (unless
// ignored), Error(value) when names are missing (if strict) or two entries for one tensor have different
// values. The first two messages contain the report.
LoadReport load_weights(nn::Module& module, const StateDict& state, const LoadOptions& options = {});

}  // namespace mezzo::io

#pragma GCC visibility pop
