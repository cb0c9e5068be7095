// Counts the kernel launches of a BERT layer on the CUDA device, real or emulated, in one step of
// mixed-precision training.
#include <catch2/catch.hpp>

#include "autograd/autocast_state.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/bert_config.h"
#include "tests/support/support.h"

using namespace mezzo;

namespace {

struct Launches {
    std::uint64_t forward, backward, casts, all;
};

// Launches of the third step, in which every weight has its 16-bit copy.
Launches of_step(std::int64_t layers) {
    const Device gpu{DeviceType::cuda};
    manual_seed(1);
    nn::BertConfig config;
    config.vocab_size = 30;
    config.hidden_size = 16;
    config.num_hidden_layers = layers;
    config.num_attention_heads = 2;
    config.intermediate_size = 32;
    config.max_position_embeddings = 8;
    nn::BertForSequenceClassification model(config);
    model.to(gpu);
    optim::AdamW optimizer(model.parameters(), {.lr = 0.001});
    const Tensor ids = full({2, 8}, 3, {.dtype = int64, .device = gpu});
    const Tensor labels = zeros({2}, {.dtype = int64, .device = gpu});
    Launches seen{};
    for (int i = 0; i < 3; ++i) {
        const std::uint64_t begin = cuda::counters().launches, casts = autocast_counters().casts;
        Tensor loss;
        {
            const amp::Autocast scope({.dtype = bfloat16});
            loss = cross_entropy(model(ids), labels);
        }
        const std::uint64_t middle = cuda::counters().launches;
        seen.casts = autocast_counters().casts - casts;
        loss.backward();
        seen.forward = middle - begin;
        seen.backward = cuda::counters().launches - middle;
        optimizer.step();
        optimizer.zero_grad();
        seen.all = cuda::counters().launches - begin;
    }
    return seen;
}

}  // namespace

TEST_CASE("launches of a BERT layer in a step of mixed-precision training", "[cuda][bert]") {
    if (test::no_device()) return;
    const Launches one = of_step(1), two = of_step(2);
    CHECK(two.casts == one.casts);  // the norms write what the products read
    CHECK(two.forward - one.forward == 8);
    CHECK(two.backward - one.backward == 14);
    CHECK(one.all + 11 * (two.all - one.all) <= 294);  // BERT-base
}
