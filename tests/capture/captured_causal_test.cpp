// Training steps of nn::Gpt and nn::Llama as captured steps: on a GPU, or on the emulated device.
#include <catch2/catch.hpp>

#include "mezzo/amp.h"
#include "mezzo/capture.h"
#include "mezzo/optim.h"
#include "tests/models/causal_models.h"
#include "tests/support/support.h"

using namespace mezzo;

namespace {

const Device gpu{DeviceType::cuda};

// Losses of some steps in bfloat16, and the parameters after them.
template <class Model> std::vector<std::vector<double>> train(const Model& model, bool capture) {
    optim::AdamW optimizer(model.parameters(), {.lr = 0.01});
    const auto step = [&](const Tensors& in) {
        optimizer.zero_grad();
        Tensor loss;
        {
            const amp::Autocast scope({.device = DeviceType::cuda, .dtype = bfloat16});
            loss = model.loss(in[0], in[1]);
        }
        loss.backward();
        optimizer.step();
        return Tensors{loss};
    };
    cuda::CapturedStep captured(step, {.device = gpu});
    std::vector<std::vector<double>> seen;
    for (std::int64_t i = 0; i < 6; ++i) {
        const Tensor ids = remainder(arange(14).reshape({2, 7}) * (3 + i), 23.0).to(gpu);
        const Tensors in{ids[{ellipsis, Slice(0, -1)}].contiguous(), ids[{ellipsis, Slice(1)}].contiguous()};
        seen.push_back(test::doubles(capture ? captured(in)[0] : step(in)[0]));
    }
    if (capture) CHECK(captured.statistics().replays > 1);
    for (const Tensor& p : model.parameters()) seen.push_back(test::doubles(p));
    return seen;
}

}  // namespace

TEST_CASE("language models: captured steps are the eager ones", "[causal][capture]") {
    if (test::no_device()) return;
    CHECK(train(test::filled_gpt(float32, gpu), true) == train(test::filled_gpt(float32, gpu), false));
    CHECK(train(test::filled_llama(float32, gpu), true) == train(test::filled_llama(float32, gpu), false));
}
