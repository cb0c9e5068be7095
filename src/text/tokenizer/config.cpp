// Reads tokenizer_config.json, which transformers writes together with tokenizer.json.
#include <algorithm>

#include "text/tokenizer/parts.h"

namespace mezzo::data::tokenizer {

namespace {

// Reads a token, which is a string or an object with flags.
AddedToken read_token(const JsonValue& value, const std::string& where) {
    AddedToken token;
    if (value.kind == JsonKind::object) {
        Fields fields(value, where);
        token = read_added_token(fields);
    } else {
        token.content = text_of(value, where);
        token.normalized = false;
    }
    return token;
}

void read_roles(Fields& fields, Config& config) {
    for (int role = 0; role < roles; ++role) {
        const JsonValue* const value = fields.find(role_names[role]);
        if (!value || !config.role_tokens[std::size_t(role)].empty()) continue;
        AddedToken token = read_token(*value, fields.where() + "." + role_names[role]);
        token.special = true;
        config.role_tokens[std::size_t(role)] = token.content;
        config.tokens.push_back(std::move(token));
    }
    for (const char* const key : {"additional_special_tokens", "extra_special_tokens"}) {
        const JsonValue* const value = fields.find(key);
        if (!value) continue;
        const auto add = [&](const JsonValue& item) {
            config.tokens.push_back(read_token(item, fields.where() + "." + key));
            config.tokens.back().special = true;
        };
        for (const JsonValue& item : value->items) add(item);
        for (const io::JsonMember& member : value->members) add(member.value);  // with names of their own
    }
}

void read_added_tokens_decoder(Fields& fields, Config& config) {
    if (!fields.find("added_tokens_decoder")) return;
    const Fields decoder = fields.fields("added_tokens_decoder");
    for (const io::JsonMember& member : decoder.object().members) {
        const std::string where = decoder.where() + "." + io::shown(member.key);
        AddedToken token = read_token(member.value, where);
        token.id = 0;
        for (const char c : member.key) {
            token.id = c >= '0' && c <= '9' ? 10 * token.id + (c - '0') : max_id;
            check(token.id < max_id, ErrorKind::value, where, ": ids below ", max_id, " are expected");
        }
        config.tokens.push_back(std::move(token));
    }
    std::stable_sort(config.tokens.begin(), config.tokens.end(),
                     [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
}

bool is_left(Fields& fields, const char* key) {
    const std::string side = fields.text(key, "right");
    if (side != "left" && side != "right")
        fields.refuse(std::string("has the ") + key + " " + io::shown(side) + "; left and right are known");
    return side == "left";
}

// Some models write 10^30 for no limit.
std::int64_t read_limit(Fields& fields) {
    const JsonValue* const value = fields.find("model_max_length");
    if (!value) return 0;
    const double number =
        value->kind == JsonKind::natural || value->kind == JsonKind::real ? value->number : -1;
    if (!(number >= 0)) fields.refuse("has a model_max_length that is no number from 0 on");
    return number > double(std::int64_t(1) << 31) ? 0 : std::int64_t(number);
}

}  // namespace

Config read_config(const JsonValue& config, const JsonValue& special_tokens_map, const std::string& where) {
    Fields fields(config, where + "tokenizer_config.json"),
        map(special_tokens_map, where + "special_tokens_map.json");
    Config result;
    read_added_tokens_decoder(fields, result);
    read_roles(fields, result);
    read_roles(map, result);
    result.tokenizer_class = fields.text("tokenizer_class", "");
    result.model_max_length = read_limit(fields);
    result.add_bos = fields.flag("add_bos_token", false);
    result.add_eos = fields.flag("add_eos_token", false);
    result.clean_up = fields.flag("clean_up_tokenization_spaces", false);
    result.pad_left = is_left(fields, "padding_side");
    result.truncate_left = is_left(fields, "truncation_side");
    result.add_prefix_space = fields.flag("add_prefix_space", false);
    result.bert = {fields.find("do_lower_case"), config.find("strip_accents"),
                   fields.find("tokenize_chinese_chars")};
    return result;
}

}  // namespace mezzo::data::tokenizer
