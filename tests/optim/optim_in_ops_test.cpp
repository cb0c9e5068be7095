// Optimizers in ops whose update depends on the parameter's shape (Muon, Adafactor), and all of them in a
// training with a loss scaler.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>

#include "mezzo/mezzo.h"
#include "tests/reference/optimizers.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::optim;
using Catch::Matchers::Contains;

namespace {

constexpr int steps = 8;

// The values that tools/reference_optim.py makes.
std::vector<double> wave(std::int64_t count, double phase, double scale = 1) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(scale * std::sin(1.3 * double(i) + phase));
    return values;
}
Tensor gradient(const Shape& shape, int t, Dtype dtype, Device device) {
    return test::tensor_of(wave(shape.numel(), t + 2.0, 0.3 + t), shape, dtype, device);
}

// Compares a parameter of any shape, or its master, with PyTorch after each step. `slack`: the error in
// float64.
template <class Optimizer, class Options, int size> void follows(const double (&expected)[steps][size],
                                                                 const Shape& shape, const Options& options,
                                                                 double slack) {
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, float64, float16, bfloat16}) {
            const Tensor w = test::tensor_of(wave(size, 0.5), shape, dtype, device).set_requires_grad();
            Optimizer optimizer({w}, options);
            if (is_16bit(dtype)) optimizer.use_master_weights();
            const double start = is_16bit(dtype) ? dtype_info(dtype).epsilon : 0;  // rounded start values
            for (int t = 0; t < steps; ++t) {
                w.set_grad(gradient(shape, t, dtype == float64 ? float64 : float32, device));
                optimizer.step();
                const std::vector<double> actual = test::doubles(optimizer.master_parameters()[0]);
                for (int i = 0; i < size; ++i) {
                    INFO(optimizer.type_name() << " " << name(dtype) << ", step " << t << ", element " << i);
                    const double margin = std::max(dtype == float64 ? slack : 3e-6, slack) + start;
                    CHECK(std::abs(actual[std::size_t(i)] - expected[t][i]) <= margin);
                }
            }
        }
}

// Singular values of the last update of a matrix by Muon, from the eigenvalues of its Gram matrix: their
// sum and the sum of their squares.
Tensor muon_update(const Tensor& g, const MuonOptions& options) {
    const Tensor w = zeros(g.shape(), {.device = g.device()}).set_requires_grad();
    Muon optimizer({w}, options);
    w.set_grad(g);
    optimizer.step();
    return -w.detach();
}

}  // namespace

TEST_CASE("Adafactor of matrices follows PyTorch", "[optim]") {
    follows<Adafactor>(reference::adafactor_matrix, {2, 3}, AdafactorOptions{.lr = 0.1}, 1e-13);
    follows<Adafactor>(reference::adafactor_stack, {2, 3, 2},
                       AdafactorOptions{.lr = 0.3, .d = 1.2, .weight_decay = 0.1}, 1e-13);
}

TEST_CASE("Adafactor stores a row and a column for a matrix", "[optim]") {
    const Tensor w = ones({40, 30}).set_requires_grad(), b = ones({30}).set_requires_grad(),
                 s = ones({}).set_requires_grad();
    Adafactor optimizer({w, b, s});
    for (const Tensor& p : {w, b, s}) p.set_grad(ones(p.shape()));
    optimizer.step();
    const StateDict state = optimizer.state_dict();
    CHECK(state["state.0.row_var"].shape() == Shape{40, 1});
    CHECK(state["state.0.col_var"].shape() == Shape{1, 30});
    CHECK(state["state.0.variance"].numel() == 0);
    CHECK(state["state.1.variance"].shape() == Shape{30});
    CHECK(state["state.1.row_var"].numel() == 0);
    CHECK(state["state.2.variance"].shape() == Shape{});
    StateDict wrong = state;
    for (auto& [name, value] : wrong)
        if (name == "state.0.row_var") value = ones({40, 30});
    CHECK_THROWS_WITH(optimizer.load_state_dict(wrong), Contains("state.0.row_var has shape [40, 30]"));
    Adafactor vectors({b});  // without a matrix, two states have no elements at all
    b.set_grad(ones({30}));
    vectors.step();
    vectors.load_state_dict(vectors.state_dict());
    vectors.step();
    CHECK(vectors.applied_steps() == 2);
}

TEST_CASE("Muon follows PyTorch within the rounding of bfloat16", "[optim]") {
    // Products of bfloat16 differ in their last bits: 2^-8 of an update of size lr, in 8 steps.
    follows<Muon>(reference::muon_wide, {3, 5}, MuonOptions{.lr = 0.1}, 4e-3);
    follows<Muon>(reference::muon_tall, {5, 3},
                  MuonOptions{.lr = 0.1, .weight_decay = 0.3, .momentum = 0.8, .nesterov = false}, 4e-3);
    follows<Muon>(reference::muon_rms, {4, 2},
                  MuonOptions{.lr = 0.1, .ns_steps = 3, .adjust_lr_fn = MuonAdjustLr::match_rms_adamw}, 4e-3);
    follows<Muon>(
        reference::muon_unclamped, {2, 4},
        MuonOptions{
            .lr = 0.1, .ns_coefficients = {2.0, -1.5, 0.5}, .adjust_lr_fn = MuonAdjustLr::spectral_unclamped},
        4e-3);
}

TEST_CASE("Muon's update is near orthogonal, whatever the scale and orientation of the gradient", "[optim]") {
    for (const Device device : test::devices())
        for (const Shape& shape : {Shape{24, 40}, Shape{40, 24}, Shape{32, 32}})
            for (const double scale : {1e-12, 1.0, 1e18}) {
                INFO(shape << " " << scale);
                const Tensor g = test::tensor_of(test::random_values(shape.numel(), 3, test::Domain::any),
                                                 shape, float32, device);
                const Tensor o = muon_update(g * scale, {.lr = 1,
                                                         .weight_decay = 0,
                                                         .eps = 1e-30,
                                                         .adjust_lr_fn = MuonAdjustLr::spectral_unclamped}) /
                                 std::sqrt(double(shape[0]) / double(shape[1]));
                const Tensor gram = shape[0] > shape[1] ? matmul(o.t(), o) : matmul(o, o.t());
                // The iteration brings singular values into [0.6, 1.3], and most near 1.
                const double n = double(gram.size(0)),
                             trace = sum(gram * eye(gram.size(0)).to(device)).item<double>();
                CHECK(trace / n > 0.6);
                CHECK(trace / n < 1.3);
                CHECK(norm(gram).item<double>() < 1.5 * std::sqrt(n));
                // The update points along the gradient: their product is the sum of singular values.
                CHECK(sum(o * g).item<double>() > 0.6 * norm(g).item<double>());
            }
}

TEST_CASE("Muon refuses what is not a matrix, and says who updates it", "[optim]") {
    const Tensor w = ones({2, 3}).set_requires_grad(), b = ones({3}).set_requires_grad(),
                 k = ones({2, 3, 3, 1}).set_requires_grad();
    CHECK_THROWS_WITH(Muon({w, b}), Contains("Muon: parameter 1 has shape [3]") && Contains("AdamW"));
    CHECK_THROWS_WITH(Muon(StateDict{{"linear.weight", w}, {"conv.weight", k}}),
                      Contains("conv.weight (parameter 1) has shape [2, 3, 3, 1]"));
    CHECK_THROWS_WITH(Muon({w}, {.ns_steps = 100}), Contains("ns_steps is 100; it must be in [0, 99]"));
    CHECK_THROWS_WITH(Muon({w}, {.adjust_lr_fn = MuonAdjustLr(7)}), Contains("adjust_lr_fn is 7"));
    Muon optimizer({w}, {.nesterov = false});
    CHECK(optimizer.option("nesterov") == 0);
    CHECK_THROWS_WITH(optimizer.set_option("ns_steps", 1e9, 0), Contains("ns_steps is 1000000000"));
    w.set_grad(ones({2, 3}));
    optimizer.step();
    CHECK(optimizer.applied_steps() == 1);
}

namespace {

using Make = std::unique_ptr<Optimizer> (*)(const Tensors&);
template <class O> std::unique_ptr<Optimizer> make(const Tensors& params) {
    return std::make_unique<O>(params);
}
const Make makers[] = {make<Muon>, make<RAdam>, make<Adamax>,    make<Adadelta>,
                       make<ASGD>, make<Rprop>, make<Adafactor>, make<LAMB>};

struct Training {
    std::unique_ptr<nn::Sequential> net;
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<ExponentialLR> schedule;
    amp::GradScaler scaler{{.init_scale = 256, .growth_interval = 3}};
    Tensor x;

    Training(Make made, Dtype dtype, Device device) {
        manual_seed(3);
        net = std::make_unique<nn::Sequential>(nn::Linear(4, 6, {.bias = false}), nn::Tanh(),
                                               nn::Linear(6, 3, {.bias = false}));
        net->to(device);
        net->to(dtype);
        optimizer = made(net->parameters());
        if (is_16bit(dtype)) optimizer->use_master_weights();
        schedule = std::make_unique<ExponentialLR>(*optimizer, 0.9);
        x = test::tensor_of(test::random_values(20, 5, test::Domain::any), {5, 4}, dtype, device);
    }
    Tensor loss() const {
        const amp::Autocast scope({.dtype = float16});
        return mean(square((*net)(x)));
    }
    // `factor`: of the loss, infinite to skip the step.
    void update(const Tensor& factor) {
        optimizer->zero_grad();
        scaler.scale(loss() * factor).backward();
        scaler.unscale_(*optimizer);
        nn::clip_grad_norm_(net->parameters(), 0.5);
        scaler.step(*optimizer);
        scaler.update();
    }
    void step(bool overflow = false) {
        const double factor = overflow ? std::numeric_limits<double>::infinity() : 1.0;
        update(full({}, factor, {.device = x.device()}));
        schedule->step();
    }
    std::vector<double> all() const {
        std::vector<double> values;
        for (const Tensor& p : optimizer->master_parameters())
            for (const double v : test::doubles(p)) values.push_back(v);
        for (const auto& [name, value] : optimizer->state_dict())
            if (name.starts_with("state."))
                for (const double v : test::doubles(value)) values.push_back(v);
        return values;
    }
};

}  // namespace

TEST_CASE("optimizers in ops: a skipped step changes nothing, and a resumed run is the same", "[optim]") {
    for (const Make made : makers)
        for (const Device device : test::devices())
            for (const Dtype dtype : {float32, float16, bfloat16}) {
                Training run(made, dtype, device);
                INFO(run.optimizer->type_name() << " " << name(dtype));
                const double before = run.loss().item<double>();
                run.step();
                run.step();
                const std::vector<double> saved = run.all();
                run.step(true);
                CHECK(run.all() == saved);
                CHECK(run.optimizer->skipped_steps() == 1);
                CHECK(run.optimizer->applied_steps() == 2);
                CHECK(run.scaler.get_scale() == 128);

                Training again(made, dtype, device);
                again.net->load_state_dict(run.net->state_dict());
                again.optimizer->load_state_dict(run.optimizer->state_dict());
                again.scaler.load_state_dict(run.scaler.state_dict());
                again.schedule->step();
                for (int t = 0; t < 3; ++t) {
                    run.step();
                    again.step();
                }
                CHECK(again.all() == run.all());
                CHECK(again.optimizer->lr() == run.optimizer->lr());
                CHECK(run.loss().item<double>() <= before);
            }
}

TEST_CASE("optimizers in ops are captured", "[cuda]") {
    if (test::no_device()) return;
    const Device gpu{DeviceType::cuda};
    for (const Make made : makers) {
        Training eager(made, float32, gpu), captured(made, float32, gpu);
        INFO(eager.optimizer->type_name());
        cuda::CapturedStep step([&](const Tensors& in) {
            captured.update(in.at(0));
            return Tensors{};
        });
        for (int t = 0; t < 9; ++t) {
            eager.step(t == 6);
            step({full({}, t == 6 ? std::numeric_limits<double>::infinity() : 1.0, {.device = gpu})});
            captured.schedule->step();
        }
        CHECK(captured.all() == eager.all());
        CHECK(step.statistics().replays >= 3);
    }
}

TEST_CASE("optimizers in ops: groups have options of their own", "[optim]") {
    const Tensor a = ones({2, 2}).set_requires_grad(), b = ones({2, 2}).set_requires_grad();
    Muon optimizer({{.params = {a}, .options = {.lr = 0.1, .weight_decay = 0}},
                    {.params = {b}, .options = {.lr = 0, .weight_decay = 0}}});
    for (const Tensor& p : {a, b}) p.set_grad(eye(2));
    optimizer.step();
    CHECK(test::doubles(b) == std::vector<double>(4, 1));
    CHECK(test::doubles(a)[0] < 0.95);
    CHECK(optimizer.to_string().find("adjust_lr_fn=0") != std::string::npos);
}
