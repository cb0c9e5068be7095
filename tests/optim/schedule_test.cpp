// Composite schedules, the schedule that follows a metric, and averaged weights, against PyTorch.
#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/mezzo.h"
#include "tests/reference/pytorch.h"
#include "tests/reference/schedules.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::optim;
using Catch::Matchers::Contains;

namespace {

struct Bench {
    Tensor w = ones({1}).set_requires_grad();
    SGD optimizer{{w}, {.lr = 0.5, .momentum = 0.9}};
    void step() {
        w.set_grad(ones({1}));
        optimizer.step();
    }
};

template <int n>
void follows(const double (&expected)[n], Bench& bench, Scheduler& scheduler, const char* option = "lr") {
    for (int t = 0; t < n; ++t) {
        INFO("step " << t);
        CHECK(bench.optimizer.option(option) == Approx(expected[t]).epsilon(1e-13));
        if (t + 1 == n) break;
        bench.step();
        scheduler.step();
    }
}

}  // namespace

TEST_CASE("warm restarts follow PyTorch", "[optim]") {
    Bench a, b;
    CosineAnnealingWarmRestarts doubling(a.optimizer, {.t_0 = 3, .t_mult = 2, .eta_min = 0.05});
    follows(reference::warm_restarts[0], a, doubling);
    CosineAnnealingWarmRestarts equal(b.optimizer, {.t_0 = 4});
    follows(reference::warm_restarts_equal[0], b, equal);
    CHECK_THROWS_WITH(CosineAnnealingWarmRestarts(a.optimizer, {.t_0 = 0}), Contains("t_0 is 0"));
}

TEST_CASE("schedules of a factor follow PyTorch", "[optim]") {
    Bench a, b, c, d, e;
    MultiStepLR multi(a.optimizer, {.milestones = {7, 2, 4, 4}, .gamma = 0.5});
    follows(reference::multi_step[0], a, multi);
    ConstantLR constant(b.optimizer);
    follows(reference::constant[0], b, constant);
    LinearLR linear(c.optimizer, {.start_factor = 0.2, .end_factor = 0.7, .total_iters = 6});
    follows(reference::linear[0], c, linear);
    PolynomialLR polynomial(d.optimizer, {.total_iters = 6, .power = 1.7});
    follows(reference::polynomial[0], d, polynomial);
    MultiplicativeLR multiplicative(e.optimizer, [](std::int64_t t) { return 1 - 0.05 * double(t); });
    follows(reference::multiplicative[0], e, multiplicative);
    // The schedule of an earlier state begins anew.
    Bench early;
    e.optimizer.load_state_dict(early.optimizer.state_dict());
    multiplicative.step();
    CHECK(e.optimizer.lr() == 0.5);
    CHECK_THROWS_WITH(ConstantLR(a.optimizer, {.factor = 1.5}), Contains("factor is 1.5"));
    CHECK_THROWS_WITH(LinearLR(a.optimizer, {.start_factor = 0}), Contains("must be in (0, 1]"));
    CHECK_THROWS_WITH(LinearLR(a.optimizer, {.total_iters = 0}), Contains("total_iters is 0"));
    CHECK_THROWS_WITH(PolynomialLR(a.optimizer, {.power = -1}), Contains("power is -1"));
    CHECK_THROWS_WITH(MultiStepLR(a.optimizer, {.gamma = NAN}), Contains("gamma is nan"));
}

TEST_CASE("cyclic rates follow PyTorch, the momentum too", "[optim]") {
    for (const int row : {0, 1}) {
        const char* const option = row == 0 ? "lr" : "momentum";
        Bench a, b;
        CyclicLR plain(a.optimizer, {.base_lr = 0.1, .max_lr = 0.9, .step_size_up = 3, .step_size_down = 2});
        follows(reference::cyclic[row], a, plain, option);
        CyclicLR halved(b.optimizer, {.base_lr = 0.1,
                                      .max_lr = 0.9,
                                      .step_size_up = 3,
                                      .mode = CycleMode::triangular2,
                                      .base_momentum = 0.5,
                                      .max_momentum = 0.7});
        follows(reference::cyclic_halved[row], b, halved, option);
    }
    Bench a, b;
    CyclicLR range(a.optimizer, {.base_lr = 0.1,
                                 .max_lr = 0.9,
                                 .step_size_up = 4,
                                 .mode = CycleMode::exp_range,
                                 .gamma = 0.9,
                                 .cycle_momentum = false});
    follows(reference::cyclic_range[0], a, range);
    CyclicLR function(b.optimizer, {.base_lr = 0.1,
                                    .max_lr = 0.9,
                                    .step_size_up = 4,
                                    .scale_fn = [](double x) { return 1 / (1 + x); },
                                    .scale_mode = CyclicLROptions::ScaleMode::iterations,
                                    .cycle_momentum = false});
    follows(reference::cyclic_function[0], b, function);
    CHECK_THROWS_WITH(CyclicLR(a.optimizer, {.max_lr = 1, .step_size_down = 0}),
                      Contains("step_size_down is 0"));
    CHECK_THROWS_WITH(CyclicLR(a.optimizer, {.max_lr = -1}), Contains("max_lr is -1"));
}

TEST_CASE("the rates of weight averaging follow PyTorch", "[optim]") {
    Bench a, b, c;
    SWALR cosine(a.optimizer, {.swa_lr = 0.05, .anneal_steps = 5});
    follows(reference::swa[0], a, cosine);
    SWALR linear(b.optimizer, {.swa_lr = 0.05, .anneal_steps = 5, .anneal = Anneal::linear});
    follows(reference::swa_linear[0], b, linear);
    // After another schedule it begins at that schedule's rate.
    const ExponentialLR before(c.optimizer, 0.5);
    SWALR late(c.optimizer, before, {.swa_lr = 0.1, .start = 2, .anneal_steps = 2, .anneal = Anneal::linear});
    follows({0.5, 0.25, 0.125, 0.1125, 0.1, 0.1}, c, late);
    CHECK_THROWS_WITH(SWALR(a.optimizer, {.swa_lr = -1}), Contains("swa_lr is -1"));
    const CyclicLR momentum(a.optimizer, {.max_lr = 1});
    CHECK_THROWS_WITH(SWALR(a.optimizer, momentum, {}), Contains("changes the momentum"));
}

TEST_CASE("one cycle follows PyTorch, the momentum too", "[optim]") {
    for (const int row : {0, 1}) {
        const char* const option = row == 0 ? "lr" : "momentum";
        Bench a, b;
        OneCycleLR cosine(a.optimizer, {.max_lr = 2, .total_steps = 12});
        follows(reference::one_cycle[row], a, cosine, option);
        // A loop that steps both after each batch ends at the last value, where PyTorch turns back.
        a.step();
        cosine.step();
        CHECK(a.optimizer.option(option) == Approx(reference::one_cycle[row][11]));
        a.step();
        CHECK_THROWS_WITH(cosine.step(), Contains("step 13 of 12"));
        OneCycleLR linear(b.optimizer, {.max_lr = 2,
                                        .total_steps = 15,
                                        .pct_start = 0.4,
                                        .anneal = Anneal::linear,
                                        .base_momentum = 0.7,
                                        .max_momentum = 0.9,
                                        .div_factor = 10,
                                        .final_div_factor = 100,
                                        .three_phase = true});
        follows(reference::one_cycle_linear[row], b, linear, option);
    }
    Adam adam({ones({1}).set_requires_grad()});
    OneCycleLR cycle(adam, {.max_lr = 2, .total_steps = 12});
    CHECK(adam.option("beta1") == 0.95);
    Adagrad adagrad({ones({1}).set_requires_grad()});
    CHECK_THROWS_WITH(OneCycleLR(adagrad, {.max_lr = 2, .total_steps = 12}), Contains("no option momentum"));
}

TEST_CASE("schedules one after another and all at once follow PyTorch", "[optim]") {
    Bench a, b;
    SequentialLR sequence(
        a.optimizer,
        {ExponentialLR(a.optimizer, 0.5), StepLR(a.optimizer, {.step_size = 2, .gamma = 0.1}),
         ExponentialLR(a.optimizer, 0.9)},
        {3, 7});
    follows(reference::sequential[0], a, sequence);
    ChainedScheduler chain(
        b.optimizer, {ExponentialLR(b.optimizer, 0.9), StepLR(b.optimizer, {.step_size = 3, .gamma = 0.5})});
    follows(reference::chained[0], b, chain);
    const std::vector<Scheduler> two{ExponentialLR(a.optimizer, 0.5), ExponentialLR(a.optimizer, 0.9)};
    CHECK_THROWS_WITH(SequentialLR(a.optimizer, two, {}), Contains("2 schedulers and 0 milestones"));
    CHECK_THROWS_WITH(SequentialLR(a.optimizer, two, {0}), Contains("milestone 0 is 0"));
    CHECK_THROWS_WITH(ChainedScheduler(a.optimizer, {}), Contains("no schedulers"));
    Bench c;
    CHECK_THROWS_WITH(
        ChainedScheduler(c.optimizer, {OneCycleLR(c.optimizer, {.max_lr = 2, .total_steps = 12})}),
        Contains("cycle_momentum"));
}

TEST_CASE("the rate falls when a metric stops improving, as in PyTorch", "[optim]") {
    using Options = ReduceLROnPlateauOptions;
    const auto follows = [](const double(&expected)[16], const Options& options) {
        Bench bench;
        ReduceLROnPlateau plateau(bench.optimizer, options);
        for (int i = 0; i < 16; ++i) {
            plateau.step(reference::plateau_metrics[0][i]);
            INFO("metric " << i);
            CHECK(bench.optimizer.lr() == Approx(expected[i]).epsilon(1e-13));
            ReduceLROnPlateau restored(bench.optimizer, options);
            restored.load_state_dict(plateau.state_dict());
            plateau = restored;
        }
    };
    follows(reference::plateau[0], {.factor = 0.5, .patience = 1});
    follows(reference::plateau_max[0], {.mode = Options::Mode::max,
                                        .factor = 0.1,
                                        .patience = 2,
                                        .threshold = 0.05,
                                        .threshold_mode = Options::Threshold::absolute,
                                        .cooldown = 2,
                                        .min_lr = 0.01});
    Bench bench;
    CHECK_THROWS_WITH(ReduceLROnPlateau(bench.optimizer, {.factor = 1}), Contains("factor is 1"));
    ReduceLROnPlateau plateau(bench.optimizer);
    for (const Tensor& best : {Tensor(), scalar(NAN)}) {
        StateDict state = plateau.state_dict();
        state[0].second = best;
        CHECK_THROWS_WITH(plateau.load_state_dict(state),
                          Contains("ReduceLROnPlateau.load_state_dict: best is"));
    }
    CHECK_THROWS_WITH(plateau.load_state_dict({}), Contains("best is missing"));
}

namespace {

struct Net : nn::Module {
    nn::Parameter weight{zeros({5})};
    nn::Buffer mean{zeros({1})};
    MEZZO_MODULE(Net, weight, mean)
};

void set(Net& net, int t) {
    NoGrad plain;
    const std::vector<double> g(reference::gradients[t], reference::gradients[t] + 5);
    net.weight.copy_(test::tensor_of(g, {5}, float64));
    net.mean.fill_(double(t));
}

}  // namespace

TEST_CASE("averaged weights follow PyTorch", "[optim]") {
    for (const Device device : test::devices())
        for (const bool ema : {false, true})
            for (const Dtype dtype : {float32, float64, bfloat16}) {
                Net net;
                net.to(dtype);
                AveragedModelOptions options{.device = device};
                if (ema) options.average = ema_average(0.8);
                AveragedModel average(net, options);
                for (int t = 0; t < 8; ++t) {
                    set(net, t);
                    average.update_parameters(net);
                    if (t == 4) {
                        const StateDict saved = average.state_dict();
                        CHECK(saved[0].first == "n_averaged");
                        CHECK(saved[1].first == "module.weight");
                        average = AveragedModel(net, options);
                        average.load_state_dict(saved);
                    }
                    const Tensor actual = average.averages()[0].second;
                    CHECK(actual.device() == device);
                    CHECK(actual.dtype() == (dtype == float64 ? float64 : float32));
                    const double slack = dtype == float64 ? 1e-14 : dtype == float32 ? 1e-6 : 1e-2;
                    for (std::size_t i = 0; i < 5; ++i)
                        CHECK(test::doubles(actual)[i] ==
                              Approx((ema ? reference::average_ema : reference::average)[t][i])
                                  .epsilon(slack)
                                  .margin(slack));
                    CHECK(test::doubles(average.averages()[1].second)[0] == t);  // a copy
                }
                CHECK(average.averaged() == 8);
                Net evaluated;
                average.copy_to(evaluated);
                CHECK(all_close(evaluated.weight, average.averages()[0].second.to(cpu_device), 1e-6, 1e-6));
            }
}

TEST_CASE("averaged models: buffers on request, errors", "[optim]") {
    Net net;
    AveragedModel average(net, {.use_buffers = true});
    for (int t = 0; t < 3; ++t) {
        set(net, t);
        average.update_parameters(net);
    }
    CHECK(average.averages()[1].second.item<float>() == 1);
    CHECK_THROWS_WITH(average.update_parameters(nn::Linear(2, 3)), Contains("weight of shape"));
    StateDict state = average.state_dict();
    state.pop_back();
    CHECK_THROWS_WITH(average.load_state_dict(state), Contains("module.mean is missing"));
    CHECK_THROWS_WITH(ema_average(2), Contains("decay is 2"));
    CHECK(average.averaged() == 3);
}

TEST_CASE("two schedulers that step one optimizer are an error that names the fix", "[optim]") {
    Bench bench;
    StepLR first(bench.optimizer, {.step_size = 1, .gamma = 0.5});
    bench.step();
    first.step();
    ExponentialLR second(bench.optimizer, 0.9);
    second.step();  // takes over, as in a second phase of a training
    CHECK(bench.optimizer.lr() == Approx(0.45));
    try {
        first.step();
        FAIL("nothing was thrown");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::state);
        CHECK_THAT(error.what(), Contains("SequentialLR") && Contains("ChainedScheduler"));
    }
    CHECK(bench.optimizer.lr() == Approx(0.45));
    second.step();
    LambdaLR broken(bench.optimizer, [](std::int64_t steps) { return steps < 2 ? 0.5 : -1.0; });
    second.step();
    bench.step();
    CHECK_THROWS_WITH(broken.step(), Contains("the rate after 2 steps is -"));
    CHECK(bench.optimizer.lr() == Approx(0.45));
    second.step();  // is still in charge
    CHECK(bench.optimizer.lr() == Approx(0.405));
    // Schedulers that are parts of another one are not stepped by themselves; the composite is.
    Bench other;
    SequentialLR both(
        other.optimizer,
        {StepLR(other.optimizer, {.step_size = 1, .gamma = 0.5}), ExponentialLR(other.optimizer, 0.9)}, {2});
    Scheduler copy = both;
    for (int i = 0; i < 3; ++i) {
        other.step();
        both.step();
        copy.step();  // a copy is the same scheduler
    }
    CHECK(other.optimizer.lr() == Approx(0.5 * 0.9));
}

TEST_CASE("update_bn: running statistics of a pass over the data", "[optim]") {
    manual_seed(2);
    nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4, {.momentum = 0.3}), nn::ReLU(), nn::Dropout(0.5));
    net.eval();
    net[0].train();  // a mode that must come back
    const std::vector<Tensor> batches{randn({8, 3}), randn({8, 3}) * 3 + 1};
    net(batches[0]);
    int recorded = 0;
    nn::update_bn(net, [&] {
        CHECK(net.training());
        for (const Tensor& x : batches) recorded += net(x).requires_grad();
    });
    CHECK(recorded == 0);
    CHECK_FALSE(net.training());
    CHECK(net[0].training());
    const StateDict state = net.state_dict();
    CHECK(state["1.num_batches_tracked"].item<double>() == 2);
    Tensor expected = zeros({4});
    const NoGrad plain;
    for (const Tensor& x : batches)
        expected = expected + mean(linear(x, state["0.weight"], state["0.bias"]), {0}) / 2;
    CHECK(all_close(state["1.running_mean"], expected, 1e-5));
    CHECK(net.to_string().find("momentum=0.3") != std::string::npos);
    CHECK_THROWS_WITH(nn::update_bn(net, [] { throw std::runtime_error("no data"); }), "no data");
    CHECK(net.to_string().find("momentum=0.3") != std::string::npos);
    CHECK_FALSE(net.training());
}

TEST_CASE("update_bn: the momentum of a batch norm that occurs twice comes back", "[optim]") {
    const nn::Sequential norm(nn::BatchNorm1d(3, {.momentum = 0.3}));  // copies share the module
    nn::Sequential net(nn::Linear(3, 3), norm, norm);
    const Tensor x = randn({8, 3});
    nn::update_bn(net, [&] { (void)net(x); });
    CHECK(norm.at<nn::BatchNorm1d>(0).momentum == 0.3);
    CHECK(norm.at<nn::BatchNorm1d>(0).num_batches_tracked.item<double>() == 2);
}
