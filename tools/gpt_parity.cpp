// What tools/gpt_parity.py compares with PyTorch and transformers: logits of the model of a folder, and the times of training
// steps and of generation.
#include <fmt/format.h>
#include <mezzo/mezzo.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "samples/program.h"

namespace mz = mezzo;

namespace {

struct Options {
    std::string folder, precision = "fp32", what = "logits";
    std::int64_t batch = 8, length = 256, steps = 10, prompt = 128, tokens = 128;
    int threads = 1;
};

mz::amp::AutocastOptions autocast(const Options& o) {
    return {.dtype = o.precision == "bf16" ? mz::bfloat16 : mz::float16, .enabled = o.precision != "fp32"};
}

template <class F> double seconds(const F& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// FOLDER/ids.safetensors -> FOLDER/logits.safetensors.
void write_logits(const Options& o, const mz::nn::CausalLm& model) {
    const mz::NoGrad plain;
    const mz::amp::Autocast scope(autocast(o));
    const mz::Tensor ids = mz::io::SafeTensors(o.folder + "/ids.safetensors").tensor("ids");
    mz::io::save_safetensors(o.folder + "/logits.safetensors", {{"logits", model(ids).to(mz::float32)}});
}

// The median of the seconds of a step with AdamW.
double time_training(const Options& o, mz::nn::CausalLm& model) {
    model.train();
    mz::optim::AdamW optimizer(model.parameters(), {.lr = 1e-4});
    mz::amp::GradScaler scaler({.enabled = o.precision == "fp16"});
    const mz::Tensor ids = mz::randint(0, model.vocab_size(), {o.batch, o.length + 1});
    const mz::Tensor input = ids.slice(1, 0, o.length).contiguous(),
                     target = ids.slice(1, 1, o.length + 1).contiguous();
    std::vector<double> times;
    for (std::int64_t i = -2; i < o.steps; ++i) {
        const double time = seconds([&] {
            mz::Tensor loss;
            {
                const mz::amp::Autocast scope(autocast(o));
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

// The shortest of three times for all tokens of one text.
double time_generation(const Options& o, const mz::nn::CausalLm& model) {
    const mz::amp::Autocast scope(autocast(o));
    std::vector<std::int64_t> prompt;
    for (std::int64_t i = 0; i < o.prompt; ++i) prompt.push_back((i * 31) % model.vocab_size());
    const mz::nn::GenerateOptions options{.max_new_tokens = o.tokens, .sampling = {.temperature = 0}};
    double best = 1e30;
    for (int i = 0; i < 4; ++i) {
        const double time = seconds([&] { (void)mz::nn::generate(model, {prompt}, options); });
        if (i > 0) best = std::min(best, time);
    }
    return best;
}

int run(int argc, char** argv) {
    Options o;
    CLI::App app{"Logits and times of the language model of a folder."};
    app.option_defaults()->always_capture_default();
    app.add_option("folder", o.folder)->required();
    app.add_option("--what", o.what)->check(CLI::IsMember({"logits", "training", "generation"}));
    app.add_option("--precision", o.precision)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
    app.add_option("--batch", o.batch)->transform(program::positive());
    app.add_option("--length", o.length)->transform(program::positive());
    app.add_option("--steps", o.steps)->transform(program::positive());
    app.add_option("--prompt", o.prompt)->transform(program::positive());
    app.add_option("--tokens", o.tokens)->transform(program::positive());
    app.add_option("--threads", o.threads)->transform(program::thread_count());
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    mz::set_num_threads(o.threads);
    const mz::nn::AnyModule loaded = mz::io::load_causal_lm(o.folder);
    auto& model = loaded.as<mz::nn::CausalLm>();
    if (o.what == "logits") write_logits(o, model);
    if (o.what == "training") fmt::print("{}\n", time_training(o, model));
    if (o.what == "generation") fmt::print("{}\n", time_generation(o, model));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("gpt_parity", [&] { return run(argc, argv); });
}
