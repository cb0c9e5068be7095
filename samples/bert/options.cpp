#include "bert/options.h"

#include <unistd.h>

#include "program.h"
#include "training/options.h"
#include "training/step_profile.h"

namespace bert {

namespace {

using program::in_range;
using program::not_negative;
using program::positive;

void add_model_options(CLI::App& app, Options& o) {
    app.add_option("--weights", o.weights,
                   "start from these weights: a safetensors file with Hugging Face names, or a folder with "
                   "model.safetensors, config.json and vocab.txt");
    app.add_option("--vocab", o.vocab, "vocab.txt; default: that of --weights, else learned from the texts");
    app.add_option("--model-config", o.model_config,
                   "config.json; default: that of --weights, else the four sizes below");
    app.add_option("--layers", o.layers, "encoder layers")->transform(positive());
    app.add_option("--hidden", o.hidden, "width")->transform(positive());
    app.add_option("--heads", o.heads, "attention heads; must divide the width")->transform(positive());
    app.add_option("--intermediate", o.intermediate, "width of the feed-forward layers; 0: 4 times the width")
        ->transform(not_negative());
    app.add_option("--vocab-size", o.vocab_size, "of a vocabulary learned from the texts")
        ->transform(in_range<std::int64_t>(300, 1 << 20));
    app.add_option("--dropout", o.dropout, "of hidden states, attention and classifier")
        ->transform(in_range(0.0, 0.99));
    app.add_flag("--pooler,!--no-pooler", o.pooler,
                 "classify tanh(dense(first token)) as BERT does, or the first token itself");
}

void add_training_options(CLI::App& app, Options& o) {
    program::add_precision(app, o.precision);
    app.add_option("--epochs", o.epochs, "of fine-tuning; 0: none")->transform(not_negative());
    app.add_option("--max-steps", o.max_steps, "stop fine-tuning after this many steps; 0: do not")
        ->transform(not_negative());
    app.add_option("--pretrain-epochs", o.pretrain_epochs,
                   "first train by predicting masked tokens, for this many passes over the texts")
        ->transform(not_negative());
    app.add_option("--batch", o.batch, "texts per forward pass, over all ranks")->transform(positive());
    app.add_option("--accumulate", o.accumulate, "forward passes per step")->transform(positive());
    app.add_option("--lr", o.lr,
                   "peak learning rate of fine-tuning (AdamW); 0: 2e-5 with --weights, else 5e-4")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--pretrain-lr", o.pretrain_lr, "peak learning rate of pre-training")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--weight-decay", o.weight_decay, "of all weights but biases and LayerNorm")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--warmup", o.warmup, "share of the steps in which the learning rate rises")
        ->transform(in_range(0.0, 1.0));
    app.add_option("--clip", o.clip, "largest norm of the gradients; 0: do not clip")
        ->transform(in_range(0.0, 1e9));
    app.add_option("--max-length", o.max_length, "tokens per text at most")
        ->transform(in_range<std::int64_t>(3, 1 << 20));
    app.add_flag("--pad-to-max", o.pad_to_max,
                 "pad every batch to --max-length rather than to its longest text");
    app.add_flag("--bucket,!--no-bucket", o.bucket, "put texts of similar length into one batch");
    program::add_seed(app, o.seed, "of weights, order, masks and dropout");
}

void add_file_options(CLI::App& app, Options& o) {
    app.add_option("--data", o.data,
                   "folder of train_text.txt, train_labels.txt, val_text.txt, val_labels.txt; default: the "
                   "package descriptions of this Debian machine");
    app.add_option("--limit", o.limit, "train on at most this many texts; 0: all")->transform(not_negative());
    app.add_option("--checkpoint", o.checkpoint, "file that holds the state of the training");
    app.add_option("--checkpoint-every", o.checkpoint_every,
                   "steps between checkpoints besides the epochs' ends")
        ->transform(not_negative());
    training::add_resume(app, o);
    app.add_option("--save", o.save, "write weights, configuration, vocabulary and classes into this folder");
    app.add_option("--predict", o.predict, "at the end, classify the lines of this file");
    app.add_option(
           "--trace", o.trace,
           "write settings, weights, batches and losses into this folder, for tools/torch_finetune.py")
        ->check(CLI::ExistingDirectory);
    training::add_profile_option(app, o.profile);
    app.add_option("--log-every", o.log_every, "steps between progress reports")->transform(positive());
    app.add_flag("--progress", o.progress,
                 "rewrite one progress line even when standard error is no terminal");
}

}  // namespace

int parse_options(int argc, char** argv, Options& o) {
    CLI::App app{"Trains a BERT-style text classifier."};
    app.option_defaults()->always_capture_default();
    add_file_options(app, o);
    add_model_options(app, o);
    add_training_options(app, o);
    app.add_flag("--shard", o.shard,
                 "under mezzo-run, each rank keeps a part of the optimizer's state only; same results, also "
                 "of --resume with or without it");
    app.callback([&o] {
        training::check_resume(o);
        if (o.predict.empty() && o.save.empty() && o.epochs == 0 && o.pretrain_epochs == 0)
            throw CLI::ValidationError("--epochs",
                                       "0, and nothing else to do; pass --predict FILE or --save FOLDER");
    });
    if (const int code = training::parse_with_place(app, argc, argv, o); code >= 0) return code;
    if (o.lr == 0) o.lr = o.weights.empty() ? 5e-4 : 2e-5;
    o.progress = o.progress || isatty(STDERR_FILENO) == 1;
    return -1;
}

}  // namespace bert
