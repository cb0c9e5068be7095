// 8-bit weights in states: codes and scales that fit the module or not, and those of published files.
#include <catch2/catch.hpp>
#include <cmath>

#include "mezzo/mezzo.h"
#include "mezzo/models/gpt.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

constexpr nn::QuantizeWeightsOptions e4m3{.dtype = float8_e4m3fn};

bool same(const Tensor& a, const Tensor& b) { return doubles(a) == doubles(b); }

// A module with codes and a scale in buffers of its own.
struct OwnCodes : nn::Module {
    nn::Buffer q, q_scale;
    OwnCodes(Dtype dtype, double value, double scale)
        : q(full({2, 4}, value).to(dtype)), q_scale(full({2, 2}, scale)) {}
    MEZZO_MODULE(OwnCodes, q, q_scale)
};

// The texts of the errors of load_state_dict() and load_weights(); the module is left as it was.
std::vector<std::string> load_errors(nn::Module& module, const StateDict& state, ErrorKind kind,
                                     bool strict = true) {
    const StateDict before = module.snapshot();
    std::vector<std::string> texts = {
        error_message([&] { module.load_state_dict(state, strict); }, kind),
        error_message([&] { io::load_weights(module, state, {.strict = strict}); }, kind)};
    const StateDict after = module.state_dict();
    for (std::size_t i = 0; i < before.size(); ++i) {
        INFO(before[i].first);
        CHECK(same(before[i].second, after[i].second));
    }
    return texts;
}

}  // namespace

TEST_CASE("states: buffers that are codes and their scale", "[quantize][io]") {
    for (const Dtype dtype : {int8, float8_e4m3fn}) {
        const OwnCodes from(dtype, 3, 0.5);
        OwnCodes to(dtype, 1, 1), other(dtype, 1, 1);
        to.load_state_dict(from.state_dict());
        CHECK(io::load_weights(other, from.state_dict()).loaded.size() == 2);
        for (const OwnCodes* loaded : {&to, &other}) {
            CHECK(doubles(loaded->q) == std::vector<double>(8, 3));
            CHECK(doubles(loaded->q_scale) == std::vector<double>(4, 0.5));
        }
    }
}

TEST_CASE("states: codes without their scale", "[quantize][io]") {
    nn::Linear plain(64, 4, {.bias = false}), ints(64, 4, {.bias = false}), floats(64, 4, {.bias = false});
    nn::quantize_weights(ints);
    nn::quantize_weights(floats, e4m3);
    const StateDict codes = {{"weight", ints.weight.detach()}};
    for (const std::string& text : load_errors(ints, codes, ErrorKind::value))
        CHECK_THAT(text, Contains("missing") && Contains("weight_scale"));
    for (const bool strict : {false, true})
        for (nn::Linear* const layer : {&plain, &floats})
            for (const std::string& text : load_errors(*layer, codes, ErrorKind::value, strict))
                CHECK_THAT(text,
                           Contains("weight has int8 codes, and their scale weight_scale is not there"));
    for (const std::string& text : load_errors(ints, codes, ErrorKind::value, false))
        CHECK_THAT(text, Contains("weight has int8 codes"));
    const StateDict float_codes = {{"weight", floats.weight.detach()}};
    for (const std::string& text : load_errors(floats, float_codes, ErrorKind::value))
        CHECK_THAT(text, Contains("missing") && Contains("weight_scale"));
    plain.load_state_dict(float_codes);  // a cast
    CHECK(same(plain.weight, floats.weight));

    const StateDict of_numbers = {{"weight", plain.weight.detach()}, {"weight_scale", ones({4, 2})}};
    CHECK_THAT(error_message([&] { ints.load_state_dict(of_numbers); }, ErrorKind::value),
               Contains("unexpected: weight_scale"));
    CHECK(io::load_weights(ints, of_numbers).unexpected == std::vector<std::string>{"weight_scale"});
}

TEST_CASE("states: dtypes of scales", "[quantize][io]") {
    nn::Linear plain(64, 4, {.bias = false}), ints(64, 4, {.bias = false});
    nn::quantize_weights(ints);
    const auto state = [&](const Tensor& scale) {
        return StateDict{{"weight", ints.weight.detach()}, {"weight_scale", scale}};
    };
    for (nn::Linear* const layer : {&plain, &ints})
        for (const std::string& text : load_errors(*layer, state(ones({4, 2}).to(int32)), ErrorKind::dtype))
            CHECK_THAT(text, Contains("the scale of weight is int32"));
    plain.load_state_dict(state(full({4, 2}, 0.25).to(float8_e8m0fnu)));
    CHECK(same(plain.weight, ints.weight.to(float32) * 0.25));
    ints.load_state_dict(state(full({4, 2}, 0.25).to(float8_e8m0fnu)));
    CHECK(doubles(weight_scale(ints.weight)) == std::vector<double>(8, 0.25));
}

TEST_CASE("states: numbers that are not finite are refused for 8 bit", "[quantize][io]") {
    nn::Sequential plain(nn::Linear(32, 4), nn::Linear(64, 4, {.bias = false})),
        ints(nn::Linear(32, 4), nn::Linear(64, 4, {.bias = false}));
    nn::quantize_weights(ints);
    for (const double value : {HUGE_VAL, std::nan("")})
        for (const Dtype dtype : {float32, bfloat16}) {
            StateDict state = plain.snapshot();
            state.back().second[1].fill_(value);
            state.back().second = state.back().second.to(dtype);
            for (const std::string& text : load_errors(ints, state, ErrorKind::value))
                CHECK_THAT(text, Contains("1.weight has elements that are not finite"));
        }
}

TEST_CASE("states: floats into transposed 8-bit weights of one row or column", "[quantize][io]") {
    for (const auto& [in, out] : {std::pair(64, 1), std::pair(1, 64), std::pair(64, 64), std::pair(96, 2)}) {
        nn::GptLinear plain(in, out), ints(in, out), expected(in, out);
        nn::quantize_weights(ints);
        ints.load_state_dict(plain.state_dict());
        expected.load_state_dict(plain.state_dict());
        nn::quantize_weights(expected);
        CHECK(same(ints.weight, expected.weight));
        CHECK(same(weight_scale(ints.weight), weight_scale(expected.weight)));
    }
}

TEST_CASE("load_weights: published float8 weights with their scales", "[quantize][io]") {
    const Tensor codes = tensor_of(random_values(4 * 6, 1, Domain::any), {4, 6}, float8_e4m3fn);
    const Tensor numbers = codes.to(float32);
    const Tensor rows = Tensor::from({1.0f, 0.5f, 3.0f, 0.1f}),
                 blocks = Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}).to(float32);
    nn::Linear layer(6, 4, {.bias = false});
    const auto load = [&](const Tensor& scale) {
        io::load_weights(layer, {{"weight", codes}, {"weight_scale", scale}});
        return layer.weight.detach();
    };
    CHECK(same(load(full({}, 2)), numbers * 2.0));
    CHECK(same(load(full({1}, 0.25).to(bfloat16)), numbers * 0.25));
    CHECK(same(load(rows), numbers * rows.unsqueeze(1)));
    CHECK(same(load(rows.unsqueeze(1)), numbers * rows.unsqueeze(1)));
    CHECK(same(load(blocks), numbers * repeat_interleave(repeat_interleave(blocks, 2, 0), 2, 1)));
    CHECK(same(load(rows), numbers * rows.unsqueeze(1)));
    CHECK_THAT(error_message([&] { load(ones({3})); }, ErrorKind::shape),
               Contains("load_weights: the scale [3] of weight does not fit its codes [4, 6]"));
    CHECK(same(layer.weight, numbers * rows.unsqueeze(1)));
    CHECK_THAT(error_message(
                   [&] {
                       layer.load_state_dict({{"weight", codes}, {"weight_scale", ones({4, 4})}});
                   },
                   ErrorKind::shape),
               Contains("load_state_dict: the scale [4, 4]"));

    // The codes themselves, whose scale is the file's.
    nn::quantize_weights(layer, e4m3);
    load(full({}, 2));
    CHECK(same(layer.weight.to(float32), numbers));
    CHECK(doubles(weight_scale(layer.weight)) == std::vector<double>(4, 2));
    const NoGrad plain;
    const Tensor x = ones({1, 6});
    CHECK(difference(doubles(layer(x)), doubles(matmul(x, numbers.t()) * 2.0), tolerance(float32)).empty());
}

TEST_CASE("averages of a module with 8-bit weights", "[quantize][optim]") {
    for (const bool use_buffers : {false, true}) {
        CAPTURE(use_buffers);
        nn::Sequential net(nn::Linear(32, 2), nn::Linear(2, 2), nn::BatchNorm1d(2));
        nn::quantize_weights(net[0]);
        const auto& norm = net.at<nn::BatchNorm1d>(2);
        optim::AveragedModel average(net, {.use_buffers = use_buffers});
        for (const double value : {1., 2.}) {
            const NoGrad plain;
            norm.weight.fill_(value);
            norm.bias.fill_(value);
            norm.running_var.fill_(value);
            if (value == 2) net[0].load_state_dict(nn::Linear(32, 2).state_dict());
            average.update_parameters(net);
        }
        CHECK(doubles(average.averages()["2.weight"]) == std::vector<double>{1.5, 1.5});
        CHECK(doubles(average.averages()["2.bias"]) == std::vector<double>{1.5, 1.5});
        CHECK(doubles(average.averages()["2.running_var"])[0] == (use_buffers ? 1.5 : 2));
        // Codes and scales are those of the last update.
        CHECK(same(average.averages()["0.weight"], net.state_dict()["0.weight"]));
        CHECK(same(average.averages()["0.weight_scale"], net.state_dict()["0.weight_scale"]));
    }
}
