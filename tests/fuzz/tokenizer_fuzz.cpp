// libFuzzer target of the tokenizer: any bytes as a vocabulary and as texts. The first byte chooses the
// options; the rest, up to a byte 0, are lines of a vocabulary, then comes the text.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/error.h"
#include "mezzo/text/tokenizer.h"

using namespace mezzo::data;

namespace {

void require(bool condition) {
    if (!condition) __builtin_trap();
}

const std::vector<std::string> basis{"[PAD]", "[UNK]",  "[CLS]",  "[SEP]",    "[MASK]", "a",
                                     "##a",   "ab",     "##b",    "!",        "[",      "e",
                                     "##e",   "\u6211", "\u044f", "##\u044f", "\u00e9", "##\u0301"};

WordPieceOptions options_from(unsigned bits) {
    const Accents accents[] = {Accents::follow_lower_case, Accents::strip, Accents::keep, Accents::keep};
    return {.lower_case = (bits & 1) != 0,
            .accents = accents[bits >> 1 & 3],
            .tokenize_chinese_chars = (bits & 8) != 0,
            .max_chars_per_word = bits & 16 ? 100 : 2};
}

// Makes a tokenizer from a vocabulary of any bytes, or from `basis` if an Error refuses it.
WordPiece make(std::string_view lines, const WordPieceOptions& options) {
    std::vector<std::string> tokens = basis;
    for (std::size_t at = 0; at < lines.size();) {
        const std::size_t end = std::min(lines.find('\n', at), lines.size());
        tokens.emplace_back(lines.substr(at, end - at));
        at = end + 1;
    }
    try {
        return WordPiece::from_vocabulary(tokens, options);
    } catch (const mezzo::Error&) {
        return WordPiece::from_vocabulary(basis, options);
    }
}

// Requires that ids exist, and that the tokens' spans lie inside the text and begin in ascending order.
void verify(const WordPiece& pieces, const Encoding& encoding, std::size_t text_bytes) {
    require(encoding.ids.size() == encoding.offsets.size() &&
            encoding.ids.size() == encoding.token_type_ids.size());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
        (void)pieces.token(encoding.ids[i]);
        if (encoding.is_special(i)) continue;
        const Span span = encoding.offsets[i];
        require(begin <= span.begin && span.begin < span.end && span.end <= std::int64_t(text_bytes));
        begin = span.begin;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const std::size_t separator = std::min(input.find('\0', 1), size);
    const std::string_view text = input.substr(std::min(separator + 1, size));
    const WordPiece pieces = make(input.substr(1, separator - 1), options_from(data[0]));

    const Encoding whole = pieces.encode(text, {.max_length = 0});
    verify(pieces, whole, text.size());
    (void)pieces.decode(whole.ids, (data[0] & 32) != 0);

    const std::int64_t limit = 2 + data[0] % 7;
    const Encoding cut = pieces.encode(text, {.max_length = limit});
    verify(pieces, cut, text.size());
    require(cut.size() == std::min(whole.size(), limit));
    require(std::equal(cut.ids.begin(), cut.ids.end() - 1, whole.ids.begin()));

    const std::string_view half = text.substr(0, text.size() / 2);
    const Encoding pair = pieces.encode_pair(half, text, {.max_length = limit + 1});
    require(pair.size() <= limit + 1 && pair.ids.size() == pair.offsets.size());
    const TokenBatch batch =
        pad(std::vector{whole, cut, pair}, {.pad_id = pieces.pad_id(), .multiple_of = 4});
    require(batch.input_ids.size(1) % 4 == 0);
    return 0;
}
