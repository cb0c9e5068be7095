// activation_grad on CUDA against the CPU's two passes, and the same for mse_loss: vectors and single
// elements, several parts, odd addresses.
#include <catch2/catch.hpp>
#include <limits>

#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/support/kernels.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

// Compares both devices on the same g and saved value; a float32 sum of rounded terms may be off as far as
// its terms.
void compare(const Tensor& g, const Tensor& kept, Activation activation) {
    const Device cuda(DeviceType::cuda);
    const Dtype of_sums = g.dtype() == float64 ? float64 : float32;
    const auto run = [&](Device device) {
        const Tensors in{g.to(device), kept.to(device)};
        const Tensors out{full(g.shape(), 77, {.dtype = g.dtype(), .device = device}),
                          full({g.size(1)}, 77, {.dtype = of_sums, .device = device})};
        test::kernel_on(device.type(), in, kernels::ActivationGrad{activation}, out);
        return out;
    };
    const Tensors expected = run(cpu_device), got = run(cuda);
    test::Tolerance allowed = test::tolerance(g.dtype());
    CHECK(test::difference(test::doubles(got[0]), test::doubles(expected[0]), allowed) == "");
    allowed.absolute *= double(g.size(0) + 1);
    CHECK(test::difference(test::doubles(got[1]), test::doubles(expected[1]), allowed) == "");
}

Tensor values(const Shape& shape, Dtype dtype, std::uint64_t seed) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype);
}

}  // namespace

TEST_CASE("cuda: gradient of an activation and its column sums", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype dtype : {float32, float16, bfloat16, float64})
        for (Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh})
            for (const Shape& shape :
                 {Shape{5, 8}, Shape{600, 272}, Shape{301, 21}, Shape{1, 1}, Shape{0, 8}, Shape{3, 0}}) {
                CAPTURE(name(dtype), int(activation), shape[0], shape[1]);
                compare(values(shape, dtype, 1), values(shape, dtype, 2), activation);
            }
    const double nan = std::numeric_limits<double>::quiet_NaN();
    compare(test::tensor_of({1, 2, nan, 4, 5, 6}, {3, 2}, float32),
            test::tensor_of({0, 1, 1, nan, 0, 2}, {3, 2}, float32), Activation::relu);
}

TEST_CASE("cuda: gradient of an activation at an odd address", "[cuda]") {
    if (test::no_device()) return;
    const Device device(DeviceType::cuda);
    const Tensor g = values({33}, float16, 3).to(device).slice(0, 1, 33).reshape({4, 8});
    const Tensor kept = values({32}, float16, 4).to(device).reshape({4, 8});
    const Tensors in{g, kept};
    const Tensors out{zeros({4, 8}, {.dtype = float16, .device = device}), zeros({8}, {.device = device})};
    REQUIRE(g.is_view());
    test::cuda_kernel<kernels::ActivationGrad>(in, {.activation = Activation::relu}, out);
    CHECK(test::doubles(out[0]) == test::doubles(relu_grad(g, kept)));
}

TEST_CASE("cuda: column sums are one launch, whatever the shape", "[cuda]") {
    if (test::no_device()) return;
    const Device device(DeviceType::cuda);
    for (Dtype dtype : {float32, float16, bfloat16, float64})
        for (const Shape& shape :
             {Shape{5000, 264}, Shape{3001, 21}, Shape{70, 8}, Shape{1, 1}, Shape{0, 8}, Shape{9, 1500}})
            for (bool odd : {false, true}) {
                CAPTURE(name(dtype), shape[0], shape[1], odd);
                const auto count = static_cast<std::size_t>(shape.numel()) + 1;
                const auto columns = static_cast<std::size_t>(shape[1]);
                std::vector<double> numbers(count), want(columns);
                for (std::size_t i = 0; i < numbers.size(); ++i)
                    numbers[i] = double(std::uint32_t(i) * 2654435761u >> 29) - 3;
                for (std::size_t i = 0; i + 1 < numbers.size(); ++i)
                    want[i % want.size()] += numbers[i + std::size_t(odd)];
                const Tensor all = Tensor::from(numbers, {std::int64_t(numbers.size())}).to(dtype).to(device);
                const Tensor x = all.slice(0, odd, odd + shape.numel()).reshape(shape);
                const Tensor sums =
                    full({shape[1]}, 77, {.dtype = dtype == float64 ? float64 : float32, .device = device});
                for (int repeat = 0; repeat < 2; ++repeat) {  // the second time with the tickets of the first
                    const std::uint64_t before = cuda::counters().launches;
                    test::cuda_kernel<kernels::ColumnSum>(In(&x, 1), {}, Out(&sums, 1));
                    CHECK(cuda::counters().launches == before + 1);
                    CHECK(test::doubles(sums) == want);
                }
            }
}

namespace {

// Compares the gradient of mse_loss and its column sums in one launch with the gradient alone.
void compare_loss(const Shape& shape, Dtype dtype, Dtype target_dtype, Reduction reduction) {
    const Device device(DeviceType::cuda);
    const Dtype wide = dtype == float64 ? float64 : float32;
    const Tensor x = values(shape, dtype, 5).to(device), t = values(shape, target_dtype, 6).to(device);
    const Tensor g = full({}, 3.25, {.dtype = wide, .device = device});
    const Tensor expected = full(shape, 77, {.dtype = dtype, .device = device});
    const Tensor of_loss[] = {g, x, t}, in[] = {x, t, g};
    test::cuda_kernel<kernels::MseLossGrad>(of_loss, {.reduction = reduction}, Out(&expected, 1));
    const Tensors out{full(shape, 77, {.dtype = dtype, .device = device}),
                      full({shape[1]}, 77, {.dtype = wide, .device = device})};
    const std::uint64_t before = cuda::counters().launches;
    test::cuda_kernel<kernels::MseLossBiasGrad>(in, {.reduction = reduction}, out);
    CHECK(cuda::counters().launches == before + (shape[1] > 0));
    CHECK(test::doubles(out[0]) == test::doubles(expected));
    const std::vector<double> gradient = test::doubles(expected), sums = test::doubles(out[1]);
    const std::size_t columns = sums.size();
    std::vector<double> want(columns);
    for (std::size_t i = 0; i < gradient.size(); ++i) want[i % columns] += gradient[i];
    CHECK(test::difference(sums, want, {1e-5, 1e-4}) == "");
}

// Gradients of a layer below mse_loss on a device; sets `launches` to the launches of CUDA's backward.
Tensors layer_gradients(Device device, Dtype dtype, std::uint64_t* launches = nullptr) {
    manual_seed(4);
    nn::Linear layer(16, 24);
    layer.to(device);
    const Tensor x = values({2, 9, 16}, float32, 7).to(device), t = values({2, 9, 24}, float32, 8).to(device);
    Tensor loss;
    {
        const Dtype low = is_16bit(dtype) ? dtype : float16;
        const amp::Autocast scope({.device = device.type(), .dtype = low, .enabled = is_16bit(dtype)});
        loss = mse_loss(layer(x), t);
    }
    const std::uint64_t before = cuda::counters().launches;
    loss.backward();
    if (launches) *launches = cuda::counters().launches - before;
    return {layer.weight.grad(), layer.bias.grad()};
}

}  // namespace

TEST_CASE("cuda: gradient of mse_loss and its column sums", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype dtype : {float32, float16, bfloat16, float64})
        for (const Shape& shape :
             {Shape{5, 8}, Shape{600, 272}, Shape{301, 21}, Shape{1, 1}, Shape{0, 8}, Shape{3, 0}}) {
            CAPTURE(name(dtype), shape[0], shape[1]);
            compare_loss(shape, dtype, dtype, Reduction::mean);
            compare_loss(shape, dtype, is_16bit(dtype) ? float32 : dtype, Reduction::sum);
        }
}

TEST_CASE("cuda: a linear layer below mse_loss gets its bias's gradient from the loss", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype dtype : {float32, float16, bfloat16}) {
        CAPTURE(name(dtype));
        std::uint64_t launches = 0;
        layer_gradients(Device(DeviceType::cuda), dtype);  // the first use checks the kernel
        const Tensors got = layer_gradients(Device(DeviceType::cuda), dtype, &launches),
                      expected = layer_gradients(cpu_device, dtype);
        CHECK(launches == 2);  // the loss's gradient with the bias's, and the weight's product
        for (std::size_t i = 0; i < got.size(); ++i)
            CHECK(test::difference(test::doubles(got[i]), test::doubles(expected[i]),
                                   test::tolerance(dtype)) == "");
    }
}
