// Activations, losses and other small layers: PyTorch's values, gradients and names, options, errors.
#include "mezzo/nn.h"

#include "tests/nn/layer_helpers.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/layers.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::check_summary;
using test::filled;
using test::leaf;

namespace {

using Ids = std::vector<std::int64_t>;

template <std::size_t n, class Net> void check_activation(const double (&reference)[n], Net made) {
    const Net net = filled(std::move(made));
    const Tensor x = leaf({4, 4}, 0.5, 4);
    check_summary(reference, net, {x}, {net(x)});
}

}  // namespace

TEST_CASE("activation layers follow PyTorch", "[layers]") {
    check_activation(reference::act_ReLU6, nn::ReLU6());
    check_activation(reference::act_Tanhshrink, nn::Tanhshrink());
    check_activation(reference::act_LogSigmoid, nn::LogSigmoid());
    check_activation(reference::act_Hardsigmoid, nn::Hardsigmoid());
    check_activation(reference::act_Hardswish, nn::Hardswish());
    check_activation(reference::act_Mish, nn::Mish());
    check_activation(reference::act_SELU, nn::SELU());
    check_activation(reference::act_LeakyReLU, nn::LeakyReLU(0.2));
    check_activation(reference::act_ELU, nn::ELU(0.5));
    check_activation(reference::act_CELU, nn::CELU(2));
    check_activation(reference::act_Hardshrink, nn::Hardshrink(1));
    check_activation(reference::act_Softshrink, nn::Softshrink(1));
    check_activation(reference::act_GLU, nn::GLU());
    check_activation(reference::act_Softmin, nn::Softmin());
    check_activation(reference::act_Hardtanh, nn::Hardtanh(-2, 1));
    check_activation(reference::act_Threshold, nn::Threshold(0.5, 7));
    check_activation(reference::act_Softplus, nn::Softplus(2, 3));
    check_activation(reference::act_PReLU, nn::PReLU({.num_parameters = 4}));
    const Tensor x = test::waves({2, 3}, 0.1);
    CHECK(test::doubles(nn::Softplus()(x)) == test::doubles(softplus(x)));
    CHECK(nn::PReLU().weight.item<float>() == 0.25f);
    CHECK(nn::PReLU()(x.select(0, 0).select(0, 0)).dim() == 0);
    CHECK_THROWS_WITH(nn::PReLU({.num_parameters = 2})(x), Contains("channels") && Contains("[2, 3]"));
    CHECK_THROWS_WITH(nn::PReLU({.num_parameters = 0}), Contains("must be positive"));
    CHECK(nn::LeakyReLU(0.2).to_string() == "LeakyReLU(negative_slope=0.2)");
    CHECK(nn::Hardtanh().to_string() == "Hardtanh(min_val=-1, max_val=1)");
    CHECK(nn::GLU().to_string() == "GLU(dim=-1)");
    // All stand in a Sequential.
    const nn::Sequential net(nn::Linear(3, 4), nn::LeakyReLU(0.2), nn::Hardswish(),
                             nn::PReLU({.num_parameters = 4}), nn::GLU(), nn::LogSoftmax());
    CHECK(net(x.to(float32)).shape() == Shape{2, 2});
    CHECK(test::names_of(net.state_dict()) == std::vector<std::string>{"0.weight", "0.bias", "3.weight"});
}

TEST_CASE("loss layers follow PyTorch", "[layers]") {
    const Tensor sign = test::tensor_of({1, -1, 1}, {3}, float64);
    const auto compare = [](const auto& reference, const auto& loss, const auto&... also) {
        const Tensor x = leaf({3, 4}, 0.5), y = test::waves({3, 4}, 1.5);
        check_summary(reference, loss, {x}, {loss(x, also(y)...)});
    };
    compare(reference::loss_KLDivLoss, nn::KLDivLoss({.batch_mean = true}),
            [](const Tensor& y) { return abs(y); });
    compare(reference::loss_HingeEmbeddingLoss, nn::HingeEmbeddingLoss(),
            [](const Tensor& y) { return mezzo::sign(y); });
    compare(reference::loss_SoftMarginLoss, nn::SoftMarginLoss(),
            [](const Tensor& y) { return mezzo::sign(y); });
    compare(reference::loss_MultiLabelSoftMarginLoss, nn::MultiLabelSoftMarginLoss(),
            [](const Tensor& y) { return round(sigmoid(y)); });
    compare(reference::loss_PoissonNLLLoss, nn::PoissonNLLLoss({.full = true}),
            [](const Tensor& y) { return 4 * abs(y); });
    const auto ids = [](const Ids& values, const Shape& shape) { return Tensor::from(values, shape); };
    compare(reference::loss_MultiMarginLoss, nn::MultiMarginLoss({.p = 2}), [&](const Tensor&) {
        return ids({1, 3, 0}, {3});
    });
    compare(reference::loss_MultiLabelMarginLoss, nn::MultiLabelMarginLoss(), [&](const Tensor&) {
        return ids({1, 3, -1, 0, 2, -1, 0, 1, 0, 1, 2, 3}, {3, 4});
    });
    // Of three inputs, of which the first `inputs` get gradients.
    const auto compare3 = [](const auto& reference, const auto& loss, std::size_t inputs, const auto& third) {
        Tensors in{leaf({3, 4}, 0.5), leaf({3, 4}, 1.5), leaf({3, 4}, 2.5)};
        const Tensor y = loss(in[0], in[1], third(in[2]));
        in.resize(inputs);
        check_summary(reference, loss, in, {y});
    };
    const auto itself = [](const Tensor& z) { return z; };
    compare3(reference::loss_TripletMarginLoss, nn::TripletMarginLoss({.margin = 2}), 3, itself);
    compare3(reference::loss_TripletMarginLoss, nn::TripletMarginWithDistanceLoss({.margin = 2}), 3, itself);
    compare3(reference::loss_CosineEmbeddingLoss, nn::CosineEmbeddingLoss({.margin = 0.1}), 2,
             [](const Tensor&) {
                 return test::tensor_of({1, -1, 1}, {3}, float64);
             });
    compare3(reference::loss_MarginRankingLoss, nn::MarginRankingLoss(), 2,
             [](const Tensor& z) { return mezzo::sign(z.detach()); });
    compare3(reference::loss_GaussianNLLLoss, nn::GaussianNLLLoss({.full = true}), 2,
             [](const Tensor& z) { return abs(z.detach()); });
    const nn::HuberLoss huber({.delta = 0.5});
    const Tensor a = leaf({3, 4}, 0.5), b = leaf({3, 4}, 1.5), x = leaf({6, 2, 4}, 0.5);
    check_summary(reference::loss_HuberLoss, huber, {a, b}, {huber(a, b)});
    const nn::CTCLoss ctc({.reduction = Reduction::sum});
    check_summary(
        reference::loss_CTCLoss, ctc, {x},
        {ctc(log_softmax(x, 2), ids({1, 2, 2, 3, 1, 0}, {2, 3}), ids({6, 5}, {2}), ids({3, 2}, {2}))});
    const nn::BCEWithLogitsLoss weighted({.pos_weight = full({4}, 2)});
    CHECK(all_close(weighted(a.detach(), abs(b.detach())),
                    binary_cross_entropy_with_logits(a, abs(b), {.pos_weight = full({4}, 2)}), 0, 0));
    CHECK(nn::CosineEmbeddingLoss().options.margin == 0);
}

TEST_CASE("bilinear and embedding_bag follow PyTorch", "[layers]") {
    const Tensor a = leaf({2, 3, 4}, 0.5), b = leaf({2, 3, 5}, 1.5);
    const nn::Bilinear pairs = filled(nn::Bilinear(4, 5, 3));
    check_summary(reference::bilinear, pairs, {a, b}, {pairs(a, b)});
    CHECK_THROWS_WITH(pairs(a, a), Contains("do not fit"));
    CHECK(bilinear(zeros({0, 4}), zeros({0, 5}), zeros({3, 4, 5})).shape() == Shape{0, 3});

    const Tensor index = Tensor::from(Ids{1, 4, 0, 4, 2, 2, 3}, {7}),
                 offsets = Tensor::from(Ids{0, 3, 3, 6}, {4}), rows = index.slice(0, 0, 6).reshape({2, 3});
    const auto compare = [&](const auto& reference, BagMode mode) {
        const nn::EmbeddingBag bag = filled(nn::EmbeddingBag(5, 3, {.mode = mode, .padding_idx = 2}));
        check_summary(reference, bag, {}, {bag(index, offsets), bag(rows)});
    };
    compare(reference::bag_sum, BagMode::sum);
    compare(reference::bag_mean, BagMode::mean);
    compare(reference::bag_max, BagMode::max);
    const nn::EmbeddingBag weighted =
        filled(nn::EmbeddingBag(5, 3, {.mode = BagMode::sum, .include_last_offset = true}));
    const Tensor factors = leaf({7}, 0.5);
    check_summary(reference::bag_weighted, weighted, {factors},
                  {weighted(index, Tensor::from(Ids{0, 2, 7}, {3}), factors)});
    // Sizes 0, and 16 bit, which is rounded once.
    const Tensor none = Tensor::from(Ids{}, {0}), table = test::waves({5, 3}, 0.1).to(float16);
    for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
        CHECK(embedding_bag(table, none, {.offsets = none, .mode = mode}).shape() == Shape{0, 3});
        CHECK(test::doubles(
                  embedding_bag(table, none, {.offsets = zeros({1}, {.dtype = int64}), .mode = mode})) ==
              std::vector<double>(3, 0));
        CHECK(test::doubles(embedding_bag(table, zeros({1, 0}, {.dtype = int64}), {.mode = mode})) ==
              std::vector<double>(3, 0));
        const Tensor wide = embedding_bag(table.to(float32), rows, {.mode = mode});
        CHECK(test::doubles(embedding_bag(table, rows, {.mode = mode})) == test::doubles(wide.to(float16)));
    }
    CHECK_THROWS_WITH(embedding_bag(table, index), Contains("neither [bags, length]"));
    CHECK_THROWS_WITH(embedding_bag(table, rows, {.offsets = offsets}), Contains("neither [bags, length]"));
    CHECK_THROWS_WITH(embedding_bag(table, index, {.offsets = offsets + 1}), Contains("ascend from 0"));
    CHECK_THROWS_WITH(embedding_bag(table, rows, {.per_sample_weights = zeros({2, 3})}),
                      Contains("BagMode::sum"));
    CHECK_THROWS_WITH(embedding_bag(table, rows + 3), Contains("embedding"));
    for (const Dtype dtype : {float32, boolean, uint8})
        CHECK_THROWS_WITH(embedding_bag(table, index, {.offsets = offsets.to(dtype)}),
                          Contains("offsets are " + std::string(name(dtype))));
}

TEST_CASE("embedding_bag ends at the last offset, and its maxima keep their history", "[layers]") {
    constexpr float inf = std::numeric_limits<float>::infinity();
    const auto line = [](Ids values) { return Tensor::from(values, {std::int64_t(values.size())}); };
    const Tensor index = line({0, 1, 2, 3, 1});
    for (const Dtype dtype : {int64, int32})
        for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
            const auto bags = [&](Ids offsets, Tensor table) {
                return embedding_bag(
                    table, index,
                    {.offsets = line(offsets).to(dtype), .mode = mode, .include_last_offset = true});
            };
            const Tensor table = Tensor::from({1.0, 3.0, 9.0, 5.0}, {4, 1}).set_requires_grad();
            const double first = mode == BagMode::sum ? 4 : mode == BagMode::mean ? 2 : 3;
            const Tensor y = bags({0, 2, 2, 3}, table);
            CHECK(test::doubles(y) == std::vector<double>{first, 0, 9});
            sum(y).backward();
            const double share = mode == BagMode::sum ? 1 : mode == BagMode::mean ? 0.5 : 0;
            CHECK(test::doubles(table.grad()) ==
                  std::vector<double>{share, mode == BagMode::max ? 1 : share, 1, 0});
            CHECK(bags({0}, table).shape() == Shape{0, 1});
            CHECK_THROWS_WITH(bags({0, 6}, table), Contains("at most 5"));
            CHECK_THROWS_WITH(bags({}, table), Contains("0 offsets name no bag"));
            for (const Tensor& some : {index, index.slice(0, 0, 0)}) {  // empty bags only
                table.set_grad({});
                sum(embedding_bag(table, some,
                                  {.offsets = line({0, 0, 0}), .mode = mode, .include_last_offset = true}))
                    .backward();
                CHECK(test::doubles(table.grad()) == std::vector<double>(4, 0));
            }
        }
    // Of padding, real rows of -inf and no real row at all.
    const Tensor table = Tensor::from({7.0f, -inf, -inf, std::nanf("")}, {4, 1}).set_requires_grad();
    const Tensor rows = Tensor::from(Ids{0, 1, 2, 0, 0, 0, 0, 1, 3}, {3, 3});
    const Tensor y = embedding_bag(table, rows, {.mode = BagMode::max, .padding_idx = 0});
    CHECK(test::doubles(y.slice(0, 0, 2)) == std::vector<double>{-inf, 0});
    CHECK(std::isnan(y[2].item<double>()));
    y.backward({.gradient = Tensor::from({1.0, 1.0, 1.0}, {3, 1})});
    CHECK(test::doubles(table.grad()) == std::vector<double>{0, 1, 0, 1});
}

TEST_CASE("shape layers, distances, SwiGLU and Embedding::from_pretrained", "[layers]") {
    const Tensor x = test::waves({2, 6}, 0.1).to(float32), y = test::waves({2, 6}, 1.1).to(float32);
    CHECK(nn::Unflatten(1, {2, 3})(x).shape() == Shape{2, 2, 3});
    CHECK(nn::Unflatten(-1, {-1, 2})(x).shape() == Shape{2, 3, 2});
    CHECK_THROWS_AS(nn::Unflatten(1, {4, 2})(x), Error);
    CHECK_THROWS_WITH(nn::Unflatten(2, {4, 2})(x), Contains("dim 2 does not exist"));
    CHECK(nn::Identity(54, "unused", 0.1)(x).impl() == x.impl());
    CHECK(test::doubles(nn::CosineSimilarity(1)(x, y)) == test::doubles(cosine_similarity(x, y, 1)));
    CHECK(test::doubles(nn::PairwiseDistance({.p = 1})(x, y)) ==
          test::doubles(pairwise_distance(x, y, {.p = 1})));
    const nn::SwiGLU mlp(6, 8);
    CHECK(test::names_of(mlp.state_dict()) ==
          std::vector<std::string>{"gate_proj.weight", "up_proj.weight", "down_proj.weight"});
    const nn::SwiGLU biased(6, 8, {.bias = true});
    CHECK(all_close(biased(x), biased.down_proj(silu(biased.gate_proj(x)) * biased.up_proj(x)), 1e-5, 1e-6));
    CHECK(all_close(mlp(x), mlp.down_proj(silu(mlp.gate_proj(x)) * mlp.up_proj(x)), 1e-5, 1e-6));
    const nn::Embedding fixed = nn::Embedding::from_pretrained(x);
    CHECK_FALSE(fixed.weight.requires_grad());
    CHECK(test::doubles(fixed(Tensor::from(std::vector<std::int64_t>{1}, {1}))) ==
          test::doubles(x.slice(0, 1, 2)));
    CHECK_THROWS_WITH(nn::Embedding::from_pretrained(x[0]), Contains("num_embeddings"));
}
