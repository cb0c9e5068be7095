#include "text/tokenizer/encoder.h"

#include <algorithm>

#include "text/tokenizer/byte_characters.h"
#include "text/truncation.h"

namespace mezzo::data::tokenizer {

namespace {

void add(Encoding& out, std::int64_t id, SourceRange place) {
    out.ids.push_back(id);
    out.offsets.push_back({place.begin, place.end});
}

// Returns how many bytes of the text the white space at a token's beginning or end represents: a blank is one
// character of byte-level tokens.
std::int64_t space(std::string_view token, bool at_end) {
    std::int64_t bytes = 0;
    while (!token.empty()) {
        const Decoded next = at_end ? last_character(token, token.size()) : first_character(token);
        if (byte_of(next.character) != ' ' && !is_space(next.character)) break;
        bytes += byte_of(next.character) == ' ' ? 1 : std::int64_t(next.bytes);
        token = token.substr(at_end ? 0 : next.bytes, token.size() - next.bytes);
    }
    return bytes;
}

}  // namespace

std::size_t room(const Parts& parts, const TokenizeOptions& options, bool pair) {
    check(options.max_length >= -1, ErrorKind::value, "encode: max_length is ", options.max_length,
          "; 0 stands for no limit, -1 for what the tokenizer's file says");
    const std::int64_t limit = options.max_length < 0 ? parts.truncation.max_length : options.max_length;
    if (limit == 0) return no_limit;
    const PostProcessor& processor = parts.post_processor;
    const std::int64_t special =
        options.add_special_tokens ? added(pair ? processor.pair : processor.single) : 0;
    check(limit >= special, ErrorKind::value, "encode: max_length is ", limit,
          ", but the special tokens alone are ", special);
    return std::size_t(limit - special);
}

Encoding Encoder::encode(std::string_view text, const TokenizeOptions& options) {
    const std::size_t limit = room(parts_, options, false);
    const bool fixed = parts_.truncation.strategy == Truncation::Strategy::only_second;
    Encoding result = tokenize(text, parts_.truncation.left || fixed ? no_limit : limit);
    if (result.ids.size() > limit) {
        check(!fixed, ErrorKind::value, "encode: the text has more than ", limit,
              " tokens, and the tokenizer's file truncates only the second text of a pair");
        keep(result, limit);
    }
    trim_offsets(result, text);
    return join(parts_.post_processor.single, result, {}, options.add_special_tokens);
}

Encoding Encoder::encode_pair(std::string_view first, std::string_view second,
                              const TokenizeOptions& options) {
    const std::size_t limit = room(parts_, options, true);
    Encoding a = tokenize(first, no_limit), b = tokenize(second, no_limit);
    shorten(a, b, limit);
    trim_offsets(a, first);
    trim_offsets(b, second);
    return join(parts_.post_processor.pair, a, b, options.add_special_tokens);
}

Encoding Encoder::tokenize(std::string_view text, std::size_t enough) {
    check(text.size() < std::size_t(1) << 32, ErrorKind::value, "encode: the text has ", text.size(),
          " bytes; less than 2^32 are supported");
    Encoding out;
    const Text whole(text);
    parts_.added.split(whole.bytes(), false, [&](TextRange range, const AddedToken* token) {
        if (out.ids.size() >= enough) return;
        if (token) {
            add(out, token->id, whole.place(range));
        } else {
            Text section;
            section.append(whole, range);
            add_section(std::move(section), enough, out);
        }
    });
    return out;
}

void Encoder::add_section(Text section, std::size_t enough, Encoding& out) {
    for (const Normalizer& step : parts_.normalizers) {
        step(section);
        check_growth(section, 0);
    }
    parts_.added.split(section.bytes(), true, [&](TextRange range, const AddedToken* token) {
        if (out.ids.size() >= enough) return;
        if (token) {
            add(out, token->id, section.place(range));
        } else {
            Text text;
            text.append(section, range);
            add_words(std::move(text), enough, out);
        }
    });
}

void Encoder::add_words(Text text, std::size_t enough, Encoding& out) {
    Pieces pieces;
    pieces.ranges.push_back({0, text.size()});
    pieces.text = std::move(text);
    for (const PreTokenizer& step : parts_.pre_tokenizers) {
        step(pieces);
        check_growth(pieces.text, 0);
    }
    const std::string_view bytes = pieces.text.bytes();
    for (const TextRange piece : pieces.ranges) {
        if (out.ids.size() >= enough) return;
        tokens_.clear();
        parts_.model->tokenize(bytes.substr(piece.begin, piece.end - piece.begin), scratch_, tokens_);
        for (const Token& token : tokens_)
            add(out, token.id, pieces.text.place({piece.begin + token.begin, piece.begin + token.end}));
    }
}

void Encoder::shorten(Encoding& first, Encoding& second, std::size_t room) const {
    const std::size_t a = first.ids.size(), b = second.ids.size();
    if (room == no_limit || a + b <= room) return;
    using Strategy = Truncation::Strategy;
    const Strategy strategy = parts_.truncation.strategy;
    if (strategy == Strategy::longest_first) {
        const auto [kept_first, kept_second] = longest_first(a, b, room);
        keep(first, kept_first);
        keep(second, kept_second);
        return;
    }
    const bool cut_first = strategy == Strategy::only_first;
    const std::size_t fixed = cut_first ? b : a;
    check(fixed < room, ErrorKind::value, "encode_pair: the ", cut_first ? "second" : "first", " text has ",
          fixed, " tokens, there is room for ", room, ", and the tokenizer's file truncates only the other");
    keep(cut_first ? first : second, room - fixed);
}

void Encoder::keep(Encoding& encoding, std::size_t count) const {
    const std::size_t size = encoding.ids.size();
    if (size <= count) return;
    if (parts_.truncation.left) {
        const auto surplus = std::ptrdiff_t(size - count);
        encoding.ids.erase(encoding.ids.begin(), encoding.ids.begin() + surplus);
        encoding.offsets.erase(encoding.offsets.begin(), encoding.offsets.begin() + surplus);
    } else {
        encoding.ids.resize(count);
        encoding.offsets.resize(count);
    }
}

void Encoder::trim_offsets(Encoding& encoding, std::string_view text) const {
    if (!parts_.post_processor.trim_offsets) return;
    Text found;
    for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
        const AddedToken* const added_token = parts_.added.token(encoding.ids[i]);
        Span& offset = encoding.offsets[i];
        // An added token includes white space around it (lstrip, rstrip); how much is in its text.
        if (added_token)
            found = Text(text.substr(std::size_t(offset.begin), std::size_t(offset.end - offset.begin)));
        const std::string& token =
            added_token ? found.bytes() : *parts_.model->vocabulary().token(encoding.ids[i]);
        const std::int64_t leading = space(token, false), trailing = space(token, true);
        // A single blank at the beginning of a text comes from add_prefix_space: there are no bytes to trim
        // for it.
        if (parts_.post_processor.add_prefix_space && leading == 1 && (i == 0 || offset.begin == 0)) {
            if (std::size_t(trailing) < token.size())
                offset.end = std::max(offset.end - trailing, offset.begin);
            continue;
        }
        offset.begin = std::min(offset.begin + leading, offset.end);
        offset.end = std::max(offset.end - trailing, offset.begin);
    }
}

Encoding Encoder::join(const Template& parts, const Encoding& first, const Encoding& second, bool special) {
    Encoding result;
    const std::size_t size = first.ids.size() + second.ids.size() + 4;
    result.ids.reserve(size);
    result.offsets.reserve(size);
    result.token_type_ids.reserve(size);
    for (const TemplatePart& part : parts) {
        if (part.source == TemplatePart::Source::special) {
            if (!special) continue;
            result.ids.insert(result.ids.end(), part.ids.begin(), part.ids.end());
            result.offsets.resize(result.ids.size());
        } else {
            const Encoding& text = part.source == TemplatePart::Source::first ? first : second;
            result.ids.insert(result.ids.end(), text.ids.begin(), text.ids.end());
            result.offsets.insert(result.offsets.end(), text.offsets.begin(), text.offsets.end());
        }
        result.token_type_ids.resize(result.ids.size(), part.type_id);
    }
    return result;
}

}  // namespace mezzo::data::tokenizer
