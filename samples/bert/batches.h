// Batches of tokenized texts: dynamic padding, and batches of texts of similar length.
#pragma once

#include <cstdint>
#include <vector>

#include <mezzo/mezzo.h>

#include "bert/corpus.h"

namespace bert {

// Encodings and labels of a corpus.
struct Samples {
    std::vector<mezzo::data::Encoding> encodings;
    std::vector<std::int64_t> labels;
    std::int64_t size() const { return std::int64_t(encodings.size()); }
};
Samples tokenize(const Corpus& corpus, const mezzo::data::WordPiece& tokenizer, std::int64_t max_length);

struct BatchOptions {
    std::int64_t batch_size = 16;
    std::int64_t pad_to = 0;  // tokens per row; 0: the longest text of the batch
    bool bucket = true;       // texts of similar length share a batch
    bool shuffle = true;
    std::uint64_t seed = 1;
};

// Returns the indices of the samples in each batch of an epoch. They depend only on the arguments, so that an
// interrupted epoch can be continued. With `bucket`, pools of 64 batches are sorted by length and the batches
// shuffled.
std::vector<std::vector<std::int64_t>> epoch_batches(const Samples& samples, const BatchOptions& options,
                                                     std::int64_t epoch);

// Caches the batches of the epoch of the last call.
class EpochOrder {
public:
    EpochOrder(const Samples& samples, const BatchOptions& options) : samples_(samples), options_(options) {}
    std::int64_t count() const { return (samples_.size() + options_.batch_size - 1) / options_.batch_size; }
    const std::vector<std::int64_t>& at(std::int64_t epoch, std::int64_t batch);

private:
    const Samples& samples_;
    BatchOptions options_;
    std::int64_t epoch_ = -1;
    std::vector<std::vector<std::int64_t>> batches_;
};

// Returns this rank's samples of a batch.
std::vector<std::int64_t> part_of(const std::vector<std::int64_t>& indices,
                                  const mezzo::data::ShardRows& mine);

struct Batch {
    mezzo::data::TokenBatch tokens;
    mezzo::Tensor labels;  // int64 [n]
};
Batch make_batch(const Samples& samples, const std::vector<std::int64_t>& indices, std::int64_t pad_to,
                 std::int64_t pad_id, mezzo::Device device);

// A separate random generator (SplitMix64, Steele et al., OOPSLA 2014): the order of samples must not depend
// on how many random numbers the model has drawn.
class Shuffler {
public:
    explicit Shuffler(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next();
    std::uint64_t below(std::uint64_t n) { return next() % n; }
    template <class T> void shuffle(T* begin, std::int64_t n) {
        for (std::int64_t i = n - 1; i > 0; --i)
            std::swap(begin[i], begin[std::int64_t(below(std::uint64_t(i + 1)))]);
    }

private:
    std::uint64_t state_;
};

}  // namespace bert
