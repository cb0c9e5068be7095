// Measures the convolutions of ResNet50 with CIFAR's stem, or of CIFAR's ResNet-20, one by one and summed
// over the network. Prints for each layer and pass the best time of a call in milliseconds and GFLOP/s: the
// thread's processor time with one thread, otherwise wall time. tools/torch_conv.py prints the same for
// PyTorch.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_impl.h"
#include "cpu/parallel.h"
#include "kernels/conv.h"
#include "kernels/registry.h"
#include "mezzo/tensor.h"
#include "samples/program.h"

using namespace mezzo;

namespace {

struct Layer {
    int count;  // in the network
    std::int64_t in, out, kernel, stride, size;
};
constexpr Layer resnet50[] = {
    {1, 3, 64, 3, 1, 32},     {1, 64, 64, 1, 1, 32},   {3, 64, 64, 3, 1, 32},    {4, 64, 256, 1, 1, 32},
    {2, 256, 64, 1, 1, 32},   {1, 256, 128, 1, 1, 32}, {1, 128, 128, 3, 2, 32},  {4, 128, 512, 1, 1, 16},
    {1, 256, 512, 1, 2, 32},  {3, 512, 128, 1, 1, 16}, {3, 128, 128, 3, 1, 16},  {1, 512, 256, 1, 1, 16},
    {1, 256, 256, 3, 2, 16},  {6, 256, 1024, 1, 1, 8}, {1, 512, 1024, 1, 2, 16}, {5, 1024, 256, 1, 1, 8},
    {5, 256, 256, 3, 1, 8},   {1, 1024, 512, 1, 1, 8}, {1, 512, 512, 3, 2, 8},   {3, 512, 2048, 1, 1, 4},
    {1, 1024, 2048, 1, 2, 8}, {2, 2048, 512, 1, 1, 4}, {2, 512, 512, 3, 1, 4}};

constexpr Layer resnet20[] = {{1, 3, 16, 3, 1, 32},  {6, 16, 16, 3, 1, 32}, {1, 16, 32, 3, 2, 32},
                              {1, 16, 32, 1, 2, 32}, {5, 32, 32, 3, 1, 16}, {1, 32, 64, 3, 2, 16},
                              {1, 32, 64, 1, 2, 16}, {5, 64, 64, 3, 1, 8}};

double seconds(bool own) {
    timespec t{};
    clock_gettime(own ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

template <class F> double best_time(double budget, bool own, const F& f) {
    f();
    double best = 1e9;
    for (const double end = seconds(false) + budget; seconds(false) < end || best > 1e8;) {
        const double start = seconds(own);
        f();
        best = std::min(best, seconds(own) - start);
    }
    return best;
}

Tensor random(const Shape& shape, Dtype dtype) {
    std::mt19937 bits(7);
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    for (float& v : values) v = float(bits()) * 0x1p-31f - 1;
    return Tensor::from<float>(values, shape, {.dtype = dtype});
}

template <class A> void call(const A& at, const std::vector<Tensor>& in, const Tensor& out) {
    find_kernel(kernel_id<A>, DeviceType::cpu)(in, &at, {&out, 1});
}

void measure(std::span<const Layer> layers, int threads, std::int64_t batch, Dtype dtype, double budget) {
    constexpr const char* names[3] = {"forward", "input_grad", "weight_grad"};
    double sums[3] = {}, flops[3] = {};
    for (const Layer& l : layers) {
        const std::int64_t padding = l.kernel / 2, size = (l.size - 1) / l.stride + 1;
        const kernels::ConvGeometry geometry{l.stride, padding, 1, 1};
        const Tensor x = random({batch, l.size, l.size, l.in}, dtype),
                     w = random({l.out, l.kernel, l.kernel, l.in}, dtype),
                     g = random({batch, size, size, l.out}, dtype), y = empty(g->shape, {.dtype = dtype}),
                     dx = empty(x->shape, {.dtype = dtype}), dw = empty(w->shape);
        const double work = 2e-9 * double(batch * size * size * l.out * l.in * l.kernel * l.kernel);
        const double times[] = {best_time(budget, threads == 1,
                                          [&] {
                                              call<kernels::Conv2d>({geometry}, {x, w}, y);
                                          }),
                                l.in == 3
                                    ? 0
                                    : best_time(budget, threads == 1,
                                                [&] {
                                                    call<kernels::Conv2dInputGrad>({geometry}, {g, w}, dx);
                                                }),
                                best_time(budget, threads == 1, [&] {
                                    call<kernels::Conv2dWeightGrad>({geometry}, {g, x}, dw);
                                })};
        std::printf("%d x %4lld -> %4lld %lldx%lld/%lld at %2lld", l.count, (long long)l.in, (long long)l.out,
                    (long long)l.kernel, (long long)l.kernel, (long long)l.stride, (long long)l.size);
        for (int pass = 0; pass < 3; ++pass) {
            sums[pass] += l.count * times[pass];
            if (times[pass] > 0) flops[pass] += l.count * work;
            std::printf("  %8.3f ms %6.1f", 1e3 * times[pass], times[pass] > 0 ? work / times[pass] : 0);
        }
        std::printf("\n");
        std::fflush(stdout);
    }
    for (int pass = 0; pass < 3; ++pass)
        std::printf("%s %.1f ms, %.1f GFLOP/s\n", names[pass], 1e3 * sums[pass], flops[pass] / sums[pass]);
    const double all = sums[0] + sums[1] + sums[2];
    std::printf("all %.1f ms, %.1f GFLOP/s\n", 1e3 * all, (flops[0] + flops[1] + flops[2]) / all);
}

int parse_and_run(int argc, char** argv) {
    int threads = 1;
    std::int64_t batch = 16;
    double seconds_per_case = 0.05;
    std::string dtype = "float32", network = "resnet50";
    CLI::App app{"Measures the convolutions of a network, each alone and summed."};
    app.option_defaults()->always_capture_default();
    app.add_option("--threads", threads, "CPU threads")->transform(program::thread_count());
    app.add_option("--batch", batch, "images")->transform(program::in_range<std::int64_t>(1, 4096));
    app.add_option("--dtype", dtype, "of images and weights")
        ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
    app.add_option("--seconds", seconds_per_case, "of measuring each pass of a layer")
        ->transform(program::in_range(1e-3, 1e6));
    app.add_option("--network", network, "with CIFAR's stem")->check(CLI::IsMember({"resnet50", "resnet20"}));
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    cpu::set_num_threads(threads);
    const std::span<const Layer> small = resnet20, large = resnet50;
    measure(network == "resnet20" ? small : large, threads, batch,
            dtype == "bfloat16"  ? bfloat16
            : dtype == "float16" ? float16
                                 : float32,
            seconds_per_case);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench_conv", [&] { return parse_and_run(argc, argv); });
}
