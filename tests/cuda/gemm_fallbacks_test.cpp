// Training steps of the first models that users train, on the CUDA device, real or emulated: the GEMM library
// computes every product. With the fallback the results would be right, and only the time would show it.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>

#include "cuda/gemm/fallbacks.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/bert_config.h"
#include "mezzo/models/resnet.h"
#include "tests/cpu/gemm_options_scope.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};
using Loss = std::function<Tensor()>;

// A model of a few layers, with small sizes that are even or uneven like those in use.
struct Model {
    const char* name;
    std::unique_ptr<optim::Optimizer> optimizer;
    Loss loss;
};

Model mlp(std::int64_t batch, std::int64_t width = 128, bool gelu = false) {
    const auto layer = [&] { return nn::Linear(width, width); };
    nn::Sequential net{layer(), nn::ReLU(), layer(), nn::ReLU(), layer()};
    const nn::GELU tanh({.approximate_tanh = true});
    if (gelu) net = nn::Sequential{layer(), tanh, layer(), tanh, layer()};
    net.to(gpu);
    const Tensor x = randn({batch, width}, {.device = gpu}), y = randn({batch, width}, {.device = gpu});
    return {"mlp", std::make_unique<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 1e-3}),
            [=] { return mse_loss(net(x), y); }};
}

Model bert(const char* activation) {
    const nn::BertConfig config{.vocab_size = 50,
                                .hidden_size = 64,
                                .num_hidden_layers = 2,
                                .num_attention_heads = 2,
                                .intermediate_size = 128,
                                .hidden_act = activation,
                                .max_position_embeddings = 16};
    nn::BertForSequenceClassification net(config);
    net.to(gpu);
    const TensorOptions options{.dtype = int64, .device = gpu};
    const Tensor ids = randint(1, 50, {2, 10}, options), labels = randint(0, 2, {2}, options);
    return {"bert", std::make_unique<optim::AdamW>(net.parameters(), optim::AdamWOptions{.lr = 1e-4}),
            [=] { return cross_entropy(net(ids), labels); }};
}

Model resnet() {
    nn::ResNetConfig config;
    config.layers = {1, 1};
    config.width = 8;
    config.stem = nn::ResNetStem::cifar;
    config.num_classes = 10;
    nn::ResNet net(config);
    net.to(gpu);
    const Tensor images = randn({2, 8, 8, 3}, {.device = gpu});
    const Tensor labels = randint(0, 10, {2}, {.dtype = int64, .device = gpu});
    return {"resnet",
            std::make_unique<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9}),
            [=] { return cross_entropy(net(images), labels); }};
}

void train(const Model& model, Dtype dtype) {
    amp::GradScaler scaler({.enabled = dtype == float16});
    for (int i = 0; i < 2; ++i) {
        Tensor loss;
        {
            const amp::Autocast scope({.device = gpu.type(),
                                       .dtype = is_16bit(dtype) ? dtype : float16,
                                       .enabled = is_16bit(dtype)});
            loss = model.loss();
        }
        scaler.scale(loss).backward();
        scaler.step(*model.optimizer);
        scaler.update();
        model.optimizer->zero_grad();
    }
}

void check_no_fallback(Model model) {
    for (const Dtype dtype : {float32, bfloat16, float16}) {
        const cuda::GemmFallbacks before = cuda::gemm_fallbacks();
        train(model, dtype);
        const cuda::GemmFallbacks after = cuda::gemm_fallbacks();
        CAPTURE(model.name, name(dtype), after.last);
        CHECK(after.products == before.products);
        CHECK(after.invalid == before.invalid);
    }
}

void check_models() {
    manual_seed(1);
    check_no_fallback(mlp(16));
    check_no_fallback(mlp(17));
    check_no_fallback(bert("gelu"));
    check_no_fallback(bert("gelu_new"));
    check_no_fallback(resnet());
}

}  // namespace

TEST_CASE("gemm fallbacks: none in training steps of the recipe, BERT and ResNet", "[cuda][gemm]") {
    if (test::no_device()) return;
    SECTION("as they come") { check_models(); }
    SECTION("with fused layers") {
        const test::GemmOptionsScope options({.fuse_layers = true, .relu_masks = true});
        check_models();
    }
    SECTION("with every epilogue") {
        const test::GemmOptionsScope options({.autotune = true, .fuse_layers = true, .relu_masks = true});
        check_no_fallback(mlp(16, 32));
        check_no_fallback(mlp(16, 32, true));
    }
    SECTION("with sums beside the weights' gradients") {
        const test::GemmOptionsScope options(
            {.autotune = true, .fuse_bias_gradients = false, .fuse_layers = false});
        check_no_fallback(mlp(16, 32));
    }
}
