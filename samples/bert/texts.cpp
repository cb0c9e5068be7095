#include "bert/texts.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "program.h"

namespace mz = mezzo;

namespace bert {

namespace {

// Parses a whole line as a non-negative number; errors name the line.
std::int64_t parse_label(const std::string& line, const std::string& path, std::size_t number) {
    const bool digits =
        !line.empty() && line.size() < 10 && line.find_first_not_of("0123456789") == line.npos;
    if (!digits)
        throw std::runtime_error(
            fmt::format("{}, line {}: label \"{}\" is not a class number", path, number, line.substr(0, 40)));
    return std::stoll(line);
}

Corpus read_split(const std::string& folder, const std::string& split) {
    const std::string label_path = folder + "/" + split + "_labels.txt",
                      text_path = folder + "/" + split + "_text.txt";
    Corpus corpus;
    corpus.texts = read_lines(text_path);
    const std::vector<std::string> labels = read_lines(label_path);
    if (labels.size() != corpus.texts.size())
        throw std::runtime_error(
            fmt::format("{} has {} lines, {} has {}; there must be one label for every text", text_path,
                        corpus.texts.size(), label_path, labels.size()));
    if (labels.empty()) throw std::runtime_error(text_path + ": no texts");
    for (std::size_t i = 0; i < labels.size(); ++i)
        corpus.labels.push_back(parse_label(labels[i], label_path, i + 1));
    return corpus;
}

// Returns class names by number. A class that is not in mapping.txt has its number as name.
std::vector<std::string> class_names(const std::string& folder, std::int64_t count) {
    std::vector<std::string> names;
    for (std::int64_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
    const std::string mapping = folder + "/mapping.txt";
    if (!std::filesystem::exists(mapping)) return names;
    for (const std::string& line : read_lines(mapping)) {
        const std::size_t tab = line.find('\t');
        if (tab == line.npos || tab == 0 || tab > 9) continue;
        if (line.find_first_not_of("0123456789") != tab) continue;
        const std::size_t index = std::stoul(line.substr(0, tab));
        if (index < names.size()) names[index] = line.substr(tab + 1);
    }
    return names;
}

std::string output_of(const char* command) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command, "r"), pclose);
    if (!pipe) throw std::runtime_error(fmt::format("cannot run \"{}\"", command));
    std::string text = program::read_all(pipe.get(), fmt::format("the output of \"{}\"", command));
    const int status = pclose(pipe.release());
    // Without apt-cache there is no text, which the caller reports; an incomplete text is an error.
    if (status != 0 && !text.empty())
        throw std::runtime_error(fmt::format("\"{}\" failed after {} bytes", command, text.size()));
    return text;
}

// Returns descriptions by section; "contrib/net" and "net" are one section.
std::map<std::string, std::vector<std::string>> packages_by_section() {
    std::map<std::string, std::vector<std::string>> sections;
    const std::string all = output_of("apt-cache dumpavail 2>/dev/null");
    std::string description, section;
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = std::min(all.find('\n', at), all.size());
        const std::string line = all.substr(at, end - at);
        at = end + 1;
        if (line.starts_with("Description: ")) description = line.substr(13);
        if (line.starts_with("Section: ")) section = line.substr(line.find_last_of(" /") + 1);
        if (!line.empty()) continue;
        if (!description.empty() && !section.empty()) sections[section].push_back(description);
        description.clear();
        section.clear();
    }
    return sections;
}

constexpr std::int64_t ignored = -100;

// Masks one text. Returns its labels: the token where it is to be predicted, otherwise `ignored`.
std::vector<std::int64_t> mask_text(std::vector<std::int64_t>& ids, const Sample& sample,
                                    const mz::data::WordPiece& tokenizer, std::mt19937& random) {
    std::vector<std::int64_t> labels(ids.size(), ignored);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (sample.tokens.is_special(i) || random() % 100 >= 15) continue;
        labels[i] = ids[i];
        const auto kind = random() % 10;
        if (kind < 8)
            ids[i] = tokenizer.mask_id();
        else if (kind == 8)
            ids[i] = std::int64_t(random()) % tokenizer.size();
    }
    return labels;
}

}  // namespace

std::vector<std::string> read_lines(const std::string& path) {
    return program::lines_of(program::read_file(path));
}

Corpora read_text_folder(const std::string& folder, std::size_t limit) {
    Corpora corpora{read_split(folder, "train"), read_split(folder, "val"), {}};
    const auto highest = [](const Corpus& c) { return *std::max_element(c.labels.begin(), c.labels.end()); };
    const std::int64_t classes = highest(corpora.train) + 1;
    if (highest(corpora.validation) >= classes)
        throw std::runtime_error(
            fmt::format("{}/val_labels.txt has class {}, but the training labels end at {}", folder,
                        highest(corpora.validation), classes - 1));
    if (classes < 2 || classes > 10000)
        throw std::runtime_error(
            fmt::format("{}/train_labels.txt: labels up to {}; a classifier needs 2 to 10,000 classes",
                        folder, classes - 1));
    corpora.classes = class_names(folder, classes);
    if (limit > 0 && corpora.train.texts.size() > limit) {
        corpora.train.texts.resize(limit);
        corpora.train.labels.resize(limit);
    }
    return corpora;
}

Corpora read_package_descriptions(std::size_t limit) {
    Corpora corpora;
    std::vector<std::pair<std::string, std::int64_t>> all;
    for (auto& [section, texts] : packages_by_section()) {
        if (texts.size() < 200) continue;
        for (std::string& text : texts)
            all.push_back({std::move(text), std::int64_t(corpora.classes.size())});
        corpora.classes.push_back(section);
    }
    if (corpora.classes.size() < 2)
        throw std::runtime_error(
            "no package descriptions on this machine (apt-cache dumpavail); pass --data DIR");
    // Sorted by text rather than by section, so that every part of the list has all classes.
    std::sort(all.begin(), all.end());
    const std::size_t count = limit == 0 ? all.size() : std::min(limit + limit / 9, all.size());
    for (std::size_t kept = 0; kept < count; ++kept) {
        auto& [text, label] = all[kept * all.size() / count];  // evenly spread
        Corpus& corpus = kept % 10 == 9 ? corpora.validation : corpora.train;
        corpus.texts.push_back(std::move(text));
        corpus.labels.push_back(label);
    }
    return corpora;
}

std::vector<Sample> tokenize(const Corpus& corpus, const mz::data::WordPiece& tokenizer,
                             std::int64_t max_length) {
    std::vector<mz::data::Encoding> encodings =
        tokenizer.encode_batch(corpus.texts, {.max_length = max_length});
    std::vector<Sample> samples(encodings.size());
    for (std::size_t i = 0; i < samples.size(); ++i)
        samples[i] = {std::int64_t(i), std::move(encodings[i]), corpus.labels.empty() ? 0 : corpus.labels[i]};
    return samples;
}

Batch make_batch(std::vector<const Sample*> samples, std::int64_t pad_id) {
    std::vector<mz::data::Encoding> encodings;
    std::vector<std::int64_t> labels;
    for (const Sample* const sample : samples) {
        encodings.push_back(sample->tokens);
        labels.push_back(sample->label);
    }
    const mz::Shape shape{std::int64_t(labels.size())};
    return {std::move(samples), mz::data::pad(encodings, {.pad_id = pad_id}),
            mz::Tensor::from(labels, shape)};
}

Batch Collate::operator()(std::vector<const Sample*> samples) const {
    const mz::data::ShardRows mine = shard.slice(std::int64_t(samples.size()));
    const auto first = samples.begin() + mine.first;
    Batch batch = make_batch({first, first + mine.count}, pad_id);
    batch.share = mine.weight;
    return batch;
}

MaskedBatch mask_tokens(const Batch& batch, const mz::data::WordPiece& tokenizer, std::uint64_t seed,
                        std::int64_t epoch) {
    std::vector<mz::data::Encoding> inputs, labels;
    MaskedBatch result;
    for (const Sample* const sample : batch.samples) {
        std::seed_seq key{seed, seed >> 32, std::uint64_t(epoch), std::uint64_t(sample->number)};
        std::mt19937 random(key);
        inputs.push_back(sample->tokens);
        labels.push_back(sample->tokens);
        labels.back().ids = mask_text(inputs.back().ids, *sample, tokenizer, random);
        const std::vector<std::int64_t>& ids = labels.back().ids;
        result.count += std::int64_t(ids.size()) - std::count(ids.begin(), ids.end(), ignored);
    }
    if (result.count == 0) labels[0].ids[0] = inputs[0].ids[0];
    if (batch.share == 0) result.count = 0;  // another rank has these rows, too
    result.ids = mz::data::pad(inputs, {.pad_id = tokenizer.pad_id()}).input_ids;
    result.masked = mz::nn::masked_tokens(mz::data::pad(labels, {.pad_id = ignored}).input_ids, ignored);
    return result;
}

}  // namespace bert
