// A training run in one safetensors file: every state under its own prefix.
#include <bit>

#include "mezzo/io.h"

namespace mezzo::io {

namespace {

constexpr const char* version_key = "mezzo.checkpoint";
constexpr const char* version = "1";

struct Part {
    const char* prefix;
    StateDict Checkpoint::*state;
};
constexpr Part parts[] = {{"model.", &Checkpoint::model},
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

}  // namespace

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
    for (const Part& part : parts) {
        StateDict named = with_prefix(checkpoint.*part.state, part.prefix);
        all.insert(all.end(), std::make_move_iterator(named.begin()), std::make_move_iterator(named.end()));
    }
    all.emplace_back(
        "random",
        Tensor::from(std::vector<std::int64_t>{std::bit_cast<std::int64_t>(checkpoint.random.seed),
                                               std::bit_cast<std::int64_t>(checkpoint.random.offset)},
                     {2}));
    save_safetensors(path, all, {{"format", "pt"}, {version_key, version}});
}

Checkpoint load_checkpoint(const std::string& path) {
    const SafeTensors file(path);
    check_version(path, file.metadata());
    const Tensor random = file.tensor("random");
    check(random.dtype() == int64 && random.shape() == Shape{2}, ErrorKind::io, "load_checkpoint: ", path,
          ": random is ", random.dtype(), " ", random.shape(), ", not int64 [2]");
    const StateDict all = file.state_dict();
    Checkpoint result;
    std::size_t known = 1;  // random
    for (const Part& part : parts) {
        result.*part.state = without_prefix(all, part.prefix);
        known += (result.*part.state).size();
    }
    check(known == all.size(), ErrorKind::io, "load_checkpoint: ", path, ": ", all.size(), " entries, ",
          known, " are those of a checkpoint (model.…, optimizer.…, scaler.…, extra.…, random)");
    result.random = {.seed = std::bit_cast<std::uint64_t>(random.data<std::int64_t>()[0]),
                     .offset = std::bit_cast<std::uint64_t>(random.data<std::int64_t>()[1])};
    return result;
}

}  // namespace mezzo::io
