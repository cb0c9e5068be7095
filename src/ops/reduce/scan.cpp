// Running sums, products and extremes.
#include "kernels/scan.h"
#include "autograd/op_observer.h"
#include "mezzo/image_ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/sort_ops.h"
#include "ops/common.h"
#include "ops/vjp_helpers.h"

namespace mezzo {

namespace {

Tensor summed(const Tensor& x, const kernels::CumSum& at, std::optional<Dtype> dtype = {});
Tensor multiplied(const Tensor& x, const kernels::CumProd& at, std::optional<Dtype> dtype = {});
Tensors linear_scan_vjp(const Node& c, const kernels::LinearScan& at, const Tensors& g);
Tensors cumprod_vjp(const Node& c, const kernels::CumProd& at, const Tensors& g);

const Op<kernels::CumSum> cumsum_op{
    {.name = "cumsum", .cast = CastPolicy::fp32_out, .saves = save_none, .mixed = true},
    [](const Node&, const kernels::CumSum& at, const Tensors& g) -> Tensors {
        return {summed(g[0], {.dim = at.dim, .reverse = !at.reverse})};
    }};

const Op<kernels::LinearScan> linear_scan_op{{.name = "linear_scan_grad",
                                              .saves = save_inputs | save_outputs,
                                              .result = ResultDtype::promoted,
                                              .mixed = true},
                                             linear_scan_vjp};

const Op<kernels::CumProd> cumprod_op{
    {.name = "cumprod", .cast = CastPolicy::fp32_out, .saves = save_inputs, .mixed = true}, cumprod_vjp};

Tensor summed(const Tensor& x, const kernels::CumSum& at, std::optional<Dtype> dtype) {
    return call(cumsum_op, {x}, at, x.shape(), dtype);
}
Tensor multiplied(const Tensor& x, const kernels::CumProd& at, std::optional<Dtype> dtype) {
    return call(cumprod_op, {x}, at, x.shape(), dtype);
}

// Element i becomes element i + 1, or with `back` i - 1; `value` comes in at the end that gets free.
Tensor shifted(const Tensor& x, std::int64_t dim, bool back, double value) {
    if (x.numel() == 0) return x;
    return pad(x, {{dim, back ? -1 : 1, back ? 1 : -1}}, PadMode::constant, value);
}

Tensor scan(const Tensor& a, const Tensor& b, std::int64_t dim, bool reverse) {
    return call(linear_scan_op, {a, b}, {.dim = dim, .reverse = reverse}, a.shape());
}

// h[i] = a[i] h[i - 1] + b[i]. The gradient s of h[i] with all that follows is s[i] = g[i] + a[i + 1] s[i +
// 1]: a scan from the other end. It is that of b[i], and s[i] h[i - 1] that of a[i].
Tensors linear_scan_vjp(const Node& c, const kernels::LinearScan& at, const Tensors& g) {
    const Tensor s = scan(shifted(c.in(0), at.dim, !at.reverse, 0), g[0], at.dim, !at.reverse);
    return {c.needs(0) ? s * shifted(c.out(), at.dim, at.reverse, 0) : Tensor(), s};
}

// y[i] = x[i] y[i - 1], so that the gradient of y[i] with all that follows is the same scan as above. No
// division: elements may be 0.
Tensors cumprod_vjp(const Node& c, const kernels::CumProd& at, const Tensors& g) {
    const Tensor x = wide(c.in(0));
    const Tensor s = scan(shifted(x, at.dim, !at.reverse, 0), wide(g[0]), at.dim, !at.reverse);
    return {s * exclusive_cumprod(x, at.dim, at.reverse)};
}

// Combines every element with all before it in log2(size) passes (Hillis and Steele, 1986): after the pass
// with distance s, element i holds i - 2 s + 1 to i. `join` gets the elements from the first on and those s
// later.
Tensors by_doubling(Tensors x, int d, Tensors (*join)(const Tensors& earlier, const Tensors& later)) {
    const std::int64_t n = x[0].size(d);
    for (std::int64_t s = 1; s < n; s *= 2) {
        Tensors earlier, later;
        for (const Tensor& t : x) {
            earlier.push_back(t.slice(d, 0, n - s));
            later.push_back(t.slice(d, s, n));
        }
        const Tensors joined = join(earlier, later);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = cat({x[i].slice(d, 0, s), joined[i]}, d);
    }
    return x;
}

struct LogCumSumExp {
    static constexpr const char* name = "logcumsumexp";
    int dim = 0;
};
const Op<LogCumSumExp> logcumsumexp_op{
    {.saves = save_none}, nullptr, [](In in, const LogCumSumExp& at) -> Tensors {
        return by_doubling({in[0]}, at.dim, [](const Tensors& a, const Tensors& b) -> Tensors {
            return {logaddexp(a[0], b[0])};
        });
    }};

// Values and indices of the larger or smaller one of a and b: b if they are equal, NaN before all numbers.
template <bool largest> Tensors better(const Tensors& a, const Tensors& b) {
    const Tensor more = largest ? gt(a[0], b[0]) : lt(a[0], b[0]);
    const Tensor first = logical_or(more, gt(isnan(a[0]), isnan(b[0])));
    return {where(first, a[0], b[0]), where(first, a[1], b[1])};
}

// Indices of the extremes up to each element; values are gathered, which is differentiable.
Sorted extremes(const char* op, const Tensor& x, std::int64_t dim, bool largest) {
    const CompositeOp here(op);
    check_defined(op, x);
    const int d = wrap_dim(op, dim, x.dim());
    if (x.dim() == 0) return {x.clone(), zeros({}, {.dtype = int64, .device = x.device()})};
    const Tensor index = [&] {
        const NoGrad plain;
        Shape along = Shape::filled(x.dim(), 1);
        along[d] = x.size(d);
        const Tensor all = arange(x.size(d), {.dtype = int64, .device = x.device()}).reshape(along);
        return by_doubling({x.detach(), all.expand(x.shape())}, d, largest ? better<true> : better<false>)[1];
    }();
    return {gather(x, d, index), index};
}

// Runs f on x of at least one dimension and element, converted as asked.
template <class A, class F> Tensor along(const char* name, const Tensor& given, std::int64_t dim,
                                         std::optional<Dtype> dtype, const F& f) {
    check_defined(name, given);
    if (dtype) check_computes(name, *dtype);
    const int d = wrap_dim(name, dim, given.dim());
    // The kernels read a narrower floating x themselves, but products' gradients need the converted one.
    const bool as_it_is = std::is_same_v<A, kernels::CumSum> && dtype && is_floating(given.dtype()) &&
                          promote(given.dtype(), *dtype) == *dtype;
    const Tensor x = dtype && !as_it_is ? cast(given, *dtype) : given;
    check(!dtype || *dtype != boolean, ErrorKind::dtype, name, ": the result's dtype is boolean");
    std::optional<Dtype> result = dtype;
    if (!dtype && !is_floating(x.dtype())) result = int64;
    if (x.dim() == 0) return f(x.reshape({1}), A{.dim = 0}, result).reshape({});
    return f(x, A{.dim = d}, result);
}

}  // namespace

Tensor exclusive_cumprod(const Tensor& x, std::int64_t dim, bool reverse) {
    return shifted(multiplied(x, {.dim = dim, .reverse = reverse}), dim, reverse, 1);
}

Tensor cumsum(const Tensor& x, std::int64_t dim, std::optional<Dtype> dtype) {
    return along<kernels::CumSum>("cumsum", x, dim, dtype, summed);
}
Tensor cumprod(const Tensor& x, std::int64_t dim, std::optional<Dtype> dtype) {
    return along<kernels::CumProd>("cumprod", x, dim, dtype, multiplied);
}

Tensor logcumsumexp(const Tensor& x, std::int64_t dim) {
    check_floating("logcumsumexp", x);
    const int d = wrap_dim("logcumsumexp", dim, x.dim());
    if (x.dim() == 0) return x.clone();
    return call(logcumsumexp_op, {x}, {.dim = d}, x.shape());
}

Sorted cummax(const Tensor& x, std::int64_t dim) { return extremes("cummax", x, dim, true); }
Sorted cummin(const Tensor& x, std::int64_t dim) { return extremes("cummin", x, dim, false); }

}  // namespace mezzo
