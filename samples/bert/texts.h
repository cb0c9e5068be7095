// Texts of bert_classifier: reads them, and makes batches and masks of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <mezzo/data/batch_loader.h>
#include <mezzo/models/bert.h>
#include <mezzo/text/tokenizer.h>

namespace bert {

struct Corpus {
    std::vector<std::string> texts;
    std::vector<std::int64_t> labels;  // per text, an index into the classes
};
struct Corpora {
    Corpus train, validation;
    std::vector<std::string> classes;
};

// Returns the lines of a text file, without line ends. Throws std::runtime_error if it cannot be read
// completely.
std::vector<std::string> read_lines(const std::string& path);

// Reads TweetEval's layout: train_text.txt, train_labels.txt, val_text.txt, val_labels.txt, one text or label
// per line, and mapping.txt with "label<TAB>name" lines (without it, classes have their numbers as names).
// `limit`: largest number of training texts; 0: all.
Corpora read_text_folder(const std::string& folder, std::size_t limit);

// Returns the short descriptions of the packages in this Debian machine's lists, with their section as class.
// Leaves out sections with fewer than 200 packages; every tenth text is for validation.
Corpora read_package_descriptions(std::size_t limit);

struct Sample {
    std::int64_t number = 0;  // in its corpus
    mezzo::data::Encoding tokens;
    std::int64_t label = 0;
};
std::vector<Sample> tokenize(const Corpus& corpus, const mezzo::data::WordPiece& tokenizer,
                             std::int64_t max_length);

struct Batch {
    std::vector<const Sample*> samples;
    mezzo::data::TokenBatch tokens;  // padded to the longest text
    mezzo::Tensor labels;            // int64 [n]
    double share = 1;                // factor of the mean loss, see ShardRows::weight
};
Batch make_batch(std::vector<const Sample*> samples, std::int64_t pad_id);

// Parts of a data::BatchLoader: the samples, which must outlive it, and the function that makes this rank's
// part of a batch.
struct Texts {
    const std::vector<Sample>& samples;
    std::int64_t size() const { return std::int64_t(samples.size()); }
    const Sample* get(std::int64_t i) const { return &samples[std::size_t(i)]; }
};
struct Collate {
    mezzo::data::Shard shard;
    std::int64_t pad_id;
    Batch operator()(std::vector<const Sample*> samples) const;
};
using Loader = mezzo::data::BatchLoader<Texts, Collate>;

// Masks of a batch (Devlin et al., arXiv 1810.04805, section 3.1): 15 % of the tokens are to be predicted. Of
// these, 80 % become [MASK], 10 % a random token, and 10 % stay. They depend only on the text's number, the
// epoch and the seed, so that they are the same on any number of ranks.
struct MaskedBatch {
    mezzo::Tensor ids;  // int64 [n, length]
    mezzo::nn::MaskedTokens masked;
    // tokens to predict; 0: there is none, and `masked` has one only because it must not be empty
    std::int64_t count = 0;
};
MaskedBatch mask_tokens(const Batch& batch, const mezzo::data::WordPiece& tokenizer, std::uint64_t seed,
                        std::int64_t epoch);

}  // namespace bert
