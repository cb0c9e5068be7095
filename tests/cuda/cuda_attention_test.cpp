// The CUDA attention kernels, with and without Tensor Cores, against plain loops in float64: on a GPU, or on
// the emulated device.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>

#include "core/philox.h"
#include "mezzo/autograd.h"
#include "tests/cuda/mma_kernels.h"
#include "tests/support/kernels.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using test::Domain;

const Device device{DeviceType::cuda};

struct Flash {
    explicit Flash(bool on) { set_flash_attention(on); }
    Flash(const Flash&) = delete;
    Flash& operator=(const Flash&) = delete;
    ~Flash() { set_flash_attention(before); }
    const FastPath before = flash_attention();
};

// Keys that a query may look at, besides causality. none: all; padding: all but the last keys of the second
// batch entry; holes: a pattern that hides all keys from every fourth query.
enum class Look { none, padding, holes };
// packed: q, k and v are slices of one tensor [batch, length, 3, heads, dim], if the lengths agree;
// heads_first: [batch, heads, length, dim]; shifted: one element away from any alignment.
enum class HeadLayout { contiguous, packed, heads_first, shifted };

struct Case {
    std::int64_t query, key, dim;
    Dtype dtype = bfloat16;
    bool causal = false;
    Look look = Look::none;
    double dropout = 0;
    HeadLayout layout = HeadLayout::contiguous;
    std::int64_t batch = 2, heads = 2;

    Shape queries() const { return {batch, query, heads, dim}; }
    Shape keys() const { return {batch, key, heads, dim}; }
    bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
        if (causal && j > i + key - query) return false;
        if (look == Look::padding) return b == 0 || j < (key + 1) / 2;
        return look == Look::none || (i % 4 != 3 && (3 * i + 5 * j + h) % 7 != 0);
    }
    kernels::ScaledDotProductAttention attributes() const {
        return {
            .scale = 1 / std::sqrt(double(dim)), .causal = causal, .dropout_p = dropout, .stream = {77, 5}};
    }
    // Dropout's factor of a weight: 0, or 1 / (1 - p).
    double kept(std::int64_t bh, std::int64_t i, std::int64_t j) const {
        const auto element = std::uint64_t((bh * query + i) * key + j);
        const PhiloxWords words = philox(77, 5 + element / 8);
        if (philox_half(words, int(element % 8)) < std::uint32_t(std::lround(dropout * 65536))) return 0;
        return 1 / (1 - dropout);
    }
};

using Values = std::vector<double>;
struct Expected {
    Values y, largest, sum, dq, dk, dv;  // largest scores before the scale, and sums of exponentials
};

// Computes one head: rows of q, k, v, g are `stride` apart, from element `at` (queries) and `from` (keys) on.
void head_reference(const Case& c, std::int64_t b, std::int64_t h, const Values& q, const Values& k,
                    const Values& v, const Values& g, Expected& e) {
    const double scale = c.attributes().scale;
    const auto index = [&](std::int64_t length, std::int64_t row, std::int64_t d) {
        return std::size_t(((b * length + row) * c.heads + h) * c.dim + d);
    };
    const auto dot = [&](const Values& x, std::int64_t i, const Values& z, std::int64_t j) {
        double sum = 0;
        for (std::int64_t d = 0; d < c.dim; ++d) sum += x[index(c.query, i, d)] * z[index(c.key, j, d)];
        return sum;
    };
    const std::int64_t bh = b * c.heads + h;
    for (std::int64_t i = 0; i < c.query; ++i) {
        Values p(std::size_t(c.key), 0.0), dp(p);
        double max = -INFINITY, sum = 0, delta = 0;
        for (std::int64_t j = 0; j < c.key; ++j) {
            p[std::size_t(j)] = c.sees(b, h, i, j) ? scale * dot(q, i, k, j) : -INFINITY;
            max = std::max(max, p[std::size_t(j)]);
        }
        for (double& x : p) sum += x = max == -INFINITY ? 0 : std::exp(x - max);
        e.largest[std::size_t(bh * c.query + i)] = max / scale;
        e.sum[std::size_t(bh * c.query + i)] = sum;
        if (sum == 0) continue;
        for (std::int64_t j = 0; j < c.key; ++j) {
            const auto n = std::size_t(j);
            p[n] /= sum;
            dp[n] = c.kept(bh, i, j) * dot(g, i, v, j);
            delta += p[n] * dp[n];
        }
        for (std::int64_t j = 0; j < c.key; ++j) {
            const double weight = p[std::size_t(j)] * c.kept(bh, i, j);
            const double ds = scale * p[std::size_t(j)] * (dp[std::size_t(j)] - delta);
            for (std::int64_t d = 0; d < c.dim; ++d) {
                const std::size_t at = index(c.query, i, d), from = index(c.key, j, d);
                e.y[at] += weight * v[from];
                e.dv[from] += weight * g[at];
                e.dq[at] += ds * k[from];
                e.dk[from] += ds * q[at];
            }
        }
    }
}

Expected reference(const Case& c, const Values& q, const Values& k, const Values& v, const Values& g) {
    const Values queries(std::size_t(c.queries().numel()), 0.0), keys(std::size_t(c.keys().numel()), 0.0);
    const Values rows(std::size_t(c.batch * c.heads * c.query), 0.0);
    Expected e{queries, rows, rows, queries, keys, keys};
    for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t h = 0; h < c.heads; ++h) head_reference(c, b, h, q, k, v, g, e);
    return e;
}

Tensor on_device(const Shape& shape, Dtype dtype, std::uint64_t seed) {
    return test::tensor_of(test::random_values(shape.numel(), seed, Domain::any), shape, dtype, device);
}

// The same values with other strides; the last dimension has stride 1.
Tensor laid_out(const Tensor& x, HeadLayout layout, std::int64_t place) {
    switch (layout) {
        case HeadLayout::packed: {
            Tensors parts(3, full(x.shape(), 99.0, {.dtype = x.dtype(), .device = x.device()}));
            parts[std::size_t(place)] = x;
            return stack(parts, 2).select(2, place);
        }
        case HeadLayout::heads_first:
            return x.permute({0, 2, 1, 3}).contiguous().permute({0, 2, 1, 3});
        case HeadLayout::shifted:
            return cat({x.flatten().slice(0, 0, 1), x.flatten()})
                .slice(0, 1, x.numel() + 1)
                .reshape(x.shape());
        default:
            return x;
    }
}

// The mask as a view, with a stride of 0 in each dimension that it does not depend on.
Tensor mask_of(const Case& c) {
    if (c.look == Look::none) return {};
    const bool padding = c.look == Look::padding;
    const Shape shape{c.batch, padding ? 1 : c.heads, padding ? 1 : c.query, c.key};
    Case plain = c;
    plain.causal = false;
    std::vector<double> values;
    for (std::int64_t b = 0; b < shape[0]; ++b)
        for (std::int64_t h = 0; h < shape[1]; ++h)
            for (std::int64_t i = 0; i < shape[2]; ++i)
                for (std::int64_t j = 0; j < c.key; ++j) values.push_back(plain.sees(b, h, i, j) ? 1 : 0);
    return test::tensor_of(values, shape, boolean, device).expand({c.batch, c.heads, c.query, c.key});
}

struct Run {
    Case c;
    Tensor q, k, v, g, mask, y, largest, sum, dq, dk, dv;

    explicit Run(const Case& what) : c(what) {
        q = laid_out(on_device(c.queries(), c.dtype, 1), c.layout, 0);
        k = laid_out(on_device(c.keys(), c.dtype, 2), c.layout, 1);
        v = laid_out(on_device(c.keys(), c.dtype, 3), c.layout, 2);
        g = laid_out(on_device(c.queries(), c.dtype, 4), c.layout, 0);
        mask = mask_of(c);
        const TensorOptions like{.dtype = c.dtype, .device = device};
        y = full(c.queries(), 55.0, like);
        const TensorOptions wide{.dtype = c.dtype == float64 ? float64 : float32, .device = device};
        largest = full({c.batch, c.heads, c.query}, 55.0, wide);
        sum = full({c.batch, c.heads, c.query}, 55.0, wide);
        const Tensors in{q, k, v, mask}, out{y, largest, sum};
        test::cuda_kernel<kernels::ScaledDotProductAttention>(in, c.attributes(), out);
        backward();
    }
    void backward() {
        const TensorOptions like{.dtype = c.dtype, .device = device};
        dq = full(c.queries(), 55.0, like), dk = full(c.keys(), 55.0, like), dv = full(c.keys(), 55.0, like);
        const Tensors in{g, q, k, v, y, largest, sum, mask}, out{dq, dk, dv};
        test::cuda_kernel<kernels::ScaledDotProductAttentionGrad>(in, {.forward = c.attributes()}, out);
    }
};

// Compares relative to the greatest value: results are sums of terms that were rounded to 16 bit.
void check_close(const char* what, const Tensor& actual, const Values& expected, double slack) {
    CAPTURE(what);
    double greatest = 0;
    for (double x : expected)
        if (std::isfinite(x)) greatest = std::max(greatest, std::abs(x));
    test::Tolerance allowed = test::tolerance(actual.dtype());
    allowed.absolute *= slack * std::max(greatest, 0.25);
    CHECK(test::difference(test::doubles(actual), expected, allowed) == "");
}

void check_case(const Case& c) {
    CAPTURE(c.query, c.key, c.dim, name(c.dtype), c.causal, int(c.look), c.dropout, int(c.layout));
    const Run run(c);
    const Expected e =
        reference(c, test::doubles(run.q), test::doubles(run.k), test::doubles(run.v), test::doubles(run.g));
    check_close("y", run.y, e.y, 1);
    check_close("largest", run.largest, e.largest, 4);
    check_close("sum", run.sum, e.sum, 4);
    check_close("dq", run.dq, e.dq, 2);
    check_close("dk", run.dk, e.dk, 2);
    check_close("dv", run.dv, e.dv, 2);
}

bool same_bits(const Tensor& a, const Tensor& b) { return test::doubles(a) == test::doubles(b); }

}  // namespace

TEST_CASE("cuda attention: plain kernels, every dtype and dim", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype dtype : {float32, float64, float16, bfloat16}) {
        check_case({.query = 5, .key = 16, .dim = 40, .dtype = dtype});
        check_case(
            {.query = 33, .key = 7, .dim = 3, .dtype = dtype, .causal = true, .layout = HeadLayout::shifted});
    }
    check_case({.query = 1, .key = 1, .dim = 64, .dtype = float32});
    check_case({.query = 37, .key = 65, .dim = 200, .dtype = float32, .look = Look::holes, .dropout = 0.2});
    check_case({.query = 34, .key = 40, .dim = 130, .dtype = float64, .causal = true, .dropout = 0.3});
    check_case({.query = 40,
                .key = 40,
                .dim = 64,
                .dtype = float32,
                .look = Look::padding,
                .layout = HeadLayout::packed});
    check_case({.query = 16,
                .key = 9,
                .dim = 32,
                .dtype = float16,
                .look = Look::holes,
                .layout = HeadLayout::shifted});
}

TEST_CASE("cuda attention: no key gives zeros", "[cuda]") {
    if (test::no_device()) return;
    for (bool on : {false, true}) {
        const Flash flash(on);
        const Run run(Case{.query = 3, .key = 0, .dim = 64});
        CHECK(test::doubles(run.y) == Values(std::size_t(run.y.numel()), 0.0));
        CHECK(test::doubles(run.largest) == Values(std::size_t(run.largest.numel()), -INFINITY));
        CHECK(test::doubles(run.sum) == Values(std::size_t(run.sum.numel()), 0));
        CHECK(test::doubles(run.dq) == Values(std::size_t(run.dq.numel()), 0.0));
    }
}

// More tiles than the emulated grid has blocks, so that a block goes on to a second tile.
TEST_CASE("cuda attention: small, plain kernels", "[cuda]") {
    if (test::no_device()) return;
    check_case({.query = 3, .key = 9, .dim = 33, .dtype = float32, .look = Look::holes, .dropout = 0.25});
    check_case({.query = 9, .key = 5, .dim = 8, .causal = true});
}

TEST_CASE("cuda attention: small, Tensor Cores", "[cuda]") {
    if (test::no_device()) return;
    const Flash flash(true);
    check_case({.query = 1, .key = 1, .dim = 32, .dtype = float16});
    check_case({.query = 5, .key = 70, .dim = 32, .look = Look::holes, .dropout = 0.25});
    check_case({.query = 40, .key = 5, .dim = 32, .dtype = float16, .causal = true, .dropout = 0.25});
    check_case({.query = 5, .key = 129, .dim = 32, .causal = true, .batch = 1, .heads = 1});
}

TEST_CASE("cuda attention: Tensor Cores, one tile", "[cuda]") {
    if (test::no_device()) return;
    const Flash flash(true);
    for (std::int64_t dim : {64, 128}) {
        check_case({.query = 1, .key = 1, .dim = dim, .dtype = float16, .batch = 1});
        check_case({.query = 5, .key = 16, .dim = dim, .look = Look::holes, .dropout = 0.25, .batch = 1});
        check_case({.query = 16,
                    .key = 5,
                    .dim = dim,
                    .dtype = float16,
                    .causal = true,
                    .dropout = 0.25,
                    .heads = 1});
    }
}

TEST_CASE("cuda attention: Tensor Cores, several tiles", "[cuda]") {
    if (test::no_device()) return;
    const Flash flash(true);
    for (Dtype dtype : {float16, bfloat16})
        for (std::int64_t dim : {32, 64, 128}) {
            check_case({.query = 65, .key = 130, .dim = dim, .dtype = dtype, .batch = 1, .heads = 3});
            check_case({.query = 130,
                        .key = 65,
                        .dim = dim,
                        .dtype = dtype,
                        .causal = true,
                        .dropout = 0.1,
                        .layout = HeadLayout::heads_first,
                        .batch = 1,
                        .heads = 1});
            check_case({.query = 64,
                        .key = 64,
                        .dim = dim,
                        .dtype = dtype,
                        .look = Look::padding,
                        .dropout = 0.5,
                        .layout = HeadLayout::packed,
                        .heads = 1});
        }
    check_case(
        {.query = 130, .key = 130, .dim = 64, .causal = true, .look = Look::holes, .batch = 1, .heads = 4});
    check_case(
        {.query = 70, .key = 300, .dim = 128, .causal = true, .batch = 1, .heads = 1});  // keys no query sees
}

TEST_CASE("cuda attention: a query with nothing to look at", "[cuda]") {
    if (test::no_device()) return;
    for (bool on : {false, true}) {
        const Flash flash(on);
        const Case c{.query = 20, .key = 24, .dim = 32, .look = Look::holes, .batch = 1, .heads = 1};
        const Run run(c);
        const Values y = test::doubles(run.y), dq = test::doubles(run.dq),
                     largest = test::doubles(run.largest);
        for (std::int64_t i = 3; i < c.query; i += 4) {
            CHECK(largest[std::size_t(i)] == -INFINITY);
            for (std::int64_t d = 0; d < c.dim; ++d) {
                CHECK(y[std::size_t(i * c.dim + d)] == 0);
                CHECK(dq[std::size_t(i * c.dim + d)] == 0);
            }
        }
    }
}

TEST_CASE("cuda attention: what Tensor Cores take, and the same bits every time", "[cuda]") {
    if (test::no_device()) return;
    const auto changes = [](const Case& c) {
        const Flash none(false);
        const Run plain(c);
        const Flash flash(true);
        Run run(c);
        const Tensor dq = run.dq, dk = run.dk, dv = run.dv;
        run.backward();
        CHECK((same_bits(run.dq, dq) && same_bits(run.dk, dk) && same_bits(run.dv, dv)));
        const bool changed = !same_bits(plain.y, run.y);
        CHECK(changed != (same_bits(plain.dq, run.dq) && same_bits(plain.dk, run.dk)));
        return changed;
    };
    CHECK(changes({.query = 40, .key = 40, .dim = 64, .dtype = float16, .layout = HeadLayout::packed}));
    CHECK(changes({.query = 40, .key = 40, .dim = 64, .layout = HeadLayout::packed}) ==
          test::multiplies(bfloat16));
    CHECK_FALSE(changes({.query = 40, .key = 40, .dim = 40}));
    CHECK_FALSE(changes({.query = 40, .key = 40, .dim = 64, .layout = HeadLayout::shifted}));
    CHECK_FALSE(changes({.query = 40, .key = 40, .dim = 64, .dtype = float32}));
}

TEST_CASE("cuda attention: through the public function, like its decomposition on the CPU", "[cuda]") {
    if (test::no_device()) return;
    const Shape shape{2, 2, 24, 64};
    for (bool on : {false, true}) {
        const Flash flash(on);
        std::vector<Values> results[2];
        for (const Device& where : {cpu_device, device}) {
            std::optional<test::ByDecomposition> reference;
            if (where == cpu_device) reference.emplace();
            manual_seed(11);
            Tensors x;
            for (std::uint64_t i = 0; i < 3; ++i) {
                x.push_back(test::tensor_of(test::random_values(shape.numel(), i, Domain::any), shape,
                                            float16, where));
                x.back().set_requires_grad();
            }
            const Tensor y =
                scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true, .dropout_p = 0.2});
            autograd::backward({y}, {.grad_outputs = {ones(shape, {.dtype = float16, .device = where})}});
            auto& values = results[where == device];
            values = {test::doubles(y)};
            for (const Tensor& t : x) values.push_back(test::doubles(t.grad()));
        }
        for (std::size_t i = 0; i < results[0].size(); ++i) {
            CAPTURE(i, on);
            CHECK(test::difference(results[1][i], results[0][i], {4e-3, 4e-3}) == "");
        }
    }
}
