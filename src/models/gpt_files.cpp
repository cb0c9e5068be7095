// Loads and saves weights of nn::Gpt and nn::Llama, with their names in files, and whole folders.
#include "mezzo/models/gpt_files.h"

#include <filesystem>

#include "io/file.h"
#include "mezzo/io.h"
#include "mezzo/models/gpt.h"
#include "mezzo/models/llama.h"
#include "models/config_reader.h"

namespace mezzo::io {

namespace {

std::string text_field(const std::string& path, const char* key) {
    const std::string where = "configuration: " + path,
                      text = read_text("configuration", path, max_config_bytes);
    const JsonValue tree = parse_json_tree(text, where);
    std::string value;
    ConfigReader(tree, where).read(key, value);
    return value;
}

}  // namespace

std::string gpt_name(const std::string& name) {
    if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return {};
    return name.starts_with("transformer.") || name.starts_with("lm_head.") ? name : "transformer." + name;
}

std::string llama_name(const std::string& name) {
    if (name.ends_with("rotary_emb.inv_freq")) return {};
    return name.starts_with("model.") || name.starts_with("lm_head.") ? name : "model." + name;
}

nn::AnyModule load_causal_lm(const std::string& folder) {
    const std::filesystem::path at(folder);
    const std::string config = (at / "config.json").string();
    const std::string type = text_field(config, "model_type");
    check(type == "gpt2" || type == "llama", ErrorKind::value, "load_causal_lm: ", config, ": model_type is ",
          shown(type), "; gpt2 and llama are known");
    std::error_code unknown;
    const auto index = at / "model.safetensors.index.json";
    const auto file = std::filesystem::exists(index, unknown) ? index : at / "model.safetensors";
    const auto loaded = [&](auto model, std::string (*rename)(const std::string&)) {
        load_weights(model, load_state_dict_file(file.string()), {.rename = rename, .strict = true});
        model.eval();
        return nn::AnyModule(std::move(model));
    };
    if (type == "gpt2") return loaded(nn::Gpt(load_gpt_config(config)), gpt_name);
    return loaded(nn::Llama(load_llama_config(config)), llama_name);
}

}  // namespace mezzo::io
