// Split masters: bfloat16 parameters whose optimizer stores the lower halves of the float32 masters.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/narrow_state.h"
#include "mezzo/capture.h"
#include "mezzo/mezzo.h"
#include "mezzo/optim_in_ops.h"
#include "nn/replace.h"
#include "optim/optimizer.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using optim::MasterWeights;

constexpr double infinity = std::numeric_limits<double>::infinity();

// A number as bfloat16, rounded to nearest, ties away from zero; computed in float64, where differences are
// exact. Infinity is as far away as the number that would follow the largest one.
float away(float x) {
    const float below = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff0000u);
    const float above = std::bit_cast<float>(std::bit_cast<std::uint32_t>(below) + 0x10000u);
    const double next = std::isinf(above) ? 0x1p128 : std::abs(double(above));
    return std::abs(double(x)) - std::abs(double(below)) >= next - std::abs(double(x)) ? above : below;
}
Tensor away(const Tensor& x) {
    std::vector<float> values = x.detach().to_vector<float>();
    for (float& v : values) v = away(v);
    return Tensor::from<float>(values, x.shape()).to(x.device());
}

std::vector<std::uint32_t> bits(const Tensor& x) {
    std::vector<std::uint32_t> result;
    for (const float v : x.detach().to_vector<float>()) result.push_back(std::bit_cast<std::uint32_t>(v));
    return result;
}
const Tensor& entry(const StateDict& state, const std::string& name) {
    for (const auto& [key, value] : state)
        if (key == name) return value;
    FAIL("no entry " << name);
    return state.front().second;
}
std::vector<std::vector<double>> numbers(const StateDict& state) {
    std::vector<std::vector<double>> result;
    for (const auto& [name, value] : state) result.push_back(value.to(float64).to_vector<double>());
    return result;
}

nn::Sequential make_net(Device device, Dtype dtype = bfloat16) {
    manual_seed(4);
    nn::Sequential net{nn::Linear(6, 20), nn::ReLU(), nn::Linear(20, 3)};
    net.to(dtype);
    net.to(device);
    return net;
}
// Loss of one batch; every 50th step has an infinite gradient in the last parameter.
Tensor loss_of(const nn::Sequential& net, int step) {
    const Device device = net.parameters()[0].device();
    const auto batch = [&](std::int64_t width, std::uint64_t seed) {
        return test::tensor_of(test::random_values(4 * width, seed, test::Domain::any), {4, width}, float32,
                               device);
    };
    const Tensor y = net(batch(6, std::uint64_t(step % 16)).to(bfloat16)).to(float32);
    const Tensor loss = mse_loss(y, batch(3, std::uint64_t(100 + step % 16)));
    return step % 50 != 7 ? loss : loss + sum(net.parameters().back().to(float32) * infinity);
}

// A model with an optimizer that has split masters.
struct Training {
    nn::Sequential net;
    optim::AdamW optimizer;
    amp::GradScaler scaler{{.init_scale = 256, .growth_interval = 20}};

    explicit Training(Device device, MasterWeights storage = MasterWeights::split)
        : net(make_net(device)), optimizer(net.parameters(), {.lr = 0.003}) {
        optimizer.use_master_weights(storage);
    }
    void step(int number) {
        scaler.scale(loss_of(net, number)).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
    }
};

// The same training with float32 masters outside of the model, whose copies are rounded with ties away.
struct Reference {
    nn::Sequential net;
    Tensors masters;
    optim::AdamW optimizer;
    amp::GradScaler scaler{{.init_scale = 256, .growth_interval = 20}};

    static Tensors wide(const nn::Sequential& net) {
        Tensors result;
        for (const Tensor& p : net.parameters()) result.push_back(p.detach().to(float32).set_requires_grad());
        return result;
    }
    explicit Reference(Device device)
        : net(make_net(device)), masters(wide(net)), optimizer(masters, {.lr = 0.003}) {}
    void step(int number) {
        scaler.scale(loss_of(net, number)).backward();
        const Tensors params = net.parameters();
        for (std::size_t i = 0; i < params.size(); ++i) masters[i].set_grad(params[i].grad());
        scaler.step(optimizer);
        scaler.update();
        const NoGrad plain;
        for (std::size_t i = 0; i < params.size(); ++i) {
            params[i].detach().copy_(away(masters[i]));
            params[i].set_grad({});
        }
        optimizer.zero_grad();
    }
};

void check_same(const Training& split, const Reference& reference) {
    const StateDict state = split.optimizer.state_dict(), other = reference.optimizer.state_dict();
    for (std::size_t i = 0; i < reference.masters.size(); ++i) {
        const std::string slot = "state." + std::to_string(i);
        CHECK(bits(entry(state, slot + ".master")) == bits(reference.masters[i]));
        CHECK(bits(split.net.parameters()[i]) == bits(reference.net.parameters()[i]));
        for (const char* const moment : {".exp_avg", ".exp_avg_sq"})
            CHECK(bits(entry(state, slot + moment)) == bits(entry(other, slot + moment)));
    }
    CHECK(split.optimizer.skipped_steps() == reference.optimizer.skipped_steps());
}

}  // namespace

TEST_CASE("split masters: two halves hold every float32 number", "[optim]") {
    std::uint64_t wrong = 0, far = 0;
    for (std::uint64_t u = 0; u < 0x100000000; u += 997) {  // 997 is coprime to 2^16
        const auto number = std::uint32_t(u);
        const functors::Halves halves = functors::halves_of(number);
        const float x = std::bit_cast<float>(number);
        const std::uint32_t back = functors::joined(halves.high, halves.low);
        wrong += back != (std::isnan(x) ? 0x7fc00000u : number);
        if (std::isfinite(x))
            far += std::uint32_t(halves.high) << 16 != std::bit_cast<std::uint32_t>(away(x));
    }
    CHECK(wrong == 0);
    CHECK(far == 0);
    const auto high = [](std::uint32_t u) { return functors::halves_of(u).high; };
    CHECK(high(0x3f808000u) == 0x3f81);  // a tie, which goes away from zero
    CHECK(high(0xbf808000u) == 0xbf81);
    CHECK(high(0x7f7fffffu) == 0x7f80);  // the largest number rounds to infinity
    CHECK(high(0xffffffffu) == 0x7fc0);  // NaN stays NaN
}

TEST_CASE("split masters: training has the bits of float32 masters, ties away", "[optim]") {
    for (const Device device : test::devices()) {
        const int steps = device.type() == DeviceType::cpu ? 500 : 60;  // the emulated device is slow
        Training split(device);
        Reference reference(device);
        for (int step = 0; step < steps; ++step) {
            split.step(step);
            reference.step(step);
        }
        CHECK(split.optimizer.skipped_steps() >= steps / 50);
        check_same(split, reference);
    }
}

TEST_CASE("split masters: a run that is resumed goes on with the same bits", "[optim]") {
    for (const Device device : test::devices())
        for (const bool model_first : {false, true})
            for (const MasterWeights storage : {MasterWeights::split, MasterWeights::whole}) {
                CAPTURE(model_first, int(storage));
                Training straight(device), resumed(device, storage);
                for (int step = 0; step < 12; ++step) straight.step(step);
                const StateDict saved = straight.optimizer.state_dict();
                if (model_first) resumed.net.load_state_dict(straight.net.state_dict());
                resumed.optimizer.load_state_dict(saved);
                resumed.scaler.load_state_dict(straight.scaler.state_dict());
                if (!model_first) resumed.net.load_state_dict(straight.net.state_dict());
                CHECK(numbers(resumed.optimizer.state_dict()) == numbers(saved));
                if (storage == MasterWeights::whole) continue;
                for (int step = 12; step < 24; ++step) {
                    straight.step(step);
                    resumed.step(step);
                }
                CHECK(numbers(resumed.optimizer.state_dict()) == numbers(straight.optimizer.state_dict()));
                CHECK(bits(resumed.net.parameters()[0]) == bits(straight.net.parameters()[0]));
            }
}

TEST_CASE("split masters: files of float32 masters load, and a change of storage keeps the values",
          "[optim]") {
    for (const Device device : test::devices()) {
        Training wide(device, MasterWeights::whole), split(device);
        for (int step = 0; step < 12; ++step) wide.step(step);
        const StateDict saved = wide.optimizer.state_dict();
        split.net.load_state_dict(wide.net.state_dict());
        split.optimizer.load_state_dict(saved);
        const Tensors before = split.optimizer.parameters();
        for (const Tensor& p : before) p.set_grad(zeros_like(p));
        split.optimizer.set_lr(0);
        split.optimizer.step();  // splits what was loaded
        for (int i = 0; i < 4; ++i) {
            const std::string name = "state." + std::to_string(i) + ".master";
            const auto expected = bits(entry(saved, name));
            CHECK(bits(entry(split.optimizer.state_dict(), name)) == expected);
            split.optimizer.use_master_weights();
            CHECK(bits(split.optimizer.master_parameters()[std::size_t(i)]) == expected);
            split.optimizer.use_master_weights(MasterWeights::split);
            CHECK(bits(entry(split.optimizer.state_dict(), name)) == expected);
        }
    }
}

TEST_CASE("split masters: a loaded master at a tie is kept, and its parameter rounded away from zero",
          "[optim]") {
    const Tensor w = ones({1}, {.dtype = bfloat16}).set_requires_grad();
    optim::SGD whole({w}), optimizer({w}, {.lr = 0});
    whole.use_master_weights();
    StateDict state = whole.state_dict();
    for (auto& [name, value] : state)
        if (name == "state.0.master") value = Tensor::from({1.00390625f});  // half-way to the next bfloat16
    optimizer.use_master_weights(MasterWeights::split);
    for (const bool again : {false, true}) {
        CAPTURE(again);  // then the parameter is the master, rounded away from zero
        optimizer.load_state_dict(again ? optimizer.state_dict() : state);
        optimizer.set_lr(0);
        w.set_grad(zeros_like(w));
        optimizer.step();
        CHECK(entry(optimizer.state_dict(), "state.0.master").item<float>() == 1.00390625f);
        CHECK(w.to(float32).item<float>() == 1.0078125f);
    }
}

TEST_CASE("split masters: another write to a parameter is the new master", "[optim]") {
    for (const Device device : test::devices()) {
        Training split(device);
        for (int step = 0; step < 3; ++step) split.step(step);
        const Tensor w = split.net.parameters()[0];
        const auto master = [&] { return entry(split.optimizer.state_dict(), "state.0.master"); };
        CHECK(bits(master()) != bits(w.to(float32)));
        {
            const NoGrad plain;
            w.mul_(1.0);
        }
        CHECK(bits(master()) == bits(w.to(float32)));
        w.set_grad(zeros_like(w));
        split.optimizer.set_lr(0);
        split.optimizer.step();
        CHECK(bits(master()) == bits(w.to(float32)));
    }
}

TEST_CASE("split masters: a model that moves keeps them", "[optim]") {
    for (const MasterWeights storage : {MasterWeights::whole, MasterWeights::split}) {
        Training training(cpu_device, storage);
        for (int step = 0; step < 3; ++step) training.step(step);
        const auto masters = numbers(training.optimizer.state_dict());
        const Tensors params = training.net.parameters();
        for (const Tensor& p : params)
            for (int move = 0; move < 2; ++move) nn::replace_elements(p, p.detach().clone());
        for (const Device device : test::devices()) {
            training.net.to(device);
            CHECK((numbers(training.optimizer.state_dict()) == masters));
        }
        training.net.to(cpu_device);
        for (const Tensor& p : params) p.set_grad(zeros_like(p));
        training.optimizer.set_lr(0);
        training.optimizer.step();
        for (std::size_t i = 0; i < params.size(); ++i)
            CHECK(bits(entry(training.optimizer.state_dict(), "state." + std::to_string(i) + ".master")) !=
                  bits(params[i]));
        nn::replace_elements(params[0], params[0].detach() * 2.0);  // moves, then is written
        const NoGrad plain;
        params[0].mul_(1.0);
        if (storage == MasterWeights::whole) continue;
        CHECK(bits(entry(training.optimizer.state_dict(), "state.0.master")) == bits(params[0]));
    }
}

TEST_CASE("split masters: a parameter that takes no step after loading has a master in the state",
          "[optim]") {
    const auto leaf = [] { return ones({4}, {.dtype = bfloat16}).set_requires_grad(); };
    const Tensor a = leaf(), b = leaf();
    optim::AdamW plain({a, b});
    a.set_grad(ones_like(a));
    b.set_grad(ones_like(b));
    plain.step();
    optim::AdamW optimizer({a, b}), other({a, b});
    for (optim::AdamW* o : {&optimizer, &other}) o->use_master_weights(MasterWeights::split);
    optimizer.load_state_dict(plain.state_dict());  // which has no masters
    b.set_grad({});
    optimizer.step();
    const StateDict state = optimizer.state_dict();
    CHECK(bits(entry(state, "state.1.master")) == bits(b));
    other.load_state_dict(state);
    CHECK(numbers(other.state_dict()) == numbers(state));
}

TEST_CASE("masters: a write counts although the master has left the parameter's range", "[optim]") {
    const Tensor w = full({3}, 60000.0, {.dtype = float16}).set_requires_grad();
    optim::SGD optimizer({w}, {.lr = 1});
    optimizer.use_master_weights();
    const auto step = [&](double gradient) {
        w.set_grad(full({3}, gradient, {.dtype = float16}));
        optimizer.step();
    };
    step(-20000);
    CHECK(test::doubles(w.detach())[0] == infinity);
    optimizer.load_state_dict(optimizer.state_dict());  // compares the parameter with the master
    step(0);
    CHECK(test::doubles(optimizer.master_parameters()[0].detach())[0] == 80000);
    {
        const NoGrad plain;
        w.fill_(1);
    }
    step(0);
    CHECK(test::doubles(w.detach()) == std::vector<double>{1, 1, 1});
}

TEST_CASE("split masters: two bytes of an element, and no other tensor than the parameter", "[optim]") {
    for (const Device device : test::devices()) {
        const Tensor w = full({4096}, 0.5, {.dtype = bfloat16, .device = device}).set_requires_grad();
        optim::SGD optimizer({w}, {.lr = 0.1, .momentum = 0.9});
        const std::size_t before = memory_stats(device).allocated;
        optimizer.use_master_weights(MasterWeights::split);
        CHECK(memory_stats(device).allocated - before == 2 * 4096);
        CHECK_THROWS_WITH(optimizer.master_parameters(), Catch::Contains("split masters are no tensors"));
    }
}

TEST_CASE("split masters: parameters and optimizers that cannot have them are refused", "[optim]") {
    const auto leaf = [](Dtype dtype) { return ones({2}, {.dtype = dtype}).set_requires_grad(); };
    optim::AdamW half({leaf(bfloat16), leaf(float16)});
    CHECK_THROWS_WITH(half.use_master_weights(MasterWeights::split),
                      Catch::Contains("the master of a float16 parameter, parameter 1, cannot be split"));
    CHECK(half.master_parameters()[0].dtype() == bfloat16);
    optim::LAMB lamb({leaf(bfloat16)});
    CHECK_THROWS_WITH(lamb.use_master_weights(MasterWeights::split), Catch::Contains("cannot split masters"));
    optim::AdamW wide({leaf(float32), leaf(float64)});
    wide.use_master_weights(MasterWeights::split);  // they have no masters
    CHECK(wide.master_parameters()[1].dtype() == float64);
}

TEST_CASE("split masters: a captured step replays", "[cuda]") {
    if (test::no_device()) return;
    const Device gpu{DeviceType::cuda};
    std::vector<std::vector<double>> seen[2];
    for (const bool capture : {false, true}) {
        const Tensor w = full({6}, 0.5, {.dtype = bfloat16, .device = gpu}).set_requires_grad();
        optim::AdamW optimizer({w}, {.lr = 0.01});
        optimizer.use_master_weights(MasterWeights::split);
        const auto step = [&](const Tensors& in) -> Tensors {
            optimizer.zero_grad();
            sum(w.to(float32) * in[0]).backward();
            optimizer.step();
            return {};
        };
        cuda::CapturedStep captured(step, {.device = gpu});
        for (int i = 0; i < 8; ++i) {
            const Tensors in{full({1}, 1 + 0.37 * i, {.device = gpu})};
            if (capture)
                captured(in);
            else
                step(in);
            seen[capture].push_back(test::doubles(entry(optimizer.state_dict(), "state.0.master")));
        }
        if (capture) CHECK(captured.statistics().replays > 0);
    }
    CHECK((seen[0] == seen[1]));
}
