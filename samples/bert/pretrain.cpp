#include "bert/pretrain.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "bert/trainer.h"
#include "training/ranks.h"

namespace mz = mezzo;

namespace bert {

namespace {

constexpr std::int64_t ignored = -100;

// Chooses 15 % of a text's tokens to be predicted: 80 % of them become [MASK], 10 % a random token, 10 %
// stay. Returns the labels: the token if it is to be predicted, otherwise -100.
std::vector<std::int64_t> mask_tokens(std::vector<std::int64_t>& ids, const mz::data::Encoding& encoding,
                                      const mz::data::WordPiece& tokenizer, Shuffler& random) {
    std::vector<std::int64_t> labels(ids.size(), ignored);
    for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
        if (encoding.is_special(i) || random.below(100) >= 15) continue;
        labels[i] = ids[i];
        const std::uint64_t kind = random.below(10);
        if (kind < 8)
            ids[i] = tokenizer.mask_id();
        else if (kind == 8)
            ids[i] = std::int64_t(random.below(std::uint64_t(tokenizer.size())));
    }
    return labels;
}

struct MaskedBatch {
    mz::Tensor ids, attention_mask;
    mz::nn::MaskedTokens masked;
    double weight = 1;  // of the mean over this rank's masked tokens
};

std::int64_t count_chosen(std::span<const std::int64_t> labels) {
    return std::int64_t(labels.size()) - std::count(labels.begin(), labels.end(), ignored);
}

// Returns this rank's rows of a batch, with different masks in every epoch. The masks depend only on the
// arguments: all ranks make the masks of the whole batch.
MaskedBatch make_masked_batch(const Options& options, const Setup& setup, const Samples& samples,
                              const std::vector<std::int64_t>& indices, std::uint64_t seed) {
    Shuffler random(seed);
    const Batch batch = make_batch(samples, indices, options.pad_to_max ? options.max_length : 0,
                                   setup.tokenizer.pad_id(), mz::cpu_device);
    const mz::Shape& shape = batch.tokens.input_ids.shape();
    std::vector<std::int64_t> ids = batch.tokens.input_ids.to_vector<std::int64_t>(),
                              labels(ids.size(), ignored);
    const auto length = static_cast<std::ptrdiff_t>(shape[1]);
    for (std::size_t row = 0; row < indices.size(); ++row) {
        const auto first = ids.begin() + std::ptrdiff_t(row) * length;
        std::vector<std::int64_t> text(first, first + length);
        const std::vector<std::int64_t> of_row =
            mask_tokens(text, samples.encodings[std::size_t(indices[row])], setup.tokenizer, random);
        std::copy(text.begin(), text.end(), first);
        std::copy(of_row.begin(), of_row.end(), labels.begin() + std::ptrdiff_t(row) * length);
    }
    // In a batch of very short texts no token may be chosen. Its first token is predicted then.
    if (std::all_of(labels.begin(), labels.end(), [](std::int64_t label) { return label == ignored; }))
        labels[0] = ids[0];
    const mz::data::ShardRows mine = setup.group.shard().slice(shape[0]);
    const std::span rows =
        std::span(labels).subspan(std::size_t(mine.first * shape[1]), std::size_t(mine.count * shape[1]));
    const std::int64_t of_all = count_chosen(labels), of_rank = mine.weight > 0 ? count_chosen(rows) : 0;
    if (of_rank == 0) rows[0] = ids[std::size_t(mine.first * shape[1])];  // a loss of weight 0
    const auto part = [&](const mz::Tensor& x) { return x.slice(0, mine.first, mine.first + mine.count); };
    mz::nn::MaskedTokens masked = mz::nn::masked_tokens(part(mz::Tensor::from(labels, shape)), ignored);
    masked.positions = masked.positions.to(options.device);
    masked.labels = masked.labels.to(options.device);
    return {part(mz::Tensor::from(ids, shape)).to(options.device),
            part(batch.tokens.attention_mask).to(options.device), masked,
            double(of_rank * setup.group.size()) / double(of_all)};
}

}  // namespace

bool pretrain(const Options& options, const Setup& setup, const Samples& samples,
              mz::nn::BertForMaskedLM& model) {
    if (setup.tokenizer.mask_id() < 0)
        throw std::runtime_error("--pretrain-epochs: the vocabulary has no [MASK]");
    const BatchOptions order{.batch_size = options.batch, .bucket = options.bucket, .seed = options.seed};
    EpochOrder batches(samples, order);
    fmt::print("\npre-training on masked tokens: {} texts\n", samples.size());
    Stage stage{.number = 0,
                .name = "pre-training",
                .epochs = options.pretrain_epochs,
                .lr = options.pretrain_lr,
                .model = &model};
    stage.batches = [&](std::int64_t) { return batches.count(); };
    stage.samples = [&](std::int64_t epoch, std::int64_t i) {
        return std::int64_t(batches.at(epoch, i).size());
    };
    stage.loss = [&](std::int64_t epoch, std::int64_t i) {
        const std::uint64_t seed =
            (options.seed * 1000003 + std::uint64_t(epoch)) * 1000003 + std::uint64_t(i);
        const MaskedBatch batch = make_masked_batch(options, setup, samples, batches.at(epoch, i), seed);
        return training::weighted(
            model.loss(batch.ids, batch.masked, {.attention_mask = batch.attention_mask}), batch.weight);
    };
    stage.epoch_done = [&](std::int64_t epoch, double loss, double seconds) {
        fmt::print("pre-training epoch {}: loss {:.4f}, {:.1f} s\n", epoch + 1, loss, seconds);
    };
    return train(options, setup.group, setup.settings, stage);
}

}  // namespace bert
