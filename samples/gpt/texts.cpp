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

Pieces pieces_at(const std::string& text, const std::vector<std::size_t>& begins, std::int64_t context) {
    std::vector<std::int64_t> input, target;
    for (const std::size_t begin : begins) {
        const std::vector<std::int64_t> ids = ids_of(text.substr(begin, std::size_t(context) + 1));
        input.insert(input.end(), ids.begin(), ids.end() - 1);
        target.insert(target.end(), ids.begin() + 1, ids.end());
    }
    const mz::Shape shape{std::int64_t(begins.size()), context};
    return {mz::Tensor::from(input, shape), mz::Tensor::from(target, shape)};
}

}  // namespace

std::vector<std::int64_t> ids_of(const std::string& text) {
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
}

Texts read_texts(const std::vector<std::string>& given, std::int64_t context) {
    Texts texts;
    training::Digest digest;
    for (const std::string& file : given.empty() ? licence_files() : given) {
        const std::string text = program::read_file(file);
        const std::size_t cut = text.size() - text.size() / 10;
        texts.train += text.substr(0, cut);
        texts.validation += text.substr(cut);
        digest.add(text);
    }
    texts.digest = digest.text();
    for (const std::string* const part : {&texts.train, &texts.validation})
        if (std::int64_t(part->size()) <= context)
            throw std::runtime_error(
                fmt::format("--text: {} bytes for {} are not enough for pieces of {}; pass more text, or a "
                            "smaller --context",
                            part->size(), part == &texts.train ? "training" : "validation, a tenth of all,",
                            context + 1));
    return texts;
}

Pieces draw_pieces(const std::string& text, std::int64_t rows, std::int64_t context, std::uint64_t seed,
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

Pieces spread_pieces(const std::string& text, std::int64_t rows, std::int64_t context) {
    const std::size_t places = text.size() - std::size_t(context);
    rows = std::min(rows, 1 + std::int64_t(places - 1) / context);
    std::vector<std::size_t> begins;
    for (std::int64_t i = 0; i < rows; ++i) begins.push_back(places * std::size_t(i) / std::size_t(rows));
    return pieces_at(text, begins, context);
}

}  // namespace gpt
