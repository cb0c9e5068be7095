#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <charconv>

#include "text/tokenizer/byte_characters.h"
#include "text/tokenizer/pattern.h"

namespace mezzo::data::tokenizer {

namespace {

using Texts = std::vector<std::string>;

void replace_all(std::string& text, std::string_view old, std::string_view content) {
    if (old.empty() || text.find(old) == std::string::npos) return;
    std::string result;
    std::size_t at = 0;
    for (std::size_t next; (next = text.find(old, at)) != std::string::npos; at = next + old.size())
        result.append(text, at, next - at).append(content);
    text = result.append(text, at);
}

// Returns how many bytes at the front could begin a valid sequence, at least 1: the maximal subpart of an
// ill-formed sequence (Unicode Standard, section 3.9, table 3-7).
std::size_t subpart(std::string_view bytes) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const unsigned char first = byte(0);
    const std::size_t more = first >= 0xC2 && first <= 0xDF   ? 1
                             : first >= 0xE0 && first <= 0xEF ? 2
                             : first >= 0xF0 && first <= 0xF4 ? 3
                                                              : 0;
    unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    std::size_t length = 1;
    while (length <= more && length < bytes.size() && byte(length) >= least && byte(length) <= most) {
        ++length;
        least = 0x80;
        most = 0xBF;
    }
    return length;
}

// Returns the bytes with each maximal subpart that is not valid UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view bytes) {
    std::string result;
    for (std::size_t at = 0; at < bytes.size();) {
        const Decoded next = decode_utf8(bytes.substr(at));
        const bool valid = next.character != replacement_character || next.bytes > 1;
        const std::size_t length = valid ? next.bytes : subpart(bytes.substr(at));
        result += valid ? bytes.substr(at, length) : std::string_view("\uFFFD");
        at += length;
    }
    return result;
}

// Converts runs of tokens such as <0xE2> to text, or to one U+FFFD per byte if the run is not valid UTF-8.
void byte_fallback(Texts& texts) {
    Texts result;
    std::string bytes;
    const auto flush = [&] {
        if (bytes.empty()) return;
        if (is_valid_utf8(bytes))
            result.push_back(bytes);
        else
            result.insert(result.end(), bytes.size(), "\uFFFD");
        bytes.clear();
    };
    for (std::string& text : texts) {
        unsigned byte = 0;
        const char* const digits = text.data() + 3;
        const bool is_byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
                             std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
        if (is_byte) {
            bytes += char(byte);
        } else {
            flush();
            result.push_back(std::move(text));
        }
    }
    flush();
    texts = std::move(result);
}

void strip(std::string& text, const std::string& sign, std::int64_t start, std::int64_t stop) {
    std::string_view rest = text;
    for (; start > 0 && rest.starts_with(sign); --start) rest.remove_prefix(sign.size());
    for (; stop > 0 && rest.ends_with(sign); --stop) rest.remove_suffix(sign.size());
    text = std::string(rest);
}

template <class Change> Decoder each(const Change& change) {
    return [change](Texts& texts) {
        for (std::string& text : texts) change(text);
    };
}

Decoder metaspace(Fields& fields) {
    (void)fields.find("str_rep");
    (void)fields.find("split");
    const std::string sign = fields.character("replacement");
    const bool prefix =
        fields.flag("add_prefix_space", true) && fields.text("prepend_scheme", "always") != "never";
    return [sign, prefix](Texts& texts) {
        for (std::size_t i = 0; i < texts.size(); ++i)
            replace_all(texts[i], sign, i == 0 && prefix ? "" : " ");
    };
}

Decoder bpe_suffix(const std::string& suffix) {
    return [suffix](Texts& texts) {
        for (std::size_t i = 0; i < texts.size(); ++i)
            replace_all(texts[i], suffix, i + 1 < texts.size() ? " " : "");
    };
}

// A chain of Replace may grow a text exponentially.
constexpr std::size_t most_bytes = std::size_t(1) << 26;

Decoder replace(Fields& fields) {
    const Pattern pattern = read_pattern(fields, "pattern");
    return each([pattern, content = fields.text("content")](std::string& text) {
        std::string result;
        std::size_t at = 0;
        for (TextRange match{}; pattern(text, at, match); at = match.end) {
            result.append(text, at, match.begin - at).append(content);
            check(result.size() <= most_bytes, ErrorKind::value,
                  "decode: the tokenizer's Replace makes a text of more than ", most_bytes, " bytes");
        }
        text = result.append(text, at);
    });
}

void fuse(Texts& texts) {
    std::string whole;
    for (const std::string& text : texts) whole += text;
    texts.assign(1, std::move(whole));
}

Decoder strip(Fields& fields) {
    const std::string sign = fields.character("content");
    const std::int64_t start = fields.integer("start", max_id, 0), stop = fields.integer("stop", max_id, 0);
    return each([sign, start, stop](std::string& text) { strip(text, sign, start, stop); });
}

Decoder read_one(Fields& fields) {
    const std::string type = fields.text("type");
    if (type == "ByteLevel") {
        for (const char* const key : {"add_prefix_space", "trim_offsets", "use_regex"})
            (void)fields.flag(key, true);  // only used by other components
        return byte_level_decoder();
    }
    if (type == "WordPiece")
        return word_piece_decoder(fields.text("prefix", "##"), fields.flag("cleanup", true));
    if (type == "Metaspace") return metaspace(fields);
    if (type == "BPEDecoder") return bpe_suffix(fields.text("suffix", "</w>"));
    if (type == "ByteFallback") return byte_fallback;
    if (type == "Fuse") return fuse;
    if (type == "Strip") return strip(fields);
    if (type == "Replace") return replace(fields);
    fields.refuse(
        "is of the type " + io::shown(type) +
        "; known are BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip "
        "and WordPiece");
}

}  // namespace

Decoder byte_level_decoder() {
    return [](Texts& texts) {
        std::string bytes;
        for (const std::string& text : texts) append_bytes(bytes, text);
        texts.assign(1, valid_utf8(bytes));
    };
}

Decoder word_piece_decoder(std::string prefix, bool clean_up) {
    return [prefix = std::move(prefix), clean_up](Texts& texts) {
        for (std::size_t i = 0; i < texts.size(); ++i) {
            if (i > 0 && texts[i].starts_with(prefix))
                texts[i].erase(0, prefix.size());
            else if (i > 0)
                texts[i].insert(0, 1, ' ');
            if (!clean_up) continue;
            texts[i] = clean(std::move(texts[i]));
            replace_all(texts[i], " do not", " don't");
        }
    };
}

std::string clean(std::string text) {
    constexpr std::string_view gaps[][2] = {{" .", "."},     {" ?", "?"},     {" !", "!"},   {" ,", ","},
                                            {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"},
                                            {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [gap, closed] : gaps) replace_all(text, gap, closed);
    return text;
}

std::vector<Decoder> read_decoders(const Fields& component) {
    std::vector<Decoder> steps;
    each_component(component, "decoders", [&](Fields& fields) { steps.push_back(read_one(fields)); });
    return steps;
}

}  // namespace mezzo::data::tokenizer
