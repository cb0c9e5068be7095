// The presets O0 … O3 and scale_loss, after NVIDIA Apex.
#include <catch2/catch.hpp>
#include <limits>

#include "mezzo/amp.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"

using namespace mezzo;
using amp::CastModel;
using amp::Choice;
using amp::InitializeOptions;
using Catch::Matchers::Contains;
using optim::SGD;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

// Stands for a normalisation layer, which keep_batchnorm_fp32 leaves in float32.
struct Norm : nn::Module {
    nn::Parameter weight{ones({1})};
    bool is_normalization() const override { return true; }
    MEZZO_MODULE(Norm, weight)
};

struct Model : nn::Module {
    nn::Linear layer{1, 1, {.bias = false}};
    Norm norm;
    Tensor operator()(const Tensor& x) const { return layer(x); }
    MEZZO_MODULE(Model, layer, norm)
};

struct Setup {
    explicit Setup(const InitializeOptions& options, double lr = 4)
        : optimizer(with_unit_weight(model), {.lr = lr}),
          handle(amp::initialize(model, optimizer, options)) {}
    static Tensors with_unit_weight(Model& model) {
        NoGrad plain;
        model.layer.weight.fill_(1);
        return model.parameters();
    }
    // Runs one backward of slope * w / 8: the scaled gradients stay within float16.
    void backward(double slope, float bad = 0, int loss_id = 0) {
        const Tensor y = handle.forward(model, full({1, 1}, slope));
        handle.scale_loss(
            sum(y.to(float32)) * 0.125, optimizer,
            [&](const Tensor& scaled) {
                yielded = scaled.item<float>();
                yielded_dtype = scaled.dtype();
                scaled.backward();
                if (bad != 0) weight().set_grad(full({1, 1}, double(bad)));
            },
            loss_id);
    }
    const Tensor& weight() const { return model.layer.weight; }
    Model model;
    SGD optimizer;
    amp::Handle handle;
    float yielded = 0;
    Dtype yielded_dtype = float16;
};

amp::Properties properties(const InitializeOptions& options) { return Setup(options).handle.properties(); }

}  // namespace

TEST_CASE("apex: the table of levels", "[apex]") {
    const auto o0 = properties({.opt_level = "O0"}), o1 = properties({}),
               o2 = properties({.opt_level = "O2"}), o3 = properties({.opt_level = "O3"});
    CHECK(o0.cast_model_type == CastModel::to_float32);
    CHECK(o1.cast_model_type == CastModel::none);
    CHECK(o2.cast_model_type == CastModel::to_float16);
    CHECK(o3.cast_model_type == CastModel::to_float16);
    CHECK(std::vector<bool>{o0.autocast, o1.autocast, o2.autocast, o3.autocast} ==
          std::vector<bool>{false, true, false, false});
    CHECK(o2.keep_batchnorm_fp32);
    CHECK_FALSE(o3.keep_batchnorm_fp32);
    CHECK(std::vector<bool>{o0.master_weights, o1.master_weights, o2.master_weights, o3.master_weights} ==
          std::vector<bool>{false, false, true, false});
    CHECK(std::vector<bool>{o0.dynamic, o1.dynamic, o2.dynamic, o3.dynamic} ==
          std::vector<bool>{false, true, true, false});
    CHECK(o0.loss_scale == 1);
    CHECK(o1.loss_scale == 65536);
    CHECK(o3.loss_scale == 1);
}

TEST_CASE("apex: overrides, and those that are refused", "[apex]") {
    const auto own = properties({.opt_level = "O2",
                                 .cast_model_type = CastModel::to_bfloat16,
                                 .keep_batchnorm_fp32 = Choice::no,
                                 .master_weights = Choice::no,
                                 .loss_scale = 128});
    CHECK(own.cast_model_type == CastModel::to_bfloat16);
    CHECK_FALSE(own.keep_batchnorm_fp32);
    CHECK_FALSE(own.master_weights);
    CHECK_FALSE(own.dynamic);
    CHECK(own.loss_scale == 128);
    CHECK(properties({.opt_level = "O0", .loss_scale = amp::dynamic_loss_scale}).dynamic);
    CHECK(properties({.cast_model_type = CastModel::to_float32}).cast_model_type == CastModel::none);
    CHECK_THROWS_WITH(properties({.opt_level = "O4"}), Contains("O4"));
    CHECK_THROWS_WITH(properties({.cast_model_type = CastModel::to_float16}), Contains("cast_model_type"));
    CHECK_THROWS_WITH(properties({.keep_batchnorm_fp32 = Choice::yes}), Contains("keep_batchnorm_fp32"));
    CHECK_THROWS_WITH(properties({.master_weights = Choice::no}), Contains("master_weights"));
    CHECK_THROWS_WITH(properties({.loss_scale = -2}), Contains("loss_scale is -2"));
    CHECK_THROWS_WITH(properties({.num_losses = 0}), Contains("num_losses"));
}

TEST_CASE("apex: initialize checks model and optimizer", "[apex]") {
    Setup once({});
    CHECK_THROWS_WITH(amp::initialize(once.model, once.optimizer), Contains("initialized before"));
    Model half;
    half.layer.to(float16);
    SGD optimizer(half.parameters());
    CHECK_THROWS_WITH(amp::initialize(half, optimizer), Contains("layer.weight is float16"));
}

// A float16 loss of 2.5 times the first scale, 65536, would be infinite, and so would be its gradient.
TEST_CASE("apex: initialize keeps split masters, and refuses float16 for them", "[apex]") {
    for (const amp::CastModel cast : {amp::CastModel::to_bfloat16, amp::CastModel::to_float16}) {
        nn::Linear model(4, 4);
        optim::AdamW optimizer(model.parameters());
        optimizer.use_master_weights(optim::MasterWeights::split);
        const amp::InitializeOptions options{.opt_level = "O2", .cast_model_type = cast};
        if (cast == amp::CastModel::to_bfloat16) {
            const amp::Handle handle = amp::initialize(model, optimizer, options);
            CHECK_THROWS_WITH(optimizer.master_parameters(), Contains("split masters are no tensors"));
            continue;
        }
        CHECK_THROWS_WITH(amp::initialize(model, optimizer, options),
                          Contains("the preset makes float16 parameters, and this AdamW has split masters"));
        CHECK(model.weight.dtype() == float32);
    }
}

TEST_CASE("apex: the first step of O1 and O2 is not skipped because of the loss's own dtype", "[apex]") {
    for (const char* level : {"O1", "O2"}) {
        Setup s({.opt_level = level}, 1e-6);
        s.handle.scale_loss(mean(s.handle.forward(s.model, full({1, 1}, 2.5)) * 0.125 + 2.25), s.optimizer,
                            [](const Tensor& scaled) { scaled.backward(); });
        s.optimizer.step();
        CHECK(s.optimizer.skipped_steps() == 0);
        CHECK(s.handle.scaler().get_scale() == 65536);
    }
}

TEST_CASE("apex: what runs in which dtype", "[apex]") {
    const Tensor x = full({1, 1}, 1.0001);
    Setup o0({.opt_level = "O0"}), o1({.opt_level = "O1"}), o2({.opt_level = "O2"}), o3({.opt_level = "O3"});
    CHECK(o0.handle.forward(o0.model, x).item<float>() == 1.0001f);
    CHECK(o1.handle.forward(o1.model, x).dtype() == float32);
    CHECK(o1.handle.forward(o1.model, x).item<float>() == 1);
    CHECK(o2.handle.forward(o2.model, x).dtype() == float32);
    CHECK(o2.handle.forward(o2.model, x).item<float>() == 1);
    CHECK(o0.weight().dtype() == float32);
    CHECK(o1.weight().dtype() == float32);
    CHECK(o2.weight().dtype() == float16);
    CHECK(o2.model.norm.weight.dtype() == float32);
    CHECK(o3.model.norm.weight.dtype() == float16);
    CHECK(o2.optimizer.master_parameters()[0].dtype() == float32);
    CHECK(o2.optimizer.master_parameters()[1].impl() == o2.model.norm.weight.impl());
}

TEST_CASE("apex: masters keep steps that float16 loses", "[apex]") {
    for (const bool masters : {true, false}) {
        Setup s({.opt_level = masters ? "O2" : "O3"}, 8e-4);
        std::vector<float> copies;
        for (int t = 0; t < 3; ++t) {
            s.optimizer.zero_grad();
            s.backward(1);
            s.optimizer.step();
            copies.push_back(s.weight().item<float>());
        }
        CHECK(copies == (masters ? std::vector<float>{1, 1, 0.99951171875f} : std::vector<float>{1, 1, 1}));
        CHECK(s.weight().dtype() == float16);
    }
}

TEST_CASE("apex: scale_loss", "[apex]") {
    for (const char* const level : {"O1", "O2"}) {
        Setup s({.opt_level = level});
        s.backward(3);
        CHECK(s.yielded == 3 * 8192.f);
        CHECK(s.yielded_dtype == float32);
        CHECK(s.weight().grad().dtype() == float32);
        CHECK(s.weight().grad().item<float>() == 0.375f);  // unscaled: may be clipped
        s.optimizer.step();
        CHECK(s.weight().item<float>() == -0.5f);

        s.optimizer.zero_grad();
        s.backward(3, inf);
        CHECK(s.handle.scaler().get_scale() == 32768);
        s.optimizer.step();
        CHECK(s.weight().item<float>() == -0.5f);
        CHECK_FALSE(s.weight().grad().defined());
        CHECK(s.optimizer.skipped_steps() == 1);
        CHECK(s.optimizer.applied_steps() == 1);

        s.backward(3);
        CHECK(s.yielded == -1.5f * 4096);
        s.optimizer.step();
        CHECK(s.weight().item<float>() == -2);
        CHECK(s.optimizer.applied_steps() == 2);
    }
    Setup plain({.opt_level = "O3"});
    plain.backward(3);
    CHECK(plain.yielded == 0.375f);
    CHECK(plain.yielded_dtype == float32);
    CHECK(plain.weight().grad().dtype() == float16);
}

TEST_CASE("apex: gradients of several backwards add up unscaled, at any scale", "[apex]") {
    Setup s({});
    s.backward(3);
    s.handle.scaler().update(1024);
    s.backward(5);
    CHECK(s.weight().grad().item<float>() == 1);
    // With delay_unscale the gradients accumulate scaled, and the last call unscales them.
    Setup delayed({});
    for (const bool delay : {true, true, false})
        delayed.handle.scale_loss(
            sum(delayed.handle.forward(delayed.model, ones({1, 1})).to(float32)) * 0.125, delayed.optimizer,
            [](const Tensor& scaled) { scaled.backward(); }, 0, delay);
    CHECK(delayed.weight().grad().item<float>() == 0.375f);
    delayed.backward(5);
    CHECK(delayed.weight().grad().item<float>() == 1);
}

TEST_CASE("apex: a backward that throws leaves the earlier gradients", "[apex]") {
    Setup s({});
    s.backward(3);
    CHECK_THROWS_AS(
        s.handle.scale_loss(scalar(1), s.optimizer, [](const Tensor& scaled) { scaled.backward(); }), Error);
    CHECK(s.weight().grad().item<float>() == 0.375f);
}

TEST_CASE("apex: two losses with scales of their own", "[apex]") {
    Setup s({.num_losses = 2});
    s.handle.scaler(0).update(4);
    s.handle.scaler(1).update(64);
    s.backward(3, 0, 0);
    CHECK(s.yielded == 1.5f);
    s.backward(5, 0, 1);
    CHECK(s.yielded == 40);
    CHECK(s.weight().grad().item<float>() == 1);
    s.optimizer.zero_grad();
    s.backward(3, inf, 0);
    s.backward(5, 0, 1);
    CHECK(s.handle.scaler(0).get_scale() == 2);
    CHECK(s.handle.scaler(1).get_scale() == 64);
    s.optimizer.step();
    CHECK(s.weight().item<float>() == 1);
    CHECK_THROWS_WITH(s.handle.scaler(2), Contains("no loss 2"));
}

TEST_CASE("apex: the cap, the floor, and saving", "[apex]") {
    CHECK(Setup({.max_loss_scale = 1024}).handle.scaler().get_scale() == 1024);
    Setup s({.opt_level = "O0", .loss_scale = amp::dynamic_loss_scale, .growth_interval = 1}, 0);
    s.handle.scaler().update(0x1p23);
    for (int t = 0; t < 3; ++t) s.backward(1e-6);
    CHECK(s.handle.scaler().get_scale() == 16777216);
    const StateDict saved = s.handle.state_dict();
    Setup other({});
    other.handle.load_state_dict(saved);
    CHECK(other.handle.scaler().get_scale() == 16777216);
    Setup two({.num_losses = 2});
    CHECK_THROWS_WITH(two.handle.load_state_dict(saved), Contains("2 entries for 2 losses"));
    Setup low({.loss_scale = amp::dynamic_loss_scale, .min_loss_scale = 32768}, 0);
    for (int t = 0; t < 3; ++t) low.backward(1, inf);
    CHECK(low.handle.scaler().get_scale() == 32768);
}
