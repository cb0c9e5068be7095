// Writes logits of the language model of a folder, or prints the time of a training step or of generation.
// tools/gpt_parity.py compares them with PyTorch and transformers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "mezzo/models/generate.h"
#include "mezzo/models/gpt_files.h"
#include "tools/parity.h"

namespace mz = mezzo;

namespace {

struct Settings : parity::Settings {
    std::string what = "logits";
    std::int64_t batch = 8, length = 256, steps = 10, prompt = 128, tokens = 128;
};

template <class F> double seconds(const F& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// FOLDER/ids.safetensors -> FOLDER/logits.safetensors.
void write_logits(const Settings& s, const mz::nn::CausalLm& model) {
    const mz::NoGrad plain;
    const mz::amp::Autocast scope(s.autocast());
    const mz::Tensor ids = mz::io::SafeTensors(s.path("ids.safetensors")).tensor("ids");
    mz::io::save_safetensors(s.path("logits.safetensors"), {{"logits", model(ids).to(mz::float32)}});
}

// Returns the median time of a step with AdamW, in seconds.
double time_training(const Settings& s, mz::nn::CausalLm& model) {
    model.train();
    mz::optim::AdamW optimizer(model.parameters(), {.lr = 1e-4});
    mz::amp::GradScaler scaler({.enabled = s.precision == "fp16"});
    const mz::Tensor ids = mz::randint(0, model.vocab_size(), {s.batch, s.length + 1});
    const mz::Tensor input = ids.slice(1, 0, s.length).contiguous(),
                     target = ids.slice(1, 1, s.length + 1).contiguous();
    std::vector<double> times;
    for (std::int64_t i = -2; i < s.steps; ++i) {
        const double time = seconds([&] {
            mz::Tensor loss;
            {
                const mz::amp::Autocast scope(s.autocast());
                loss = model.loss(input, target);
            }
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
            optimizer.zero_grad();
        });
        if (i >= 0) times.push_back(time);
    }
    std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
    return times[times.size() / 2];
}

// Returns the shortest of three times for all tokens of one text.
double time_generation(const Settings& s, const mz::nn::CausalLm& model) {
    const mz::amp::Autocast scope(s.autocast());
    std::vector<std::int64_t> prompt;
    for (std::int64_t i = 0; i < s.prompt; ++i) prompt.push_back((i * 31) % model.vocab_size());
    const mz::nn::GenerateOptions options{.max_new_tokens = s.tokens, .sampling = {.temperature = 0}};
    double best = 1e30;
    for (int i = 0; i < 4; ++i) {
        const double time = seconds([&] { (void)mz::nn::generate(model, {prompt}, options); });
        if (i > 0) best = std::min(best, time);
    }
    return best;
}

void run(const Settings& s) {
    const mz::nn::AnyModule loaded = mz::io::load_causal_lm(s.folder);
    auto& model = loaded.as<mz::nn::CausalLm>();
    if (s.what == "logits") write_logits(s, model);
    if (s.what == "training") fmt::print("{}\n", time_training(s, model));
    if (s.what == "generation") fmt::print("{}\n", time_generation(s, model));
}

void add_options(CLI::App& app, Settings& s) {
    app.add_option("--what", s.what)->check(CLI::IsMember({"logits", "training", "generation"}));
    program::add_precision(app, s.precision)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
    app.add_option("--batch", s.batch)->transform(program::positive());
    app.add_option("--length", s.length)->transform(program::positive());
    app.add_option("--steps", s.steps)->transform(program::positive());
    app.add_option("--prompt", s.prompt)->transform(program::positive());
    app.add_option("--tokens", s.tokens)->transform(program::positive());
}

}  // namespace

int main(int argc, char** argv) {
    Settings s;
    s.threads = 1;
    return parity::run_program(
        "gpt_parity", "Logits and times of the language model of a folder.", s, argc, argv,
        [&](CLI::App& app) { add_options(app, s); }, [&] { run(s); });
}
