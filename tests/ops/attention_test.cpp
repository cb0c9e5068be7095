// scaled_dot_product_attention beyond the cases of op_cases.cpp: blocks, masks, dropout, strides, memory,
// threads, every instruction set. References are the decomposition in float64.
#include <catch2/catch.hpp>

#include <cmath>

#include "autograd/op.h"
#include "cpu/isa/isa.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

struct Sizes {
    std::int64_t batch, heads, query, key, dim;
};

enum class MaskKind { none, padding, gaps, full, hidden_rows };

// Values of about unit variance, so that the weights differ.
Tensor random_tensor(const Shape& shape, std::uint64_t seed, Dtype dtype = float32) {
    return tensor_of(random_values(shape.numel(), seed, Domain::any), shape, dtype);
}

// Mask that is true where may_look(b, h, i, j); a dimension that the kind does not depend on has size 1.
Tensor mask_of(MaskKind kind, const Sizes& s) {
    if (kind == MaskKind::none) return {};
    const bool by_key = kind == MaskKind::padding || kind == MaskKind::gaps;
    const Shape shape = by_key ? Shape{s.batch, 1, 1, s.key} : Shape{s.batch, s.heads, s.query, s.key};
    std::vector<double> values = random_values(shape.numel(), 77, Domain::unit);
    for (std::size_t n = 0; n < values.size(); ++n) {
        const std::int64_t j = std::int64_t(n) % s.key, i = std::int64_t(n) / s.key % s.query;
        const std::int64_t b = std::int64_t(n) / (shape.numel() / s.batch);
        // Padding ends at another key in each batch item; the last item may be all padding.
        const bool inside = j >= b % 2 && j < s.key - (b * s.key + 1) / 2;
        if (kind == MaskKind::padding) values[n] = inside;
        if (kind == MaskKind::gaps) values[n] = inside && values[n] > 0.3;
        if (kind == MaskKind::full) values[n] = values[n] > 0.5;
        if (kind == MaskKind::hidden_rows) values[n] = i % 3 != 1 && values[n] > 0.3;
    }
    return gt(Tensor::from(values, shape), 0.0);
}

// y and the gradients of q, k, v for an incoming gradient g.
struct Results {
    Tensor y, dq, dk, dv;
};
Results run(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
            const AttentionOptions& options) {
    const Tensors leaves{alias(q).set_requires_grad(), alias(k).set_requires_grad(),
                         alias(v).set_requires_grad()};
    const Tensor y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options);
    const Tensors grads = autograd::grad({y}, leaves, {.grad_outputs = {g}});
    return {y.detach(), grads[0], grads[1], grads[2]};
}

Results reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                  const AttentionOptions& options) {
    ByDecomposition composed;
    return run(q.to(float64), k.to(float64), v.to(float64), g.to(float64), options);
}

double magnitude(const Tensor& x) { return x.numel() == 0 ? 0 : max(abs(x)).item<double>(); }

// Errors are measured against the largest value, because sums over many keys cancel.
std::string differences(const Results& actual, const Results& wanted, double allowed) {
    const auto compare = [&](const char* what, const Tensor& a, const Tensor& w) -> std::string {
        if (a.shape() != w.shape()) return std::string(what) + " has another shape";
        const std::string text =
            difference(doubles(a), doubles(w), {allowed, allowed * (magnitude(w) + 0.1)});
        return text.empty() ? text : what + (": " + text + "\n");
    };
    return compare("y", actual.y, wanted.y) + compare("dq", actual.dq, wanted.dq) +
           compare("dk", actual.dk, wanted.dk) + compare("dv", actual.dv, wanted.dv);
}

std::string check_case(const Sizes& s, const AttentionOptions& options, Dtype dtype = float32,
                       double allowed = 2e-5) {
    const Shape queries{s.batch, s.heads, s.query, s.dim}, keys{s.batch, s.heads, s.key, s.dim};
    const Tensor q = random_tensor(queries, 1, dtype), k = random_tensor(keys, 2, dtype),
                 v = random_tensor(keys, 3, dtype), g = random_tensor(queries, 4, dtype);
    const RandomState before = random_state();
    const Results actual = run(q, k, v, g, options);
    set_random_state(before);
    return differences(actual, reference(q, k, v, g, options), allowed);
}

struct Isas {  // runs a body with every instruction set of this processor, and restores the best
    ~Isas() { cpu::release_isa(); }
    template <class F> void each(const F& body) {
        for (const cpu::Isa isa : cpu::all_isas) {
            if (isa > cpu::best_isa()) continue;
            cpu::force_isa(isa);
            CAPTURE(cpu::name(isa));
            body();
        }
    }
};

struct Threads {
    int before = num_threads();
    ~Threads() { set_num_threads(before); }
};

// Result that the forward saves for the gradient of y: largest scores (1) or sums (2).
Tensor kept(const Tensor& y, std::size_t result) {
    const Ref<Node> view = y->grad_meta->node;
    return view->edges[0].node->saved_outputs[result];
}

}  // namespace

TEST_CASE("attention of any lengths and dims", "[ops][attention]") {
    const std::vector<Sizes> sizes = {
        {2, 3, 1, 1, 8},      {1, 2, 3, 17, 1},      {2, 1, 17, 3, 32},   {1, 3, 64, 64, 64},
        {1, 1, 100, 513, 80}, {1, 1, 513, 100, 128}, {2, 1, 64, 100, 32}, {1, 1, 5, 70, 256},
        {1, 2, 0, 5, 8},      {0, 2, 5, 5, 8},       {1, 1, 33, 31, 0},
    };
    Isas isas;
    for (const Sizes& s : sizes) {
        CAPTURE(s.batch, s.heads, s.query, s.key, s.dim);
        isas.each([&] { CHECK(check_case(s, {}) == ""); });
        CHECK(check_case(s, {.causal = true}) == "");
        CHECK(check_case(s, {.scale = 0.7}, float64, 1e-10) == "");
    }
}

TEST_CASE("attention with masks", "[ops][attention]") {
    Isas isas;
    for (const Sizes& s :
         {Sizes{3, 2, 17, 17, 8}, {2, 2, 64, 64, 32}, {2, 1, 100, 513, 16}, {2, 1, 300, 290, 8}})
        for (const MaskKind kind :
             {MaskKind::none, MaskKind::padding, MaskKind::gaps, MaskKind::full, MaskKind::hidden_rows})
            for (const bool causal : {false, true}) {
                CAPTURE(s.query, s.key, int(kind), causal);
                const AttentionOptions options{.mask = mask_of(kind, s), .causal = causal};
                isas.each([&] { CHECK(check_case(s, options) == ""); });
                if (s.query < 100) CHECK(check_case(s, options, float64, 1e-10) == "");
            }
}

TEST_CASE("attention in 16 bit computes in float32", "[ops][attention]") {
    const Sizes s{2, 2, 70, 90, 32};
    const AttentionOptions options{.mask = mask_of(MaskKind::gaps, s)};
    CHECK(check_case(s, options, float16, 2e-3) == "");
    CHECK(check_case(s, options, bfloat16, 1.6e-2) == "");
}

TEST_CASE("attention: a query that may look at nothing gives 0", "[ops][attention]") {
    for (const Dtype dtype : {float32, float64}) {
        const Tensor x = random_tensor({1, 2, 5, 8}, 1, dtype);
        const Tensor nothing = zeros({5, 5}, {.dtype = boolean});
        const Results r = run(x, x, x, x, {.mask = nothing});
        for (const Tensor& t : {r.y, r.dq, r.dk, r.dv}) CHECK(magnitude(t) == 0);
        const Tensor q = alias(x).set_requires_grad();
        const Tensor y = scaled_dot_product_attention(q, x, x, {.mask = nothing});
        CHECK(doubles(kept(y, 1)) == std::vector<double>(10, -INFINITY));
        CHECK(doubles(kept(y, 2)) == std::vector<double>(10, 0));
        const Tensor no_keys = zeros({1, 2, 0, 8}, {.dtype = dtype});
        const Results none = run(x, no_keys, no_keys, x, {});
        for (const Tensor& t : {none.y, none.dq}) CHECK(magnitude(t) == 0);
        CHECK(none.dk.shape() == no_keys.shape());
    }
}

TEST_CASE("attention keeps the largest score and the sum of exponentials", "[ops][attention]") {
    const Sizes s{2, 3, 40, 300, 16};
    const Tensor q = random_tensor({2, 3, 40, 16}, 1), k = random_tensor({2, 3, 300, 16}, 2);
    const Tensor mask = mask_of(MaskKind::full, s);
    const Tensor scores = matmul(q.to(float64), k.to(float64).transpose(-2, -1)) * 0.5;
    const Tensor hidden = masked_fill(scores, logical_not(mask), -INFINITY);
    const Tensor wanted = log(sum(exp(hidden), {-1}));
    Isas isas;
    isas.each([&] {
        const Tensor y =
            scaled_dot_product_attention(alias(q).set_requires_grad(), k, k, {.mask = mask, .scale = 0.5});
        const Tensor largest = kept(y, 1), total = kept(y, 2);
        for (const Tensor& t : {largest, total}) {
            CHECK(t.shape() == Shape{2, 3, 40});
            CHECK(t.dtype() == float32);
        }
        CHECK(difference(doubles(largest), doubles(max(hidden, {-1}) * 2.0), {1e-6, 1e-5}) == "");
        const Tensor lse = largest.to(float64) * 0.5 + log(total.to(float64));
        CHECK(difference(doubles(lse), doubles(wanted), {1e-6, 1e-5}) == "");
    });
}

TEST_CASE("attention of large scores does not overflow", "[ops][attention]") {
    const Tensor q = random_tensor({1, 1, 20, 16}, 1), k = random_tensor({1, 1, 300, 16}, 2);
    // Scores of up to 1e4 in float32 have errors of up to 1e-3, and so have the weights.
    for (const double scale : {400.0, 1000.0}) {
        const AttentionOptions options{.scale = scale};
        const Results actual = run(q, k, k, q, options);
        for (const Tensor& t : {actual.y, actual.dq, actual.dk, actual.dv})
            CHECK(sum(logical_not(isfinite(t)).to(int64)).item<std::int64_t>() == 0);
        const Results wanted = reference(q, k, k, q, options);
        CHECK(difference(doubles(actual.y), doubles(wanted.y), {1e-2, 1e-2}) == "");
        CHECK(difference(doubles(actual.dv), doubles(wanted.dv), {1e-2, 1e-2}) == "");
    }
    // Equal scores are equal weights, however large.
    for (const double value : {1e4, 1e15}) {
        const Tensor huge = full({1, 1, 300, 16}, value);
        const Results equal = run(huge, huge, k, k, {}), zero = run(huge * 0.0, huge, k, k, {});
        CHECK(difference(doubles(equal.y), doubles(zero.y), {1e-5, 1e-6}) == "");
        CHECK(sum(logical_not(isfinite(equal.dv)).to(int64)).item<std::int64_t>() == 0);
    }
}

TEST_CASE("attention does not read keys behind the last that anyone may look at", "[ops][attention]") {
    Tensor k = random_tensor({1, 2, 70, 8}, 2), v = random_tensor({1, 2, 70, 8}, 3);
    const Tensor q = random_tensor({1, 2, 40, 8}, 1);
    std::vector<double> seen(70, 0.0);
    for (std::size_t j = 0; j < 37; ++j) seen[j] = 1;
    const Tensor mask = gt(Tensor::from(seen, {1, 1, 1, 70}), 0.0);
    const Results clean = run(q, k, v, q, {.mask = mask});
    k.slice(2, 37, 70).fill_(NAN);
    v.slice(2, 37, 70).fill_(NAN);
    const Results same = run(q, k, v, q, {.mask = mask});
    CHECK(doubles(same.y) == doubles(clean.y));
    CHECK(doubles(same.dq) == doubles(clean.dq));
    CHECK(doubles(same.dk) == doubles(clean.dk));
    CHECK(magnitude(same.dv.slice(2, 37, 70)) == 0);
}

namespace {

// Turns the optimized CUDA kernels on, for the dtypes and dims that have such kernels.
struct Flash {
    Flash() { set_flash_attention(true); }
    Flash(const Flash&) = delete;
    Flash& operator=(const Flash&) = delete;
    ~Flash() { set_flash_attention(before); }
    const FastPath before = flash_attention();
};

Tolerance close(Dtype dtype) { return is_16bit(dtype) ? Tolerance{2e-2, 2e-2} : Tolerance{1e-5, 1e-5}; }

// Values of hidden keys: NaN, infinities, and the largest number.
std::vector<double> bad_values(Dtype dtype) {
    if (is_16bit(dtype)) return {double(NAN), -double(INFINITY), dtype == float16 ? 65504.0 : 3.3e38};
    return {double(NAN), double(INFINITY), -double(INFINITY), dtype == float32 ? 3.3e38 : 1.7e308};
}

}  // namespace

TEST_CASE("attention does not read keys and values that a query may not look at", "[ops][attention]") {
    const Flash flash;
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float64, float16, bfloat16})
            for (const double bad : bad_values(dtype))
                for (const int kind :
                     {0, 1, 2, 3, 4}) {  // left padding, a gap, both as -inf, per query, causal
                    CAPTURE(device, dtype, bad, kind);
                    const std::int64_t n = 40, hidden = kind == 0 ? 0 : kind == 4 ? n - 1 : 17;
                    std::vector<double> look(std::size_t(n * n), 1.0);
                    for (std::int64_t i = 0; i < n; ++i)
                        if (kind != 3 || i % 2 == 0) look[std::size_t(i * n + hidden)] = 0;
                    const std::int64_t rows = kind == 3 ? n : 1;
                    look.resize(std::size_t(rows * n));
                    Tensor mask = gt(Tensor::from(look, {1, 1, rows, n}), 0.0).to(device);
                    if (kind == 2)
                        mask = masked_fill(zeros({1, 1, 1, n}), logical_not(mask.to(cpu_device)), -INFINITY)
                                   .to(device);
                    const AttentionOptions options{.mask = kind == 4 ? Tensor() : mask, .causal = kind == 4};
                    const auto leaf = [&](std::uint64_t seed) {
                        return random_tensor({1, 2, n, 32}, seed, dtype).to(device).set_requires_grad();
                    };
                    // Leaves out queries that may look at the key. dk and dv are compared if no query may.
                    const auto blind = [&](const Tensor& x) {
                        if (kind == 4) return x.slice(2, 0, n - 1);
                        return kind == 3 ? x.reshape({1, 2, n / 2, 2, 32}).select(3, 0) : x;
                    };
                    Tensor y[2], dq[2], dk[2], dv[2];
                    for (const int with : {0, 1}) {
                        const Tensor q = leaf(1), k = leaf(2), v = leaf(3);
                        if (with == 1) {
                            NoGrad plain;
                            k.slice(2, hidden, hidden + 1).fill_(bad);
                            v.slice(2, hidden, hidden + 1).fill_(bad);
                        }
                        y[with] = blind(scaled_dot_product_attention(q, k, v, options));
                        sum(square(y[with].to(is_16bit(dtype) ? float32 : dtype))).backward();
                        dq[with] = blind(q.grad());
                        dk[with] = k.grad().slice(2, 1, 16);
                        dv[with] = v.grad().slice(2, 1, 16);
                    }
                    CHECK(difference(doubles(y[1]), doubles(y[0]), close(dtype)) == "");
                    CHECK(difference(doubles(dq[1]), doubles(dq[0]), close(dtype)) == "");
                    if (kind >= 3) continue;
                    CHECK(difference(doubles(dk[1]), doubles(dk[0]), close(dtype)) == "");
                    CHECK(difference(doubles(dv[1]), doubles(dv[0]), close(dtype)) == "");
                }
}

// Keys that are hidden from some queries put NaN or infinity into blocks of the fast kernels; bad queries do
// the same to the gradients of keys.
TEST_CASE("attention: what some queries may not look at does not reach them in any block",
          "[ops][attention]") {
    const Flash flash;
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float16, bfloat16})
            for (const bool causal : {false, true}) {
                CAPTURE(device, dtype, causal);
                const std::int64_t n = 150, bad = 101;  // two blocks of queries, several of keys
                std::vector<double> look(std::size_t(n * n), 1.0);
                for (std::int64_t i = 0; i < n; ++i) look[std::size_t(i * n + bad)] = i > bad;
                const Tensor mask = gt(Tensor::from(look, {1, 1, n, n}), 0.0).to(device);
                const AttentionOptions options{
                    .mask = causal ? Tensor() : mask, .causal = causal, .dropout_p = 0.2};
                Tensor y[2], dq[2];
                for (const int with : {0, 1}) {
                    Tensors x;
                    for (std::uint64_t i = 0; i < 3; ++i)
                        x.push_back(random_tensor({1, 1, n, 64}, i, dtype).to(device).set_requires_grad());
                    if (with == 1) {
                        NoGrad plain;
                        for (const Tensor& t : {x[1], x[2]})
                            t.slice(2, bad, bad + 1).slice(3, 3, 4).fill_(NAN);
                    }
                    manual_seed(3);
                    const Tensor all = scaled_dot_product_attention(x[0], x[1], x[2], options);
                    y[with] = all.slice(2, 0, bad);
                    sum(square(y[with].to(float32))).backward();
                    dq[with] = x[0].grad().slice(2, 0, bad);
                    CHECK(
                        sum(logical_not(isfinite(all.slice(2, bad + 1, n))).to(int64)).item<std::int64_t>() >
                        (with == 1 ? (n - bad) / 2 : -1));
                }
                CHECK(difference(doubles(y[1]), doubles(y[0]), close(dtype)) == "");
                CHECK(difference(doubles(dq[1]), doubles(dq[0]), close(dtype)) == "");
            }
}

TEST_CASE("attention: what a query or its gradient spoils does not reach keys that it does not see",
          "[ops][attention]") {
    const Flash flash;
    const std::int64_t n = 150, bad = 40;  // two blocks of keys, several of queries
    std::vector<double> look(std::size_t(n * n), 1.0);
    for (std::int64_t j = bad + 1; j < n; ++j) look[std::size_t(bad * n + j)] = 0;
    const Tensor full = gt(Tensor::from(look, {1, 1, n, n}), 0.0);
    const auto check_gradients = [&](Device device, Dtype dtype, int kind, std::size_t spoilt, double value) {
        CAPTURE(device, dtype, kind, spoilt, value);  // kind: padding, a mask per query, causal; spoilt: q, g
        AttentionOptions options{.causal = kind == 2, .dropout_p = 0.2};
        if (kind < 2) options.mask = (kind == 0 ? full.slice(2, bad, bad + 1) : full).to(device);
        Results results[2];
        for (Results& r : results) {
            Tensors x;
            for (int i = 0; i < 4; ++i) x.push_back(random_tensor({1, 1, n, 64}, i, dtype).to(device));
            if (&r == &results[1]) x[spoilt].slice(2, bad, bad + 1).slice(3, 3, 4).fill_(value);
            manual_seed(3);
            r = run(x[0], x[1], x[2], x[3], options);
        }
        const auto unseen = [&](const Tensor& x) { return doubles(x.slice(2, bad + 1, n)); };
        CHECK(difference(unseen(results[1].dk), unseen(results[0].dk), close(dtype)) == "");
        CHECK(difference(unseen(results[1].dv), unseen(results[0].dv), close(dtype)) == "");
        CHECK(!std::isfinite(sum(results[1].dk).item<double>()));  // keys that it sees lose their gradients
    };
    for (const Device device : devices())
        for (const Dtype dtype : {float32, float16, bfloat16})
            for (const int kind : {0, 1, 2})
                for (const std::size_t spoilt : {0, 3})
                    for (const double value : {double(NAN), double(INFINITY)})
                        check_gradients(device, dtype, kind, spoilt, value);
}

TEST_CASE("attention drops the weights that its decomposition drops", "[ops][attention][dropout]") {
    Isas isas;
    for (const Sizes& s :
         {Sizes{2, 2, 17, 13, 8}, {1, 3, 64, 64, 32}, {1, 1, 40, 515, 8}, {1, 1, 300, 33, 8}}) {
        CAPTURE(s.query, s.key);
        isas.each([&] { CHECK(check_case(s, {.dropout_p = 0.3}) == ""); });
        CHECK(check_case(s, {.mask = mask_of(MaskKind::full, s), .dropout_p = 0.1}) == "");
        CHECK(check_case(s, {.causal = true, .dropout_p = 0.1}) == "");
        CHECK(check_case(s, {.dropout_p = 0.3}, float64, 1e-10) == "");
        CHECK(check_case(s, {.dropout_p = 0.3, .training = false}) == "");
    }
    // With values of 1 a result is the sum of the weights that dropout leaves, whose expectation is 1.
    manual_seed(5);
    const Tensor x = random_tensor({4, 4, 100, 16}, 1) * 0.1, v = ones({4, 4, 100, 16});
    const Tensor y = scaled_dot_product_attention(x, x, v, {.dropout_p = 0.5});
    CHECK(std::abs(mean(y).item<double>() - 1) < 0.02);
    CHECK(doubles(scaled_dot_product_attention(x, x, v, {.dropout_p = 0.5})) != doubles(y));
}

TEST_CASE("attention reads any strides", "[ops][attention]") {
    const std::int64_t batch = 2, length = 33, heads = 3, dim = 16;
    for (const Dtype dtype : {float32, float16, float64}) {
        const Tensor qkv = random_tensor({batch, length, 3 * heads * dim}, 1, dtype);
        const auto part = [&](std::int64_t i) {
            return qkv.slice(2, i * heads * dim, (i + 1) * heads * dim)
                .reshape({batch, length, heads, dim})
                .permute({0, 2, 1, 3});
        };
        const Tensor q = part(0), k = part(1), v = part(2);
        const Tensor g = random_tensor({batch, heads, dim, length}, 2, dtype).transpose(-2, -1);
        const Tensor mask = gt(random_tensor({length, length}, 3), 0.0).transpose(0, 1);
        const Results views = run(q, k, v, g, {.mask = mask});
        const Results copies =
            run(q.contiguous(), k.contiguous(), v.contiguous(), g.contiguous(), {.mask = mask.contiguous()});
        CHECK(differences(views, copies, 0) == "");
        // One head of keys for all heads, and a result that linear layers read without a copy.
        const Tensor one = k.slice(1, 0, 1);
        const Results shared = run(q, one.expand(k.shape()), v, g, {}),
                      repeated = run(q, one.expand(k.shape()).contiguous(), v, g, {});
        CHECK(differences(shared, repeated, 0) == "");
        CHECK(shared.y.permute({0, 2, 1, 3}).is_contiguous());
    }
}

TEST_CASE("attention is the same with any number of threads", "[ops][attention]") {
    const Threads restore;
    for (const Sizes& s : {Sizes{1, 1, 700, 600, 16}, {1, 2, 300, 40, 8}, {3, 4, 40, 50, 16}})
        for (const bool causal : {false, true}) {
            CAPTURE(s.query, causal);
            const Shape queries{s.batch, s.heads, s.query, s.dim}, keys{s.batch, s.heads, s.key, s.dim};
            const Tensor q = random_tensor(queries, 1), k = random_tensor(keys, 2),
                         v = random_tensor(keys, 3);
            const AttentionOptions options{
                .mask = mask_of(MaskKind::padding, s), .causal = causal, .dropout_p = 0.2};
            const auto with_threads = [&](int n) {
                set_num_threads(n);
                manual_seed(3);
                return run(q, k, v, q, options);
            };
            const Results one = with_threads(1);
            for (const int n : {2, 3, 16}) CHECK(differences(with_threads(n), one, 0) == "");
        }
}

TEST_CASE("attention never stores all scores", "[ops][attention]") {
    const auto peak_per_length = [](std::int64_t length) {
        const Tensor x = random_tensor({1, 2, length, 16}, 1);
        reset_peak(cpu_device);
        const std::size_t before = memory_stats(cpu_device).allocated;
        run(x, x, x, x, {.mask = ones({1, 1, 1, length}, {.dtype = boolean}), .dropout_p = 0.1});
        return double(memory_stats(cpu_device).max_allocated - before) / double(length);
    };
    const double small = peak_per_length(256), large = peak_per_length(1024);
    CHECK(large < 1.1 * small);
    // y, its gradient, those of q, k and v, and the log-sum-exp: less than 8 tensors of 2 * 16 floats a row.
    CHECK(large < 8 * 32 * sizeof(float));
}

TEST_CASE("attention refuses what does not fit", "[ops][attention]") {
    const auto refused = [](const Tensor& q, const Tensor& k, const Tensor& v,
                            const AttentionOptions& options, ErrorKind kind, const char* value) {
        try {
            static_cast<void>(scaled_dot_product_attention(q, k, v, options));
            FAIL("no error");
        } catch (const Error& e) {
            CHECK(e.kind() == kind);
            CHECK_THAT(e.what(), Catch::Contains("scaled_dot_product_attention: ") && Catch::Contains(value));
        }
    };
    const Tensor x = ones({2, 3, 4, 8});
    refused(x[0], x, x, {}, ErrorKind::shape, "[3, 4, 8]");
    refused(x, ones({2, 3, 4, 9}), x, {}, ErrorKind::shape, "[2, 3, 4, 9]");
    refused(x, x, x.slice(2, 0, 3), {}, ErrorKind::shape, "[2, 3, 3, 8]");
    refused(x, x.to(float16), x, {}, ErrorKind::dtype, "float16");
    refused(arange(3), x, x, {}, ErrorKind::dtype, "int64");
    refused(x, x, x, {.mask = ones({5, 4}) > 0}, ErrorKind::shape, "[5, 4]");
    refused(x, x, x, {.mask = arange(16).reshape({4, 4})}, ErrorKind::dtype, "int64");
    refused(x, x, x, {.dropout_p = 1}, ErrorKind::value, "1");
    refused(x, x, x, {.scale = -2}, ErrorKind::value, "-2");
    refused(x, x, x, {.scale = NAN}, ErrorKind::value, "nan");
}

TEST_CASE("causal attention: the last queries of a prompt see all keys", "[ops][attention]") {
    Isas isas;
    for (const Dtype dtype : {float32, float64, float16, bfloat16}) {
        for (const std::int64_t dim : {8, 64}) {
            const Sizes s{2, 2, 70, 70, dim};
            const Shape shape{s.batch, s.heads, s.key, dim};
            const Tensor q = random_tensor(shape, 1, dtype), k = random_tensor(shape, 2, dtype),
                         v = random_tensor(shape, 3, dtype);
            isas.each([&] {
                const Tensor whole = scaled_dot_product_attention(q, k, v, {.causal = true});
                for (const std::int64_t first : {1, 33, 69}) {
                    CAPTURE(name(dtype), dim, first);
                    const Tensor rest =
                        scaled_dot_product_attention(q.slice(2, first, 70), k, v, {.causal = true});
                    const double allowed = is_16bit(dtype) ? 0.02 : 1e-5;
                    CHECK(all_close(rest, whole.slice(2, first, 70), allowed, allowed));
                }
            });
        }
    }
    // With fewer keys than queries the first queries see none: their results are 0, and they contribute no
    // gradient.
    const Tensor q = random_tensor({1, 1, 5, 8}, 4), k = random_tensor({1, 1, 3, 8}, 5).set_requires_grad();
    const Tensor y = scaled_dot_product_attention(q, k, k, {.causal = true});
    CHECK(doubles(y[{0, 0, Slice(0, 2)}]) == std::vector<double>(16, 0));
    CHECK(all_close(y[{0, 0, 2}], k[{0, 0, 0}], 1e-6, 1e-6));
    y[{0, 0, Slice(0, 2)}].sum().backward();
    CHECK(all_close(k.grad(), zeros_like(k), 0, 0));
}
