#include "gpt/vocabulary.h"

#include <filesystem>

#include <fmt/format.h>

#include "program.h"

namespace mz = mezzo;

namespace gpt {

namespace {

// Whether a byte may be printed. In UTF-8 the control characters U+0080 to U+009F, which terminals execute as
// well, are 0xc2 and a second byte.
bool is_plain(const std::string& text, std::size_t at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte >= 0x80 && byte <= 0x9f) return at > 0 && text[at - 1] != '\xc2';
    return (byte >= 32 && byte != 127) || byte == '\n' || byte == '\t';
}

}  // namespace

Vocabulary Vocabulary::of_folder(const std::string& folder) {
    const std::filesystem::path file = std::filesystem::path(folder) / "tokenizer.json";
    return std::filesystem::exists(file) ? Vocabulary(program::read_file(file.string())) : Vocabulary();
}

std::vector<std::int64_t> Vocabulary::ids(const std::string& text) const {
    if (tokenizer_) return tokenizer_->encode(text, {.max_length = 0, .add_special_tokens = false}).ids;
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
}

std::string Vocabulary::text(const std::vector<std::int64_t>& ids) const {
    if (tokenizer_) return tokenizer_->decode(ids, false);
    std::string text;
    for (const std::int64_t id : ids) text += char(id);
    return text;
}

void TextPrinter::add(std::int64_t id) {
    ids_.push_back(id);
    const std::string text = vocabulary_.text(ids_);
    // A tokenizer returns U+FFFD for a character whose last bytes are not generated yet.
    if (!text.ends_with("\xef\xbf\xbd")) print(text);
}

void TextPrinter::finish() { print(vocabulary_.text(ids_)); }

void TextPrinter::print(const std::string& text) {
    for (; printed_ < text.size(); ++printed_) {
        const auto byte = static_cast<unsigned char>(text[printed_]);
        if (is_plain(text, printed_))
            std::fputc(byte, stdout);
        else
            fmt::print("\\x{:02x}", byte);
    }
    std::fflush(stdout);
}

}  // namespace gpt
