#include "gpt/texts.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "program.h"
#include "training/settings.h"

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

}  // namespace

Texts read_texts(const Options& options) {
    std::string train, validation;
    training::Digest digest;
    for (const std::string& file : options.texts.empty() ? licence_files() : options.texts) {
        const std::string text = program::read_file(file);
        const std::size_t cut = character_begin(text, text.size() - text.size() / 10);
        train += text.substr(0, cut);
        validation += text.substr(cut);
        digest.add(text);
    }
    Texts texts;
    texts.vocabulary = vocabulary_for(options, train);
    digest.add(texts.vocabulary.json());
    texts.digest = digest.text();
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
