// Stores a training run in one safetensors file, every state under its own prefix.
#include <algorithm>
#include <bit>

#include "mezzo/io.h"

namespace mezzo::io {

namespace {

constexpr const char* version_key = "mezzo.checkpoint";
constexpr const char* version = "1";
constexpr const char* own = "mezzo.";  // begins the names in `extra` that are not the user's
constexpr const char* position_name = "extra.mezzo.position";
constexpr const char* random_states_name = "extra.mezzo.random_states";

struct StatePrefix {
    const char* prefix;
    StateDict Checkpoint::*state;
};
constexpr StatePrefix parts[] = {{"model.", &Checkpoint::model},
                                 {"optimizer.", &Checkpoint::optimizer},
                                 {"scaler.", &Checkpoint::scaler},
                                 {"extra.", &Checkpoint::extra}};

void check_version(const std::string& path, const Metadata& metadata) {
    for (const auto& [key, value] : metadata) {
        if (key != version_key) continue;
        check(value == version, ErrorKind::io, "load_checkpoint: ", path, ": format version ", value,
              "; this mezzo reads version ", version);
        return;
    }
    fail(ErrorKind::io, "load_checkpoint: ", path, ": no checkpoint: its metadata lack ", version_key,
         "; load_state_dict_file() reads plain weights");
}

// Whether a name in the metadata is one of mezzo's.
bool is_own(std::string_view name) { return name == "format" || name.starts_with(own); }

Tensor to_tensor(const std::vector<RandomState>& states) {
    std::vector<std::int64_t> bits;
    for (const RandomState& state : states) {
        bits.push_back(std::bit_cast<std::int64_t>(state.seed));
        bits.push_back(std::bit_cast<std::int64_t>(state.offset));
    }
    return Tensor::from(bits, {std::int64_t(states.size()), 2});
}

// Returns the integers of an entry with two columns, row by row. A vector has one row.
std::vector<std::int64_t> integers(const std::string& path, const char* name, const Tensor& x, bool rows) {
    const bool fits = x.dtype() == int64 && x.dim() == (rows ? 2 : 1) && x.size(-1) == 2 && x.numel() > 0;
    check(fits, ErrorKind::io, "load_checkpoint: ", path, ": ", name, " is ", x.dtype(), " ", x.shape(),
          ", not int64 ", rows ? "[ranks, 2]" : "[2]");
    return x.to_vector<std::int64_t>();
}

RandomState random_state_of(const std::int64_t* bits) {
    return {.seed = std::bit_cast<std::uint64_t>(bits[0]), .offset = std::bit_cast<std::uint64_t>(bits[1])};
}

// Moves mezzo's own entries out of `extra`.
void take_own(const std::string& path, Checkpoint& checkpoint) {
    const StateDict found = with_prefix(without_prefix(checkpoint.extra, own), "extra.mezzo.");
    for (const auto& [name, value] : found) {
        if (name == position_name) {
            const std::vector<std::int64_t> v = integers(path, position_name, value, false);
            check(v[0] >= 0 && v[1] >= 0, ErrorKind::io, "load_checkpoint: ", path, ": ", position_name,
                  " is negative");
            checkpoint.position = {.epoch = v[0], .samples = v[1]};
        } else if (name == random_states_name) {
            const std::vector<std::int64_t> v = integers(path, random_states_name, value, true);
            for (std::size_t i = 0; i < v.size(); i += 2)
                checkpoint.random_states.push_back(random_state_of(&v[i]));
        }
    }
    std::erase_if(checkpoint.extra, [](const auto& entry) { return entry.first.starts_with(own); });
}

void add_own(const Checkpoint& checkpoint, StateDict& all) {
    for (const auto& [name, value] : checkpoint.extra)
        check(!name.starts_with(own), ErrorKind::value, "save_checkpoint: extra has \"", name,
              "\"; names that begin with \"", own, "\" are mezzo's");
    if (checkpoint.position != data::LoaderPosition{})
        all.emplace_back(position_name, Tensor::from(std::vector<std::int64_t>{checkpoint.position.epoch,
                                                                               checkpoint.position.samples},
                                                     {2}));
    if (!checkpoint.random_states.empty())
        all.emplace_back(random_states_name, to_tensor(checkpoint.random_states));
}

}  // namespace

RandomState Checkpoint::random_of(const data::Shard& rank) const {
    static_cast<void>(rank.slice(0));  // throws if the rank is out of range
    const std::vector<RandomState> states = random_states.empty() ? std::vector{random} : random_states;
    if (states.size() == std::size_t(rank.size)) return states[std::size_t(rank.rank)];
    RandomState state{.seed = states[0].seed + std::uint64_t(rank.rank), .offset = 0};
    for (const RandomState& other : states) state.offset = std::max(state.offset, other.offset);
    return state;
}

StateDict without_prefix(const StateDict& state, std::string_view prefix) {
    StateDict result;
    for (const auto& [name, value] : state)
        if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), value);
    return result;
}

StateDict with_prefix(const StateDict& state, std::string_view prefix) {
    StateDict result;
    for (const auto& [name, value] : state) result.emplace_back(std::string(prefix) + name, value);
    return result;
}

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
    StateDict all;
    for (const StatePrefix& part : parts) {
        StateDict named = with_prefix(checkpoint.*part.state, part.prefix);
        all.insert(all.end(), std::make_move_iterator(named.begin()), std::make_move_iterator(named.end()));
    }
    all.emplace_back("random", to_tensor({checkpoint.random}).reshape({2}));
    add_own(checkpoint, all);
    Metadata metadata{{"format", "pt"}, {version_key, version}};
    for (const auto& entry : checkpoint.metadata) {
        check(!is_own(entry.first), ErrorKind::value, "save_checkpoint: metadata has \"", entry.first,
              "\"; \"format\" and names that begin with \"", own, "\" are mezzo's");
        metadata.push_back(entry);
    }
    save_safetensors(path, all, metadata);
}

Checkpoint load_checkpoint(const std::string& path) {
    const SafeTensors file(path);
    check_version(path, file.metadata());
    const std::vector<std::int64_t> random = integers(path, "random", file.tensor("random"), false);
    const StateDict all = file.state_dict();
    Checkpoint result;
    std::size_t known = 1;  // random
    for (const StatePrefix& part : parts) {
        result.*part.state = without_prefix(all, part.prefix);
        known += (result.*part.state).size();
    }
    check(known == all.size(), ErrorKind::io, "load_checkpoint: ", path, ": ", all.size(), " entries, ",
          known, " are those of a checkpoint (model.…, optimizer.…, scaler.…, extra.…, random)");
    result.random = random_state_of(random.data());
    for (const auto& entry : file.metadata())
        if (!is_own(entry.first)) result.metadata.push_back(entry);
    take_own(path, result);
    return result;
}

}  // namespace mezzo::io
