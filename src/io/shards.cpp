#include "io/shards.h"

#include <algorithm>
#include <functional>

#include "core/sorting.h"
#include "io/file.h"
#include "io/json.h"
#include "mezzo/io.h"

namespace mezzo::io {

namespace {

constexpr std::uint64_t max_index_bytes = 64000000;

bool is_plain_file_name(std::string_view name) {
    return !name.empty() && name != "." && name.find("..") == name.npos && name.find('/') == name.npos &&
           name.find('\\') == name.npos && name.find('\0') == name.npos;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_shard_index(std::string_view text,
                                                                   const std::string& where) {
    const JsonValue index = parse_json_tree(text, where);
    const JsonValue* const map = index.find("weight_map");
    check(map != nullptr && map->kind == JsonKind::object, ErrorKind::io, where,
          ": no object \"weight_map\"; an index maps tensor names to file names there");
    check(!map->members.empty(), ErrorKind::io, where, ": \"weight_map\" names no tensor");
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& [tensor, file] : map->members) {
        check(file.kind == JsonKind::string, ErrorKind::io, where, ": weight_map ", shown(tensor), " is ",
              name(file.kind), ", not a file name");
        check(is_plain_file_name(file.text), ErrorKind::io, where, ": weight_map ", shown(tensor),
              ": the file name ", shown(file.text), " leads out of the folder");
        result.emplace_back(file.text, tensor);
    }
    sort_by(result, std::less<>());
    return result;
}

StateDict load_state_dict_file(const std::string& path) {
    if (!path.ends_with(".json")) return SafeTensors(path).state_dict();
    const std::string where = "load_state_dict_file: " + path;
    const auto map = parse_shard_index(read_text("load_state_dict_file", path, max_index_bytes), where);
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == path.npos ? "" : path.substr(0, slash + 1);
    StateDict result;
    for (auto first = map.begin(); first != map.end();) {
        const auto last =
            std::find_if(first, map.end(), [&](const auto& entry) { return entry.first != first->first; });
        const SafeTensors file(folder + first->first);
        check(file.infos().size() == std::size_t(last - first), ErrorKind::io, where, ": names ",
              last - first, " tensors of ", shown(first->first), ", which has ", file.infos().size());
        for (; first != last; ++first) result.emplace_back(first->second, file.tensor(first->second));
    }
    return result;
}

}  // namespace mezzo::io
