// Recurrent layers and cells: PyTorch's values and names, lengths, sizes, modes, precisions.
#include "mezzo/rnn.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "mezzo/mezzo.h"
#include "tests/nn/module_helpers.h"
#include "tests/reference/rnn.h"
#include "tests/support/grad_check.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::devices;
using test::difference;
using test::doubles;
using test::names_of;

namespace {

constexpr std::int64_t T = 4, B = 3, I = 2, H = 3;

// The values of waves() in tools/reference_rnn.py.
Tensor waves(const Shape& shape, double phase, double scale = 1) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(scale * std::sin(1.3 * double(i) + phase));
    return test::tensor_of(values, shape, float64);
}

template <class Net> Net filled(Net net, Dtype dtype = float64) {
    const NoGrad plain;
    net.to(dtype);
    double j = 0;
    for (const Tensor& p : net.parameters()) p.copy_(waves(p.shape(), j++, 0.7));
    return net;
}

Tensor int64s(const std::vector<std::int64_t>& values) {
    return Tensor::from(values, {std::int64_t(values.size())});
}

Tensor weighted_sum(const Tensors& results) {
    Tensor loss;
    for (const Tensor& y : results) {
        const Tensor part = sum(y.to(float64) * waves(y.shape(), 0.25).to(y.device()));
        loss = loss.defined() ? loss + part : part;
    }
    return loss;
}

// The numbers that tools/reference_rnn.py writes for a net: results, gradients of the inputs, weighted sums
// of the parameters' gradients.
std::vector<double> summary_of(nn::Module& net, const Tensors& inputs, const Tensors& results) {
    net.zero_grad();
    weighted_sum(results).backward();
    std::vector<double> values;
    const auto append = [&](const Tensor& x) {
        const std::vector<double> more = doubles(x);
        values.insert(values.end(), more.begin(), more.end());
    };
    for (const Tensor& y : results) append(y);
    for (const Tensor& x : inputs) append(x.grad());
    for (const Tensor& p : net.parameters())
        append(sum(p.grad().to(float64) * waves(p.shape(), 0.4).to(p.device())));
    return values;
}

Tensor leaf(const Tensor& x, Dtype dtype, Device device) {
    const Tensor y = x.to(dtype).to(device).clone();
    y.set_requires_grad();
    return y;
}

// Arithmetic and tolerances of a comparison. Precision 0 is float64, the others are Autocast over float32.
struct Precision {
    const char* name;
    Dtype parameters, autocast;
    test::Tolerance allowed;
};
const Precision precisions[] = {{"float64", float64, float32, {1e-9, 1e-10}},
                                {"float32", float32, float32, {2e-5, 1e-5}},
                                {"float16", float32, float16, {2e-2, 2e-2}},
                                {"bfloat16", float32, bfloat16, {1e-1, 1.5e-1}}};

struct Given {
    bool lengths = false, states = true;
};

Tensors results_of(const nn::LSTM& net, const Tensors& in, const Tensor& lengths) {
    const nn::LSTMResult r = in.size() > 1 ? net(in[0], {in[1], in[2]}, lengths) : net(in[0], {}, lengths);
    return {r.output, r.h_n, r.c_n};
}
template <class Net> Tensors results_of(const Net& net, const Tensors& in, const Tensor& lengths) {
    const nn::RNNResult r = net(in[0], in.size() > 1 ? in[1] : Tensor(), lengths);
    return {r.output, r.h_n};
}

template <class Net, std::size_t n>
void follows_pytorch(const Net& made, const double (&reference)[n], const Given& given = {}) {
    const std::vector<double> expected(reference, reference + n);
    const std::int64_t count = made.num_layers * (made.bidirectional ? 2 : 1);
    for (const Device device : devices()) {
        for (const Precision& p : precisions) {
            CAPTURE(made.to_string(), device, p.name);
            Net net = filled(nn::clone(made), p.parameters);
            net.to(device);
            Tensors in{
                leaf(waves(made.batch_first ? Shape{B, T, I} : Shape{T, B, I}, 0.5), p.parameters, device)};
            if (given.states) {
                in.push_back(leaf(waves({count, B, net.proj_size > 0 ? net.proj_size : H}, 1.5), p.parameters,
                                  device));
                if constexpr (std::is_same_v<Net, nn::LSTM>)
                    in.push_back(leaf(waves({count, B, H}, 2.5), p.parameters, device));
            }
            const Tensor lengths = given.lengths ? int64s({2, 4, 1}) : Tensor();
            Tensors results;
            {
                const amp::Autocast scope(
                    {.device = device.type(), .dtype = p.autocast, .enabled = p.autocast != float32});
                results = results_of(net, in, lengths);
            }
            const Dtype dtype = p.autocast != float32 ? p.autocast : p.parameters;
            CHECK(results[0].dtype() == dtype);
            CHECK(results[1].dtype() == dtype);
            if (results.size() > 2) CHECK(results[2].dtype() == (dtype == float64 ? float64 : float32));
            CHECK(difference(summary_of(net, in, results), expected, p.allowed) == "");
        }
    }
}

template <class Cell, std::size_t n>
void cell_follows_pytorch(const Cell& made, const double (&reference)[n]) {
    for (const Device device : devices()) {
        CAPTURE(made.to_string(), device);
        Cell cell = filled(nn::clone(made));
        cell.to(device);
        Tensors in{leaf(waves({B, I}, 0.5), float64, device), leaf(waves({B, H}, 1.5), float64, device)},
            results;
        if constexpr (std::is_same_v<Cell, nn::LSTMCell>) {
            in.push_back(leaf(waves({B, H}, 2.5), float64, device));
            const nn::LSTMState next = cell(in[0], {in[1], in[2]});
            results = {next.h, next.c};
        } else {
            results = {cell(in[0], in[1])};
        }
        CHECK(difference(summary_of(cell, in, results), std::vector<double>(reference, reference + n),
                         precisions[0].allowed) == "");
    }
}

}  // namespace

TEST_CASE("RNN: results and gradients are PyTorch's", "[rnn]") {
    follows_pytorch(nn::RNN(I, H), reference::rnn_tanh);
    follows_pytorch(
        nn::RNN(I, H, {.num_layers = 2, .nonlinearity = nn::RNNNonlinearity::relu, .bidirectional = true}),
        reference::rnn_relu, {.states = false});
    follows_pytorch(nn::RNN(I, H, {.num_layers = 2, .bidirectional = true}), reference::rnn_lengths,
                    {.lengths = true});
}

TEST_CASE("LSTM: results and gradients are PyTorch's", "[rnn]") {
    follows_pytorch(nn::LSTM(I, H), reference::lstm, {.states = false});
    follows_pytorch(nn::LSTM(I, H, {.num_layers = 2, .batch_first = true, .bidirectional = true}),
                    reference::lstm_deep);
    follows_pytorch(nn::LSTM(I, H, {.num_layers = 2, .bidirectional = true}), reference::lstm_lengths,
                    {.lengths = true});
    follows_pytorch(nn::LSTM(I, H, {.batch_first = true, .bidirectional = true}),
                    reference::lstm_lengths_from_zero, {.lengths = true, .states = false});
    follows_pytorch(nn::LSTM(I, H, {.num_layers = 2, .bidirectional = true, .proj_size = 2}),
                    reference::lstm_projected);
    follows_pytorch(nn::LSTM(I, H, {.bidirectional = true, .proj_size = 2}),
                    reference::lstm_projected_lengths, {.lengths = true});
}

TEST_CASE("GRU: results and gradients are PyTorch's", "[rnn]") {
    follows_pytorch(nn::GRU(I, H), reference::gru, {.states = false});
    follows_pytorch(
        nn::GRU(I, H, {.num_layers = 2, .bias = false, .batch_first = true, .bidirectional = true}),
        reference::gru_deep);
    follows_pytorch(nn::GRU(I, H, {.num_layers = 2, .bidirectional = true}), reference::gru_lengths,
                    {.lengths = true});
}

TEST_CASE("recurrent cells: results and gradients are PyTorch's", "[rnn]") {
    cell_follows_pytorch(nn::RNNCell(I, H), reference::rnn_cell);
    cell_follows_pytorch(nn::RNNCell(I, H, {.nonlinearity = nn::RNNNonlinearity::relu, .bias = false}),
                         reference::rnn_cell_relu);
    cell_follows_pytorch(nn::LSTMCell(I, H), reference::lstm_cell);
    cell_follows_pytorch(nn::GRUCell(I, H), reference::gru_cell);
}

TEST_CASE("recurrent cells: step by step they are the layer", "[rnn]") {
    manual_seed(2);
    const nn::LSTM layer(5, 4);
    nn::LSTMCell cell(5, 4);
    cell.load_state_dict([&] {
        StateDict state;
        for (const auto& [name, value] : layer.state_dict())
            state.emplace_back(name.substr(0, name.size() - 3), value);
        return state;
    }());
    const Tensor x = randn({6, 2, 5});
    nn::LSTMState state;
    Tensors states;
    for (const Tensor& step : x) states.push_back((state = cell(step, state)).h);
    const nn::LSTMResult whole = layer(x);
    CHECK(difference(doubles(stack(states, 0)), doubles(whole.output), {1e-6, 1e-6}) == "");
    CHECK(difference(doubles(state.c), doubles(whole.c_n.squeeze(0)), {1e-6, 1e-6}) == "");
    CHECK(cell(x[0][0], {}).h.shape() == Shape{4});
}

TEST_CASE("recurrent layers: names, start values and printing", "[rnn]") {
    manual_seed(1);
    nn::LSTM net(3, 16, {.num_layers = 2, .bidirectional = true, .proj_size = 2});
    CHECK(names_of(net.state_dict()) ==
          std::vector<std::string>{"weight_ih_l0",         "weight_hh_l0",         "bias_ih_l0",
                                   "bias_hh_l0",           "weight_hr_l0",         "weight_ih_l0_reverse",
                                   "weight_hh_l0_reverse", "bias_ih_l0_reverse",   "bias_hh_l0_reverse",
                                   "weight_hr_l0_reverse", "weight_ih_l1",         "weight_hh_l1",
                                   "bias_ih_l1",           "bias_hh_l1",           "weight_hr_l1",
                                   "weight_ih_l1_reverse", "weight_hh_l1_reverse", "bias_ih_l1_reverse",
                                   "bias_hh_l1_reverse",   "weight_hr_l1_reverse"});
    CHECK(net.direction(1, true).weight_ih.shape() == Shape{64, 4});
    CHECK(net.direction(0).weight_hh.shape() == Shape{64, 2});
    for (const Tensor& p : net.parameters()) {
        CHECK(p.abs().max().item<double>() <= 0.25);
        CHECK(p.abs().max().item<double>() > 0.1);
    }
    CHECK(net.to_string() ==
          "LSTM(input_size=3, hidden_size=16, proj_size=2, num_layers=2, bidirectional=true)");
    CHECK(nn::RNN(2, 3, {.nonlinearity = nn::RNNNonlinearity::relu, .bias = false}).to_string() ==
          "RNN(input_size=2, hidden_size=3, nonlinearity=relu, bias=false)");
    CHECK(nn::GRUCell(2, 3, {.bias = false}).to_string() == "GRUCell(2, 3, bias=false)");

    nn::LSTM other(3, 16, {.num_layers = 2, .bidirectional = true, .proj_size = 2});
    other.load_state_dict(net.state_dict());
    const Tensor x = randn({3, 2, 3});
    CHECK(doubles(other(x).output) == doubles(net(x).output));
    nn::LSTM copy = nn::clone(net);
    const NoGrad plain;
    copy.direction(0).weight_ih.zero_();
    CHECK(net.direction(0).weight_ih.abs().max().item<double>() > 0.1);
    CHECK_THROWS_WITH(net.direction(2), Contains("no layer 2"));
}

TEST_CASE("recurrent layers: padding is never read, whatever it holds", "[rnn]") {
    const nn::GRU net = filled(nn::GRU(I, H, {.num_layers = 2, .bidirectional = true}), float32);
    for (const Device device : devices()) {
        nn::GRU own = nn::clone(net);
        own.to(device);
        const auto run = [&](double padding) {
            std::vector<double> values = doubles(waves({T, B, I}, 0.5));
            const std::int64_t lengths[] = {2, 4, 1};
            for (std::int64_t i = 0; i < T * B * I; ++i)
                if (i / (B * I) >= lengths[i / I % B]) values[std::size_t(i)] = padding;
            const Tensor x = leaf(test::tensor_of(values, {T, B, I}, float32), float32, device);
            const nn::RNNResult r = own(x, {}, int64s({2, 4, 1}));
            return summary_of(own, {x}, {r.output, r.h_n});
        };
        CHECK(run(NAN) == run(0));
    }
}

TEST_CASE("recurrent layers: one sequence, no sequence, one step", "[rnn]") {
    nn::LSTM net(I, H, {.num_layers = 2, .bidirectional = true});
    const Tensor x = randn({T, I});
    const nn::LSTMResult single = net(x, {zeros({4, H}), zeros({4, H})});
    CHECK(single.output.shape() == Shape{T, 2 * H});
    CHECK(single.c_n.shape() == Shape{4, H});
    CHECK(doubles(single.output) == doubles(net(x.unsqueeze(1)).output));

    const nn::LSTMResult none = net(zeros({T, 0, I}), {}, int64s({}));
    CHECK(none.output.shape() == Shape{T, 0, 2 * H});
    CHECK(none.h_n.shape() == Shape{4, 0, H});
    sum(none.output).backward();
    CHECK(net.direction(0).weight_hh.grad().abs().max().item<double>() == 0);

    net.zero_grad();
    const nn::LSTMResult one = net(randn({1, B, I}));
    sum(one.output).backward();
    CHECK(net.direction(1, true).weight_hh.grad().abs().max().item<double>() ==
          0);  // the state before is zero
    CHECK(net.direction(1, true).weight_ih.grad().abs().max().item<double>() > 0);
}

TEST_CASE("recurrent layers: what does not fit is refused", "[rnn]") {
    CHECK_THROWS_WITH(nn::LSTM(0, 3), Contains("LSTM: input_size is 0"));
    CHECK_THROWS_WITH(nn::GRU(2, 3, {.num_layers = 0}), Contains("num_layers is 0"));
    CHECK_THROWS_WITH(nn::RNN(2, 3, {.dropout = 1.5}), Contains("dropout is 1.5"));
    CHECK_THROWS_WITH(nn::LSTM(2, 3, {.proj_size = 3}), Contains("proj_size is 3"));
    CHECK_THROWS_AS(nn::LSTM(2, std::int64_t(1) << 61), Error);
    const nn::LSTM net(I, H);
    CHECK_THROWS_WITH(net(zeros({T, B, 5})), Contains("LSTM: input [4, 3, 5]"));
    CHECK_THROWS_WITH(net(zeros({0, B, I})), Contains("has no step"));
    CHECK_THROWS_WITH(net({}), Contains("undefined"));
    CHECK_THROWS_WITH(net(zeros({T, B, I}), {zeros({1, B, 2}), {}}), Contains("h0 is [1, 3, 2]"));
    CHECK_THROWS_WITH(net(zeros({T, B, I}), {}, int64s({1, 2})), Contains("lengths [2]"));
    CHECK_THROWS_WITH(net(zeros({T, B, I}), {}, int64s({1, 5, 2})), Contains("a length is 5"));
    CHECK_THROWS_WITH(net(zeros({T, B, I}), {}, int64s({1, 0, 2})), Contains("a length is 0"));
    CHECK_THROWS_WITH(net(zeros({T, B, I}), {}, zeros({B})), Contains("must be int64"));
    CHECK_THROWS_AS(net(zeros({T, B, I}, {.dtype = float64})), Error);
    CHECK_THROWS_AS(nn::GRUCell(I, H)(zeros({B, 5})), Error);
    const Tensor gates = zeros({T, B, 9}), weight = zeros({9, 3});
    CHECK_THROWS_WITH(recurrent(RecurrentCell::gru, gates, zeros({9, 2})), Contains("gru: weight_hh [9, 2]"));
    CHECK_THROWS_WITH(recurrent(RecurrentCell::lstm, gates, weight), Contains("lstm: gates [4, 3, 9]"));
    CHECK_THROWS_WITH(recurrent(RecurrentCell::gru, gates, weight, {.c0 = zeros({B, 3})}),
                      Contains("this cell has none"));
    CHECK_THROWS_WITH(recurrent(RecurrentCell::rnn_tanh, gates, zeros({9, 9}), {.bias_hh = zeros({9})}),
                      Contains("read by gru only"));
    CHECK_THROWS_WITH(recurrent(RecurrentCell::gru, gates, weight, {.h0 = zeros({B, 3}, {.dtype = float16})}),
                      Contains("h0 is float16"));
}

TEST_CASE("recurrent layers: gradients of both orders are those of differences", "[rnn]") {
    test::Function* const functions[] = {
        [](In x) -> Tensor {
            return recurrent(RecurrentCell::rnn_tanh, x[0].slice(2, 0, 3), x[1].slice(0, 0, 3), {.h0 = x[2]})
                .states;
        },
        [](In x) -> Tensor {
            const RecurrentResult r =
                recurrent(RecurrentCell::lstm, x[0], x[1],
                          {.h0 = x[2], .c0 = x[3], .lengths = int64s({2, 3}), .reverse = true});
            return cat({r.states.flatten(), r.cell.flatten()}, 0);
        },
        [](In x) -> Tensor {
            return recurrent(RecurrentCell::gru, x[0].slice(2, 0, 9), x[1].slice(0, 0, 9),
                             {.h0 = x[2], .bias_hh = x[4].slice(0, 0, 9), .lengths = int64s({3, 1})})
                .states;
        }};
    for (test::Function* const f : functions) {
        const Tensors in{waves({3, 2, 12}, 0.2), waves({12, 3}, 1.2), waves({2, 3}, 2.2), waves({2, 3}, 3.2),
                         waves({12}, 4.2)};
        CHECK(test::check_gradient(f, in) == "");
        CHECK(test::check_second_gradient(f, in) == "");
    }
}

TEST_CASE("recurrent layers: wide rows are computed as narrow ones", "[rnn]") {
    manual_seed(3);
    for (const std::int64_t hidden : {1, 17, 300}) {
        for (const Dtype dtype : {float32, float16, bfloat16}) {
            CAPTURE(hidden, dtype);
            nn::LSTM lstm(2, hidden, {.bidirectional = true, .dtype = dtype});
            nn::GRU gru(2, hidden, {.bidirectional = true, .dtype = dtype});
            const Tensor x = randn({3, 2, 2}).to(dtype), lengths = int64s({3, 2});
            const auto run = [&] {
                const nn::LSTMResult a = lstm(x, {}, lengths);
                const nn::RNNResult b = gru(x, {}, lengths);
                std::vector<double> values = summary_of(lstm, {}, {a.output, a.c_n});
                for (const double v : summary_of(gru, {}, {b.output})) values.push_back(v);
                return values;
            };
            const std::vector<double> actual = run();
            const test::ByDecomposition plain;
            const bool wide = dtype == float32;
            CHECK(difference(actual, run(),
                             wide ? test::Tolerance{1e-4, 1e-4} : test::Tolerance{5e-2, 5e-1}) == "");
        }
    }
}

TEST_CASE("recurrent layers: training with Autocast, GradScaler, clipping and dropout", "[rnn]") {
    for (const Device device : devices()) {
        manual_seed(4);
        nn::LSTM net(2, 16, {.num_layers = 2, .dropout = 0.1});
        nn::Linear head(16, 1);
        net.to(device);
        head.to(device);
        Tensors parameters = net.parameters();
        for (const Tensor& p : head.parameters()) parameters.push_back(p);
        optim::Adam optimizer(parameters, {.lr = 2e-2});
        amp::GradScaler scaler;
        const Tensor x = rand({8, 32, 2}).to(device), y = sum(x, {0, 2}).unsqueeze(1) * 0.1;
        double first = 0, last = 0;
        for (int step = 0; step < 40; ++step) {
            Tensor loss;
            {
                const amp::Autocast scope({.device = device.type(), .dtype = float16});
                loss = mse_loss(head(net(x).h_n[1]), y);
            }
            optimizer.zero_grad();
            scaler.scale(loss).backward();
            scaler.unscale_(optimizer);
            nn::clip_grad_norm_(parameters, 1.0);
            scaler.step(optimizer);
            scaler.update();
            last = loss.item<double>();
            if (step == 0) first = last;
        }
        CHECK(last < 0.1 * first);
    }
    nn::RNN wide(2, 64, {.num_layers = 2, .dropout = 1});
    const Tensor x = randn({3, 2, 2});
    const Tensor trained = wide(x).output;
    wide.eval();
    CHECK(doubles(wide(x).output) != doubles(trained));
    CHECK(doubles(wide(x).output) == doubles(wide(x).output));
}

TEST_CASE("recurrent layers: checkpoints, and threads that share a module", "[rnn]") {
    manual_seed(5);
    nn::GRU net(3, 8, {.num_layers = 2, .bidirectional = true});
    const Tensor x = randn({5, 2, 3});
    const auto gradient = [&](bool checkpointed) {
        net.zero_grad();
        const auto segment = [&](const Tensors& in) { return Tensors{net(in[0]).output}; };
        const Tensors in{leaf(x, float32, cpu_device)};
        const Tensors y = checkpointed ? autograd::checkpoint(segment, in) : segment(in);
        sum(square(y[0])).backward();
        return doubles(net.direction(0, true).weight_hh.grad());
    };
    const std::vector<double> expected = gradient(false);
    CHECK(gradient(true) == expected);

    const std::vector<double> output = doubles(net(x).output);
    std::vector<std::vector<double>> outputs(4);
    std::vector<std::thread> threads;
    for (std::vector<double>& y : outputs)
        threads.emplace_back([&] {
            const NoGrad plain;
            for (int i = 0; i < 20; ++i) y = doubles(net(x).output);
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<double>& y : outputs) CHECK(y == output);
}

TEST_CASE("recurrent layers: a shared weight's gradient is summed in float32", "[rnn]") {
    // 4,096 steps of which each adds about 1: bfloat16 sums would stop at 256.
    const nn::RNN net(1, 1, {.bias = false});
    {
        const NoGrad plain;
        for (const Tensor& p : net.parameters()) p.fill_(0);
    }
    const amp::Autocast scope({.dtype = bfloat16});
    const Tensor x = ones({4096, 1, 1});
    const RecurrentResult r = recurrent(RecurrentCell::rnn_relu, x, net.direction(0).weight_hh);
    sum(r.states, {0, 1, 2}).backward();
    CHECK(net.direction(0).weight_hh.grad().dtype() == float32);
    CHECK(net.direction(0).weight_hh.grad().item<double>() == 4095);
}

TEST_CASE("recurrent layers: captured steps are eager steps", "[rnn]") {
    if (test::no_device()) return;
    const Device gpu{DeviceType::cuda};
    struct Run {
        explicit Run(Device device) {
            const NoGrad plain;
            double j = 0;
            for (const Tensor& p : net.parameters()) p.copy_(waves(p.shape(), j++, 0.7));
            net.to(device);
        }
        Tensors step(const Tensors& in) {
            const amp::Autocast scope({.device = DeviceType::cuda, .dtype = float16});
            const nn::LSTMResult r = net(in[0], {}, in[1]);
            const Tensor loss = mean(square(r.output)) + mean(r.c_n);
            optimizer.zero_grad();
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
            return {loss.detach()};
        }
        nn::LSTM net{I, H, {.num_layers = 2, .bidirectional = true}};
        optim::SGD optimizer{net.parameters(), {.lr = 0.1}};
        amp::GradScaler scaler{{.init_scale = 64}};
    };
    Run eager(gpu), other(gpu);
    cuda::CapturedStep captured([&](const Tensors& in) { return other.step(in); }, {.device = gpu});
    for (int i = 0; i < 6; ++i) {
        CAPTURE(i);
        const Tensors in{waves({T, B, I}, i).to(float32).to(gpu), int64s({1 + i % 4, 4, 2}).to(gpu)};
        CHECK(doubles(captured(in)[0]) == doubles(eager.step(in)[0]));
    }
    CHECK(captured.statistics().replays > 0);
}

TEST_CASE("rnn: a layer that was moved from, or whose sizes were changed, throws", "[rnn]") {
    nn::GRU gru(2, 2);
    const nn::GRU other = std::move(gru);
    CHECK_THROWS_WITH(gru(ones({1, 1, 2})), Contains("GRU: the layer has no parameters"));
    CHECK_THROWS_AS(gru.direction(0), Error);
    CHECK(gru.to_string() == "GRU(input_size=2, hidden_size=2)");
    nn::LSTM lstm(2, 2);
    lstm.num_layers = 3;
    CHECK_THROWS_WITH(lstm(ones({1, 1, 2})), Contains("LSTM: num_layers is 3"));
    CHECK_THROWS_WITH(nn::RNN(2, 2, {.nonlinearity = nn::RNNNonlinearity(9)}), Contains("nonlinearity is 9"));
}
