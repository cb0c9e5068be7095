// The CUDA kernels of convolutions by im2col, and convolutions in training steps with im2col and implicit
// GEMM.
#include <catch2/catch.hpp>

#include "cuda/runtime/runtime.h"
#include "mezzo/cuda.h"
#include "mezzo/mezzo.h"
#include "tests/cuda/cuda_conv_case.h"

using namespace mezzo;
using namespace mezzo::test;

TEST_CASE("cuda conv: matrices of windows, every dtype", "[cuda]") {
    if (no_device()) return;
    for (Dtype dtype : {float64, float32, bfloat16, float16}) {
        for (const ConvCase& c : conv_geometries) check_all(ConvProblem(with(c, dtype)), {.implicit = false});
        for (const ConvCase& c : grouped_convs) check_all(ConvProblem(with(c, dtype)), {.implicit = false});
    }
}

TEST_CASE("cuda conv: matrices of windows in chunks of images and rows", "[cuda]") {
    if (no_device()) return;
    const auto row = [](const ConvProblem& p) {
        const std::int64_t window = p.c.weight().numel() / p.c.results;
        return p.c.result().width * ((window + 7) / 8 * 8) * 4;
    };
    for (const ConvCase& c : conv_geometries) {
        const ConvProblem p(c);
        const std::int64_t image = row(p) * p.c.result().height;
        for (std::int64_t bytes : {std::int64_t(1), 3 * row(p), 4 * row(p), image / 2, image, 2 * image})
            check_all(p, {.implicit = false, .matrix_bytes = bytes});
    }
    for (const ConvCase& c : grouped_convs) check_all(ConvProblem(c), {.implicit = false, .matrix_bytes = 1});
}

TEST_CASE("cuda conv: no pixels, no channels", "[cuda]") {
    if (no_device()) return;
    for (bool implicit : {false, true}) {
        check_all(ConvProblem({.images = 0, .height = 5, .width = 5, .channels = 8, .results = 8}),
                  {.implicit = implicit});
        check_all(ConvProblem({.images = 2, .height = 5, .width = 5, .channels = 0, .results = 8}),
                  {.implicit = implicit});
        check_all(ConvProblem({.images = 2, .height = 5, .width = 5, .channels = 8, .results = 0}),
                  {.implicit = implicit});
        check_all(
            ConvProblem(
                {.images = 0, .height = 4, .width = 4, .channels = 8, .results = 8, .kernel = 1, .at = {}}),
            {.implicit = implicit});
    }
}

TEST_CASE("cuda conv: strides and paddings beyond any image", "[cuda]") {
    if (no_device()) return;
    const std::int64_t huge = std::int64_t(1) << 40;
    check_all(ConvProblem({.images = 2,
                           .height = 5,
                           .width = 5,
                           .channels = 8,
                           .results = 8,
                           .at = {.stride = huge, .padding = 1}}),
              {.implicit = true});
    check_all(ConvProblem({.images = 1,
                           .height = 3,
                           .width = 5,
                           .channels = 8,
                           .results = 8,
                           .kernel = {1, 3},
                           .at = {.dilation = {huge, 1}}}),
              {.implicit = true});
    const Tensor x = zeros({1, 1, 1, 0}, {.dtype = float32, .device = cuda_device});
    const Tensor w = zeros({8, 1, 1, 0}, {.dtype = float32, .device = cuda_device});
    const Tensor in[] = {x, w, {}}, y = zeros({1, 1, 1, 8}, {.dtype = float32, .device = cuda_device});
    CHECK_THROWS_AS(cuda::conv_forward(in, {{.stride = huge, .padding = huge}}, {&y, 1}, {.implicit = false}),
                    Error);
}

namespace {

struct Implicit {
    explicit Implicit(bool on) { cuda::set_implicit_convolution(on); }
    Implicit(const Implicit&) = delete;
    Implicit& operator=(const Implicit&) = delete;
    ~Implicit() { cuda::set_implicit_convolution(false); }
};

// A small network under autocast in a dtype of the device's Tensor Cores; its loss and gradients.
struct Net {
    Tensor stem, body, down, x;

    Net() {
        const auto leaf = [](const Shape& shape, std::uint64_t seed) {
            return (tensor_of(random_values(shape.numel(), seed, Domain::any), shape, float32, cuda_device) *
                    0.2)
                .detach()
                .set_requires_grad();
        };
        stem = leaf({16, 3, 3, 3}, 1), body = leaf({16, 3, 3, 16}, 2), down = leaf({8, 3, 3, 16}, 3);
        x = tensor_of(random_values(2 * 8 * 7 * 3, 4, Domain::any), {2, 8, 7, 3}, float32, cuda_device);
    }
    Tensor operator()() const {
        for (const Tensor& p : {stem, body, down}) p.set_grad({});
        const Tensor loss = forward();
        loss.backward();
        return loss;
    }
    Tensor forward() const {
        const Dtype dtype = test::multiplies(bfloat16) ? bfloat16 : float16;
        const amp::Autocast scope({.device = DeviceType::cuda, .dtype = dtype});
        Tensor h = relu(conv2d(x, stem, {}, {.padding = 1}));
        h = relu(conv2d(h, body, {}, {.padding = 1}));
        return mean(square(conv2d(h, down, {}, {.stride = 2, .padding = 1}).to(float32)));
    }
    std::vector<Values> grads() const {
        return {doubles(stem.grad()), doubles(body.grad()), doubles(down.grad())};
    }
};

}  // namespace

TEST_CASE("cuda conv: a network with implicit convolutions and without", "[cuda]") {
    if (no_device()) return;
    CHECK(cuda::implicit_convolution() == FastPath::automatic);
    cuda::set_implicit_convolution(false);
    const Net net;
    const auto launches = [&](double& loss) {
        const std::uint64_t before = cuda::counters().launches;
        loss = net().item<double>();
        return cuda::counters().launches - before;
    };
    double plain = 0, found = 0;
    const std::uint64_t plain_launches = launches(plain);
    const std::vector<Values> expected = net.grads();
    const Implicit on(true);
    CHECK(cuda::implicit_convolution() == FastPath::on);
    CHECK(launches(found) < plain_launches);
    CHECK(found == Approx(plain).epsilon(1e-2));
    for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(difference(net.grads()[i], expected[i], {5e-2, 2e-3}) == "");
}

TEST_CASE("cuda conv: captured steps have the bits of eager ones", "[cuda]") {
    if (no_device()) return;
    for (bool implicit : {false, true}) {
        const Implicit scope(implicit);
        const Net net;
        const double loss = net().item<double>();
        const std::vector<Values> expected = net.grads();
        cuda::CapturedStep step([&](const Tensors&) { return Tensors{net()}; });
        for (int i = 0; i < 5; ++i) {
            CHECK(step({})[0].item<double>() == loss);
            CHECK(net.grads() == expected);
        }
        CHECK(step.statistics().replays > 0);
    }
}
