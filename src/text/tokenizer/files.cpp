// Finds and reads the files of a tokenizer in a folder.
#include <filesystem>

#include "io/file.h"
#include "text/tokenizer/parts.h"

namespace mezzo::data::tokenizer {

namespace {

namespace fs = std::filesystem;

constexpr const char* op = "tokenizer";
constexpr std::uint64_t max_bytes = 1 << 26;
// Limit above the number of tokens and merges of any vocabulary below 2^20 tokens.
constexpr int max_values = 1 << 22;

JsonValue parse(std::string_view text, const std::string& where) {
    return io::parse_json_tree(text, where, max_values);
}

bool is_there(const fs::path& path) {
    std::error_code ignored;  // a file that cannot be read is an error when it is opened
    return fs::exists(path, ignored);
}

std::string read(const fs::path& path) { return io::read_text(op, path.string(), max_bytes); }

JsonValue read_json(const fs::path& path) {
    return parse(read(path), std::string(op) + ": " + path.string());
}
JsonValue read_json_if_there(const fs::path& path) {
    return is_there(path) ? read_json(path) : parse("{}", op);
}

Parts load_folder(const fs::path& folder) {
    const std::string where = std::string(op) + ": " + folder.string();
    const JsonValue config_json = read_json_if_there(folder / "tokenizer_config.json");
    const JsonValue map_json = read_json_if_there(folder / "special_tokens_map.json");
    Config config = read_config(config_json, map_json, where + "/");
    if (is_there(folder / "tokenizer.json"))
        return read_tokenizer_json(read_json(folder / "tokenizer.json"), config, where + "/tokenizer.json");
    if (is_there(folder / "vocab.json") && is_there(folder / "merges.txt")) {
        const std::string merges = read(folder / "merges.txt");
        check(is_valid_utf8(merges), ErrorKind::io, where, ": merges.txt is no valid UTF-8");
        return gpt2_parts(read_json(folder / "vocab.json"), merges, std::move(config), where);
    }
    if (is_there(folder / "vocab.txt"))
        return bert_parts(read(folder / "vocab.txt"), std::move(config), where);
    for (const char* const name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"})
        check(!is_there(folder / name), ErrorKind::value, where, ": ", name,
              " is a model of SentencePiece, which is not read; save the tokenizer as tokenizer.json");
    fail(ErrorKind::io, where,
         ": there is no tokenizer.json, no vocab.json with merges.txt and no vocab.txt");
}

}  // namespace

Parts load_parts(const std::string& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) return load_folder(path);
    const JsonValue tokenizer = read_json(path), none = parse("{}", op);
    return read_tokenizer_json(tokenizer, read_config(none, none, ""), std::string(op) + ": " + path);
}

Parts parse_parts(std::string_view tokenizer, std::string_view config) {
    const std::string where = "tokenizer: ";
    const JsonValue tree = parse(tokenizer, where + "tokenizer.json"), none = parse("{}", op);
    const JsonValue config_tree = parse(config, where + "tokenizer_config.json");
    return read_tokenizer_json(tree, read_config(config_tree, none, where), where + "tokenizer.json");
}

}  // namespace mezzo::data::tokenizer
