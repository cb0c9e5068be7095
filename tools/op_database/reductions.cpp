// Reductions, running sums, orders and products.
#include "tools/op_database/call.h"

namespace database {

namespace {

mz::ReduceOptions reduce(const Call& c, std::size_t keepdim) {
    const auto dtype = c.dtype("dtype", 99);
    return {.keepdim = c.flag("keepdim", keepdim),
            .dtype = dtype.value_or(mz::float32),
            .explicit_dtype = dtype.has_value()};
}
mz::KeepdimOptions keep(const Call& c, std::size_t position) {
    return {.keepdim = c.flag("keepdim", position)};
}

// x.var(True) says whether it is unbiased, x.var(1) the dimension.
bool is_bias(const Call& c) { return c.has("dim", 1) && c.json("dim", 1).is_boolean(); }
mz::Axes variance_axes(const Call& c) { return is_bias(c) ? mz::Axes() : c.axes("dim", 1); }

mz::VarOptions variance(const Call& c) {
    mz::VarOptions options{.keepdim = c.flag("keepdim", 99)};
    if (is_bias(c)) options.correction = c.flag("unbiased", 1) ? 1 : 0;
    if (c.has("unbiased", 99)) options.correction = c.flag("unbiased", 99) ? 1 : 0;
    options.correction = c.number("correction", 99, options.correction);
    return options;
}

// The largest or smallest along `dim` with its index, of all elements, or of two tensors.
template <class Reduce, class Arg, class Two>
Tensors extreme(const Call& c, const Reduce& all, const Arg& arg, const Two& two) {
    if (c.is_tensor("other", 1)) return {two(c.x(), c.x(1))};
    if (!c.has("dim", 1)) return {all(c.x(), {}, mz::ReduceOptions{})};
    const std::int64_t dim = c.integer("dim", 1, 0);
    return {all(c.x(), {dim}, mz::ReduceOptions{.keepdim = c.flag("keepdim", 2)}),
            arg(c.x(), dim, keep(c, 2))};
}

template <class F> Tensors position(const Call& c, const F& arg) {
    if (c.has("dim", 1)) return {arg(c.x(), c.integer("dim", 1, 0), keep(c, 2))};
    Tensor y = arg(c.x().reshape({-1}), 0, mz::KeepdimOptions{});
    return {c.flag("keepdim", 2) ? y.reshape(mz::Shape::filled(c.x().dim(), 1)) : y};
}

const auto max_of = [](const Tensor& x, const mz::Axes& axes, const mz::ReduceOptions& o) {
    return mz::max(x, axes, o);
};
const auto min_of = [](const Tensor& x, const mz::Axes& axes, const mz::ReduceOptions& o) {
    return mz::min(x, axes, o);
};
const auto argmax_of = [](const Tensor& x, std::int64_t dim, mz::KeepdimOptions o) {
    return mz::argmax(x, dim, o);
};
const auto argmin_of = [](const Tensor& x, std::int64_t dim, mz::KeepdimOptions o) {
    return mz::argmin(x, dim, o);
};

Tensors both(const mz::Sorted& sorted) { return {sorted.values, sorted.indices}; }

// Indices are always int64.
mz::SearchsortedOptions search(const Call& c) {
    if (c.flag("out_int32", 99)) throw NotHere("indices in int32");
    return {.right = c.flag("right", 99) || c.text("side", 99, "left") == "right"};
}

mz::SortOptions order(const Call& c) { return {.descending = c.flag("descending", 2)}; }

mz::QuantileOptions quantile(const Call& c) {
    const std::map<std::string, mz::Interpolation> modes{{"linear", mz::Interpolation::linear},
                                                         {"lower", mz::Interpolation::lower},
                                                         {"higher", mz::Interpolation::higher},
                                                         {"nearest", mz::Interpolation::nearest},
                                                         {"midpoint", mz::Interpolation::midpoint}};
    mz::QuantileOptions options{.keepdim = c.flag("keepdim", 3),
                                .interpolation = modes.at(c.text("interpolation", 99, "linear"))};
    if (c.has("dim", 2)) options.dim = c.integer("dim", 2, 0);
    return options;
}

Table sums() {
    return {
        OP("sum", {mz::sum(c.x(), c.axes("dim", 1), reduce(c, 2))}),
        OP("mean", {mz::mean(c.x(), c.axes("dim", 1), reduce(c, 2))}),
        OP("prod", {mz::prod(c.x(), c.axes("dim", 1), reduce(c, 2))}),
        OP("amax", {mz::max(c.x(), c.axes("dim", 1), {.keepdim = c.flag("keepdim", 2)})}),
        OP("amin", {mz::min(c.x(), c.axes("dim", 1), {.keepdim = c.flag("keepdim", 2)})}),
        OP("aminmax", {mz::min(c.x(), c.axes("dim", 99), {.keepdim = c.flag("keepdim", 99)}),
                       mz::max(c.x(), c.axes("dim", 99), {.keepdim = c.flag("keepdim", 99)})}),
        OP("max", extreme(c, max_of, argmax_of, mz::maximum)),
        OP("min", extreme(c, min_of, argmin_of, mz::minimum)),
        OP("argmax", position(c, argmax_of)),
        OP("argmin", position(c, argmin_of)),
        OP("logsumexp", {mz::logsumexp(c.x(), c.axes("dim", 1), {.keepdim = c.flag("keepdim", 2)})}),
        OP("var", {mz::var(c.x(), variance_axes(c), variance(c))}),
        OP("std", {mz::std(c.x(), variance_axes(c), variance(c))}),
        OP("any", {mz::any(c.x(), c.axes("dim", 1), keep(c, 2))}),
        OP("all", {mz::all(c.x(), c.axes("dim", 1), keep(c, 2))}),
        OP("count_nonzero", {mz::count_nonzero(c.x(), c.axes("dim", 1))}),
        OP("cumsum", {mz::cumsum(c.x(), c.integer("dim", 1, 0), c.dtype("dtype", 2))}),
        OP("cumprod", {mz::cumprod(c.x(), c.integer("dim", 1, 0), c.dtype("dtype", 2))}),
        OP("sum_to_size", {mz::sum_to(c.x(), c.sizes("size", 1))}),
        OP("trace", {mz::sum(mz::diag(c.x()))}),
        OP("nansum", {mz::sum(mz::where(mz::isnan(c.x()), 0.0, c.x()), c.axes("dim", 1), reduce(c, 2))}),
        {"var_mean",
         [](const Call& c) -> Tensors {
             const mz::VarMean y = mz::var_mean(c.x(), variance_axes(c), variance(c));
             return {y.var, y.mean};
         }},
        {"std_mean",
         [](const Call& c) -> Tensors {
             const mz::StdMean y = mz::std_mean(c.x(), variance_axes(c), variance(c));
             return {y.std, y.mean};
         }},
        {"quantile",
         [](const Call& c) -> Tensors {
             if (!c.is_tensor("q", 1)) return {mz::quantile(c.x(), c.number("q", 1, 0), quantile(c))};
             const Tensor q = c.x(1);
             if (q.dim() == 0) return {mz::quantile(c.x(), q.item<double>(), quantile(c))};
             return {mz::quantile(c.x(), q.to_vector<double>(), quantile(c))};
         }},
    };
}

Table orders() {
    return {
        OP("sort", both(mz::sort(c.x(), c.integer("dim", 1, -1), order(c)))),
        OP("msort", {mz::sort(c.x(), 0).values}),
        OP("argsort", {mz::argsort(c.x(), c.integer("dim", 1, -1), order(c))}),
        OP("topk", both(mz::topk(c.x(), c.integer("k", 1, 1), c.integer("dim", 2, -1),
                                 {.largest = c.flag("largest", 3, true)}))),
        OP("kthvalue", both(mz::kthvalue(c.x(), c.integer("k", 1, 1), c.integer("dim", 2, -1), keep(c, 3)))),
        OP("searchsorted", {mz::searchsorted(c.x(), c.x(1), search(c))}),
        OP("bucketize", {mz::searchsorted(c.x(1), c.x(), search(c))}),
        OP("isin", {mz::isin(c.x(), c.x(1))}),
        OP("bincount", {mz::bincount(c.x(), c.tensor("weights", 1), c.integer("minlength", 2, 0))}),
        {"unique",
         [](const Call& c) -> Tensors {
             if (c.has("dim", 99)) throw NotHere("unique of slices");
             const mz::UniqueOptions options{.inverse = c.flag("return_inverse", 99),
                                             .counts = c.flag("return_counts", 99)};
             const mz::Unique u = mz::unique(c.x(), options);
             Tensors y{u.values};
             if (options.inverse) y.push_back(u.inverse);
             if (options.counts) y.push_back(u.counts);
             return y;
         }},
    };
}

mz::AddMmOptions factors(const Call& c) {
    return {.beta = c.number("beta", 99, 1), .alpha = c.number("alpha", 99, 1)};
}

// Sums over the last dimension of both.
Tensor inner(const Tensor& a, const Tensor& b) {
    mz::Shape shape;
    for (const Tensor& x : {a, b})
        for (int i = 0; i + 1 < x.dim(); ++i) shape.push_back(x.size(i));
    return mz::matmul(a.reshape({-1, a.size(-1)}), b.reshape({-1, b.size(-1)}).t()).reshape(shape);
}

// beta x + alpha y; with beta = 0, x is not read.
Tensor joined(const Tensor& x, const Tensor& y, const mz::AddMmOptions& by) {
    return by.beta == 0 ? y * by.alpha : x * by.beta + y * by.alpha;
}

Table products() {
    return {
        OP("matmul", {mz::matmul(c.x(), c.x(1))}),
        OP("__rmatmul__", {mz::matmul(c.x(1), c.x())}),
        OP("mm", {mz::matmul(c.x(), c.x(1))}),
        OP("mv", {mz::matmul(c.x(), c.x(1))}),
        OP("bmm", {mz::bmm(c.x(), c.x(1))}),
        OP("dot", {mz::dot(c.x(), c.x(1))}),
        OP("vdot", {mz::dot(c.x(), c.x(1))}),
        OP("linalg.vecdot", {mz::sum(c.x() * c.x(1), {c.integer("dim", 99, -1)})}),
        OP("outer", {mz::outer(c.x(), c.x(1))}),
        OP("ger", {mz::outer(c.x(), c.x(1))}),
        OP("addmm", {mz::addmm(c.x(), c.x(1), c.x(2), factors(c))}),
        OP("baddbmm", {mz::baddbmm(c.x(), c.x(1), c.x(2), factors(c))}),
        OP("addmv",
           {mz::addmm(c.x().dim() ? c.x().unsqueeze(-1) : c.x(), c.x(1), c.x(2).unsqueeze(-1), factors(c))
                .squeeze(-1)}),
        OP("addr", {mz::addmm(c.x(), c.x(1).unsqueeze(-1), c.x(2).unsqueeze(0), factors(c))}),
        OP("addbmm", {joined(c.x(), mz::sum(mz::bmm(c.x(1), c.x(2)), {0}), factors(c))}),
        OP("inner", {c.x().dim() && c.x(1).dim() ? inner(c.x(), c.x(1)) : c.x() * c.x(1)}),
        OP("einsum", {mz::einsum(c.text("equation", 0, ""), c.tensors("operands", 1))}),
        OP("linear", {mz::linear(c.x(), c.x(1), c.tensor("bias", 2))}),
        OP("cosine_similarity",
           {mz::cosine_similarity(c.x(), c.x(1), c.integer("dim", 2, 1), c.number("eps", 3, 1e-8))}),
        OP("pairwise_distance", {mz::pairwise_distance(c.x(), c.x(1),
                                                       {.p = c.number("p", 2, 2),
                                                        .eps = c.number("eps", 3, 1e-6),
                                                        .keepdim = c.flag("keepdim", 4)})}),
        OP("normalize",
           {mz::normalize(c.x(), c.number("p", 1, 2), c.integer("dim", 2, 1), c.number("eps", 3, 1e-12))}),
    };
}

}  // namespace

Table reductions() {
    Table table = sums();
    for (const Table& more : {orders(), products()}) table.insert(more.begin(), more.end());
    return table;
}

}  // namespace database
