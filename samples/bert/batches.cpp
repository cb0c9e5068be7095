#include "bert/batches.h"

#include <algorithm>
#include <numeric>

namespace mz = mezzo;

namespace bert {

std::uint64_t Shuffler::next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

Samples tokenize(const Corpus& corpus, const mz::data::WordPiece& tokenizer, std::int64_t max_length) {
    return {tokenizer.encode_batch(corpus.texts, {.max_length = max_length}), corpus.labels};
}

std::vector<std::vector<std::int64_t>> epoch_batches(const Samples& samples, const BatchOptions& options,
                                                     std::int64_t epoch) {
    const std::int64_t n = samples.size(), size = options.batch_size;
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    Shuffler random(options.seed * 0x2545F4914F6CDD1Du + std::uint64_t(epoch));
    if (options.shuffle) random.shuffle(order.data(), n);
    const std::int64_t pool = options.shuffle ? 64 * size : n;
    if (options.bucket)
        for (std::int64_t first = 0; first < n; first += pool)
            std::stable_sort(order.begin() + first, order.begin() + std::min(n, first + pool),
                             [&](std::int64_t a, std::int64_t b) {
                                 return samples.encodings[std::size_t(a)].size() <
                                        samples.encodings[std::size_t(b)].size();
                             });
    std::vector<std::vector<std::int64_t>> batches;
    for (std::int64_t i = 0; i < n; i += size)
        batches.emplace_back(order.begin() + i, order.begin() + std::min(n, i + size));
    if (options.shuffle) random.shuffle(batches.data(), std::int64_t(batches.size()));
    return batches;
}

const std::vector<std::int64_t>& EpochOrder::at(std::int64_t epoch, std::int64_t batch) {
    if (epoch != epoch_) batches_ = epoch_batches(samples_, options_, epoch);
    epoch_ = epoch;
    return batches_.at(std::size_t(batch));
}

std::vector<std::int64_t> part_of(const std::vector<std::int64_t>& indices, const mz::data::ShardRows& mine) {
    const auto first = indices.begin() + mine.first;
    return {first, first + mine.count};
}

Batch make_batch(const Samples& samples, const std::vector<std::int64_t>& indices, std::int64_t pad_to,
                 std::int64_t pad_id, mz::Device device) {
    std::vector<mz::data::Encoding> encodings;
    std::vector<std::int64_t> labels;
    for (const std::int64_t i : indices) {
        encodings.push_back(samples.encodings[std::size_t(i)]);
        if (!samples.labels.empty()) labels.push_back(samples.labels[std::size_t(i)]);
    }
    const mz::Shape shape{std::int64_t(labels.size())};
    return {mz::data::pad(encodings, {.pad_id = pad_id, .length = pad_to, .device = device}),
            mz::Tensor::from(labels, shape).to(device)};
}

}  // namespace bert
