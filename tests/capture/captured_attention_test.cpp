// BERT's self-attention in captured steps, and its launches: on a GPU, or on the emulated device.
#include <array>
#include <catch2/catch.hpp>

#include "core/memory/flat_view.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};

Tensor values(const Shape& shape, int seed) {
    return test::tensor_of(test::random_values(shape.numel(), std::uint64_t(seed), test::Domain::any), shape,
                           float32, gpu);
}

nn::BertSelfAttention small_attention() {
    manual_seed(8);
    nn::BertSelfAttention attention({.hidden_size = 16,
                                     .num_attention_heads = 2,
                                     .hidden_dropout_prob = 0,
                                     .attention_probs_dropout_prob = 0.2});
    attention.to(gpu);
    return attention;
}

struct Loop {
    Dtype compute = bfloat16;
    bool zero_first = false;
    bool keep_zeros = false;  // zero_grad(false)
    int micro_batches = 1;
};

// Losses of some steps, and the parameters after them.
std::vector<std::vector<double>> train(const Loop& loop, bool capture) {
    nn::BertSelfAttention attention = small_attention();
    optim::AdamW optimizer(attention.parameters(), {.lr = 0.01});
    const auto step = [&](const Tensors& in) {
        if (loop.zero_first) optimizer.zero_grad(!loop.keep_zeros);
        Tensor loss;
        for (int m = 0; m < loop.micro_batches; ++m) {
            {
                const amp::Autocast scope({.device = DeviceType::cuda,
                                           .dtype = is_16bit(loop.compute) ? loop.compute : float16,
                                           .enabled = is_16bit(loop.compute)});
                loss = mean(square(attention(in[0] * double(m + 1), Tensor()) - 1.0));
            }
            loss.backward();
        }
        optimizer.step();
        if (!loop.zero_first) optimizer.zero_grad(!loop.keep_zeros);
        return Tensors{loss};
    };
    cuda::CapturedStep captured(step, {.device = gpu});
    std::vector<std::vector<double>> seen;
    for (int i = 0; i < 7; ++i) {
        const Tensors in{values({2, 5, 16}, i)};
        seen.push_back(test::doubles(capture ? captured(in)[0] : step(in)[0]));
    }
    if (capture) CHECK(captured.statistics().replays > 1);
    for (const Tensor& p : attention.parameters()) {
        seen.push_back(test::doubles(p));
        if (p.grad().defined()) seen.push_back(test::doubles(p.grad()));
    }
    return seen;
}

}  // namespace

TEST_CASE("captured attention: training is bitwise that of eager calls", "[cuda]") {
    if (test::no_device()) return;
    for (const Loop& loop : {Loop{}, Loop{.compute = float32}, Loop{.zero_first = true},
                             Loop{.zero_first = true, .keep_zeros = true}, Loop{.keep_zeros = true},
                             Loop{.micro_batches = 2}, Loop{.zero_first = true, .micro_batches = 2}}) {
        CAPTURE(name(loop.compute), loop.zero_first, loop.keep_zeros, loop.micro_batches);
        CHECK((train(loop, true) == train(loop, false)));
    }
}

// Launches of a steady step under autocast. The three projections are three products: forward, by input, by
// weights. The other launches are the input's conversion, one sum for the three biases, and attention: one
// kernel forward, three backward.
TEST_CASE("captured attention: three projections launch what one does", "[cuda][emulation]") {
    if (test::no_device()) return;
    const auto launches_of = [](bool placed) {
        nn::BertSelfAttention attention = small_attention();
        if (!placed)  // equal values, but no longer adjacent in memory
            attention.key.weight = nn::Parameter(attention.key.weight.clone());
        optim::AdamW optimizer(attention.parameters(), {.lr = 0.01});
        const Tensor x = values({2, 5, 16}, 1).set_requires_grad();
        std::uint64_t forward = 0, both = 0, adding = 0;
        for (int i = 0; i < 4; ++i) {
            const std::uint64_t before = cuda::counters().launches;
            Tensor y;
            {
                const amp::Autocast scope({.device = DeviceType::cuda, .dtype = bfloat16});
                y = attention(x, Tensor());
            }
            forward = cuda::counters().launches - before;
            const Tensor g = ones_like(y);
            const std::uint64_t middle = cuda::counters().launches;
            y.backward({.gradient = g});
            (i < 3 ? both : adding) = forward + cuda::counters().launches - middle;
            if (i == 2) continue;  // the last backward adds to the gradients that there are
            optimizer.step();
            optimizer.zero_grad();
            x.set_grad({});
        }
        return std::array{forward, both, adding};
    };
    launches_of(true);  // the first product of a shape may be checked
    const auto [forward, both, adding] = launches_of(true);
    CHECK(forward == 3);           // conversion, product, attention
    CHECK(both == 3 + 2 + 2 + 1);  // backward: attention, products, biases
    CHECK(adding == both + 3);     // the biases' gradients; the weights' are added to by the product
    const auto [forward_apart, both_apart, adding_apart] = launches_of(false);
    CHECK(adding_apart == both_apart + 3);
    CHECK(forward_apart == forward + 2);
    CHECK(both_apart == both + 2);  // the gradient of the input copies the weights into one piece
}

// Each gradient is a part of a block of the graph's memory.
TEST_CASE("captured attention: a replay that writes what a graph has saved is noticed", "[cuda]") {
    if (test::no_device()) return;
    Tensors weights;
    for (int i = 0; i < 3; ++i) weights.push_back(values({8, 8}, i).set_requires_grad());
    const auto step = [&](const Tensors& in) {
        const Tensor y = merged_linear(in[0], weights);
        return autograd::grad({sum(y * y)}, weights);
    };
    cuda::CapturedStep captured(step, {.device = gpu});
    const Tensor p = ones({8, 8}, {.device = gpu}).set_requires_grad();
    Tensor loss;
    for (int i = 0; i < 8; ++i) {
        const Tensors gradients = captured({values({4, 8}, 10 + i)});
        if (i == 5) loss = sum(p * p * gradients[1]);
    }
    REQUIRE(captured.statistics().replays > 2);
    CHECK_THROWS_WITH(loss.backward(), Catch::Contains("in place"));
}
