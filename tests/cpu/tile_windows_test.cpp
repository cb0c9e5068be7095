// Convolutions on AMX tiles without im2col, against vectors: on the model of the tiles and, if it has AMX, on
// the processor.
#include "cpu/amx/tile_windows.h"

#include "cpu/amx/tile_gradient.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "cpu/amx/amx.h"
#include "cpu/conv/merged_groups.h"
#include "cpu/parallel.h"
#include "tests/cpu/tile_model.h"
#include "tests/ops/conv_case.h"

using namespace mezzo;
using namespace mezzo::cpu;
using conv_case::Case;

namespace {

// Computes a convolution, or the output phases of its input gradient; those that suit tiles run on them.
class Products {
public:
    Products(const Case& t, bool transposed) : t_(t), transposed_(transposed) {
        const std::vector<double> w = conv_case::random(std::size_t(t.w_shape().numel()), 2, bfloat16);
        const Shape from = transposed ? t.y_shape() : t.x_shape();
        source_ =
            conv_case::tensor(conv_case::random(std::size_t(from.numel()), 1, bfloat16), from, bfloat16, 1);
        weight_ = conv_case::tensor(w, t.w_shape(), bfloat16, 3);
        bias_ = conv_case::tensor(conv_case::random(std::size_t(t.o), 3, bfloat16), {t.o}, bfloat16, 1);
        const Size2d kernel = t.kernel;
        if (transposed)
            for (Phase& phase : phases_of_gradient(t.geometry(), kernel, {t.h, t.w}))
                phases_.push_back(std::move(phase));
        else
            phases_.push_back({0, windows_of_input(t.geometry(), kernel)});
    }

    // Bits of the result; sets `taken` to the number of products that ran on tiles, of merged groups if
    // possible.
    std::vector<double> run(const TileProduct* tiles, int& taken) const {
        const Shape shape = transposed_ ? t_.x_shape() : t_.y_shape();
        const conv_case::Result result(shape, bfloat16);
        taken = 0;
        for (const Phase& phase : phases_) {
            WindowProduct p;
            p.windows = phase.windows;
            const Shape& from = source_->shape;
            p.windows.data = source_->bytes(), p.windows.type = bfloat16;
            p.windows.images = from[0], p.windows.height = from[1], p.windows.width = from[2];
            p.windows.pixel = from[3], p.windows.channels = from[3] / t_.groups;
            p.weight = {weight_->bytes(), bfloat16, t_.o, t_.kernel.height * t_.kernel.width,
                        t_.c / t_.groups};
            p.groups = t_.groups, p.transposed = transposed_;
            p.result = {result.y->bytes(), bfloat16, shape[1], shape[2], shape[3]};
            if (transposed_)
                p.result.begin = phase.begin, p.result.step = t_.stride;
            else
                p.windows.rows = shape[1], p.windows.columns = shape[2];
            if (t_.bias && !transposed_) p.bias = bias_->bytes(), p.bias_type = bfloat16;
            MergedProduct merged(p);
            if (merged.merges()) merged.set_weight();
            if (tiles && suits_tiles(merged.product, *tiles)) {
                ++taken;
                multiply_windows_on_tiles(merged.product, *tiles);
            } else {
                multiply_windows(p);
            }
        }
        return result.values();
    }

private:
    Case t_;
    bool transposed_;
    Tensor source_, weight_, bias_;
    std::vector<Phase> phases_;
};

struct Vectors {
    Vectors() { force_isa(Isa::portable); }
    ~Vectors() { release_isa(); }
};

void check(const Case& t, int forward, int backward) {
    INFO(t.text());
    const TileProduct& model = tile_model_kernels().tiles->bf16;
    for (const bool transposed : {false, true}) {
        const Products products(t, transposed);
        int taken = 0;
        const std::vector<double> want = [&] {
            const Vectors vectors;
            return products.run(nullptr, taken);
        }();
        const std::vector<double> got = products.run(&model, taken);
        CHECK(taken == (transposed ? backward : forward));
        for (std::size_t i = 0; i < want.size(); ++i)  // both are sums in float32, rounded once
            if (!(std::fabs(got[i] - want[i]) <= 0x1p-7 * std::fabs(want[i]) + 1e-4))
                FAIL((transposed ? "gradient" : "product")
                     << ", element " << i << ": " << got[i] << ", not " << want[i]);
        if (best_isa() < Isa::amx || !request_tiles()) continue;
        CHECK(products.run(&gemm_kernels(Isa::amx).tiles->bf16, taken) == got);
    }
}

// Compares a weight gradient that is accumulated onto `old`.
void check_gradient(const Case& t, bool suits) {
    INFO(t.text());
    const Tensor x = conv_case::tensor(conv_case::random(std::size_t(t.x_shape().numel()), 1, bfloat16),
                                       t.x_shape(), bfloat16, 1),
                 g = conv_case::tensor(conv_case::random(std::size_t(t.y_shape().numel()), 2, bfloat16),
                                       t.y_shape(), bfloat16, 1);
    const std::vector<double> old = conv_case::random(std::size_t(t.w_shape().numel()), 3, float32);
    const auto gradient = [&](const auto& add) {
        const conv_case::Result result(t.w_shape(), float32, old);
        WindowGradient p;
        p.windows = windows_of_input(t.geometry(), t.kernel);
        p.windows.data = x->bytes(), p.windows.type = bfloat16;
        p.windows.images = t.n, p.windows.height = t.h, p.windows.width = t.w;
        p.windows.pixel = t.c, p.windows.channels = t.c / t.groups;
        p.windows.rows = t.ho(), p.windows.columns = t.wo();
        p.gradient = g->bytes(), p.gradient_type = bfloat16, p.outputs = t.o, p.groups = t.groups;
        p.result = result.y->bytes(), p.result_type = float32, p.beta = 1;
        add(p);
        return result.values();
    };
    const auto on = [&](const TileProduct& tiles) {
        return gradient([&](const WindowGradient& p) {
            const WindowGradient merged = merged_gradient(p);
            auto* const sums = reinterpret_cast<float*>(p.result);
            if (merged.groups == p.groups) return add_window_gradient_on_tiles(p, tiles, sums, true);
            std::vector<float> all(std::size_t(p.outputs * merged.windows.steps())), parts(old.size());
            add_window_gradient_on_tiles(merged, tiles, all.data(), false);
            split_merged(p, merged, all.data(), parts.data());
            for (std::size_t i = 0; i < parts.size(); ++i) sums[i] += parts[i];
        });
    };
    const TileProduct& model = tile_model_kernels().tiles->bf16;
    const std::vector<double> want = gradient([&](const WindowGradient& p) {
        CHECK(suits_tiles(merged_gradient(p), model) == suits);
        const Vectors vectors;
        add_window_gradient(p);
    });
    if (!suits) return;
    const std::vector<double> got = on(model);
    for (std::size_t i = 0; i < want.size(); ++i)
        if (!(std::fabs(got[i] - want[i]) <= 1e-4 * (1 + std::fabs(want[i]))))
            FAIL("element " << i << ": " << got[i] << ", not " << want[i]);
    if (best_isa() >= Isa::amx && request_tiles()) CHECK(on(gemm_kernels(Isa::amx).tiles->bf16) == got);
    const int before = cpu::num_threads();
    for (const int threads : {1, 3}) {
        cpu::set_num_threads(threads);
        CHECK(on(model) == got);
    }
    cpu::set_num_threads(before);
}

}  // namespace

TEST_CASE("tile windows: geometries", "[conv][tiles]") {
    check({.n = 2, .h = 5, .w = 16, .c = 16, .o = 16, .kernel = 3, .padding = 1, .bias = true}, 1, 1);
    check({.n = 1, .h = 4, .w = 32, .c = 32, .o = 40, .kernel = 3, .padding = 1}, 1, 1);
    check({.n = 1, .h = 3, .w = 70, .c = 24, .o = 33, .kernel = {1, 3}, .padding = {0, 1}, .bias = true}, 1,
          1);
    check({.n = 3, .h = 8, .w = 8, .c = 64, .o = 64, .kernel = 3, .padding = 1}, 1, 1);
    check({.n = 2, .h = 7, .w = 13, .c = 48, .o = 17, .kernel = {3, 1}, .padding = {1, 0}}, 1, 1);
    check({.n = 1, .h = 9, .w = 29, .c = 16, .o = 32, .kernel = {2, 4}}, 1, 1);
    check({.n = 1, .h = 8, .w = 30, .c = 16, .o = 16, .kernel = 3, .padding = 2, .dilation = 2, .bias = true},
          1, 1);
    check({.n = 2, .h = 6, .w = 16, .c = 32, .o = 64, .kernel = 3, .padding = 1, .groups = 2, .bias = true},
          1, 1);
}

TEST_CASE("tile windows: rows of the kernel as taps of few channels", "[conv][tiles]") {
    check({.n = 2, .h = 5, .w = 16, .c = 3, .o = 16, .kernel = 3, .padding = 1, .bias = true}, 1, 1);
    check({.n = 1, .h = 11, .w = 40, .c = 3, .o = 40, .kernel = {5, 11}, .stride = {2, 4}, .padding = {2, 5}},
          1, 8);
    check({.n = 2, .h = 7, .w = 17, .c = 1, .o = 6, .kernel = {5, 3}, .dilation = {1, 1}}, 1, 0);
    check({.n = 1, .h = 4, .w = 29, .c = 15, .o = 33, .kernel = {1, 9}, .padding = {0, 12}, .bias = true}, 1,
          1);
    check({.n = 1, .h = 9, .w = 16, .c = 3, .o = 16, .kernel = 3, .padding = {2, 1}, .dilation = {2, 1}}, 1,
          1);
    check({.n = 1, .h = 90, .w = 600, .c = 4, .o = 8, .kernel = {3, 4}, .padding = 1}, 1, 0);  // bands
}

TEST_CASE("tile windows: merged groups", "[conv][tiles]") {
    check({.n = 2, .h = 5, .w = 16, .c = 64, .o = 64, .kernel = 3, .padding = 1, .groups = 8, .bias = true},
          1, 1);
    check({.n = 1, .h = 4, .w = 30, .c = 24, .o = 30, .kernel = {2, 3}, .padding = 1, .groups = 6}, 1, 1);
    check({.n = 1, .h = 6, .w = 16, .c = 32, .o = 32, .kernel = 3, .stride = 2, .padding = 1, .groups = 2}, 1,
          4);
    for (const std::int64_t n : {1, 4})
        check_gradient({.n = n, .h = 5, .w = 16, .c = 32, .o = 32, .kernel = 3, .padding = 1, .groups = 4},
                       true);
    check_gradient({.n = 2, .h = 5, .w = 16, .c = 16, .o = 64, .kernel = 3, .padding = 1, .groups = 4}, true);
    check_gradient({.n = 2, .h = 5, .w = 16, .c = 80, .o = 80, .kernel = 3, .padding = 1, .groups = 20},
                   true);
    check_gradient({.n = 2, .h = 5, .w = 16, .c = 24, .o = 24, .kernel = 3, .padding = 1, .groups = 3},
                   false);

    const Case t{.n = 1, .h = 2, .w = 5, .c = 15, .o = 10, .kernel = 3, .padding = 1, .groups = 5};
    const auto exact = [&](std::size_t place, double value) {
        std::vector<double> x(std::size_t(t.x_shape().numel()), 1e38);
        x[place] = value;
        const Tensor image = conv_case::tensor(x, t.x_shape(), bfloat16, 0);
        WindowProduct p;
        p.windows = windows_of_input(t.geometry(), t.kernel);
        p.windows.data = image->bytes(), p.windows.type = bfloat16;
        p.windows.images = t.n, p.windows.height = t.h, p.windows.width = t.w, p.windows.pixel = t.c;
        return MergedProduct(p).exact();
    };
    for (const std::size_t place : {0, 5, 147, 148, 149})
        for (const double value : {1e39, -1e39, std::nan("")}) {
            CHECK(exact(place, -3e38));
            CHECK(!exact(place, value));
        }
}

TEST_CASE("tile windows: strides", "[conv][tiles]") {
    check({.n = 2, .h = 40, .w = 32, .c = 16, .o = 32, .kernel = 3, .stride = 2, .padding = 1, .bias = true},
          1, 4);
    check({.n = 1, .h = 7, .w = 31, .c = 32, .o = 16, .kernel = 3, .stride = 2, .padding = 1}, 1, 4);
    check({.n = 1, .h = 9, .w = 40, .c = 16, .o = 16, .kernel = {3, 5}, .stride = {2, 3}, .padding = {1, 2}},
          1, 6);
    check({.n = 1, .h = 6, .w = 16, .c = 16, .o = 16, .kernel = 1, .stride = 2}, 0, 1);
}

TEST_CASE("tile windows: what copies suit better", "[conv][tiles]") {
    check({.n = 1, .h = 8, .w = 7, .c = 16, .o = 16, .kernel = 3, .padding = 1}, 0,
          0);  // half of a tile's rows
    check({.n = 1, .h = 4, .w = 18, .c = 16, .o = 16, .kernel = 3, .padding = 1}, 0, 0);  // the same
    check({.n = 1, .h = 4, .w = 16, .c = 15, .o = 16, .kernel = {3, 2}, .dilation = {1, 2}}, 0,
          1);                                                               // few channels, taps apart
    check({.n = 1, .h = 4, .w = 16, .c = 16, .o = 16, .kernel = 1}, 0, 0);  // windows are the image
    check({.n = 1, .h = 1, .w = 16, .c = 288, .o = 288, .kernel = 3, .padding = 1}, 0, 0);  // a large weight
    check({.n = 1, .h = 1, .w = 2100, .c = 512, .o = 16, .kernel = {1, 2}}, 0, 1);          // a long row
    // Kernel positions so far apart that the receptive field's size overflows. Only the middle one lies
    // inside the image.
    const Size2d far = {1 << 28, 1 << 27};
    check({.n = 1, .h = 2, .w = 16, .c = 16, .o = 16, .kernel = 3, .padding = far, .dilation = far}, 0, 0);
    check_gradient({.n = 1, .h = 2, .w = 16, .c = 16, .o = 16, .kernel = 3, .padding = far, .dilation = far},
                   false);
}

TEST_CASE("tile windows: bands of an image, and threads", "[conv][tiles]") {
    const Case t{.n = 2, .h = 67, .w = 65, .c = 32, .o = 16, .kernel = 3, .padding = 1};
    const Case wide{
        .n = 1, .h = 3, .w = 2000, .c = 64, .o = 16, .kernel = 3, .padding = 1};  // a row is more than a band
    const int before = cpu::num_threads();
    for (const int threads : {1, 3}) {
        cpu::set_num_threads(threads);
        check(t, 1, 1);
        check(wide, 1, 1);
    }
    cpu::set_num_threads(before);
}

TEST_CASE("tile windows: weight gradients", "[conv][tiles]") {
    check_gradient({.n = 3, .h = 4, .w = 16, .c = 64, .o = 96, .kernel = 3, .padding = 1, .groups = 2}, true);
    for (const std::int64_t n : {1, 2, 3, 8})
        check_gradient({.n = n, .h = 5, .w = 16, .c = 16, .o = 16, .kernel = 3, .padding = 1}, true);
    check_gradient({.n = 5, .h = 9, .w = 32, .c = 32, .o = 48, .kernel = 3, .stride = 2, .padding = 1}, true);
    check_gradient({.n = 2, .h = 8, .w = 8, .c = 64, .o = 64, .kernel = 3, .padding = 1}, true);
    check_gradient({.n = 2, .h = 7, .w = 29, .c = 16, .o = 32, .kernel = {2, 4}, .dilation = {2, 1}}, true);
    check_gradient({.n = 3, .h = 4, .w = 16, .c = 48, .o = 112, .kernel = {1, 3}, .padding = {0, 1}}, true);
    // Several blocks of input rows, and several parts.
    check_gradient({.n = 6, .h = 67, .w = 65, .c = 32, .o = 16, .kernel = 3, .padding = 1}, true);
    check_gradient({.n = 2, .h = 3, .w = 2000, .c = 64, .o = 16, .kernel = 3, .padding = 1}, true);
    check_gradient({.n = 1, .h = 6, .w = 128, .c = 16, .o = 512, .kernel = {1, 2}}, true);  // of the gradient
    check_gradient({.n = 40, .h = 2, .w = 16, .c = 16, .o = 16, .kernel = {1, 2}}, true);
    // Cases for which im2col copies are better.
    check_gradient({.n = 2, .h = 5, .w = 16, .c = 24, .o = 16, .kernel = 3, .padding = 1}, false);
    check_gradient({.n = 2, .h = 5, .w = 16, .c = 16, .o = 24, .kernel = 3, .padding = 1}, false);
    check_gradient({.n = 2, .h = 5, .w = 16, .c = 16, .o = 16, .kernel = 1}, false);
    check_gradient({.n = 2, .h = 5, .w = 7, .c = 16, .o = 16, .kernel = 3, .padding = 1}, false);
    check_gradient({.n = 1, .h = 2, .w = 8, .c = 128, .o = 128, .kernel = 3, .padding = 1}, false);
    check_gradient({.n = 1, .h = 1, .w = 2100, .c = 256, .o = 16, .kernel = {1, 2}}, false);  // a long row
    // Pixels outside all receptive fields may be NaN.
    check_gradient({.n = 1, .h = 2, .w = 39, .c = 16, .o = 16, .kernel = {1, 2}, .stride = {1, 3}}, false);
    check_gradient({.n = 1, .h = 5, .w = 13, .c = 16, .o = 16, .kernel = {1, 2}, .stride = {2, 1}}, false);
    check_gradient(
        {.n = 1, .h = 2, .w = 40, .c = 16, .o = 16, .kernel = {1, 2}, .stride = {1, 3}, .dilation = {1, 3}},
        false);
    check_gradient({.n = 1, .h = 1, .w = 2000, .c = 16, .o = 160, .kernel = {1, 2}},
                   false);  // of the gradient
}

TEST_CASE("tile windows: NaN of an earlier image are in no later gradient", "[conv][tiles]") {
    const auto sum_of = [](std::int64_t rows, float value) {
        const Tensor x = mezzo::full({1, rows, 13, 16}, value, {.dtype = bfloat16}),
                     g = mezzo::full({1, rows, 13, 16}, 1.0, {.dtype = bfloat16});
        WindowGradient p;
        p.windows = windows_of_input({.stride = 1, .padding = {0, 1}, .dilation = 1, .groups = 1}, {1, 3});
        p.windows.data = x->bytes(), p.windows.type = bfloat16;
        p.windows.images = 1, p.windows.height = p.windows.rows = rows;
        p.windows.width = p.windows.columns = 13;
        p.windows.pixel = p.windows.channels = 16;
        p.gradient = g->bytes(), p.gradient_type = bfloat16, p.outputs = 16;
        std::vector<float> sums(16 * 3 * 16);
        add_window_gradient_on_tiles(p, tile_model_kernels().tiles->bf16, sums.data(), false);
        return std::accumulate(sums.begin(), sums.end(), 0.0);
    };
    const int before = cpu::num_threads();
    cpu::set_num_threads(1);
    CHECK(std::isnan(sum_of(9, std::numeric_limits<float>::quiet_NaN())));
    CHECK(sum_of(2, 1.0f) == 2 * (13 + 2 * 12) * 16 * 16);
    cpu::set_num_threads(before);
}
