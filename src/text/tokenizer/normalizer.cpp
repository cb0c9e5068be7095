#include "text/tokenizer/normalizer.h"

#include "text/tokenizer/byte_characters.h"
#include "text/tokenizer/pattern.h"

namespace mezzo::data::tokenizer {

namespace {

// Replaces the text by the output of visit(character, source, out) for each character.
template <class Visit> void rewrite(Text& text, const Visit& visit) {
    Text result;
    result.reserve(text.size());
    each_character(text, [&](char32_t c, TextRange range) { visit(c, text.place(range), result); });
    text = std::move(result);
}

void lower_case(Text& text) {
    rewrite(text, [](char32_t c, SourceRange place, Text& out) {
        if (c == 0x130) {  // the only character whose lower case is two characters
            out.append(U'i', place);
            out.append(char32_t(0x307), place);
        } else {
            out.append(to_lower(c), place);
        }
    });
}

template <class Dropped> void drop(Text& text, const Dropped& dropped) {
    rewrite(text, [&](char32_t c, SourceRange place, Text& out) {
        if (!dropped(c)) out.append(c, place);
    });
}

void clean(Text& text) {
    rewrite(text, [](char32_t c, SourceRange place, Text& out) {
        const CharacterKind kind = kind_of(c);
        if (kind != CharacterKind::dropped) out.append(kind == CharacterKind::space ? U' ' : c, place);
    });
}

void space_ideographs(Text& text) {
    rewrite(text, [](char32_t c, SourceRange place, Text& out) {
        const bool alone = kind_of(c) == CharacterKind::ideograph;
        if (alone) out.append(U' ', place);
        out.append(c, place);
        if (alone) out.append(U' ', place);
    });
}

// The rules of SentencePiece's nmt_* normalizers.
void nmt(Text& text) {
    rewrite(text, [](char32_t c, SourceRange place, Text& out) {
        const bool dropped = (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                             c == 0x8F || c == 0x9F;
        const bool blank = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                           c == 0xFEFF || c == 0xFFFD;
        if (!dropped) out.append(blank ? U' ' : c, place);
    });
}

void strip(Text& text, bool left, bool right) {
    const std::string_view bytes = text.bytes();
    TextRange rest{0, bytes.size()};
    while (left && rest.begin < rest.end) {
        const Decoded next = first_character(bytes.substr(rest.begin));
        if (!is_space(next.character)) break;
        rest.begin += next.bytes;
    }
    while (right && rest.begin < rest.end) {
        const Decoded next = last_character(bytes, rest.end);
        if (!is_space(next.character)) break;
        rest.end -= next.bytes;
    }
    if (rest.end - rest.begin == bytes.size()) return;
    Text result;
    result.append(text, rest);
    text = std::move(result);
}

void replace(Text& text, const Pattern& pattern, const std::string& content) {
    TextRange match{};
    if (!pattern(text.bytes(), 0, match)) return;
    Text result;
    result.reserve(text.size());
    std::size_t at = 0;
    do {
        result.append(text, {at, match.begin});
        check_growth(text, result.size() + content.size());
        result.append(content, text.place(match));
        at = match.end;
    } while (pattern(text.bytes(), at, match));
    result.append(text, {at, text.size()});
    text = std::move(result);
}

void prepend(Text& text, const std::string& content) {
    if (text.empty()) return;
    check_growth(text, text.size() + content.size());
    Text result;
    result.append(content, text.place({0, first_character(text.bytes()).bytes}));
    result.append(text, {0, text.size()});
    text = std::move(result);
}

bool flag_of(const JsonValue* override, bool own, const std::string& where) {
    if (!override) return own;
    check(override->kind == JsonKind::boolean, ErrorKind::value, where, ": tokenizer_config.json says ",
          io::name(override->kind), " where true or false is expected");
    return override->flag;
}

void read_bert(Fields& fields, const BertOverrides& overrides, Normalizers& steps) {
    const std::string& where = fields.where();
    const bool lower = flag_of(overrides.lowercase, fields.flag("lowercase", true), where);
    const JsonValue* const own_strip = fields.find("strip_accents");
    const JsonValue* strip_accents = overrides.strip_accents ? overrides.strip_accents : own_strip;
    if (strip_accents && strip_accents->kind == JsonKind::null) strip_accents = nullptr;
    if (fields.flag("clean_text", true)) steps.emplace_back(clean);
    if (flag_of(overrides.handle_chinese_chars, fields.flag("handle_chinese_chars", true), where))
        steps.emplace_back(space_ideographs);
    if (flag_of(strip_accents, lower, where))
        steps.emplace_back([](Text& text) {
            normalize(text, Form::nfd);
            if (!text.is_ascii()) drop(text, is_nonspacing_mark);
        });
    if (lower) steps.emplace_back(lower_case);
}

void read_replace(Fields& fields, Normalizers& steps) {
    const Pattern pattern = read_pattern(fields, "pattern");
    steps.emplace_back(
        [pattern, content = fields.text("content")](Text& text) { replace(text, pattern, content); });
}

bool read_form(const std::string& type, Normalizers& steps) {
    constexpr struct {
        std::string_view name;
        Form form;
    } forms[] = {{"NFC", Form::nfc}, {"NFD", Form::nfd}, {"NFKC", Form::nfkc}, {"NFKD", Form::nfkd}};
    for (const auto& [name, form] : forms) {
        if (type != name) continue;
        steps.emplace_back([form = form](Text& text) { normalize(text, form); });
        return true;
    }
    return false;
}

void read_one(Fields& fields, const BertOverrides& overrides, Normalizers& steps) {
    const std::string type = fields.text("type");
    if (read_form(type, steps)) return;
    if (type == "BertNormalizer") {
        read_bert(fields, overrides, steps);
    } else if (type == "Lowercase") {
        steps.emplace_back(lower_case);
    } else if (type == "StripAccents") {
        steps.emplace_back([](Text& text) { drop(text, is_mark); });
    } else if (type == "Strip") {
        const bool left = fields.flag("strip_left", true), right = fields.flag("strip_right", true);
        steps.emplace_back([left, right](Text& text) { strip(text, left, right); });
    } else if (type == "Replace") {
        read_replace(fields, steps);
    } else if (type == "Prepend") {
        steps.emplace_back([content = fields.text("prepend")](Text& text) { prepend(text, content); });
    } else if (type == "Nmt") {
        steps.emplace_back(nmt);
    } else if (type == "ByteLevel") {
        steps.emplace_back([](Text& text) { text = to_byte_characters(text); });
    } else if (type == "Precompiled") {
        steps.push_back(read_precompiled(fields));
    } else {
        fields.refuse("is of the type " + io::shown(type) +
                      "; known are BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, "
                      "Precompiled, Prepend, Replace, Sequence, Strip and StripAccents");
    }
}

}  // namespace

Normalizers read_normalizers(const Fields& component, const BertOverrides& overrides) {
    Normalizers steps;
    each_component(component, "normalizers", [&](Fields& fields) { read_one(fields, overrides, steps); });
    return steps;
}

}  // namespace mezzo::data::tokenizer
