// Packed weights: bits of their products, and when copies are made, renewed and freed.
#include "cpu/gemm/packed_weight.h"

#include <array>
#include <optional>
#include <thread>

#include "autograd/autocast_state.h"
#include "core/memory/flat_view.h"
#include "cpu/gemm/repeated_product.h"
#include "cpu/isa/isa.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "nn/replace.h"
#include "tests/cpu/gemm_case.h"
#include "tests/support/support.h"

using namespace gemm_case;

namespace {

// Numbers of few bits, so that their products are exact and FMA makes no difference.
Tensor numbers(std::int64_t rows, std::int64_t columns, Dtype dtype, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<double> values(static_cast<std::size_t>(rows * columns));
    for (double& x : values) x = (double(random() % 255) - 127) * std::ldexp(1.0, -int(random() % 12));
    return Tensor::from(values, {rows, columns}).to(dtype);
}

// The product of two rows of k elements by packed_weight.h's order of additions.
float in_order(const std::vector<float>& x, const std::vector<float>& y) {
    double total = 0;
    for (std::size_t first = 0; first < x.size(); first += 2048) {
        const std::size_t end = std::min(x.size(), first + 2048);
        std::array<float, 4> s{};
        for (std::size_t p = first; p < end; ++p) s[p % 4] += x[p] * y[p];
        const float part = (s[0] + s[1]) + (s[2] + s[3]);
        if (x.size() <= 2048) return part;
        total += double(part);
    }
    return float(total);
}

std::size_t allocated() { return memory_stats(cpu_device).allocated; }

// A packed copy takes more bytes than the note of a weight's first use.
constexpr std::size_t least = 1024;

// Bytes that a packed copy of w takes; none if there is none.
std::size_t packed_bytes(const Tensor& w) {
    const std::lock_guard lock(packed_mutex);
    return w->storage->packed ? w->storage->packed->bytes : 0;
}

bool equal_bits(const Tensor& a, const Tensor& b) {
    return a.to(float32).to_vector<float>() == b.to(float32).to_vector<float>();
}

}  // namespace

TEST_CASE("packed weights: every instruction set adds in one order", "[gemm]") {
    struct Size {
        std::int64_t n, k;
    };
    for (const Size size : {Size{93, 773}, Size{4096, 16}, Size{64, 4099}, Size{6001, 11}})
        for (const Dtype dtype : {float32, bfloat16, float16}) {
            const Tensor w = numbers(size.n, size.k, dtype, 1), x = numbers(8, size.k, bfloat16, 2);
            const InferenceMode scope;
            CHECK_FALSE(cpu::packed_weight(w, 8));
            const Ref<Storage> packed = cpu::packed_weight(w, 8);
            REQUIRE(packed);
            const std::vector<float> rows = x.to(float32).to_vector<float>(),
                                     lines = w.to(float32).to_vector<float>();
            const auto line = [&](const std::vector<float>& from, std::int64_t i) {
                return std::vector<float>(from.begin() + i * size.k, from.begin() + (i + 1) * size.k);
            };
            for (const Variant& v : variants())
                for (const std::int64_t m : {1, 2, 3, 5, 8}) {
                    if (v.kernels->panels == nullptr) continue;
                    CAPTURE(v.name, size.n, size.k, name(dtype), m);
                    std::vector<float> c(static_cast<std::size_t>(m * size.n), NAN);
                    Gemm g{
                        .m = m, .n = size.n, .k = size.k, .trans_b = true, .a = raw(x), .a_type = bfloat16};
                    g.lda = g.ldb = size.k, g.ldc = size.n;
                    g.b = raw(w), g.b_type = dtype, g.c = c.data();
                    g.b_panels = cpu::panels_of(*packed);
                    cpu::gemm(g, *v.kernels);
                    int wrong = 0;
                    for (std::int64_t i = 0; i < m; ++i)
                        for (std::int64_t j = 0;
                             j<size.n; j += size.n> 1000 && j > 50 && j < size.n - 50 ? 17 : 1)
                            wrong += c[static_cast<std::size_t>(i * size.n + j)] !=
                                     in_order(line(rows, i), line(lines, j));
                    CHECK(wrong == 0);
                }
        }
}

TEST_CASE("packed weights: linear with bias and activation follows float64", "[gemm]") {
    for (const Dtype dtype : {float32, bfloat16, float16}) {
        const Tensor w = test::tensor_of(test::random_values(300 * 400, 1, test::Domain::any), {300, 400},
                                         dtype),
                     x = test::tensor_of(test::random_values(3 * 400, 2, test::Domain::any), {3, 400}, dtype),
                     bias = test::tensor_of(test::random_values(300, 3, test::Domain::any), {300}, dtype);
        const Tensor want = relu(linear(x.to(float64), w.to(float64), bias.to(float64)));
        const InferenceMode scope;
        (void)linear(x, w, bias, LinearActivation::relu);
        const Tensor y = linear(x, w, bias, LinearActivation::relu);
        CHECK(packed_bytes(w) > least);
        CHECK(all_close(y.to(float64), want, dtype == float32 ? 1e-5 : 1e-2, dtype == float32 ? 1e-4 : 0.5));
        CHECK(equal_bits(y.slice(0, 1, 2), linear(x.slice(0, 1, 2), w, bias, LinearActivation::relu)));
        const int threads = num_threads();
        set_num_threads(threads == 3 ? 2 : 3);
        const Tensor again = linear(x, w, bias, LinearActivation::relu);
        set_num_threads(threads);
        CHECK(equal_bits(y, again));
    }
}

TEST_CASE("packed weights: a copy is made by the second use, void after a write, and freed with the weight",
          "[gemm]") {
    const std::size_t before = allocated();
    {
        const Tensor w = numbers(300, 400, bfloat16, 1), x = numbers(1, 400, bfloat16, 2);
        const auto product = [&] { return linear(x, w); };
        {
            const NoGrad plain;
            (void)product();
        }
        CHECK(packed_bytes(w) == 0);
        const Tensor first = [&] {
            const InferenceMode scope;
            CHECK_FALSE(grad_enabled());
            (void)product();
            CHECK(packed_bytes(w) < least);
            return product();
        }();
        CHECK(packed_bytes(w) >= 304 * 400 * 2);
        CHECK(packed_bytes(w) < 304 * 400 * 2 + 1024);
        const InferenceMode scope;
        const void* const copy = cpu::packed_weight(w, 1).get();
        CHECK(equal_bits(product(), first));
        CHECK(cpu::packed_weight(w, 8).get() == copy);
        CHECK_FALSE(cpu::packed_weight(w, 9));
        const Tensor refused[] = {nn::Parameter(w.slice(0, 0, 299)), w.t(), w.to(float64)};
        for (const Tensor& other : refused)
            for (int i = 0; i < 2; ++i) CHECK_FALSE(cpu::packed_weight(other, 1));
        for (const Shape& shape : {Shape{10, 10}, Shape{48, 4000}, Shape{30000, 3}}) {
            const Tensor other = numbers(shape[0], shape[1], float32, 1);  // small, or with much padding
            for (int i = 0; i < 3; ++i) CHECK_FALSE(cpu::packed_weight(other, 1));
        }
        w.mul_(2);
        (void)product();
        CHECK(packed_bytes(w) < least);
        CHECK(equal_bits(product(), first * 2.0));
        w.mutable_data<bfloat16_t>()[0] = bfloat16_t(NAN);
        CHECK(std::isnan(product().to_vector<float>()[0]));
    }
    CHECK(allocated() == before);
}

TEST_CASE("packed weights: merged weights are not packed, because their parts are written to", "[gemm][nn]") {
    const Tensors parts{numbers(200, 400, float32, 1), numbers(100, 400, float32, 2)};
    nn::place_side_by_side(parts);
    const Tensor merged = as_one(parts);
    REQUIRE(merged.shape() == Shape{300, 400});
    const InferenceMode scope;
    for (int i = 0; i < 2; ++i) CHECK_FALSE(cpu::packed_weight(merged, 1));
    CHECK_FALSE(cpu::packed_weight(parts[0], 1));
    CHECK(cpu::packed_weight(parts[0], 1));
}

TEST_CASE("packed weights: train() frees the copies of a module", "[gemm][nn]") {
    nn::Linear layer(300, 400), other(300, 400);
    layer.eval();
    const Tensor x = numbers(1, 300, float32, 2);
    const Tensor y = [&] {
        const InferenceMode scope;
        for (int i = 0; i < 2; ++i) (void)other(x), (void)layer(x);
        return layer(x);
    }();
    CHECK(packed_bytes(layer.weight) > least);
    CHECK(all_close(y, layer(x).detach(), 1e-5, 1e-5));
    layer.eval();
    CHECK(packed_bytes(layer.weight) > least);
    layer.train();
    CHECK(packed_bytes(layer.weight) == 0);
    CHECK(packed_bytes(other.weight) > least);
}

TEST_CASE("packed weights: of 16-bit copies, follow an optimizer's steps, and train() frees them",
          "[gemm][nn]") {
    nn::Linear layer(300, 400);
    optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
    const Tensor x = numbers(2, 300, float32, 2);
    const amp::Autocast scope({.dtype = bfloat16, .cache = true});
    for (int step = 0; step < 3; ++step) {
        sum(layer(x).to(float32)).backward();
        optimizer.step();
        layer.eval();
        const Tensor want = [&] {
            const NoGrad plain;
            return layer(x);
        }();
        const InferenceMode packing;
        (void)layer(x);
        CHECK(all_close(layer(x).to(float32), want.to(float32), 2e-2, 1e-2));
        if (step == 0) continue;  // the next step writes the copy that is packed
        const Tensor copy = layer.weight->grad_meta->copy16.value;
        CHECK(packed_bytes(copy) > least);
        layer.train();
        CHECK(packed_bytes(copy) == 0);
    }
}

TEST_CASE("packed weights: of convolutions, with the bits of unpacked ones", "[conv]") {
    struct Case {
        Shape x, w;
        Conv2dOptions options;
    };
    const Case cases[] = {{{1, 7, 7, 96}, {130, 1, 1, 96}, {}},
                          {{2, 9, 8, 32}, {70, 3, 3, 32}, {.stride = 2, .padding = 1}},
                          {{1, 12, 11, 24}, {40, 3, 3, 24}, {.padding = 1}},
                          {{1, 20, 20, 3}, {64, 7, 7, 3}, {.stride = 2, .padding = 3}},
                          {{1, 8, 8, 80}, {90, 3, 3, 40}, {.padding = 1, .groups = 2}}};
    struct Release {
        ~Release() { cpu::release_isa(); }
    } release;
    for (const cpu::Isa isa : cpu::all_isas) {
        if (isa > cpu::best_isa()) continue;
        cpu::force_isa(isa);
        for (const Case& c : cases)
            for (const Dtype dtype : {float32, bfloat16, float16}) {
                CAPTURE(cpu::name(isa), c.w, name(dtype));
                const auto random = [&](const Shape& shape, unsigned seed) {
                    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape,
                                           dtype);
                };
                const Tensor x = random(c.x, 1), w = random(c.w, 2), bias = random({c.w[0]}, 3);
                const auto y = [&] { return conv2d_add_relu(x, w, bias, {}, c.options); };
                const Tensor want = y();
                CHECK(packed_bytes(w) == 0);
                const InferenceMode scope;
                CHECK(equal_bits(y(), want));
                CHECK(packed_bytes(w) < least);
                for (int i = 0; i < 2; ++i) CHECK(equal_bits(y(), want));
                const bool in_tiles = isa == cpu::Isa::amx && dtype == bfloat16;
                if (c.options.groups == 1 && (in_tiles || dtype == float32)) CHECK(packed_bytes(w) > least);
                const int threads = num_threads();
                set_num_threads(threads == 3 ? 2 : 3);
                const Tensor again = y();
                set_num_threads(threads);
                CHECK(equal_bits(again, want));
                w.mul_(-1);
                const Tensor other = y();
                CHECK(packed_bytes(w) < least);
                (void)y();
                CHECK(equal_bits(other, y()));
                CHECK_FALSE(equal_bits(other, want));
            }
    }
}

TEST_CASE("packed weights: of convolutions, not for many windows, views and float64", "[conv]") {
    const std::size_t before = allocated();
    {
        const InferenceMode scope;
        const Tensor w = randn({64, 1, 1, 64}), half = w.slice(0, 0, 32), wide = w.to(float64),
                     many = randn({1, 65, 65, 64}), few = many.slice(1, 0, 20).contiguous();
        for (int i = 0; i < 3; ++i) (void)conv2d(many, w);
        CHECK(packed_bytes(w) == 0);
        for (int i = 0; i < 3; ++i) (void)conv2d(few, half), (void)conv2d(few.to(float64), wide);
        CHECK(packed_bytes(w) == 0);
        CHECK(packed_bytes(wide) == 0);
        for (int i = 0; i < 3; ++i) (void)conv2d(few, w);
        CHECK(packed_bytes(w) > least);
    }
    CHECK(allocated() == before);
}

TEST_CASE("packed weights: panels of taps are not read as panels of one row, nor the reverse",
          "[conv][gemm]") {
    const auto random = [](const Shape& shape, unsigned seed) {
        return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, bfloat16);
    };
    // Tiles multiply windows of 16 pixels in a row tap by tap, and others as rows of all taps.
    for (const bool wide_first : {false, true}) {
        const Tensor w = random({64, 3, 3, 30}, 1);
        const auto y = [&](bool wide) {
            return conv2d(random({3, 8, wide ? 20 : 16, 30}, 2), w, {}, {.padding = 1});
        };
        const Tensor want[] = {y(false), y(true)};
        const InferenceMode scope;
        for (int i = 0; i < 6; ++i) {
            const bool wide = wide_first != (i >= 3);
            CAPTURE(wide_first, i);
            CHECK(equal_bits(y(wide), want[wide]));
        }
    }
    const Tensor w = random({64, 1, 2, 24}, 1), x = random({1, 16, 17, 24}, 2), rows = random({64, 48}, 3);
    const nn::Parameter flat(w.reshape({64, 48}));
    const Tensor want = linear(rows, flat);
    const InferenceMode scope;
    for (int i = 0; i < 3; ++i) (void)conv2d(x, w);
    CHECK(equal_bits(linear(rows, flat), want));
}

TEST_CASE("packed weights: row counts that take turns pack at the second use", "[gemm]") {
    const Tensor w = numbers(300, 400, bfloat16, 1);
    const cpu::PackedLayout other{&w, 300, 400, 300 * 400 * 2};
    const auto packed = [&] { return cpu::packed_copy(w, other, [](char*) {}); };
    const InferenceMode scope;
    CHECK_FALSE(cpu::packed_weight(w, 1));
    CHECK(packed());
    const Ref<Storage> rows = cpu::packed_weight(w, 1);
    REQUIRE(rows);
    CHECK_FALSE(packed());
    CHECK(cpu::packed_weight(w, 1) == rows);
}

TEST_CASE("packed weights: panels for few rows replace others and stay", "[gemm]") {
    const Tensor w = numbers(300, 400, bfloat16, 1);
    const cpu::PackedLayout other{&w, 300, 400, 300 * 400 * 2};
    const auto packed = [&] { return cpu::packed_copy(w, other, [](char*) {}); };
    const InferenceMode scope;
    CHECK_FALSE(packed());
    CHECK(packed());
    const Ref<Storage> rows = cpu::packed_weight(w, 1);
    REQUIRE(rows);
    for (int i = 0; i < 3; ++i) CHECK_FALSE(packed());
    CHECK(cpu::packed_weight(w, 1) == rows);
    w.mul_(2);
    CHECK_FALSE(packed());
    CHECK(packed());
}

TEST_CASE("packed weights: 16-bit copies of frozen parameters outlive an Autocast scope", "[gemm][nn]") {
    const std::size_t before = allocated();
    {
        nn::Linear layer(300, 400);
        layer.eval();
        const Tensor x = numbers(2, 300, bfloat16, 2);
        const auto y = [&] {
            const InferenceMode scope;
            const amp::Autocast low({.dtype = bfloat16});
            return layer(x);
        };
        const auto casts = [] { return autocast_counters().casts; };
        const std::uint64_t none = casts();
        const Tensor first = y();
        CHECK(casts() - none == 2);  // weight and bias
        CHECK(all_close(y(), first, 1e-2, 1e-2));
        CHECK(casts() - none == 2);
        {
            const NoGrad plain;
            layer.weight.mul_(2);
            layer.bias.mul_(2);
        }
        CHECK(all_close(y(), first * 2, 1e-2, 1e-2));
        CHECK(casts() - none == 4);
        const std::size_t with_copies = allocated();
        layer.train();
        CHECK(allocated() + 300 * 400 * 2 <= with_copies);
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&] {
                for (int n = 0; n < 10; ++n) (void)y();
            });
        for (std::thread& thread : threads) thread.join();
    }
    CHECK(allocated() == before);
}

TEST_CASE("packed weights: threads share the copy that one of them makes", "[gemm][threads]") {
    const Tensor w = numbers(300, 400, bfloat16, 1), x = numbers(1, 400, bfloat16, 2);
    std::optional<InferenceMode> scope;
    scope.emplace();
    const Tensor same = numbers(300, 400, bfloat16, 1);
    (void)linear(x, same);
    const Tensor want = linear(x, same);
    scope.reset();
    std::array<Tensor, 4> got;
    std::vector<std::thread> threads;
    for (Tensor& y : got)
        threads.emplace_back([&y, &w, &x] {
            const InferenceMode own;
            for (int i = 0; i < 10; ++i) y = linear(x, w);
        });
    for (std::thread& thread : threads) thread.join();
    for (const Tensor& y : got) CHECK(equal_bits(y, want));
}

TEST_CASE("gemm: many products with one packed matrix", "[gemm]") {
    for (const bool transposed : {false, true}) {
        const Tensor original = randn({transposed ? 100 : 70, transposed ? 70 : 100});
        const Tensor b = transposed ? original.transpose(0, 1) : original;
        cpu::RepeatedProduct multiply;
        for (int step = 0; step < 4; ++step) {
            if (step == 3) cpu::force_isa(cpu::Isa::portable);  // other kernels are chosen now
            const Tensor a = randn({20, 70}), y = randn({20, 100});
            const Tensor want = matmul(a.to(float64), b.to(float64)) + y.to(float64);
            multiply(a, b, 1.0, y);
            CHECK((y.to(float64) - want).abs().max().item<double>() < 1e-4);
        }
        cpu::release_isa();
    }
    // The panels are read instead of b.
    Matrix a(20, 70, float32), b(70, 100, float32), c(20, 100, float32);
    a.fill([] { return 1.0; }), b.fill([] { return 2.0; });
    Gemm g = gemm_of(a, b, c);
    const cpu::GemmKernels* const kernels = cpu::packing_kernels(g);
    REQUIRE(kernels != nullptr);
    std::vector<float> panels(std::size_t(cpu::packed_b(*kernels, g)));
    cpu::pack_b(*kernels, g, panels.data());
    g.b_packed = panels.data();
    b.fill([] { return std::numeric_limits<double>::quiet_NaN(); });
    cpu::gemm(g, *kernels);
    CHECK(c.at(0, 19, 99) == 140);
}
