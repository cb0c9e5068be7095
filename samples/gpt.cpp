// Trains a small GPT-2 or Llama on a text, as bytes or tokens, in float32, bfloat16 or float16, and continues
// a prompt with it; or continues a prompt with a model from a folder. samples/gpt holds its parts.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "gpt/options.h"
#include "gpt/texts.h"
#include "gpt/trainer.h"
#include "program.h"
#include "training/places.h"
#include "training/ranks.h"

namespace mz = mezzo;
using namespace gpt;

namespace {

// Returns the tokens of the prompt.
std::vector<std::int64_t> prompt_of(const Options& o, const Vocabulary& vocabulary, std::int64_t context) {
    std::vector<std::int64_t> prompt = vocabulary.ids(o.prompt);
    if (std::int64_t(prompt.size()) > context)
        throw std::runtime_error(fmt::format("--prompt: {} {} are more than the context of {}", prompt.size(),
                                             vocabulary.unit(), context));
    return prompt;
}

// Prints the text as it is generated.
void continue_prompt(const Options& o, const Vocabulary& vocabulary, mz::nn::CausalLm& model) {
    if (model.vocab_size() != vocabulary.size())
        throw std::runtime_error(
            fmt::format("--model: {} has {} tokens, but its vocabulary {}{}",
                        o.model.empty() ? "it" : o.model, model.vocab_size(), vocabulary.size(),
                        vocabulary.json().empty() ? ": bytes, as no tokenizer.json is there" : ""));
    mz::nn::GenerateOptions options = o.generate;
    const std::vector<std::int64_t> prompt = prompt_of(o, vocabulary, model.max_length());
    options.max_new_tokens =
        std::min(options.max_new_tokens, model.max_length() - std::int64_t(prompt.size()));
    TextPrinter printer(vocabulary);
    options.on_token = [&printer](std::size_t, std::int64_t id) {
        printer.add(id);
        return true;
    };
    const mz::nn::EvalMode evaluation(model);
    const mz::amp::Autocast scope(autocast(o));
    fmt::print("\n{}", o.prompt);
    const auto start = std::chrono::steady_clock::now();
    (void)mz::nn::generate(model, {prompt}, options);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    printer.finish();
    fmt::print("\n\n{} {}, {:.0f} per second\n", options.max_new_tokens, vocabulary.unit(),
               double(options.max_new_tokens) / seconds);
}

void print_header(const Options& o, const mz::distributed::Group& group, const Texts& texts,
                  const mz::nn::CausalLm& model) {
    fmt::print("{}, {} layers, width {}, {:.2f} M parameters, {}, batch {} x {} {}, seed {}\n",
               o.architecture, o.layers, o.width, double(model.num_parameters()) * 1e-6, o.precision, o.batch,
               o.context, texts.vocabulary.unit(), o.seed);
    fmt::print("{} bytes of text, {} for validation\n", texts.train_bytes + texts.validation_bytes,
               texts.validation_bytes);
    if (!texts.vocabulary.json().empty())
        fmt::print("{} tokens, {:.2f} bytes each\n", texts.vocabulary.size(),
                   double(texts.train_bytes) / double(texts.train.size()));
    fmt::print("{}\n", mz::hardware_name(o.device));
    if (group.size() > 1) fmt::print("{} ranks share each batch\n", group.size());
}

void check_places(const Options& o) {
    if (!o.checkpoint.empty()) training::check_file("--checkpoint", o.checkpoint);
    if (!o.profile.empty()) training::check_file("--profile", o.profile);
    if (o.out.empty()) return;
    std::filesystem::create_directories(o.out);
    for (const char* const name : {"model.safetensors", "config.json", "tokenizer.json"})
        training::check_file("--out", std::filesystem::path(o.out) / name);
}

// Returns the exit code.
int run(Options& o) {
    const mz::distributed::Group group = training::join_ranks(o.threads);
    if (!o.device_given) o.device = group.device();
    mz::distributed::manual_seed(group, o.seed);
    if (!o.model.empty()) {
        const mz::nn::AnyModule loaded = mz::io::load_causal_lm(o.model);
        loaded.module().to(o.device);
        if (group.leader()) continue_prompt(o, Vocabulary::of_folder(o.model), loaded.as<mz::nn::CausalLm>());
        return 0;
    }
    if (group.leader()) check_places(o);
    const Texts texts = read_texts(o);
    static_cast<void>(
        prompt_of(o, texts.vocabulary, o.context));  // an error before the training, not after it
    const auto model = make_model(o, texts.vocabulary.size());
    model->to(o.device);
    print_header(o, group, texts, *model);
    if (!train(o, group, texts, *model)) return training::exit_code_when_stopped();
    if (!group.leader()) return 0;
    if (!o.out.empty()) save_model(o.out, *model, texts.vocabulary);
    continue_prompt(o, texts.vocabulary, *model);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("gpt", [&] {
        Options options;
        const int code = parse_options(argc, argv, options);
        return code < 0 ? run(options) : code;
    });
}
