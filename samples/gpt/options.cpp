#include "gpt/options.h"

#include "program.h"
#include "training/options.h"
#include "training/step_profile.h"

namespace mz = mezzo;

namespace gpt {

namespace {

using program::in_range;
using program::not_negative;
using program::positive;

void add_model_options(CLI::App& app, Options& o) {
    app.add_option(
           "--architecture", o.architecture,
           "gpt: GPT-2; llama: RMSNorm, rotary positions, SwiGLU, half as many heads of keys and values")
        ->check(CLI::IsMember({"gpt", "llama"}));
    app.add_option("--layers", o.layers)->transform(in_range<std::int64_t>(1, 1024));
    app.add_option("--width", o.width, "of the hidden states; a multiple of --heads")
        ->transform(in_range<std::int64_t>(1, 65536));
    app.add_option("--heads", o.heads)->transform(in_range<std::int64_t>(1, 1024));
    app.add_option("--context", o.context, "bytes or tokens that a prediction can look back at")
        ->transform(in_range<std::int64_t>(1, 65536));
    app.add_option("--dropout", o.dropout, "of GPT-2")->transform(in_range(0.0, 0.99));
}

void add_training_options(CLI::App& app, Options& o) {
    app.add_option(
        "--text", o.texts,
        "files to learn from, the last tenth of each for validation; default: /usr/share/common-licenses");
    CLI::Option* const bpe =
        app.add_option("--bpe", o.bpe,
                       "tokens of a byte-level BPE vocabulary that is learnt from the text; default: bytes")
            ->transform(in_range<std::int64_t>(257, 1 << 20));
    app.add_option("--tokenizer", o.tokenizer, "a tokenizer.json, instead of bytes")->excludes(bpe);
    program::add_precision(app, o.precision);
    app.add_option("--steps", o.steps, "0: none")->transform(not_negative());
    app.add_option("--batch", o.batch, "pieces of text per step, over all ranks")->transform(positive());
    app.add_option("--lr", o.lr, "peak learning rate (AdamW, cosine schedule)")
        ->transform(program::learning_rate());
    app.add_option("--weight-decay", o.weight_decay, "of matrices")->transform(in_range(0.0, 1.0));
    app.add_option("--report-every", o.report_every, "steps between reports")->transform(positive());
    app.add_option("--checkpoint", o.checkpoint, "file that holds the state of the training");
    app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints")
        ->transform(positive());
    training::add_resume(app, o);
    app.add_option("--out", o.out, "folder for config.json and model.safetensors");
    training::add_profile_option(app, o.profile);
    program::add_seed(app, o.seed, "of weights, order and generation");
}

void add_generation_options(CLI::App& app, Options& o) {
    mz::nn::GenerateOptions& g = o.generate;
    app.add_option("--model", o.model, "generate with the model of this folder, and train none");
    app.add_option("--prompt", o.prompt, "text to be continued");
    app.add_option("--tokens", g.max_new_tokens, "to be generated; as many as the context has room for")
        ->transform(not_negative());
    app.add_option("--temperature", g.sampling.temperature, "0: always the likeliest")
        ->transform(in_range(0.0, 100.0));
    app.add_option("--top-k", g.sampling.top_k, "only the k likeliest; 0: all")->transform(not_negative());
    app.add_option("--top-p", g.sampling.top_p, "only the likeliest that together have this probability")
        ->transform(in_range(1e-9, 1.0));
}

void check_options(const Options& o) {
    using CLI::ValidationError;
    training::check_resume(o);
    if (o.prompt.empty())
        throw ValidationError("--prompt", "is empty; the model continues at least one token");
    if (o.width % o.heads != 0)
        throw ValidationError("--width", fmt::format("{} is no multiple of {} --heads", o.width, o.heads));
    if (o.architecture == "llama" && o.width / o.heads % 2 != 0)
        throw ValidationError(
            "--width",
            fmt::format("{} / {} --heads is odd, which rotary positions cannot be", o.width, o.heads));
}

}  // namespace

int parse_options(int argc, char** argv, Options& o) {
    CLI::App app{"Trains a language model on a text, as bytes or tokens, and continues a prompt."};
    app.option_defaults()->always_capture_default();
    add_training_options(app, o);
    add_model_options(app, o);
    add_generation_options(app, o);
    app.callback([&o] { check_options(o); });
    if (const int code = training::parse_with_place(app, argc, argv, o); code >= 0) return code;
    o.generate.seed = o.seed;
    return -1;
}

}  // namespace gpt
