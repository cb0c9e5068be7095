#include "gpt/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "mezzo/text/tokenizer.h"
#include "program.h"

namespace mz = mezzo;

namespace gpt {

namespace {

constexpr const char* licences = "/usr/share/common-licenses";

std::vector<std::string> licence_files() {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(licences, error))
        if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path().string());
    if (files.empty())
        throw std::runtime_error(std::string(licences) + ": no text is there; pass --text FILE");
    std::sort(files.begin(), files.end());
    return files;
}

// Returns the beginning of the character that byte `at` belongs to.
std::size_t character_begin(const std::string& text, std::size_t at) {
    while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return at;
}

Vocabulary vocabulary_for(const Options& o, const std::string& train) {
    if (o.bpe > 0) return Vocabulary(mz::data::learn_bpe({train}, {.size = o.bpe}));
    if (o.tokenizer.empty()) return Vocabulary();
    const std::string json = program::read_file(o.tokenizer);
    try {
        return Vocabulary(json);
    } catch (const mz::Error& error) {  // it only contains the text
        throw std::runtime_error(fmt::format("--tokenizer: {}: {}", o.tokenizer, error.what()));
    }
}

Pieces pieces_at(const Tokens& text, const std::vector<std::size_t>& begins, std::int64_t context) {
    Tokens input, target;
    for (const std::size_t begin : begins) {
        const auto first = text.begin() + std::ptrdiff_t(begin), last = first + context;
        input.insert(input.end(), first, last);
        target.insert(target.end(), first + 1, last + 1);
    }
    const mz::Shape shape{std::int64_t(begins.size()), context};
    return {mz::Tensor::from(input, shape), mz::Tensor::from(target, shape)};
}

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

Texts read_texts(const Options& options) {
    std::string train, validation;
    std::uint64_t digest = program::digest_of("");
    for (const std::string& file : options.texts.empty() ? licence_files() : options.texts) {
        const std::string text = program::read_file(file);
        const std::size_t cut = character_begin(text, text.size() - text.size() / 10);
        train += text.substr(0, cut);
        validation += text.substr(cut);
        digest = program::digest_of(text + fmt::format("{} ", text.size()), digest);
    }
    Texts texts;
    texts.vocabulary = vocabulary_for(options, train);
    texts.digest = fmt::format("{:016x}", program::digest_of(texts.vocabulary.json(), digest));
    texts.train_bytes = train.size();
    texts.validation_bytes = validation.size();
    texts.train = texts.vocabulary.ids(train);
    texts.validation = texts.vocabulary.ids(validation);
    for (const Tokens* const part : {&texts.train, &texts.validation})
        if (std::int64_t(part->size()) <= options.context)
            throw std::runtime_error(fmt::format(
                "--text: {} {} for {} are not enough for pieces of {}; pass more text, or a "
                "smaller --context",
                part->size(), texts.vocabulary.unit(),
                part == &texts.train ? "training" : "validation, a tenth of all,", options.context + 1));
    return texts;
}

Pieces draw_pieces(const Tokens& text, std::int64_t rows, std::int64_t context, std::uint64_t seed,
                   std::int64_t step, const mz::data::Shard& rank) {
    std::seed_seq words{std::uint32_t(seed), std::uint32_t(seed >> 32), std::uint32_t(step),
                        std::uint32_t(step >> 32)};
    std::mt19937_64 random(words);
    std::vector<std::size_t> begins;
    for (std::int64_t i = 0; i < rows; ++i) begins.push_back(random() % (text.size() - std::size_t(context)));
    const mz::data::ShardRows mine = rank.slice(rows);
    Pieces pieces =
        pieces_at(text, {begins.begin() + mine.first, begins.begin() + mine.first + mine.count}, context);
    pieces.weight = mine.weight;
    return pieces;
}

Pieces spread_pieces(const Tokens& text, std::int64_t rows, std::int64_t context) {
    const std::size_t places = text.size() - std::size_t(context);
    rows = std::min(rows, 1 + std::int64_t(places - 1) / context);
    std::vector<std::size_t> begins;
    for (std::int64_t i = 0; i < rows; ++i) begins.push_back(places * std::size_t(i) / std::size_t(rows));
    return pieces_at(text, begins, context);
}

}  // namespace gpt
