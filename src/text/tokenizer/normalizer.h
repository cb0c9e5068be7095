// Normalizers: they rewrite a text before it is split.
#pragma once

#include <functional>
#include <vector>

#include "text/tokenizer/fields.h"
#include "text/tokenizer/text.h"

namespace mezzo::data::tokenizer {

using Normalizer = std::function<void(Text&)>;
using Normalizers = std::vector<Normalizer>;

// Values of tokenizer_config.json that override fields of a BertNormalizer.
struct BertOverrides {
    const JsonValue* lowercase = nullptr;
    const JsonValue* strip_accents = nullptr;  // null counts: it means "as lowercase"
    const JsonValue* handle_chinese_chars = nullptr;
};

// Reads the field "normalizer" of tokenizer.json as steps that run one after the other; throws Error(value).
Normalizers read_normalizers(const Fields& component, const BertOverrides& overrides);

// Reads the field "precompiled_charsmap" of SentencePiece's normalizers (precompiled.cpp): a table of
// replacements in base64. Throws Error(value) if it is damaged.
Normalizer read_precompiled(Fields& fields);

// Normalization forms of Unicode (unicode_forms.cpp; UAX #15).
enum class Form : unsigned char { nfc, nfd, nfkc, nfkd };
void normalize(Text& text, Form form);

}  // namespace mezzo::data::tokenizer
