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
    if (c.has("sorter", 99)) throw NotHere("an order beside the numbers");
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

// Of vectors: with a text or two dimensions, a norm of matrices, of which only Frobenius' is one of vectors.
Tensor norm(const Call& c, const std::string& order, std::size_t at, std::size_t dim) {
    double p = 2;
    const bool text = c.has(order, at) && c.json(order, at).is_string();
    if (text && c.text(order, at, "") != "fro") throw NotHere("norm of matrices");
    if (!text) p = c.number(order, at, 2);
    const bool matrices = c.name() == "linalg.matrix_norm" || (c.name() == "linalg.norm" && c.has(order, at));
    if (matrices && !text && (c.axes("dim", dim).size() == 2 || (!c.has("dim", dim) && c.x().dim() == 2)))
        if (c.has(order, at)) throw NotHere("norm of matrices");
    mz::Axes axes = c.axes("dim", dim);
    if (c.name() == "linalg.matrix_norm" && !c.has("dim", dim)) axes = {-2, -1};
    return mz::vector_norm(c.x(), p, axes, reduce(c, dim + 1));
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
        OP("trace", {mz::trace(c.x())}),
        OP("norm", {norm(c, "p", 1, 2)}),
        OP("linalg.norm", {norm(c, "ord", 1, 2)}),
        OP("linalg.vector_norm", {norm(c, "ord", 1, 2)}),
        OP("linalg.matrix_norm", {norm(c, "ord", 1, 2)}),
        OP("dist", {mz::vector_norm(c.x() - c.x(1), c.number("p", 2, 2))}),
        OP("nanmean", {mz::nanmean(c.x(), c.axes("dim", 1), reduce(c, 2))}),
        OP("logcumsumexp", {mz::logcumsumexp(c.x(), c.integer("dim", 1, 0))}),
        OP("nansum", {mz::nansum(c.x(), c.axes("dim", 1), reduce(c, 2))}),
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
        OP("median", c.has("dim", 1) ? both(mz::median(c.x(), c.integer("dim", 1, 0), keep(c, 2))) : Tensors{mz::median(c.x())}),
        OP("nanmedian", c.has("dim", 1) ? throw NotHere("of lines") : Tensors{mz::median(mz::masked_select(c.x(), mz::logical_not(mz::isnan(c.x()))))}),
        OP("mode", both(mz::mode(c.x(), c.integer("dim", 1, -1), keep(c, 2)))),
        OP("cummax", both(mz::cummax(c.x(), c.integer("dim", 1, 0)))),
        OP("cummin", both(mz::cummin(c.x(), c.integer("dim", 1, 0)))),
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

Tensor tensordot(const Call& c) {
    if (!c.is_list("dims", 2)) return mz::tensordot(c.x(), c.x(1), c.integer("dims", 2, 2));
    const Json& dims = c.json("dims", 2);
    mz::Axes both[2];
    for (int i = 0; i < 2; ++i)
        for (const Json& dim : dims.at(std::size_t(i))) both[i].push_back(dim.get<std::int64_t>());
    return mz::tensordot(c.x(), c.x(1), both[0], both[1]);
}

Tensor chain(const Tensors& all) {
    Tensor y = all.at(0);
    for (std::size_t i = 1; i < all.size(); ++i) y = mz::matmul(y, all[i]);
    return y;
}

Tensor linear_of(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    if (weight.dim() > 1) return mz::linear(x, weight, bias);
    const Tensor y = mz::matmul(x, weight);
    return bias.defined() ? y + bias : y;
}

// torch.cross() takes the first dimension of size 3.
std::int64_t first_of_three(const Call& c) {
    for (int i = 0; i < c.x().dim(); ++i)
        if (c.x().size(i) == 3) return i;
    return -1;
}
Tensor cross(const Tensor& a, const Tensor& b, std::int64_t dim) {
    if (a.size(dim) != 3 || b.size(dim) != 3) throw std::invalid_argument("not vectors of three");
    const auto turned = [&](const Tensor& x, std::int64_t by) { return mz::roll(x, {by}, {dim}); };
    return turned(a, -1) * turned(b, -2) - turned(a, -2) * turned(b, -1);
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
        OP("tensordot", {tensordot(c)}),
        OP("kron", {mz::kron(c.x(), c.x(1))}),
        OP("cdist", {mz::cdist(c.x(), c.x(1), c.number("p", 2, 2))}),
        OP("pdist", {mz::masked_select(
                        mz::cdist(c.x(), c.x(), c.number("p", 1, 2)),
                        mz::triu(mz::ones({c.x().size(0), c.x().size(0)}, {.dtype = mz::boolean}), 1))}),
        OP("linalg.multi_dot", {chain(c.tensors("tensors", 0))}),
        OP("bilinear", {mz::bilinear(c.x(), c.x(1), c.x(2), c.tensor("bias", 3))}),
        OP("einsum", {mz::einsum(c.text("equation", 0, ""), c.tensors("operands", 1))}),
        OP("linear", {linear_of(c.x(), c.x(1), c.tensor("bias", 2))}),
        OP("cross", {cross(c.x(), c.x(1), c.integer("dim", 2, first_of_three(c)))}),
        OP("linalg.cross", {cross(c.x(), c.x(1), c.integer("dim", 99, -1))}),
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
