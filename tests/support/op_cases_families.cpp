// Op cases of reduce_ops.h, sort_ops.h, shape_ops.h, pointwise_ops.h, product_ops.h, loss_ops.h and
// recurrent_ops.h.
#include <algorithm>
#include <numeric>

#include "mezzo/loss_ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/product_ops.h"
#include "mezzo/recurrent_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "tests/support/op_cases.h"

namespace mezzo::test {

namespace {

using enum Under;
using enum Domain;

const Shape pair{3, 5};

using Line = std::vector<double>;

// Applies f to every row of the last dimension and concatenates the results.
Reference lines(Line (*f)(Line)) {
    return [f](std::span<const Array> x) {
        const std::vector<double>& v = x[0].values;
        const auto cols = x[0].shape.back();
        Line y;
        for (auto row = v.begin(); cols && row != v.end(); row += cols) {
            const Line part = f(Line(row, row + cols));
            y.insert(y.end(), part.begin(), part.end());
        }
        return y;
    };
}

Line product(Line v) { return {std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>())}; }
Line running_sum(Line v) {
    std::partial_sum(v.begin(), v.end(), v.begin());
    return v;
}
Line running_product(Line v) {
    std::partial_sum(v.begin(), v.end(), v.begin(), std::multiplies<>());
    return v;
}
Line ascending(Line v) {
    std::sort(v.begin(), v.end());
    return v;
}
Line two_largest(Line v) {
    std::sort(v.begin(), v.end(), std::greater<>());
    v.resize(std::min<std::size_t>(v.size(), 2));
    return v;
}
Line first_of_sorted(Line v) { return {ascending(v)[0]}; }
Line order(Line v) {
    Line places(v.size());
    std::iota(places.begin(), places.end(), 0.0);
    std::sort(places.begin(), places.end(),
              [&](double a, double b) { return v[std::size_t(a)] < v[std::size_t(b)]; });
    return places;
}
Line place_of_lowest(Line v) { return {double(std::min_element(v.begin(), v.end()) - v.begin())}; }
Line place_of_two_largest(Line v) {
    Line all = order(v);
    std::reverse(all.begin(), all.end());
    all.resize(std::min<std::size_t>(all.size(), 2));
    return all;
}
Line mirrored(Line v) {
    std::reverse(v.begin(), v.end());
    return v;
}
Line moved_by_two(Line v) {
    std::rotate(v.rbegin(), v.rbegin() + std::ptrdiff_t(2 % std::max<std::size_t>(1, v.size())), v.rend());
    return v;
}
Line each_twice(Line v) {
    Line y;
    for (const double x : v) y.insert(y.end(), 2, x);
    return y;
}
Line low_quantile(Line v) {
    const Line s = ascending(v);
    const double place = 0.3 * double(s.size() - 1);
    const auto low = std::size_t(place);
    return {s.size() == 1 ? s[0] : s[low] + (place - double(low)) * (s[low + 1] - s[low])};
}
Line any_positive(Line v) {
    return {double(std::any_of(v.begin(), v.end(), [](double x) { return x > 0; }))};
}
Line all_positive(Line v) {
    return {double(std::all_of(v.begin(), v.end(), [](double x) { return x > 0; }))};
}
Line number_of_positive(Line v) {
    return {double(std::count_if(v.begin(), v.end(), [](double x) { return x > 0; }))};
}

Line all_of(std::span<const Array> x) { return x[0].values; }

// Elements whose column minus row is in [low, high].
template <int low, int high> Line band(std::span<const Array> x) {
    Line y = x[0].values;
    const std::int64_t rows = x[0].shape[x[0].shape.size() - 2], cols = x[0].shape.back();
    for (std::size_t i = 0; i < y.size(); ++i) {
        const std::int64_t distance = std::int64_t(i) % cols - std::int64_t(i) / cols % rows;
        if (distance < low || distance > high) y[i] = 0;
    }
    return y;
}

// A constant for each class.
Tensor class_weights(const Tensor& x) {
    return cast(arange(x.size(-1), {.dtype = int64, .device = x.device()}), x.dtype()) * 0.5 + 0.25;
}

// clang-format off
#define OF_ROWS(name, call, f, ...) \
    {name, [](In x) { return call; }, {pair}, lines(f) __VA_OPT__(,) __VA_ARGS__}
#define OF(name, call, shapes, ...) \
    {name, [](In x) { return call; }, shapes, nullptr __VA_OPT__(,) __VA_ARGS__}
#define SHAPES(...) {__VA_ARGS__}

std::vector<OpCase> reductions() {
    return {
        OF_ROWS("prod", prod(x[0], {1}), product, fp32),
        OF("prod of the middle", prod(x[0], {1}, {.keepdim = true}), SHAPES({2, 3, 4}), fp32),
        OF("prod of the outer", prod(x[0], {0, 2}), SHAPES({2, 3, 4}), fp32),
        OF("var", var(x[0], {1}), SHAPES(pair)),
        OF("var of the first and last", var(x[0], {0, 2}, {.keepdim = true, .correction = 0}), SHAPES({2, 3, 4})),
        OF("std", std(x[0], {0}), SHAPES(pair), keep, any, "", "", true, false),
        OF("std of all", std(x[0]), SHAPES({2, 3, 4}), keep, any, "", "", true, false),
        OF("var_mean", (var_mean(x[0], {1}).var + var_mean(x[0], {1}).mean), SHAPES(pair), keep, any, "", "", true, false),
        OF_ROWS("argmin", argmin(x[0], -1), place_of_lowest, fixed, distinct, "", "", false),
        OF_ROWS("any", mezzo::any(relu(x[0]), {1}), any_positive, fixed, any, "", "", false),
        OF_ROWS("all", all(relu(x[0]), {1}), all_positive, fixed, any, "", "", false),
        OF_ROWS("count_nonzero", count_nonzero(relu(x[0]), {1}), number_of_positive, fixed, any, "", "", false),
        OF_ROWS("quantile", quantile(x[0], 0.3, {.dim = 1}), low_quantile, keep, distinct, "", "", true, true, false),
        OF_ROWS("cumsum", cumsum(x[0], 1), running_sum, fp32),
        OF("cumsum of the first", cumsum(x[0], 0), SHAPES({3, 2, 4}), fp32),
        OF_ROWS("cumprod", cumprod(x[0], -1), running_product, fp32, any, "", "linear_scan_grad"),
        OF("cumprod of the middle", cumprod(x[0], 1), SHAPES({2, 4, 3}), fp32),
        OF("softmax with a dtype", softmax(x[0], 1, x[0].dtype()), SHAPES(pair)),
        OF("log_softmax with a dtype", log_softmax(x[0], -1, x[0].dtype()), SHAPES(pair)),
        OF("softmin", softmin(x[0]), SHAPES(pair), fp32),
    };
}

std::vector<OpCase> orders() {
    return {
        OF_ROWS("sort", sort(x[0]).values, ascending, keep, distinct),
        OF("sort of the first, descending", sort(x[0], 0, {.descending = true}).values, SHAPES({4, 3}), keep, distinct),
        OF_ROWS("argsort", argsort(x[0]), order, fixed, distinct, "", "", false),
        OF_ROWS("topk", topk(x[0], std::min<std::int64_t>(2, x[0].size(-1))).values, two_largest, keep, distinct),
        OF_ROWS("topk indices", topk(x[0], std::min<std::int64_t>(2, x[0].size(-1))).indices, place_of_two_largest, fixed,
                distinct, "", "", false),
        OF_ROWS("kthvalue", kthvalue(x[0], 1).values, first_of_sorted, keep, distinct),
        OF("searchsorted", searchsorted(sort(x[0]).values, x[1]), SHAPES(pair, {3, 2}), fixed, distinct, "", "", false),
    };
}

std::vector<OpCase> arrangements() {
    return {
        {"tril", [](In x) { return tril(x[0], 1); }, {{2, 3, 5}}, band<-9, 1>},
        {"triu", [](In x) { return triu(x[0], -1); }, {pair}, band<-1, 9>},
        OF("diag of a vector", diag(x[0], -2), SHAPES({4})),
        OF("diag of a matrix", diag(x[0], 1), SHAPES(pair)),
        OF_ROWS("flip", flip(x[0], {1}), mirrored),
        OF("flip of two", flip(x[0], {0, -1}), SHAPES({2, 3, 4})),
        OF_ROWS("roll", roll(x[0], {2}, {1}), moved_by_two),
        OF("roll of all", roll(x[0], -4), SHAPES(pair)),
        OF("repeat", repeat(x[0], {2, 1, 3}), SHAPES(pair)),
        OF_ROWS("repeat_interleave", repeat_interleave(x[0], 2, 1), each_twice),
        {"split", [](In x) { return cat(split(x[0], 2, 1), 1); }, {pair}, all_of},
        {"split of sizes", [](In x) { return cat(split(x[0], {1, 4, 0}, 1), 1); }, {pair}, all_of, keep, any, "", "", true, false},
        {"chunk", [](In x) { return cat(chunk(x[0], 3)); }, {{7, 2}}, all_of},
        {"unbind", [](In x) { return stack(unbind(x[0], 1), 1); }, {pair}, all_of},
        OF("masked_select", masked_select(x[0], x[1]), SHAPES(pair, {5}), keep, any, "fb"),
    };
}

std::vector<OpCase> pointwise() {
    return {
        OF("lerp", lerp(x[0], x[1], x[2]), SHAPES(pair, {5}, {3, 1})),
        OF("lerp_scalar", lerp(x[0], x[1], 0.3), SHAPES(pair, {5})),
        OF("lerp beyond the half", lerp(x[0], x[1], 0.8), SHAPES(pair, {5})),
        OF("addcmul", addcmul(x[0], x[1], x[2], 0.5), SHAPES(pair, {5}, {3, 1})),
        OF("addcdiv", addcdiv(x[0], x[1], x[2], -2), SHAPES(pair, {5}, {3, 1}), keep, positive),
        OF("glu", glu(x[0]), SHAPES({3, 6}), keep, any, "", "glu_grad", true, false),
        OF("glu in vectors", glu(x[0]), SHAPES({3, 32}), keep, any, "", "", true, false),
        OF("swiglu", swiglu(x[0], 0), SHAPES({4, 3}), keep, any, "", "swiglu_grad", true, false),
        OF("swiglu of two", swiglu(x[0], x[1]), SHAPES(pair, {5})),
        OF("swiglu in vectors", swiglu(x[0], x[1]), SHAPES({2, 16}, {2, 16})),
    };
}

std::vector<OpCase> products() {
    return {
        OF("outer", outer(x[0], x[1]), SHAPES({3}, {5})),
        OF("dot", dot(x[0], x[1]), SHAPES({7}, {7})),
        OF("bmm", bmm(x[0], x[1]), SHAPES({2, 3, 4}, {2, 4, 5}), low),
        OF("addmm", addmm(x[0], x[1], x[2], {.beta = 0.5, .alpha = 2}), SHAPES({5}, {3, 4}, {4, 5}), low),
        OF("baddbmm", baddbmm(x[0], x[1], x[2]), SHAPES({2, 3, 5}, {2, 3, 4}, {2, 4, 5}), low),
        OF("einsum of a product", einsum("bij,bjk->bki", {x[0], x[1]}), SHAPES({2, 3, 4}, {2, 4, 5}), low),
        OF("einsum of three", einsum("ij,jk,kl->il", {x[0], x[1], x[2]}), SHAPES({2, 3}, {3, 4}, {4, 5}), low, any, "", "",
           true, true, true, 4),
        OF("einsum with dots", einsum("...ij,...jk", {x[0], x[1]}), SHAPES({2, 1, 3, 4}, {5, 4, 2}), low, any, "", "", true, false),
        OF("einsum of a diagonal", einsum("iij->j", {x[0]}), SHAPES({3, 3, 4}), fp32, any, "", "", true, false),
        OF("einsum with sums", einsum("abc,cd->b", {x[0], x[1]}), SHAPES({2, 3, 4}, {4, 5}), low, any, "", "", true, true, true, 4),
        OF("bilinear", bilinear(x[0], x[1], x[2], x[3]), SHAPES({3, 4}, {3, 2}, {5, 4, 2}, {5})),
        OF("bilinear without bias", bilinear(x[0], x[1], x[2], {}), SHAPES({2, 3, 4}, {2, 3, 2}, {5, 4, 2})),
        OF("cosine_similarity", cosine_similarity(x[0], x[1]), SHAPES(pair, pair), fp32),
        OF("pairwise_distance", pairwise_distance(x[0], x[1]), SHAPES(pair, {5}), fp32),
        OF("pairwise_distance of p 3", pairwise_distance(x[0], x[1], {.p = 3, .keepdim = true}), SHAPES(pair, pair), fp32, unit),
        OF("normalize", normalize(x[0]), SHAPES(pair), fp32, any, "", "", true, false),
        OF("normalize of p 1", normalize(x[0], 1, 0), SHAPES(pair), fp32, any, "", "", true, false),
    };
}

// Bags of three, no, three and one index of seven.
Tensor bag_offsets(const Tensor& x) {
    return Tensor::from(std::vector<std::int64_t>{0, 3, 3, 6}, {4}).to(x.device());
}

std::vector<OpCase> bags() {
    return {
        OF("embedding_bag", embedding_bag(x[0], x[1]), SHAPES({6, 4}, {2, 5}), keep, any, "fc", "", true, false, false),
        OF("embedding_bag of weighted sums",
           embedding_bag(x[0], x[1], {.mode = BagMode::sum, .per_sample_weights = x[2]}),
           SHAPES({6, 4}, {2, 5}, {2, 5}), keep, any, "fcf", "", true, false, false),
        OF("embedding_bag by offsets", embedding_bag(x[0], x[1], {.offsets = bag_offsets(x[0])}), SHAPES({6, 4}, {7}), keep,
           any, "fc", "", true, false, false),
        OF("embedding_bag of maxima", embedding_bag(x[0], x[1], {.offsets = bag_offsets(x[0]), .mode = BagMode::max}),
           SHAPES({6, 4}, {7}), keep, any, "fc", "", true, false, false),
    };
}

std::vector<OpCase> losses() {
    return {
        OF("kl_div", kl_div(log_softmax(x[0]), x[1], {.batch_mean = true}), SHAPES(pair, pair), fp32, unit),
        OF("kl_div of logarithms", kl_div(x[0], x[1], {.reduction = Reduction::none, .log_target = true}), SHAPES(pair, pair),
           fp32, unit),
        OF("huber_loss", huber_loss(x[0], x[1], {.delta = 0.7}), SHAPES(pair, pair), fp32, unit, "", "huber_loss_grad"),
        OF("hinge_embedding_loss", hinge_embedding_loss(x[0], sign(x[1]), {.margin = 1}), SHAPES(pair, pair), fp32),
        OF("cosine_embedding_loss", cosine_embedding_loss(x[0], x[1], sign(x[2]), {.margin = 0.2, .reduction = Reduction::sum}),
           SHAPES(pair, pair, {3}), fp32),
        OF("triplet_margin_loss", triplet_margin_loss(x[0], x[1], x[2]), SHAPES(pair, pair, pair), fp32, unit),
        OF("triplet_margin_loss with swap", triplet_margin_loss(x[0], x[1], x[2], {.swap = true, .reduction = Reduction::none}),
           SHAPES(pair, pair, pair), fp32, unit),
        OF("cross_entropy with weights", cross_entropy(x[0], x[1], {.label_smoothing = 0.1, .weight = class_weights(x[0])}),
           SHAPES({6, 4}, {6}), fp32, any, "fi", "", true, false),
        OF("cross_entropy of leading dimensions", cross_entropy(x[0], x[1], {.reduction = Reduction::none}),
           SHAPES({2, 3, 4}, {2, 3}), fp32, any, "fi"),
        OF("cross_entropy of probabilities with weights", cross_entropy(x[0], softmax(x[1]), {.weight = class_weights(x[0])}),
           SHAPES({2, 3, 4}, {2, 3, 4}), fp32, unit, "", "", true, false),
        OF("binary_cross_entropy_with_logits with weights",
           binary_cross_entropy_with_logits(x[0], x[1], {.weight = x[2], .pos_weight = x[3]}),
           SHAPES(pair, pair, {5}, {3, 1}), fp32, unit),
        OF("binary_cross_entropy with a weight", binary_cross_entropy(x[0], x[1], {.reduction = Reduction::none, .weight = x[2]}),
           SHAPES(pair, pair, {5}), fixed, unit),
        OF("margin_ranking_loss", margin_ranking_loss(x[0], x[1], sign(x[2]), {.margin = 0.3}), SHAPES(pair, pair, pair), fp32),
        OF("soft_margin_loss", soft_margin_loss(x[0], sign(x[1])), SHAPES(pair, pair), fp32),
        OF("multi_margin_loss", multi_margin_loss(x[0], x[1], {.p = 2, .margin = 0.7, .weight = class_weights(x[0])}),
           SHAPES({6, 4}, {6}), fp32, any, "fc"),
        OF("multi_margin_loss of p 1", multi_margin_loss(x[0], x[1], {.margin = 0.7, .reduction = Reduction::none}),
           SHAPES({2, 3, 4}, {2, 3}), fp32, any, "fc"),
        OF("multilabel_margin_loss", multilabel_margin_loss(x[0], masked_fill(x[1], eq(x[1], 0), -1)), SHAPES({6, 4}, {6, 4}), fp32,
           any, "fc"),
        OF("multilabel_soft_margin_loss", multilabel_soft_margin_loss(x[0], x[1], {.weight = class_weights(x[0])}), SHAPES(pair, pair),
           fp32, unit),
        OF("gaussian_nll_loss", gaussian_nll_loss(x[0], x[1], x[2], {.full = true, .eps = 1e-3}), SHAPES(pair, pair, {3, 1}), fp32,
           positive, "", "", true, false),
        OF("poisson_nll_loss", poisson_nll_loss(x[0], x[1], {.full = true}), SHAPES(pair, pair), fp32, positive),
        OF("poisson_nll_loss of rates", poisson_nll_loss(x[0], x[1], {.log_input = false, .reduction = Reduction::none}),
           SHAPES(pair, pair), fp32, positive),
        OF("triplet_margin_with_distance_loss",
           triplet_margin_with_distance_loss(x[0], x[1], x[2], {.margin = 0.7, .swap = true}),
           SHAPES(pair, pair, pair), fp32, unit),
        OF("nll_loss with weights", nll_loss(log_softmax(x[0]), x[1], {.weight = class_weights(x[0])}), SHAPES({6, 4}, {6}), fp32, any,
           "fi", "", true, false),
    };
}

// Sequences of 3 and 1 steps.
// For x [time, batch, features]: every second sequence ends after its first step.
Tensor lengths_for(const Tensor& x) {
    std::vector<std::int64_t> lengths(std::size_t(x.size(1)), x.size(0));
    for (std::size_t i = 1; i < lengths.size(); i += 2) lengths[i] = std::min<std::int64_t>(1, x.size(0));
    return Tensor::from(lengths, {x.size(1)}).to(x.device());
}

std::vector<OpCase> recurrences() {
    using enum RecurrentCell;
    const Shape h{2, 3};
    return {
        OF("rnn", recurrent(rnn_tanh, x[0], x[1]).states, SHAPES({3, 2, 3}, {3, 3}), low, any, "", "", true, false, false, 4),
        OF("rnn with relu", recurrent(rnn_relu, x[0], x[1], {.h0 = x[2], .lengths = lengths_for(x[0])}).states,
           SHAPES({3, 2, 3}, {3, 3}, h), low, positive, "", "", true, false, false, 4),
        OF("lstm", recurrent(lstm, x[0], x[1], {.h0 = x[2], .c0 = x[3]}).states, SHAPES({3, 2, 12}, {12, 3}, h, h), low, any, "",
           "", true, false, false, 4),
        OF("lstm in reverse with lengths", recurrent(lstm, x[0], x[1], {.h0 = x[2], .c0 = x[3],
           .lengths = lengths_for(x[0]), .reverse = true}).states,
           SHAPES({3, 2, 12}, {12, 3}, h, h), low, any, "", "", true, false, false, 4),
        OF("gru", recurrent(gru, x[0], x[1]).states, SHAPES({3, 2, 9}, {9, 3}), low, any, "", "", true, false, false, 4),
        OF("gru in reverse with lengths", recurrent(gru, x[0], x[1], {.h0 = x[2], .bias_hh = x[3],
           .lengths = lengths_for(x[0]), .reverse = true}).states,
           SHAPES({3, 2, 9}, {9, 3}, h, {9}), low, any, "", "", true, false, false, 4),
    };
}
// clang-format on

}  // namespace

std::vector<OpCase> family_cases() {
    std::vector<OpCase> all;
    for (auto family : {reductions, orders, arrangements, pointwise, products, bags, losses, recurrences}) {
        const std::vector<OpCase> more = family();
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

}  // namespace mezzo::test
