// Checkpoints of a whole training run: one call saves everything that the next step depends on, one loads it, and a
// folder keeps the last and the best of them.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/distributed.h"
#include "mezzo/io.h"
#include "mezzo/metrics.h"
#include "mezzo/shard.h"

#pragma GCC visibility push(default)

namespace mezzo::training {

// Modules, optimizers, GradScaler, AveragedModel, ReduceLROnPlateau, normalisers, or a class of one's own.
template <class T>
concept Stateful = requires(T& object, const StateDict& state) {
    { std::as_const(object).state_dict() } -> std::convertible_to<StateDict>;
    object.load_state_dict(state);
};

// A reference to something with a state, or none. What it refers to must outlive it.
class StateRef {
public:
    StateRef() = default;
    template <Stateful T>
    requires(!std::same_as<std::remove_cv_t<T>, StateRef>) StateRef(T& object)
        : object_(&object),
          save_([](const void* o) -> StateDict { return static_cast<const T*>(o)->state_dict(); }),
          load_([](void* o, const StateDict& state) { static_cast<T*>(o)->load_state_dict(state); }) {
        if constexpr (std::derived_from<T, nn::Module>) module_ = &object;
    }
    [[nodiscard]] bool has_value() const { return object_ != nullptr; }
    [[nodiscard]] bool is_module() const { return module_ != nullptr; }
    [[nodiscard]] StateDict state_dict() const { return save_(object_); }
    void load_state_dict(const StateDict& state) const { load_(object_, state); }

private:
    void* object_ = nullptr;
    StateDict (*save_)(const void*) = nullptr;
    void (*load_)(void*, const StateDict&) = nullptr;
    const nn::Module* module_ = nullptr;
};

// A loader that can say where it is, and go on from there: data::DataLoader and the other loaders of mezzo.
template <class T>
concept Positioned = requires(T& loader, const data::LoaderPosition& position) {
    { std::as_const(loader).position() } -> std::convertible_to<data::LoaderPosition>;
    loader.set_position(position);
};

// A reference to a loader, or none. The loader must outlive it.
class LoaderRef {
public:
    LoaderRef() = default;
    template <Positioned T>
    requires(!std::same_as<std::remove_cv_t<T>, LoaderRef>) LoaderRef(T& loader)
        : loader_(&loader),
          get_([](const void* l) -> data::LoaderPosition { return static_cast<const T*>(l)->position(); }),
          set_([](void* l, const data::LoaderPosition& at) { static_cast<T*>(l)->set_position(at); }) {}
    [[nodiscard]] bool has_value() const { return loader_ != nullptr; }
    [[nodiscard]] data::LoaderPosition position() const { return get_(loader_); }
    void set_position(const data::LoaderPosition& position) const { set_(loader_, position); }

private:
    void* loader_ = nullptr;
    data::LoaderPosition (*get_)(const void*) = nullptr;
    void (*set_)(void*, const data::LoaderPosition&) = nullptr;
};

// What a training consists of. All of it must outlive the Checkpoint. Schedules other than ReduceLROnPlateau have no
// state: they count the optimizer's steps.
struct CheckpointParts {
    StateRef model = {};
    StateRef optimizer = {};  // with its master weights
    StateRef scaler = {};
    StateRef schedule = {};  // ReduceLROnPlateau
    StateRef average = {};   // AveragedModel
    LoaderRef loader = {};
    // Further states by name: a second model, a second optimizer, counters of one's own.
    std::vector<std::pair<std::string, StateRef>> others = {};
    // What must be the same when the training goes on, such as {{"--batch", "64"}}: load() refuses a file with other
    // settings and lists every difference.
    io::Metadata settings = {};
    // Of a training by several ranks: rank 0 writes, all ranks read, and save() and load() are collective.
    const distributed::Group* group = nullptr;
};

// What a checkpoint says about itself.
struct CheckpointInfo {
    std::int64_t step = 0;
    io::Metrics metrics = {};    // such as {{"accuracy", 0.91}}
    io::Metadata metadata = {};  // free text
};

// Saves and loads a training as one file: the parts above and the random stream of the process. It is an
// io::Checkpoint (docs/files.md), which io::load_checkpoint() reads part by part.
class Checkpoint {
public:
    // Error(value) for a name in `others` that is empty, has a '.' or a blank, or is there twice, and for a name in
    // `settings` that is there twice.
    explicit Checkpoint(CheckpointParts parts);

    // Replaces the file in one step: at any moment the path holds the old file or the new one. Throws what
    // io::save_checkpoint() throws, and Error(value) for a negative step, metrics that have no name or one name
    // twice, and metadata whose name begins with "training.".
    void save(const std::string& path, const CheckpointInfo& info = {}) const;

    // Puts everything back, to the devices and dtypes that the parts have now; the next steps are then those of the
    // run that saved it. Throws, with nothing changed, Error(io) for a file that is missing, damaged or no checkpoint,
    // Error(value) for other settings and for parts that the file lacks or that this training lacks, and what a part's
    // load_state_dict() throws, after the path and the name of the part.
    CheckpointInfo load(const std::string& path) const;

    // What load() would return, from the header alone; the parts stay as they are. Throws as load() for a damaged header and for
    // other settings.
    [[nodiscard]] CheckpointInfo check_settings(const std::string& path) const;

    [[nodiscard]] const CheckpointParts& parts() const { return parts_; }

private:
    CheckpointParts parts_;
};

// What the header of a checkpoint says; the tensors are not read. Throws Error(io) for a file that is missing, whose
// header is damaged, or that no training::Checkpoint has written.
[[nodiscard]] CheckpointInfo read_checkpoint_info(const std::string& path);

// Whether more or less of a metric is better.
enum class Better : std::uint8_t { higher, lower };

struct CheckpointFolderOptions {
    std::int64_t keep_last = 3;  // >= 1: of the newest checkpoints
    std::int64_t keep_best = 0;  // >= 0: of those with the best `metric`, beside the newest
    std::string metric =
        {};  // a name in CheckpointInfo::metrics; a checkpoint without it, or with NaN, is no best
    Better better = Better::higher;
};

struct CheckpointFile {
    std::int64_t step = 0;
    std::string path = {};
};

// Checkpoints of one run in a folder of their own, as step-0000001200.ckpt. What is no longer needed is removed after
// the new file is whole, so a disk that is full, or a program that is killed, costs no checkpoint; for a moment there
// is one file more than is kept.
class CheckpointFolder {
public:
    // Error(value) for options out of range, and for keep_best without a metric. The folder is made by the first
    // save().
    explicit CheckpointFolder(std::string folder, const CheckpointFolderOptions& options = {});

    // Saves info.step, and removes what is not among the last or the best. Saving a step again replaces its file.
    // Throws what Checkpoint::save() throws, Error(io) where the folder cannot be made, and Error(value) where the
    // folder has a whole checkpoint of a later step: it is that of another run, or this one has gone back, and nothing
    // is to be lost. A damaged one of a later step is renamed to NAME.damaged. What cannot be removed stays, and the
    // log (mezzo/log.h) is told.
    void save(const Checkpoint& checkpoint, const CheckpointInfo& info) const;

    // Loads the newest checkpoint that is whole; none if the folder has none, or is not there. One that cannot be read
    // is skipped, and the log is told. Throws as Checkpoint::load() for one that is whole and does not fit, and
    // Error(io) where there are checkpoints and none can be read.
    std::optional<CheckpointInfo> load_newest(const Checkpoint& checkpoint) const;
    // Likewise the one with the best metric.
    std::optional<CheckpointInfo> load_best(const Checkpoint& checkpoint) const;

    // Oldest first. Error(io) where the folder cannot be read; empty where there is none.
    [[nodiscard]] std::vector<CheckpointFile> files() const;
    // Those with the metric, best first, of equal ones the newer first. Reads the header of each; damaged ones are
    // left out.
    [[nodiscard]] std::vector<CheckpointFile> best() const;
    [[nodiscard]] std::string path_of(std::int64_t step) const;

private:
    void prepare(std::int64_t step) const;
    void rotate() const;
    std::string folder_;
    CheckpointFolderOptions options_;
};

}  // namespace mezzo::training

#pragma GCC visibility pop
