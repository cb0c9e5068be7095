// The code of docs/guide/generation.md: each block there is a case here.
#include <catch2/catch.hpp>

#include <iostream>
#include <sstream>

#include "mezzo/mezzo.h"
#include "mezzo/models/causal_lm.h"
#include "mezzo/models/generate.h"
#include "mezzo/models/gpt.h"
#include "mezzo/models/gpt_files.h"
#include "tests/models/causal_models.h"
#include "tests/support/folder.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

// A folder with a model.
struct ModelFolder {
    ModelFolder() {
        folder.write("config.json", mz::io::to_json(mz::test::tiny_gpt()));
        mz::io::save_safetensors(folder.file("model.safetensors"), mz::test::filled_gpt().state_dict());
    }
    mz::test::Folder folder;
};

}  // namespace

TEST_CASE("generation document: a folder", "[generate]") {
    const ModelFolder made;
    const std::string folder = made.folder.path;
    const std::vector<std::int64_t> prompt{3, 1, 4};
    // begin
    const nn::AnyModule loaded = mz::io::load_causal_lm(folder);  // config.json, model.safetensors
    const auto& model = loaded.as<nn::CausalLm>();
    const mz::amp::Autocast scope({.dtype = mz::bfloat16});
    const auto texts = nn::generate(
        model, {prompt}, {.max_new_tokens = 12, .sampling = {.temperature = 0.8, .top_p = 0.95}, .seed = 7});
    // end
    CHECK(texts[0].size() == 15);
}

TEST_CASE("generation document: training", "[generate]") {
    const mz::Tensor ids = mz::randint(0, 23, {4, 13});
    // begin
    nn::Gpt model({.vocab_size = 23, .n_positions = 64, .n_embd = 32, .n_layer = 2, .n_head = 4});
    mz::optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
    mz::amp::GradScaler scaler;
    const mz::Tensor input = ids[{mz::Slice(), mz::Slice(0, -1)}], target = ids[{mz::Slice(), mz::Slice(1)}];
    for (int step = 0; step < 3; ++step) {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope({.dtype = mz::float16});
            loss = model.loss(input, target);
        }
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
    }
    // end
    CHECK(std::isfinite(model.loss(input, target).item<double>()));
}

TEST_CASE("generation document: a cache by hand", "[generate]") {
    const nn::Gpt model = mz::test::filled_gpt();
    const mz::Tensor prompt = mz::Tensor::from(std::vector<std::int64_t>{3, 1, 4}, {1, 3});
    // begin
    const mz::InferenceMode scope;                                     // NoGrad, with packed weights
    nn::KeyValueCache cache(16);                                       // most tokens
    mz::Tensor logits = model.next_logits(prompt, {.cache = &cache});  // [1, vocab_size]
    for (int i = 0; i < 5; ++i) {
        const mz::Tensor next = logits.argmax(-1, {.keepdim = true});  // [1, 1]
        logits =
            model.next_logits(next, {.cache = &cache});  // reads one token, and all before it from the cache
    }
    cache.truncate(3);  // back to the prompt
    // end
    CHECK(cache.length() == 3);
}

TEST_CASE("generation document: tokens as they come", "[generate]") {
    const nn::Gpt model = mz::test::filled_gpt();
    std::ostringstream out;
    // begin
    const auto print = [&](std::size_t /*text*/, std::int64_t token) {
        out << token << ' ';
        return true;  // false ends the generation
    };
    (void)nn::generate(model, {{3, 1, 4}, {1, 5}},
                       {.max_new_tokens = 8, .eos_token_id = 22, .on_token = print});
    // end
    CHECK_FALSE(out.str().empty());
}
