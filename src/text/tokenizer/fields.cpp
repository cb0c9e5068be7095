#include "text/tokenizer/fields.h"

#include "text/unicode.h"

namespace mezzo::data::tokenizer {

namespace {

bool is_integer(const JsonValue& value, std::int64_t most) {
    return value.kind == JsonKind::natural && value.natural <= std::uint64_t(most);
}

}  // namespace

Fields::Fields(const JsonValue& object, std::string where)
    : object_(object), where_(std::move(where)), read_(object.members.size()) {
    check(object.kind == JsonKind::object, ErrorKind::value, where_, " is ", io::name(object.kind),
          "; an object is expected");
}

const JsonValue* Fields::find(const char* key) {
    for (std::size_t i = 0; i < read_.size(); ++i) {
        const io::JsonMember& member = object_.members[i];
        if (member.key != key) continue;
        read_[i] = true;
        return member.value.kind == JsonKind::null ? nullptr : &member.value;
    }
    return nullptr;
}

const JsonValue& Fields::need(const char* key) {
    const JsonValue* const value = find(key);
    check(value != nullptr, ErrorKind::value, where_, " has no field \"", key, "\"");
    return *value;
}

void Fields::wrong(const char* key, const JsonValue& value, const char* wanted) const {
    fail(ErrorKind::value, where_, ".", key, " is ",
         value.kind == JsonKind::string ? io::shown(value.text) : io::name(value.kind), "; ", wanted,
         " is expected");
}

const std::string& Fields::text(const char* key) { return text_of(need(key), where_ + "." + key); }

std::string Fields::text(const char* key, const char* fallback) { return find(key) ? text(key) : fallback; }

bool Fields::flag(const char* key, bool fallback) {
    const JsonValue* const value = find(key);
    if (!value) return fallback;
    if (value->kind != JsonKind::boolean) wrong(key, *value, "true or false");
    return value->flag;
}

std::int64_t Fields::integer(const char* key, std::int64_t most) {
    return integer_of(need(key), where_ + "." + key, most);
}

std::int64_t Fields::integer(const char* key, std::int64_t most, std::int64_t fallback) {
    return find(key) ? integer(key, most) : fallback;
}

std::string Fields::character(const char* key) {
    const std::string& value = text(key);
    check(!value.empty() && decode_utf8(value).bytes == value.size(), ErrorKind::value, where_, ".", key,
          " is ", io::shown(value), "; one character is expected");
    return value;
}

Fields Fields::fields(const char* key) { return {need(key), where_ + "." + key}; }

const std::vector<JsonValue>& Fields::items(const char* key) {
    const JsonValue& value = need(key);
    if (value.kind != JsonKind::array) wrong(key, value, "an array");
    return value.items;
}

void Fields::done() const {
    for (std::size_t i = 0; i < read_.size(); ++i)
        if (!read_[i]) refuse("has a field " + io::shown(object_.members[i].key) + ", which is not known");
}

namespace {

// The fields that any component of a tokenizer may have, each between two blanks.
constexpr std::string_view component_fields =
    " add_prefix_space behavior byte_fallback clean_text cleanup cls content continuing_subword_prefix "
    "decoders delimiter dropout end_of_word_suffix fuse_unk handle_chinese_chars ignore_merges "
    "individual_digits invert lowercase max_input_chars_per_word merges normalizers pad_token pair "
    "pattern precompiled_charsmap prefix prepend prepend_scheme pretokenizers processors replacement "
    "sep single special_tokens split start stop str_rep strip_accents strip_left strip_right suffix "
    "trim_offsets unk_id unk_token use_regex vocab word_delimiter_token ";

}  // namespace

void Fields::done_with_component() const {
    for (std::size_t i = 0; i < read_.size(); ++i) {
        const std::string& key = object_.members[i].key;
        const bool known = component_fields.find(" " + key + " ") != std::string_view::npos;
        if (!read_[i] && (!known || key.find(' ') != std::string::npos))
            refuse("has a field " + io::shown(key) + ", which is not known");
    }
}

void Fields::refuse(std::string_view what) const { fail(ErrorKind::value, where_, " ", what); }

const std::string& text_of(const JsonValue& value, const std::string& where) {
    check(value.kind == JsonKind::string, ErrorKind::value, where, " is ", io::name(value.kind),
          "; a string is expected");
    return value.text;
}

std::int64_t integer_of(const JsonValue& value, const std::string& where, std::int64_t most) {
    if (!is_integer(value, most))
        fail(ErrorKind::value, where, " is ",
             value.kind == JsonKind::natural ? std::to_string(value.natural) : io::name(value.kind),
             "; a whole number from 0 to ", most, " is expected");
    return std::int64_t(value.natural);
}

}  // namespace mezzo::data::tokenizer
