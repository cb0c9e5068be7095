#include "bert/trace.h"

#include <fstream>
#include <stdexcept>

#include <fmt/format.h>

namespace mz = mezzo;

namespace bert {

namespace {

void add_to(mz::StateDict& batches, const Batch& batch) {
    const std::string prefix = std::to_string(batches.size() / 3) + ".";
    batches.push_back({prefix + "input_ids", batch.tokens.input_ids});
    batches.push_back({prefix + "attention_mask", batch.tokens.attention_mask});
    batches.push_back({prefix + "labels", batch.labels});
}

mz::StateDict validation_batches(const Options& options, const Setup& setup, const Samples& samples) {
    mz::StateDict batches;
    for (const auto& indices : epoch_batches(samples, {.batch_size = 64, .shuffle = false}, 0))
        add_to(batches, make_batch(samples, indices, options.pad_to_max ? options.max_length : 0,
                                   setup.tokenizer.pad_id(), options.device));
    return batches;
}

void write(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    if (!(file << text).flush()) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace

Trace::Trace(const Options& options, const Setup& setup, const Samples& validation,
             const mz::nn::Module& model)
    : folder_(options.trace) {
    if (!on()) return;
    if (setup.group.size() != 1)
        throw std::runtime_error("--trace: repeats the steps of one process, not of several ranks");
    if (options.accumulate != 1)
        throw std::runtime_error("--trace: repeats steps of one batch only, not --accumulate");
    mz::io::save_safetensors(folder_ + "/weights.safetensors", model.state_dict());
    mz::io::save_safetensors(folder_ + "/validation.safetensors",
                             validation_batches(options, setup, validation));
    write(folder_ + "/config.json", mz::io::to_json(setup.config));
    write(
        folder_ + "/settings.json",
        fmt::format(
            R"({{"lr": {}, "weight_decay": {}, "warmup": {}, "clip": {}, "epochs": {}, "pooler": {}}})",
            options.lr, options.weight_decay, options.warmup, options.clip, options.epochs, options.pooler));
}

void Trace::add(const Batch& batch) {
    if (on()) add_to(batches_, batch);
}

void Trace::finish() {
    if (!on()) return;
    mz::io::save_safetensors(folder_ + "/batches.safetensors", batches_);
    mz::io::save_safetensors(folder_ + "/losses.safetensors",
                             {{"losses", mz::Tensor::from(losses_, {std::int64_t(losses_.size())})}});
}

}  // namespace bert
