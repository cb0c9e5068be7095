#include "bert/finetune.h"

#include <algorithm>

#include <fmt/format.h>

#include "bert/trace.h"
#include "bert/trainer.h"
#include "training/ranks.h"

namespace mz = mezzo;

namespace bert {

namespace {

std::int64_t row_length(const Options& options) { return options.pad_to_max ? options.max_length : 0; }

mz::Tensor logits_of(const Classifier& model, const Batch& batch) {
    return model(batch.tokens.input_ids, {.attention_mask = batch.tokens.attention_mask,
                                          .token_type_ids = batch.tokens.token_type_ids});
}

// Two classes share one logit, as in the experiment that this sample reproduces; more classes have one logit
// each.
mz::Tensor loss_of(const Setup& setup, const mz::Tensor& logits, const mz::Tensor& labels) {
    if (!setup.binary()) return mz::cross_entropy(logits, labels);
    return mz::binary_cross_entropy_with_logits(logits.squeeze(-1), labels.to(mz::float32));
}

// Returns the probabilities [n, classes] of a batch's logits, in float32.
mz::Tensor probabilities(const Setup& setup, const mz::Tensor& logits) {
    if (!setup.binary()) return mz::softmax(logits.to(mz::float32));
    const mz::Tensor p = mz::sigmoid(logits.to(mz::float32));
    return mz::cat({1 - p, p}, -1);
}

// Returns the texts that a rank classifies; none if there are more ranks than texts.
Samples share_of(const Samples& all, const mz::data::Shard& shard) {
    const mz::data::ShardRows mine = shard.slice(all.size());
    if (mine.weight == 0) return {};
    const auto first = mine.first, last = mine.first + mine.count;
    return {{all.encodings.begin() + first, all.encodings.begin() + last},
            {all.labels.begin() + first, all.labels.begin() + last}};
}

void evaluate(const Options& options, const Setup& setup, const Samples& all, Classifier& model,
              std::int64_t epoch, double loss, double seconds) {
    Confusion confusion(std::int64_t(setup.classes.size()));
    const Samples samples = share_of(all, setup.group.shard());
    const std::vector<Prediction> predictions = predict(options, setup, samples, model);
    for (std::size_t i = 0; i < predictions.size(); ++i)
        confusion.add(samples.labels[i], predictions[i].label);
    confusion.add_other_ranks(setup.group);
    fmt::print("epoch {}: train loss {:.4f}, validation macro-F1 {:.2f} %, accuracy {:.2f} %, {:.1f} s\n",
               epoch + 1, loss, 100 * confusion.macro_f1(), 100 * confusion.accuracy(), seconds);
    std::fflush(stdout);
}

}  // namespace

bool finetune(const Options& options, const Setup& setup, const Samples& train_samples,
              const Samples& validation, Classifier& model) {
    EpochOrder batches(train_samples,
                       {.batch_size = options.batch, .bucket = options.bucket, .seed = options.seed});
    Trace trace(options, setup, validation, model);
    fmt::print("\nfine-tuning: {} texts, {} for validation, {} classes\n", train_samples.size(),
               validation.size(), setup.classes.size());
    Stage stage{.number = 1,
                .name = "fine-tuning",
                .epochs = options.epochs,
                .max_steps = options.max_steps,
                .lr = options.lr,
                .model = &model};
    stage.batches = [&](std::int64_t) { return batches.count(); };
    stage.samples = [&](std::int64_t epoch, std::int64_t i) {
        return std::int64_t(batches.at(epoch, i).size());
    };
    stage.loss = [&](std::int64_t epoch, std::int64_t i) {
        const std::vector<std::int64_t>& all = batches.at(epoch, i);
        const mz::data::ShardRows mine = setup.group.shard().slice(std::int64_t(all.size()));
        const Batch batch = make_batch(train_samples, part_of(all, mine), row_length(options),
                                       setup.tokenizer.pad_id(), options.device);
        trace.add(batch);
        return training::weighted(loss_of(setup, logits_of(model, batch), batch.labels), mine.weight);
    };
    stage.epoch_done = [&](std::int64_t epoch, double loss, double seconds) {
        evaluate(options, setup, validation, model, epoch, loss, seconds);
    };
    if (trace.on()) stage.step_done = [&](std::int64_t, double loss) { trace.add(loss); };
    if (!train(options, setup.group, setup.settings, stage)) return false;
    trace.finish();
    return true;
}

std::vector<Prediction> predict(const Options& options, const Setup& setup, const Samples& samples,
                                Classifier& model) {
    const mz::NoGrad no_grad;
    const mz::amp::Autocast scope(options.autocast());
    model.eval();
    std::vector<Prediction> predictions(std::size_t(samples.size()));
    const BatchOptions order{.batch_size = 64, .shuffle = false};
    for (const std::vector<std::int64_t>& indices : epoch_batches(samples, order, 0)) {
        const Batch batch =
            make_batch(samples, indices, row_length(options), setup.tokenizer.pad_id(), options.device);
        const mz::Tensor p = probabilities(setup, logits_of(model, batch));
        const std::vector<double> values = p.to_vector<double>();
        const auto classes = static_cast<std::size_t>(p.size(1));
        for (std::size_t row = 0; row < indices.size(); ++row) {
            const auto first = values.begin() + std::ptrdiff_t(row * classes);
            const auto best = std::max_element(first, first + std::ptrdiff_t(classes));
            predictions[std::size_t(indices[row])] = {best - first, *best};
        }
    }
    return predictions;
}

void predict_file(const Options& options, const Setup& setup, Classifier& model) {
    Corpus corpus;
    corpus.texts = setup.to_predict;
    const Samples samples = tokenize(corpus, setup.tokenizer, options.max_length);
    const std::vector<Prediction> predictions = predict(options, setup, samples, model);
    for (std::size_t i = 0; i < predictions.size(); ++i)
        fmt::print("{}\t{:.4f}\t{}\n", setup.classes[std::size_t(predictions[i].label)],
                   predictions[i].probability, corpus.texts[i]);
}

}  // namespace bert
