#include "text/words.h"

namespace mezzo::data {

WordRules::WordRules(const WordPieceOptions& options)
    : lower(options.lower_case),
      strip(options.accents == Accents::strip ||
            (options.accents == Accents::follow_lower_case && options.lower_case)),
      split_ideographs(options.tokenize_chinese_chars),
      max_characters(std::size_t(options.max_chars_per_word)) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
        identity[byte] = map[byte] = static_cast<unsigned char>(byte);
        if (lower && byte >= 'A' && byte <= 'Z') map[byte] = static_cast<unsigned char>(byte - 'A' + 'a');
        if (byte >= 0x80) {
            kind[byte] = Byte::other;
        } else if (is_punctuation(char32_t(byte))) {
            kind[byte] = Byte::punctuation;
        } else {
            const CharacterKind character = kind_of(char32_t(byte));
            kind[byte] = character == CharacterKind::space     ? Byte::space
                         : character == CharacterKind::dropped ? Byte::other
                                                               : Byte::word;
        }
    }
}

}  // namespace mezzo::data
