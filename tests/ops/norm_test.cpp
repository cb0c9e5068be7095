// layer_norm, rms_norm and dropout_add_layer_norm beyond their cases in op_cases: row lengths of every code
// path, means far from 0, mixed dtypes, the dropout's mask, and sums that no number of threads changes.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Values = std::vector<double>;

// y and the gradients of <y, g> in double, by definition: y = (x - mean) / sqrt(var + eps) w + b.
struct Reference {
    Values y, dx, dw, db;
    Reference(const Values& x, const Values& w, const Values& b, const Values& g, double eps, bool centred) {
        const std::size_t cols = w.size(), rows = x.size() / cols;
        y.resize(x.size());
        dx.resize(x.size());
        dw.resize(cols);
        db.resize(cols);
        for (std::size_t r = 0; r < rows; ++r) {
            const double *xr = &x[r * cols], *gr = &g[r * cols];
            double mean = 0, var = 0, along = 0, offset = 0;
            for (std::size_t j = 0; centred && j < cols; ++j) mean += xr[j] / double(cols);
            for (std::size_t j = 0; j < cols; ++j) var += (xr[j] - mean) * (xr[j] - mean) / double(cols);
            const double rstd = 1 / std::sqrt(var + eps);
            for (std::size_t j = 0; j < cols; ++j) {
                const double h = (xr[j] - mean) * rstd;
                y[r * cols + j] = h * w[j] + b[j];
                dw[j] += gr[j] * h;
                db[j] += gr[j];
                along += gr[j] * w[j] * h / double(cols);
                if (centred) offset += gr[j] * w[j] / double(cols);
            }
            for (std::size_t j = 0; j < cols; ++j) {
                const double h = (xr[j] - mean) * rstd;
                dx[r * cols + j] = rstd * (gr[j] * w[j] - offset - h * along);
            }
        }
    }
};

struct Given {
    Tensor x, w, b, g;
    Given(std::int64_t rows, std::int64_t cols, Dtype x_dtype, Dtype w_dtype, Device device)
        : x(tensor_of(random_values(rows * cols, 1, Domain::any), {rows, cols}, x_dtype, device)),
          w(tensor_of(random_values(cols, 2, Domain::positive), {cols}, w_dtype, device)),
          b(tensor_of(random_values(cols, 3, Domain::any), {cols}, w_dtype, device)),
          g(tensor_of(random_values(rows * cols, 4, Domain::unit), {rows, cols}, x_dtype, device)) {
        for (Tensor* t : {&x, &w, &b}) t->set_requires_grad();
    }
    Reference reference(double eps, bool centred) const {
        Values bias = doubles(b);
        if (!centred) bias.assign(bias.size(), 0);
        return {doubles(x), doubles(w), bias, doubles(g), eps, centred};
    }
};

// Allowed difference of sums of `terms` values.
Tolerance of_sums(Dtype dtype, double terms) {
    Tolerance t = tolerance(dtype);
    t.absolute = t.relative * std::sqrt(terms) * 4;
    return t;
}

void check_norm(std::int64_t rows, std::int64_t cols, Dtype x_dtype, Dtype w_dtype, Device device,
                bool centred, double eps = 1e-5) {
    CAPTURE(rows, cols, name(x_dtype), name(w_dtype), name(device.type()), centred, eps);
    const Given t(rows, cols, x_dtype, w_dtype, device);
    const Tensor y = centred ? layer_norm(t.x, t.w, t.b, eps) : rms_norm(t.x, t.w, eps);
    autograd::backward({y}, {.grad_outputs = {t.g}});
    const Reference r = t.reference(eps, centred);
    const bool wide = w_dtype == float64 && x_dtype != float64;  // computed in float32
    const Tolerance each = of_sums(x_dtype, 4), columns = of_sums(wide ? float32 : w_dtype, double(rows));
    CHECK(difference(doubles(y), r.y, each) == "");
    CHECK(difference(doubles(t.x.grad()), r.dx, each) == "");
    CHECK(difference(doubles(t.w.grad()), r.dw, columns) == "");
    if (centred) CHECK(difference(doubles(t.b.grad()), r.db, columns) == "");
    NoGrad plain;  // no statistics are asked for
    CHECK(doubles(centred ? layer_norm(t.x, t.w, t.b, eps) : rms_norm(t.x, t.w, eps)) == doubles(y));
}

}  // namespace

TEST_CASE("norms of rows of every length agree with their definition", "[ops][norm]") {
    for (Device device : devices())
        for (bool centred : {true, false}) {
            for (std::int64_t cols : {1, 7, 64, 384, 516, 768, 1000, 1536, 30522})
                check_norm(cols > 2000 ? 2 : 37, cols, float32, float32, device, centred, 1e-3);
            for (Dtype dtype : {float16, bfloat16, float64}) {
                check_norm(19, 384, dtype, dtype, device, centred);
                check_norm(19, 768, dtype, dtype, device, centred);
                check_norm(19, 1536, dtype, float32, device, centred);
                check_norm(9, 50, dtype, float64, device, centred);
            }
            check_norm(300, 12, float32, float16, device, centred);
            check_norm(1100, 12, float32, float32, device, centred, 1e-3);  // parts of 132 multiprocessors
        }
}

TEST_CASE("norms of no rows and of rows without elements", "[ops][norm]") {
    for (Device device : devices())
        for (const Shape& shape : {Shape{0, 8}, Shape{3, 0}, Shape{0, 0}}) {
            const Tensor x = zeros(shape, {.device = device, .requires_grad = true});
            const Tensor w = ones({shape[1]}, {.device = device, .requires_grad = true});
            const Tensor y =
                layer_norm(x, w, w) + rms_norm(x, w) + dropout_add_layer_norm(x, w, x, w, w, {.p = 0.5});
            CHECK(y.shape() == shape);
            autograd::backward({y}, {.grad_outputs = {ones_like(y)}});
            CHECK(x.grad().shape() == shape);
            CHECK(doubles(w.grad()) == Values(std::size_t(shape[1]), 0));
        }
}

TEST_CASE("a mean far from 0 costs no digits of the normalised row", "[ops][norm]") {
    for (Device device : devices())
        for (std::int64_t cols : {64, 384, 1000, 1500, 1536}) {
            CAPTURE(name(device.type()), cols);
            Values x = random_values(3 * cols, 5, Domain::any);
            for (double& v : x) v = double(float(20000 + v));
            const Values unit(std::size_t(cols), 1), zero(std::size_t(cols), 0);
            const Reference r(x, unit, zero, Values(x.size(), 1), 1e-5, true);
            const Tensor input = tensor_of(x, {3, cols}, float32, device);
            CHECK(difference(doubles(layer_norm(input)), r.y, {2e-5, 1e-5}) == "");
            CHECK(difference(doubles(dropout_add_layer_norm(zeros_like(input), {}, input, {}, {})), r.y,
                             {2e-5, 1e-5}) == "");
        }
}

TEST_CASE("weight gradients are the same bits on any number of threads", "[ops][norm]") {
    const int threads = num_threads();
    for (std::int64_t cols : {20, 384, 3000}) {
        std::vector<Values> seen;
        for (int n : {1, 2, 5}) {
            set_num_threads(n);
            const Given t(700, cols, float32, float32, cpu_device);
            const Tensor x_bias = zeros({cols}, {.requires_grad = true});
            manual_seed(4);
            const Tensor y =
                layer_norm(t.x, t.w, t.b) + dropout_add_layer_norm(t.x, x_bias, t.x, t.w, t.b, {.p = 0.2});
            autograd::backward({y}, {.grad_outputs = {t.g}});
            Values all = doubles(cat({t.w.grad(), t.b.grad(), x_bias.grad(), t.x.grad().flatten()}));
            seen.push_back(all);
        }
        CHECK(seen[0] == seen[1]);
        CHECK(seen[0] == seen[2]);
    }
    set_num_threads(threads);
}

TEST_CASE("dropout_add_layer_norm drops what dropout drops and agrees with the ops it is made of",
          "[ops][norm]") {
    for (Device device : devices())
        for (std::int64_t cols : {5, 12, 384, 1000, 1300, 1536})
            for (Dtype dtype : {float32, float16, float64}) {
                CAPTURE(name(device.type()), cols, name(dtype));
                const std::int64_t rows = 11;
                const Given t(rows, cols, dtype, float32, device);
                const Tensor residual = tensor_of(random_values(rows * cols, 6, Domain::any), {rows, cols},
                                                  dtype == float16 ? float32 : dtype, device);
                const Tensor x_bias = tensor_of(random_values(cols, 7, Domain::any), {cols}, dtype, device);
                const Tensors leaves{t.x, x_bias, residual, t.w, t.b};
                for (const Tensor& leaf : leaves) Tensor(leaf).set_requires_grad();
                const Tensor g = t.g.to(residual.dtype());
                manual_seed(21);
                const Tensor fused = dropout_add_layer_norm(t.x, x_bias, residual, t.w, t.b, {.p = 0.3});
                const Tensors actual = autograd::grad({fused}, leaves, {.grad_outputs = {g}});
                manual_seed(21);
                const Tensor mask =
                    dropout(ones({rows, cols}, {.dtype = residual.dtype(), .device = device}), 0.3);
                const Tensor composed =
                    layer_norm((t.x.to(residual.dtype()) + x_bias) * mask + residual, t.w, t.b);
                const Tensors wanted = autograd::grad({composed}, leaves, {.grad_outputs = {g}});
                CHECK(fused.dtype() == residual.dtype());
                CHECK(difference(doubles(fused), doubles(composed), {1e-5, 1e-5}) == "");
                for (std::size_t i = 0; i < leaves.size(); ++i) {
                    CHECK(actual[i].dtype() == leaves[i].dtype());
                    const Dtype rounded = i < 2 ? dtype : residual.dtype();
                    CHECK(difference(doubles(actual[i]), doubles(wanted[i]), of_sums(rounded, rows)) == "");
                }
                const Values kept = doubles(mask), dx = doubles(actual[0]);
                int disagreements = 0;
                for (std::size_t i = 0; i < kept.size(); ++i) disagreements += (kept[i] == 0) != (dx[i] == 0);
                CHECK(disagreements <= 1);  // a gradient that rounds to 0 on its own
            }
}

TEST_CASE("dropout_add_layer_norm: outside training, without dropout, and on itself", "[ops][norm]") {
    for (Device device : devices()) {
        const Given t(6, 8, float32, float32, device);
        const Tensor plain = layer_norm(t.x + t.x, t.w, t.b);
        for (const DropoutAddLayerNormOptions& options :
             {DropoutAddLayerNormOptions{}, DropoutAddLayerNormOptions{.p = 0.9, .training = false}}) {
            const Tensor y = dropout_add_layer_norm(t.x, {}, t.x, t.w, t.b, options);
            CHECK(difference(doubles(y), doubles(plain), {1e-6, 1e-6}) == "");
            const Tensors actual = autograd::grad({y}, {t.x, t.w}, {.grad_outputs = {t.g}});
            const Tensors wanted =
                autograd::grad({plain}, {t.x, t.w}, {.grad_outputs = {t.g}, .retain_graph = true});
            for (int i : {0, 1})
                CHECK(difference(doubles(actual[std::size_t(i)]), doubles(wanted[std::size_t(i)]),
                                 {1e-5, 1e-5}) == "");
        }
    }
}

TEST_CASE("norms under autocast read 16-bit rows beside float32 weights", "[ops][norm][autocast]") {
    for (Device device : devices())
        for (Dtype scope : {float16, bfloat16}) {
            CAPTURE(name(device.type()), name(scope));
            const Given t(13, 384, scope, float32, device);
            const Tensor residual =
                tensor_of(random_values(13 * 384, 8, Domain::any), {13, 384}, float32, device);
            const Values sum = doubles(t.x.detach().to(float32) + residual);
            const Reference r(sum, doubles(t.w), doubles(t.b), doubles(t.g), 1e-5, true);
            amp::Autocast open({.device = device.type(), .dtype = scope});
            const Tensor y = dropout_add_layer_norm(t.x, {}, residual, t.w, t.b);
            CHECK(y.dtype() == float32);
            CHECK(difference(doubles(y), r.y, of_sums(float32, 4)) == "");
            autograd::backward({y}, {.grad_outputs = {t.g.to(float32)}});
            CHECK(t.x.grad().dtype() == scope);
            CHECK(difference(doubles(t.x.grad()), r.dx, of_sums(scope, 1)) == "");
            CHECK(difference(doubles(t.w.grad()), r.dw, of_sums(float32, 13)) == "");
        }
}
