#include "text/tokenizer/byte_characters.h"

#include <array>

namespace mezzo::data::tokenizer {

namespace {

struct Tables {
    std::array<char32_t, 256> characters;
    std::array<std::string, 256> utf8;
    std::array<int, 512> bytes;
};

const Tables& tables() {
    // Never destroyed: threads may tokenize during exit().
    static const Tables& result = *[] {
        auto* const tables = new Tables;
        Tables& made = *tables;
        made.bytes.fill(-1);
        char32_t next = 256;
        for (char32_t byte = 0; byte < 256; ++byte) {
            const bool visible =
                (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
            made.characters[byte] = visible ? byte : next++;
            made.bytes[made.characters[byte]] = int(byte);
            append_utf8(made.utf8[byte], made.characters[byte]);
        }
        return tables;
    }();
    return result;
}

}  // namespace

char32_t byte_character(unsigned char byte) { return tables().characters[byte]; }

int byte_of(char32_t character) { return character < tables().bytes.size() ? tables().bytes[character] : -1; }

Text to_byte_characters(const Text& text) {
    Text result;
    result.reserve(text.size() + text.size() / 2);
    const auto& utf8 = tables().utf8;
    for (std::size_t at = 0; at < text.size(); ++at)
        result.append(utf8[static_cast<unsigned char>(text.bytes()[at])], text.place({at, at + 1}));
    return result;
}

void append_bytes(std::string& out, std::string_view token) {
    const std::size_t before = out.size();
    for (std::size_t at = 0; at < token.size();) {
        const Decoded next = first_character(token.substr(at));
        const int byte = byte_of(next.character);
        if (byte < 0) {
            out.resize(before);
            out += token;
            return;
        }
        out += char(byte);
        at += next.bytes;
    }
}

}  // namespace mezzo::data::tokenizer
