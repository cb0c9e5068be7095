// Printed tensors: the text of PyTorch 2.15, written by tools/reference_print.py.
#include <catch2/catch.hpp>

#include <cmath>
#include <sstream>

#include "core/tensor_impl.h"
#include "mezzo/amp.h"
#include "mezzo/fmt.h"
#include "mezzo/module_list.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"

using namespace mezzo;

namespace {

constexpr double inf = HUGE_VAL, nan = NAN;

std::vector<double> counting(std::size_t n) {
    std::vector<double> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = double(i);
    return values;
}

struct Case {
    std::vector<double> values;
    Shape shape;
    Dtype dtype;
    const char* text;
};

const Case cases[] = {
    // clang-format off
    // begin table
    {{3.14159}, {}, float32,
     "tensor(3.1416)"},
    {{1, 2.5, -3, 4}, {2, 2}, float32,
     "tensor([[ 1.0000,  2.5000],\n        [-3.0000,  4.0000]])"},
    {{1, -20, nan, inf}, {4}, float32,
     "tensor([  1., -20.,  nan,  inf])"},
    {{1.5, -inf, nan}, {3}, float32,
     "tensor([1.5000,   -inf,    nan])"},
    {{1.5, 20000}, {2}, float32,
     "tensor([1.5000e+00, 2.0000e+04])"},
    {{1e-06, 0}, {2}, float32,
     "tensor([1.0000e-06, 0.0000e+00])"},
    {{1e-05, 2e-05, -inf}, {3}, float32,
     "tensor([1.0000e-05, 2.0000e-05,       -inf])"},
    {{0, 0, -0.0}, {3}, float32,
     "tensor([0., 0., -0.])"},
    {{nan}, {1}, float32,
     "tensor([nan])"},
    {{1, 1001}, {2}, float32,
     "tensor([1.0000e+00, 1.0010e+03])"},
    {{1, 1000}, {2}, float32,
     "tensor([   1., 1000.])"},
    {{200000000.0, 300000000.0, -inf, 0}, {4}, float32,
     "tensor([2.0000e+08, 3.0000e+08,       -inf, 0.0000e+00])"},
    {{123456, 5}, {2}, float32,
     "tensor([1.2346e+05, 5.0000e+00])"},
    {{0.1, 99.99996}, {2}, float32,
     "tensor([  0.1000, 100.0000])"},
    {{0.00012, 0.1}, {2}, float32,
     "tensor([0.0001, 0.1000])"},
    {{-0.5}, {}, float64,
     "tensor(-0.5000, dtype=float64)"},
    {{0.3333333333333333, 0.6666666666666666}, {1, 2}, float16,
     "tensor([[0.3333, 0.6665]], dtype=float16)"},
    {{65504, 1}, {2}, float16,
     "tensor([6.5504e+04, 1.0000e+00], dtype=float16)"},
    {{0.3333333333333333, 300}, {2, 1}, bfloat16,
     "tensor([[  0.3340],\n        [300.0000]], dtype=bfloat16)"},
    {{1, -1000, 9007199254740992}, {3}, int64,
     "tensor([               1,            -1000, 9007199254740992])"},
    {{7}, {}, int64,
     "tensor(7)"},
    {{1, -2, 3}, {3}, int32,
     "tensor([ 1, -2,  3], dtype=int32)"},
    {{0, 255}, {2}, uint8,
     "tensor([  0, 255], dtype=uint8)"},
    {{1, 0}, {2}, boolean,
     "tensor([ True, False])"},
    {{0}, {}, boolean,
     "tensor(False)"},
    {{}, {0}, float32,
     "tensor([])"},
    {{}, {0}, int64,
     "tensor([], dtype=int64)"},
    {{}, {2, 0}, float16,
     "tensor([], size=(2, 0), dtype=float16)"},
    {{}, {0, 3}, boolean,
     "tensor([], size=(0, 3), dtype=boolean)"},
    {{1, 2, 3, 4}, {2, 1, 2}, float32,
     "tensor([[[1., 2.]],\n\n        [[3., 4.]]])"},
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 2, 2, 2}, int64,
     "tensor([[[[ 0,  1],\n          [ 2,  3]],\n\n         [[ 4,  5],\n          [ 6,  7]]],\n\n\n        [[[ 8,  9],\n          [10, 11]],\n\n         [[12, 13],\n          [14, 15]]]])"},
    {{0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75,
      1.875, 2.0, 2.125, 2.25, 2.375, 2.5, 2.625, 2.75, 2.875}, {24}, float32,
     "tensor([0.0000, 0.1250, 0.2500, 0.3750, 0.5000, 0.6250, 0.7500, 0.8750, 1.0000,\n        1.1250, 1.2500, 1.3750, 1.5000, 1.6250, 1.7500, 1.8750, 2.0000, 2.1250,\n        2.2500, 2.3750, 2.5000, 2.6250, 2.7500, 2.8750])"},
    {{0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75,
      1.875, 2.0, 2.125, 2.25, 2.375, 2.5, 2.625, 2.75, 2.875}, {24}, float64,
     "tensor([0.0000, 0.1250, 0.2500, 0.3750, 0.5000, 0.6250, 0.7500, 0.8750, 1.0000,\n        1.1250, 1.2500, 1.3750, 1.5000, 1.6250, 1.7500, 1.8750, 2.0000, 2.1250,\n        2.2500, 2.3750, 2.5000, 2.6250, 2.7500, 2.8750], dtype=float64)"},
    {{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, {30},
      boolean,
     "tensor([False,  True, False,  True, False,  True, False,  True, False,  True,\n        False,  True, False,  True, False,  True, False,  True, False,  True,\n        False,  True, False,  True, False,  True, False,  True, False,  True])"},
    {counting(1001), {1001}, int64,
     "tensor([   0,    1,    2,  ...,  998,  999, 1000])"},
    {counting(1200), {300, 4}, int64,
     "tensor([[   0,    1,    2,    3],\n        [   4,    5,    6,    7],\n        [   8,    9,   10,   11],\n        ...,\n        [1188, 1189, 1190, 1191],\n        [1192, 1193, 1194, 1195],\n        [1196, 1197, 1198, 1199]])"},
    {counting(1100), {10, 110}, float32,
     "tensor([[0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 1.0700e+02, 1.0800e+02,\n         1.0900e+02],\n        [1.1000e+02, 1.1100e+02, 1.1200e+02,  ..., 2.1700e+02, 2.1800e+02,\n         2.1900e+02],\n        [2.2000e+02, 2.2100e+02, 2.2200e+02,  ..., 3.2700e+02, 3.2800e+02,\n         3.2900e+02],\n        ...,\n        [7.7000e+02, 7.7100e+02, 7.7200e+02,  ..., 8.7700e+02, 8.7800e+02,\n         8.7900e+02],\n        [8.8000e+02, 8.8100e+02, 8.8200e+02,  ..., 9.8700e+02, 9.8800e+02,\n         9.8900e+02],\n        [9.9000e+02, 9.9100e+02, 9.9200e+02,  ..., 1.0970e+03, 1.0980e+03,\n         1.0990e+03]])"},
    {counting(2000), {20, 10, 10}, float32,
     "tensor([[[0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 7.0000e+00,\n          8.0000e+00, 9.0000e+00],\n         [1.0000e+01, 1.1000e+01, 1.2000e+01,  ..., 1.7000e+01,\n          1.8000e+01, 1.9000e+01],\n         [2.0000e+01, 2.1000e+01, 2.2000e+01,  ..., 2.7000e+01,\n          2.8000e+01, 2.9000e+01],\n         ...,\n         [7.0000e+01, 7.1000e+01, 7.2000e+01,  ..., 7.7000e+01,\n          7.8000e+01, 7.9000e+01],\n         [8.0000e+01, 8.1000e+01, 8.2000e+01,  ..., 8.7000e+01,\n          8.8000e+01, 8.9000e+01],\n         [9.0000e+01, 9.1000e+01, 9.2000e+01,  ..., 9.7000e+01,\n          9.8000e+01, 9.9000e+01]],\n\n        [[1.0000e+02, 1.0100e+02, 1.0200e+02,  ..., 1.0700e+02,\n          1.0800e+02, 1.0900e+02],\n         [1.1000e+02, 1.1100e+02, 1.1200e+02,  ..., 1.1700e+02,\n          1.1800e+02, 1.1900e+02],\n         [1.2000e+02, 1.2100e+02, 1.2200e+02,  ..., 1.2700e+02,\n          1.2800e+02, 1.2900e+02],\n         ...,\n         [1.7000e+02, 1.7100e+02, 1.7200e+02,  ..., 1.7700e+02,\n          1.7800e+02, 1.7900e+02],\n         [1.8000e+02, 1.8100e+02, 1.8200e+02,  ..., 1.8700e+02,\n          1.8800e+02, 1.8900e+02],\n         [1.9000e+02, 1.9100e+02, 1.9200e+02,  ..., 1.9700e+02,\n          1.9800e+02, 1.9900e+02]],\n\n        [[2.0000e+02, 2.0100e+02, 2.0200e+02,  ..., 2.0700e+02,\n          2.0800e+02, 2.0900e+02],\n         [2.1000e+02, 2.1100e+02, 2.1200e+02,  ..., 2.1700e+02,\n          2.1800e+02, 2.1900e+02],\n         [2.2000e+02, 2.2100e+02, 2.2200e+02,  ..., 2.2700e+02,\n          2.2800e+02, 2.2900e+02],\n         ...,\n         [2.7000e+02, 2.7100e+02, 2.7200e+02,  ..., 2.7700e+02,\n          2.7800e+02, 2.7900e+02],\n         [2.8000e+02, 2.8100e+02, 2.8200e+02,  ..., 2.8700e+02,\n          2.8800e+02, 2.8900e+02],\n         [2.9000e+02, 2.9100e+02, 2.9200e+02,  ..., 2.9700e+02,\n          2.9800e+02, 2.9900e+02]],\n\n        ...,\n\n        [[1.7000e+03, 1.7010e+03, 1.7020e+03,  ..., 1.7070e+03,\n          1.7080e+03, 1.7090e+03],\n         [1.7100e+03, 1.7110e+03, 1.7120e+03,  ..., 1.7170e+03,\n          1.7180e+03, 1.7190e+03],\n         [1.7200e+03, 1.7210e+03, 1.7220e+03,  ..., 1.7270e+03,\n          1.7280e+03, 1.7290e+03],\n         ...,\n         [1.7700e+03, 1.7710e+03, 1.7720e+03,  ..., 1.7770e+03,\n          1.7780e+03, 1.7790e+03],\n         [1.7800e+03, 1.7810e+03, 1.7820e+03,  ..., 1.7870e+03,\n          1.7880e+03, 1.7890e+03],\n         [1.7900e+03, 1.7910e+03, 1.7920e+03,  ..., 1.7970e+03,\n          1.7980e+03, 1.7990e+03]],\n\n        [[1.8000e+03, 1.8010e+03, 1.8020e+03,  ..., 1.8070e+03,\n          1.8080e+03, 1.8090e+03],\n         [1.8100e+03, 1.8110e+03, 1.8120e+03,  ..., 1.8170e+03,\n          1.8180e+03, 1.8190e+03],\n         [1.8200e+03, 1.8210e+03, 1.8220e+03,  ..., 1.8270e+03,\n          1.8280e+03, 1.8290e+03],\n         ...,\n         [1.8700e+03, 1.8710e+03, 1.8720e+03,  ..., 1.8770e+03,\n          1.8780e+03, 1.8790e+03],\n         [1.8800e+03, 1.8810e+03, 1.8820e+03,  ..., 1.8870e+03,\n          1.8880e+03, 1.8890e+03],\n         [1.8900e+03, 1.8910e+03, 1.8920e+03,  ..., 1.8970e+03,\n          1.8980e+03, 1.8990e+03]],\n\n        [[1.9000e+03, 1.9010e+03, 1.9020e+03,  ..., 1.9070e+03,\n          1.9080e+03, 1.9090e+03],\n         [1.9100e+03, 1.9110e+03, 1.9120e+03,  ..., 1.9170e+03,\n          1.9180e+03, 1.9190e+03],\n         [1.9200e+03, 1.9210e+03, 1.9220e+03,  ..., 1.9270e+03,\n          1.9280e+03, 1.9290e+03],\n         ...,\n         [1.9700e+03, 1.9710e+03, 1.9720e+03,  ..., 1.9770e+03,\n          1.9780e+03, 1.9790e+03],\n         [1.9800e+03, 1.9810e+03, 1.9820e+03,  ..., 1.9870e+03,\n          1.9880e+03, 1.9890e+03],\n         [1.9900e+03, 1.9910e+03, 1.9920e+03,  ..., 1.9970e+03,\n          1.9980e+03, 1.9990e+03]]])"},
    // end table
    // clang-format on
};

Tensor tensor_of(const Case& c) {
    return Tensor::from<double>(std::span<const double>(c.values), c.shape, {.dtype = c.dtype});
}

template <class T> std::string streamed(const T& x) {
    std::ostringstream out;
    out << x;
    return out.str();
}

}  // namespace

TEST_CASE("printing: PyTorch's words", "[printing]") {
    for (const Case& c : cases) {
        CAPTURE(c.text);
        CHECK(tensor_of(c).to_string() == c.text);
    }
}

TEST_CASE("printing: strided views print as their copies", "[printing]") {
    for (const Case& c : cases) {
        const Tensor x = tensor_of(c);
        if (x.dim() < 2) continue;
        const Tensor turned = x.transpose(0, 1);
        CHECK(turned.to_string() == turned.clone().contiguous().to_string());
    }
}

TEST_CASE("printing: history and undefined tensors", "[printing]") {
    const Tensor x = Tensor::from({1, 2}).set_requires_grad();
    CHECK(x.to_string() == "tensor([1., 2.], requires_grad=True)");
    CHECK((x * x).to_string() == "tensor([1., 4.], grad_fn=<mul>)");
    CHECK(x.detach().to_string() == "tensor([1., 2.])");
    CHECK(Tensor().to_string() == "undefined tensor");
    // A suffix that does not fit into 80 columns begins a line, as in PyTorch.
    CHECK(full({9}, 1.5).set_requires_grad().to_string() ==
          "tensor([1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000],\n"
          "       requires_grad=True)");
}

TEST_CASE("printing: streams and fmt", "[printing]") {
    const Tensor x = Tensor::from({1, 2.5f});
    const nn::Linear layer(2, 3);
    CHECK(streamed(x) == "tensor([1.0000, 2.5000])");
    CHECK(streamed(x.shape()) == "[2]");
    CHECK(streamed(float16) == "float16");
    CHECK(streamed(cpu_device) == "cpu");
    CHECK(streamed(layer) == layer.to_string());
    CHECK(fmt::format("{} {} {} {}", x, x.shape(), x.dtype(), x.device()) ==
          "tensor([1.0000, 2.5000]) [2] float32 cpu");
    CHECK(fmt::format("{}", layer.bias) == layer.bias.to_string());
    CHECK(fmt::format("{}", layer) == layer.to_string());
    CHECK(streamed(TensorOptions{.dtype = int64}) ==
          "TensorOptions(dtype=int64, device=cpu, requires_grad=false)");
    CHECK(streamed(amp::AutocastOptions{.device = DeviceType::cuda}) ==
          "AutocastOptions(device=cuda, dtype=float16, enabled=true, cache=true)");
    CHECK_THAT(streamed(amp::GradScalerOptions{}),
               Catch::Matchers::StartsWith("GradScalerOptions(init_scale=65536, growth_factor=2, ") &&
                   Catch::Matchers::Contains("at_floor=clamp"));
    // These work next to fmt's own formatter of ranges.
    CHECK(fmt::format("{}", std::vector<Shape>{x.shape()}) == "[[2]]");
    CHECK(fmt::format("{}", Tensors{x}) == "[tensor([1.0000, 2.5000])]");
    CHECK_THAT(fmt::format("{}", nn::ModuleList{nn::ReLU()}), Catch::Matchers::Contains("(0): ReLU()"));
    CHECK(fmt::format("{:>10}|{:<8}|", x.shape(), x.dtype()) == "       [2]|float32 |");
}

TEST_CASE("printing: optimizers and their options", "[printing]") {
    using namespace optim;
    CHECK(streamed(SGDOptions{.lr = 1e-8, .nesterov = true}) ==
          "SGDOptions(lr=1e-08, weight_decay=0, momentum=0, dampening=0, nesterov=true, maximize=false)");
    CHECK(streamed(AdamWOptions{}) ==
          "AdamWOptions(lr=0.001, weight_decay=0.01, beta1=0.9, beta2=0.999, eps=1e-08, amsgrad=false, "
          "maximize=false)");
    CHECK(streamed(AdamOptions{.states = StatePrecision::eight_bit, .narrow_all = true})
              .ends_with("maximize=false, states=eight_bit, narrow_all=true)"));
    for (const std::string& text :
         {streamed(AdamOptions{}), streamed(RMSpropOptions{}), streamed(AdagradOptions{}),
          streamed(NAdamOptions{}), streamed(LionOptions{})})
        CHECK_THAT(text, Catch::Matchers::Contains("Options(lr=0.0"));
    const Tensor a = ones({2}, {.requires_grad = true}), b = ones({3}, {.requires_grad = true});
    AdamW optimizer({a, b}, {.lr = 0.25});
    CHECK(streamed(optimizer) == optimizer.to_string());
    CHECK_THAT(optimizer.to_string(), Catch::Matchers::StartsWith("AdamW(lr=0.25, weight_decay=0.01, "));
    optimizer.set_lr(0.5);
    CHECK_THAT(optimizer.to_string(), Catch::Matchers::StartsWith("AdamW(lr=0.5, "));
    const Lion groups({LionGroup{.params = {a}}, LionGroup{.params = {b}, .options = {.lr = 3}}});
    CHECK(streamed(groups) ==
          "Lion(\n  (0): params=1, lr=0.0001, beta1=0.9, beta2=0.99, weight_decay=0, maximize=false\n"
          "  (1): params=1, lr=3, beta1=0.9, beta2=0.99, weight_decay=0, maximize=false\n)");
}
