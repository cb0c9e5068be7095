// Checkpoints of a whole training: Checkpoint saves and loads everything that the next step depends on, and
// CheckpointFolder keeps the newest and the best checkpoints of a run.
//
//   const training::Checkpoint checkpoint(
//       {.model = net, .optimizer = optimizer, .scaler = scaler, .loader = loader});
//   const training::CheckpointFolder folder("run");
//   if (!folder.load_newest(checkpoint)) std::cout << "a new run\n";
//   folder.save(checkpoint, {.step = optimizer.applied_steps()});
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/distributed/group.h"
#include "mezzo/io.h"
#include "mezzo/shard.h"
#include "mezzo/train/metrics.h"

#pragma GCC visibility push(default)

namespace mezzo::training {

// A class with state_dict() and load_state_dict(): modules, optimizers, GradScaler, AveragedModel,
// ReduceLROnPlateau, normalisers, or a class of the user.
template <class T>
concept Stateful = requires(T& object, const StateDict& state) {
    { std::as_const(object).state_dict() } -> std::convertible_to<StateDict>;
    object.load_state_dict(state);
};

// A reference to a Stateful object, or empty. The object must outlive it.
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

// A loader whose position can be read and set: data::DataLoader and the other loaders of mezzo.
template <class T>
concept Positioned = requires(T& loader, const data::LoaderPosition& position) {
    { std::as_const(loader).position() } -> std::convertible_to<data::LoaderPosition>;
    loader.set_position(position);
};

// A reference to a loader, or empty. The loader must outlive it.
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

// The objects whose state a checkpoint holds. All of them must outlive the Checkpoint. Schedules other than
// ReduceLROnPlateau have no state: they count the optimizer's steps.
struct CheckpointParts {
    StateRef model = {};
    StateRef optimizer = {};  // with its master weights
    StateRef scaler = {};
    StateRef schedule = {};  // ReduceLROnPlateau
    StateRef average = {};   // AveragedModel
    LoaderRef loader = {};
    // Further objects by name: a second model, a second optimizer, counters of the program.
    std::vector<std::pair<std::string, StateRef>> others = {};
    // Names of others that the file or this training may lack. load() passes an empty state to a part that
    // the file lacks, and ignores a part that only the file has.
    std::vector<std::string> optional = {};
    // Settings that must be the same when the training is resumed, such as {{"--batch", "64"}}: load() throws
    // for a file with other settings and lists every difference.
    io::Metadata settings = {};
    // Set for a training with several ranks: rank 0 writes, all ranks read, and save() and load() are
    // collective.
    const distributed::Group* group = nullptr;
};

// The step, metrics and metadata of a checkpoint.
struct CheckpointInfo {
    std::int64_t step = 0;
    io::Metrics metrics = {};    // such as {{"accuracy", 0.91}}
    io::Metadata metadata = {};  // free text
};

// Saves and loads a training as one file: the parts above and the random stream of the process. The file is
// an io::Checkpoint (docs/guide/files.md), whose parts io::load_checkpoint() returns.
class Checkpoint {
public:
    // Throws Error(value) for a name in `others` that is empty, has a '.' or a blank, or is used twice, and
    // for a name in `settings` that is used twice.
    explicit Checkpoint(CheckpointParts parts);

    // Replaces the file atomically: at any moment the path holds the old file or the new one. Throws what
    // io::save_checkpoint() throws, and Error(value) for a negative step, metrics that have no name or one
    // name twice, and metadata whose name begins with "training.".
    void save(const std::string& path, const CheckpointInfo& info = {}) const;

    // Restores all parts, on the devices and in the dtypes that they have now; the next steps are then those
    // of the run that saved the file. Throws, with nothing changed, Error(io) for a file that is missing,
    // damaged or no checkpoint, Error(value) for other settings and for parts, but optional ones, that only
    // the file or only this training has, and the error of a part's load_state_dict(), prefixed with the path
    // and the name of the part.
    CheckpointInfo load(const std::string& path) const;

    // Returns what load() would return, but reads only the header and changes no part. Throws as load() for a
    // damaged header and for other settings.
    [[nodiscard]] CheckpointInfo check_settings(const std::string& path) const;

    [[nodiscard]] const CheckpointParts& parts() const { return parts_; }

private:
    CheckpointParts parts_;
};

// Reads the header of a checkpoint, without the tensors. Throws Error(io) for a file that is missing, whose
// header is damaged, or that was not written by training::Checkpoint.
[[nodiscard]] CheckpointInfo read_checkpoint_info(const std::string& path);

// Direction in which a metric improves.
enum class Better : std::uint8_t { higher, lower };

struct CheckpointFolderOptions {
    std::int64_t keep_last = 3;  // >= 1: number of the newest checkpoints that stay
    std::int64_t keep_best = 0;  // >= 0: number of those with the best `metric` that stay, too
    // A name in CheckpointInfo::metrics; a checkpoint without it, or with NaN, is never among the best.
    std::string metric = {};
    Better better = Better::higher;
};

struct CheckpointFile {
    std::int64_t step = 0;
    std::string path = {};
};

// A folder for the checkpoints of one run, with files such as step-0000001200.ckpt. Old files are removed
// after the new file is complete, so a full disk or a killed program loses no checkpoint; for a moment the
// folder holds one file more than the options allow.
class CheckpointFolder {
public:
    // Throws Error(value) for options out of range, and for keep_best without a metric. The first save()
    // creates the folder.
    explicit CheckpointFolder(std::string folder, const CheckpointFolderOptions& options = {});

    // Saves info.step, and removes files that are neither among the newest nor among the best. Saving a step
    // again replaces its file. Throws what Checkpoint::save() throws, Error(io) if the folder cannot be
    // created, and Error(value) if the folder has an undamaged checkpoint of a later step, which belongs to
    // another run, or to this run before it went back. A damaged checkpoint of a later step is renamed to
    // NAME.damaged. A file that cannot be removed stays, and is reported to the log (mezzo/log.h).
    void save(const Checkpoint& checkpoint, const CheckpointInfo& info) const;

    // Loads the newest checkpoint that can be read; returns none if the folder is empty or does not exist. A
    // checkpoint that cannot be read is skipped and reported to the log. Throws as Checkpoint::load() for one
    // that can be read but does not fit, and Error(io) if there are checkpoints but none can be read.
    std::optional<CheckpointInfo> load_newest(const Checkpoint& checkpoint) const;
    // Loads the checkpoint with the best metric, with the same rules.
    std::optional<CheckpointInfo> load_best(const Checkpoint& checkpoint) const;

    // The checkpoints, oldest first; empty if there is no folder. Throws Error(io) if the folder cannot be
    // read.
    [[nodiscard]] std::vector<CheckpointFile> files() const;
    // The checkpoints that have the metric, best first, equal ones newest first. Reads the header of each;
    // damaged ones are left out.
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
