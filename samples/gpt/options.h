// The command line of gpt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/mezzo.h"
#include "mezzo/models/generate.h"
#include "program.h"
#include "training.h"

namespace gpt {

struct Options {
    std::vector<std::string> texts;  // files; none: licences of this machine
    std::string tokenizer;           // a tokenizer.json
    std::int64_t bpe = 0;            // size of a vocabulary to learn; 0 and no tokenizer: bytes
    std::string model;               // folder of a model to generate with, without training
    std::string architecture = "gpt", precision = "fp32", states = "fp32";
    std::int64_t layers = 4, width = 128, heads = 4, context = 128;
    double dropout = 0.1;
    std::int64_t steps = 500, batch = 16, report_every = 50, checkpoint_every = 100;
    double lr = 1e-3, weight_decay = 0.1;
    std::string checkpoints, tensorboard, out;
    bool resume = false;
    std::string prompt = "This License ";
    bool quantize = false;
    mezzo::nn::GenerateOptions generate = {.max_new_tokens = 200, .sampling = {.temperature = 0.8}};
    std::uint64_t seed = 1;
    std::optional<mezzo::Device> device;  // none: the rank's
    int threads = 0;                      // 0: as many as there are processors
};

inline void add_model_options(CLI::App& app, Options& o) {
    app.add_option(
           "--architecture", o.architecture,
           "gpt: GPT-2; llama: RMSNorm, rotary positions, SwiGLU, half as many heads of keys and values")
        ->check(CLI::IsMember({"gpt", "llama"}));
    app.add_option("--layers", o.layers)->transform(program::in_range<std::int64_t>(1, 1024));
    app.add_option("--width", o.width, "of the hidden states; a multiple of --heads")
        ->transform(program::in_range<std::int64_t>(1, 65536));
    app.add_option("--heads", o.heads)->transform(program::in_range<std::int64_t>(1, 1024));
    app.add_option("--context", o.context, "bytes or tokens that a prediction can look back at")
        ->transform(program::in_range<std::int64_t>(1, 65536));
    app.add_option("--dropout", o.dropout, "of GPT-2")->transform(program::in_range(0.0, 0.99));
}

inline void add_training_options(CLI::App& app, Options& o) {
    app.add_option(
        "--text", o.texts,
        "files to learn from, the last tenth of each for validation; default: /usr/share/common-licenses");
    CLI::Option* const bpe =
        app.add_option("--bpe", o.bpe,
                       "tokens of a byte-level BPE vocabulary that is learnt from the text; default: bytes")
            ->transform(program::in_range<std::int64_t>(257, 1 << 20));
    app.add_option("--tokenizer", o.tokenizer, "a tokenizer.json, instead of bytes")->excludes(bpe);
    program::add_precision(app, o.precision);
    program::add_states(app, o.states);
    app.add_option("--steps", o.steps, "0: none")->transform(program::not_negative());
    app.add_option("--batch", o.batch, "pieces of text per step, over all ranks")
        ->transform(program::positive());
    app.add_option("--lr", o.lr, "peak learning rate (AdamW, cosine schedule)")
        ->transform(program::learning_rate());
    app.add_option("--weight-decay", o.weight_decay, "of matrices")->transform(program::in_range(0.0, 1.0));
    app.add_option("--report-every", o.report_every, "steps between reports")->transform(program::positive());
    app.add_option("--checkpoints", o.checkpoints, "folder for checkpoints of the training");
    app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints")
        ->transform(program::positive());
    app.add_flag(
           "--resume", o.resume,
           "go on from the newest checkpoint, if there is one; what shapes the training must be as it was")
        ->needs("--checkpoints");
    app.add_option("--tensorboard", o.tensorboard, "write an event file for TensorBoard into this folder");
    app.add_option("--out", o.out, "folder for config.json and model.safetensors");
    program::add_seed(app, o.seed, "of weights, order and generation");
}

inline void add_generation_options(CLI::App& app, Options& o) {
    mezzo::nn::GenerateOptions& g = o.generate;
    app.add_option("--model", o.model, "generate with the model of this folder, and train none");
    app.add_option("--prompt", o.prompt, "text to be continued");
    app.add_flag("--quantize", o.quantize, "continue it with weights of 8 bits (int8)");
    app.add_option("--tokens", g.max_new_tokens, "to be generated; as many as the context has room for")
        ->transform(program::not_negative());
    app.add_option("--temperature", g.sampling.temperature, "0: always the likeliest")
        ->transform(program::in_range(0.0, 100.0));
    app.add_option("--top-k", g.sampling.top_k, "only the k likeliest; 0: all")
        ->transform(program::not_negative());
    app.add_option("--top-p", g.sampling.top_p, "only the likeliest that together have this probability")
        ->transform(program::in_range(1e-9, 1.0));
}

inline void check_options(const Options& o) {
    using CLI::ValidationError;
    if (o.prompt.empty())
        throw ValidationError("--prompt", "is empty; the model continues at least one token");
    if (o.width % o.heads != 0)
        throw ValidationError("--width", fmt::format("{} is no multiple of {} --heads", o.width, o.heads));
    if (o.architecture == "llama" && o.width / o.heads % 2 != 0)
        throw ValidationError(
            "--width",
            fmt::format("{} / {} --heads is odd, which rotary positions cannot be", o.width, o.heads));
}

// Returns -1 to continue, or the exit code.
inline int parse_options(int argc, char** argv, Options& o) {
    CLI::App app{"Trains a language model on a text, as bytes or tokens, and continues a prompt."};
    app.option_defaults()->always_capture_default();
    add_training_options(app, o);
    add_model_options(app, o);
    add_generation_options(app, o);
    std::string device;
    int threads = mezzo::num_threads();
    program::add_device(app, device);
    program::add_threads(app, threads);
    app.callback([&o] { check_options(o); });
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    if (!device.empty()) o.device = mezzo::parse_device(device.c_str());
    if (app.count("--threads") > 0) o.threads = threads;
    o.generate.seed = o.seed;
    return -1;
}

}  // namespace gpt
