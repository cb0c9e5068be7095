// Saves a training run as an io::Checkpoint, and loads it either completely or not at all.
#include "mezzo/train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "mezzo/device.h"
#include "mezzo/distributed/state.h"
#include "train/checkpoint_header.h"

namespace mezzo::training {

namespace {

// A state of this training that is saved under its own name.
struct NamedState {
    std::string name;  // in the header and in errors
    StateRef state;
};

std::vector<NamedState> parts_of(const CheckpointParts& parts) {
    std::vector<NamedState> result{{"model", parts.model},
                                   {"optimizer", parts.optimizer},
                                   {"scaler", parts.scaler},
                                   {"schedule", parts.schedule},
                                   {"average", parts.average}};
    for (const auto& [name, state] : parts.others) result.push_back({"other." + name, state});
    std::erase_if(result, [](const NamedState& part) { return !part.state.has_value(); });
    return result;
}

std::vector<std::string> names_of(const CheckpointParts& parts) {
    std::vector<std::string> names;
    for (const NamedState& part : parts_of(parts)) names.push_back(part.name);
    if (parts.loader.has_value()) names.emplace_back("loader");
    return names;
}

StateDict* own_state(io::Checkpoint& checkpoint, const std::string& name) {
    if (name == "model") return &checkpoint.model;
    if (name == "optimizer") return &checkpoint.optimizer;
    return name == "scaler" ? &checkpoint.scaler : nullptr;
}

void put_state(io::Checkpoint& checkpoint, const NamedState& part) {
    StateDict state = part.state.state_dict();
    if (StateDict* const own = own_state(checkpoint, part.name)) {
        *own = std::move(state);
        return;
    }
    for (auto& [name, value] : state) checkpoint.extra.emplace_back(part.name + "." + name, std::move(value));
}

StateDict state_of(io::Checkpoint& checkpoint, const std::string& name) {
    if (const StateDict* const own = own_state(checkpoint, name)) return *own;
    return io::without_prefix(checkpoint.extra, name + ".");
}

StateDict copy_of(const StateDict& state) {
    StateDict result;
    for (const auto& [name, value] : state)
        result.emplace_back(name, value.defined() ? value.detach().clone() : value);
    return result;
}

std::string list_of(const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    std::vector<std::string> result;
    for (const std::string& name : a)
        if (std::find(b.begin(), b.end(), name) == b.end()) result.push_back(name);
    return result;
}

void check_parts(const std::string& path, const std::vector<std::string>& saved,
                 const CheckpointParts& parts) {
    const std::vector<std::string> wanted = names_of(parts);
    std::vector<std::string> optional;
    for (const std::string& name : parts.optional) optional.push_back("other." + name);
    const std::vector<std::string> missing = difference(difference(wanted, saved), optional),
                                   unexpected = difference(difference(saved, wanted), optional);
    check(missing.empty(), ErrorKind::value, "Checkpoint: ", path, ": has no ", list_of(missing),
          "; it was saved with ", saved.empty() ? "no part at all" : list_of(saved));
    check(unexpected.empty(), ErrorKind::value, "Checkpoint: ", path, ": has ", list_of(unexpected),
          ", and this training has not; io::load_checkpoint() reads a checkpoint part by part");
}

const std::string* find(const io::Metadata& entries, const std::string& name) {
    const auto found =
        std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.first == name; });
    return found == entries.end() ? nullptr : &found->second;
}

void compare_settings(const std::string& path, const io::Metadata& then, const io::Metadata& now) {
    std::string list;
    for (const auto& [name, value] : now) {
        const std::string* const old = find(then, name);
        if (old == nullptr || *old != value)
            list += "\n  " + name + ": " + (old == nullptr ? "not stored" : *old) + ", now " + value;
    }
    for (const auto& [name, value] : then)
        if (find(now, name) == nullptr) list += "\n  " + name + ": " + value + ", now unknown";
    check(list.empty(), ErrorKind::value, "Checkpoint: ", path,
          ": cannot be resumed, because the training would be another one; give the same settings, or use "
          "another checkpoint:",
          list);
}

// Loads parts one after the other. Unless all of them are loaded, the destructor restores their previous
// states.
class Restoring {
public:
    explicit Restoring(const std::string& path) : path_(path) {}
    ~Restoring() {
        if (done_) return;
        for (auto before = before_.rbegin(); before != before_.rend(); ++before) {
            try {
                before->state.load_state_dict(before->values);
            } catch (...) {  // the error that brings us here is the one to report
            }
        }
        try {
            if (position_) loader_.set_position(*position_);
        } catch (...) {
        }
    }
    Restoring(const Restoring&) = delete;
    Restoring& operator=(const Restoring&) = delete;

    void load(const LoaderRef& loader, const data::LoaderPosition& position) {
        const data::LoaderPosition before = loader.position();
        named("loader", [&] { loader.set_position(position); });
        loader_ = loader;
        position_ = before;
    }
    // A load_state_dict() that throws changes nothing, so the last part needs no copy of its previous state.
    void load(const NamedState& part, const StateDict& state, bool last) {
        Before before{part.state, last ? StateDict() : copy_of(part.state.state_dict())};
        named(part.name, [&] { part.state.load_state_dict(state); });
        before_.push_back(std::move(before));
    }
    void done() { done_ = true; }

private:
    struct Before {
        StateRef state;
        StateDict values;
    };
    template <class Work> void named(const std::string& name, const Work& work) const {
        try {
            work();
        } catch (const Error& error) {
            fail(error.kind(), "Checkpoint: ", path_, ": ", name, ": ", error.what());
        }
    }
    const std::string& path_;
    std::vector<Before> before_;
    LoaderRef loader_;
    std::optional<data::LoaderPosition> position_;
    bool done_ = false;
};

// Models are loaded last: they are large, and with one model this avoids its copy.
void restore(const std::string& path, io::Checkpoint& saved, const CheckpointParts& parts) {
    std::vector<NamedState> order = parts_of(parts);
    std::stable_partition(order.begin(), order.end(),
                          [](const NamedState& p) { return !p.state.is_module(); });
    set_random_state(random_state());  // throws in a capture, before anything is changed
    Restoring restoring(path);
    if (parts.loader.has_value()) restoring.load(parts.loader, saved.position);
    for (const NamedState& part : order)
        restoring.load(part, state_of(saved, part.name), &part == &order.back());
    restoring.done();
    set_random_state(saved.random);
}

}  // namespace

Checkpoint::Checkpoint(CheckpointParts parts) : parts_(std::move(parts)) {
    for (std::size_t i = 0; i < parts_.others.size(); ++i) {
        const auto& [name, state] = parts_.others[i];
        check(!name.empty() && name.find_first_of(". ") == std::string::npos, ErrorKind::value,
              "Checkpoint: \"", name,
              "\" is no name of a part; it must not be empty, and have no '.' and no blank");
        check(state.has_value(), ErrorKind::value, "Checkpoint: the part \"", name, "\" refers to nothing");
        for (std::size_t j = 0; j < i; ++j)
            check(parts_.others[j].first != name, ErrorKind::value, "Checkpoint: two parts are named \"",
                  name, "\"");
    }
    for (std::size_t i = 0; i < parts_.settings.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
            check(parts_.settings[i].first != parts_.settings[j].first, ErrorKind::value,
                  "Checkpoint: two settings are named \"", parts_.settings[i].first, "\"");
}

void Checkpoint::save(const std::string& path, const CheckpointInfo& info) const {
    io::Checkpoint checkpoint;
    checkpoint.metadata = header_of(info, names_of(parts_), parts_.settings);
    for (const NamedState& part : parts_of(parts_)) put_state(checkpoint, part);
    if (parts_.loader.has_value()) checkpoint.position = parts_.loader.position();
    if (parts_.group != nullptr) return distributed::save_checkpoint(*parts_.group, path, checkpoint);
    io::save_checkpoint(path, checkpoint);
}

CheckpointInfo Checkpoint::load(const std::string& path) const {
    io::Checkpoint saved = parts_.group != nullptr ? distributed::load_checkpoint(*parts_.group, path)
                                                   : io::load_checkpoint(path);
    CheckpointHeader header = parse_header(path, saved.metadata);
    compare_settings(path, header.settings, parts_.settings);
    check_parts(path, header.parts, parts_);
    restore(path, saved, parts_);
    return std::move(header.info);
}

CheckpointInfo Checkpoint::check_settings(const std::string& path) const {
    CheckpointHeader header = parse_header(path, io::SafeTensors(path).metadata());
    compare_settings(path, header.settings, parts_.settings);
    return std::move(header.info);
}

CheckpointInfo read_checkpoint_info(const std::string& path) {
    return parse_header(path, io::SafeTensors(path).metadata()).info;
}

}  // namespace mezzo::training
