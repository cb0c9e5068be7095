// Functions whose result shapes or argument checks depend on values of tensors.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "autograd/op_observer.h"
#include "core/step_recorder.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/shape_ops.h"
#include "mezzo/sort_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

TensorOptions integers_on(const Tensor& x) { return {.dtype = int64, .device = x.device()}; }

void check_index(const char* op, const Tensor& x) {
    check_defined(op, x);
    check(x.dtype() == int64, ErrorKind::dtype, op, ": input is ", x.dtype(),
          ", but must be int64; convert it with to(int64)");
}

// Coordinates [n, dims] of the n elements of x that are not 0, in row-major order, on the device of x. x has
// at least one dimension.
Tensor coordinates(const Tensor& x) {
    NoGrad plain;
    const Tensor mask = (x.dtype() == boolean ? x : ne(x, 0.0)).to(cpu_device).contiguous();
    const auto* set = mask.numel() > 0 ? reinterpret_cast<const std::uint8_t*>(mask.data<bool>()) : nullptr;
    const std::int64_t length = x.size(-1), dims = x.dim(),
                       n = mask.numel() - std::count(set, set + mask.numel(), 0);
    const Tensor result = zeros({n, dims}, {.dtype = int64});
    if (n == 0) return result.to(x.device());
    std::int64_t *to = result.mutable_data<std::int64_t>(), *const end = to + result.numel();
    const std::int64_t last = dims - 1;
    Shape row = Shape::filled(int(last), 0);
    for (; to != end; set += length) {
        std::int64_t* const first = to;
        for (std::int64_t j = 0; j < length && to != end; ++j) {  // without a branch that depends on set
            to[last] = j;
            to += dims & -std::int64_t(set[j] != 0);
        }
        for (std::int64_t d = 0; d < last; ++d)
            for (std::int64_t* at = first + d; at < to; at += dims) *at = row[int(d)];
        for (int d = int(last) - 1; d >= 0 && ++row[d] == x.size(d); --d) row[d] = 0;
    }
    return result.to(x.device());
}

// The row-major positions of elements that are not 0, on the device of x.
Tensor positions(const Tensor& x) { return coordinates(x.reshape({x.numel()})).reshape({-1}); }

// The larger or smaller of all elements; 0 for none.
std::int64_t extreme(const Tensor& x, bool largest) {
    if (x.numel() == 0) return 0;
    return (largest ? max(x) : min(x)).item<std::int64_t>();
}

// The number of classes from 0 to the largest.
std::int64_t classes_up_to(const char* op, std::int64_t largest) {
    check(largest < INT64_MAX, ErrorKind::value, op, ": ", largest, " is too large to count to");
    return largest + 1;
}

// p: rows that are small enough to be added up in float64.
Tensor drawn_with_replacement(const Tensor& p, std::int64_t count) {
    const Tensor sums = cumsum(p, -1, float64);
    const Tensor total = sums.slice(-1, p.size(-1) - 1, p.size(-1));
    const Tensor u = rand({p.size(0), count}, {.dtype = float64, .device = p.device()});
    return searchsorted(sums, u * total, {.right = true});
}

// The largest of p / e, e exponentially distributed, are a sample (Efraimidis and Spirakis, "Weighted random
// sampling with a reservoir", 2006).
Tensor drawn_once_each(const Tensor& p, std::int64_t count) {
    const Tensor u = rand(p.shape(), {.dtype = float64, .device = p.device()});
    const Tensor score = masked_fill(cast(p, float64) / -log1p(-u), eq(p, 0.0), -1);
    return topk(score, count, -1).indices;
}

}  // namespace

Tensor nonzero(const Tensor& x) {
    const CompositeOp here("nonzero");
    check_defined("nonzero", x);
    if (x.dim() > 0) return coordinates(x.detach());
    return zeros({positions(x.detach()).size(0), 0}, integers_on(x));
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
    const CompositeOp here("masked_select");
    check_defined("masked_select", x);
    check_boolean("masked_select", "mask", mask);
    const Shape shape = broadcast_shapes("masked_select", x.shape(), mask.shape());
    const Tensor place = positions(mask.expand(shape)), all = x.expand(shape);
    return index_select(all.reshape({all.numel()}), 0, place);
}

Tensor one_hot(const Tensor& index, std::int64_t classes) {
    const CompositeOp here("one_hot");
    check_index("one_hot", index);
    check(classes >= -1, ErrorKind::value, "one_hot: ", classes, " classes");
    if (classes == -1) {
        check(index.numel() > 0, ErrorKind::value, "one_hot: no index says how many classes there are");
        classes = classes_up_to("one_hot", extreme(index, true));
    }
    const bool readable = index.device().type() == DeviceType::cpu && index.numel() > 0;
    if (readable) {
        const std::int64_t low = extreme(index, false), high = extreme(index, true);
        check(low >= 0 && high < classes, ErrorKind::value, "one_hot: index ", low < 0 ? low : high,
              " is outside of the ", classes, " classes");
    }
    // Observers such as io::export_onnx() see ops, not writes.
    if (readable && thread_state.observers == nullptr) {
        Shape shape = index.shape();
        shape.push_back(classes);
        const Tensor y = zeros(shape, {.dtype = int64}), x = index.contiguous();
        std::int64_t* to = y.mutable_data<std::int64_t>();
        for (const std::int64_t i : std::span(x.data<std::int64_t>(), std::size_t(x.numel()))) {
            to[i] = 1;
            to += classes;
        }
        return y;
    }
    const Tensor all = arange(classes, integers_on(index));
    return cast(eq(index.unsqueeze(-1), all), int64);
}

Tensor repeat_interleave(const Tensor& x, const Tensor& counts, std::int64_t dim) {
    const CompositeOp here("repeat_interleave");
    check_defined("repeat_interleave", x);
    check_index("repeat_interleave", counts);
    check(x.dim() > 0, ErrorKind::shape, "repeat_interleave: a 0-dim tensor has no dimension to repeat");
    const int d = wrap_dim("repeat_interleave", dim, x.dim());
    check(counts.dim() == 1 && counts.size(0) == x.size(d), ErrorKind::shape, "repeat_interleave: counts ",
          counts.shape(), " has not one number for each element of dimension ", d, " of ", x.shape());
    const std::int64_t least = extreme(counts, false);
    check(least >= 0, ErrorKind::value, "repeat_interleave: a count of ", least, " is negative");
    const std::int64_t most = extreme(counts, true), n = std::max<std::int64_t>(counts.numel(), 1);
    check(most <= INT64_MAX / n, ErrorKind::value, "repeat_interleave: a count of ", most, " is too large");
    const Tensor ends = cumsum(counts, 0);
    const std::int64_t total = sum(counts).item<std::int64_t>();
    return index_select(x, d, searchsorted(ends, arange(total, integers_on(x)), {.right = true}));
}

Unique unique(const Tensor& given, UniqueOptions options) {
    const CompositeOp here("unique");
    check_defined("unique", given);
    const std::int64_t n = given.numel();
    const Tensor x = given.detach().reshape({n});
    if (n == 0) {
        const Tensor none = zeros({0}, integers_on(x));
        return {x, options.inverse ? none.reshape(given.shape()) : Tensor(),
                options.counts ? none : Tensor()};
    }
    const Tensor order = argsort(x), sorted = index_select(x, 0, order);
    const Tensor first = ones({1}, {.dtype = boolean, .device = x.device()});
    const Tensor fresh = cat({first, ne(sorted.slice(0, 1, n), sorted.slice(0, 0, n - 1))});
    const Tensor start = positions(fresh);
    Unique result{index_select(sorted, 0, start), {}, {}};
    if (options.inverse)
        result.inverse =
            scatter_add(zeros({n}, integers_on(x)), 0, order, cumsum(fresh, 0) - 1.0).reshape(given.shape());
    if (options.counts) {
        const Tensor end = full({1}, double(n), integers_on(x));
        result.counts = cat({start.slice(0, 1, start.size(0)), end}) - start;
    }
    return result;
}

Tensor bincount(const Tensor& given, const Tensor& weights, std::int64_t minlength) {
    const CompositeOp here("bincount");
    check_defined("bincount", given);
    check(given.dim() == 1, ErrorKind::shape, "bincount: input ", given.shape(), " is not one dimension");
    check(!is_floating(given.dtype()) && given.dtype() != boolean, ErrorKind::dtype, "bincount: input is ",
          given.dtype(), ", but must be integral; convert it with to(int64)");
    check(minlength >= 0, ErrorKind::value, "bincount: minlength ", minlength, " is negative");
    check(!weights.defined() || weights.shape() == given.shape(), ErrorKind::shape, "bincount: weights ",
          weights.defined() ? weights.shape() : Shape(), " differ in shape from input ", given.shape());
    const Tensor x = cast(given, int64);
    const std::int64_t low = extreme(x, false);
    check(low >= 0, ErrorKind::value, "bincount: ", low, " is negative");
    const std::int64_t found = x.numel() > 0 ? classes_up_to("bincount", extreme(x, true)) : 0;
    const Shape shape{std::max(found, minlength)};
    if (!weights.defined() && x.device().type() == DeviceType::cpu) {
        const Tensor counts = zeros(shape, {.dtype = int64}), all = x.contiguous();
        std::int64_t* const to = counts.mutable_data<std::int64_t>();
        for (const std::int64_t i : std::span(all.data<std::int64_t>(), std::size_t(all.numel()))) ++to[i];
        return counts;
    }
    Tensor value = ones({x.numel()}, integers_on(x));
    if (weights.defined()) value = is_floating(weights.dtype()) ? weights.detach() : cast(weights, float64);
    return scatter_add(zeros(shape, {.dtype = value.dtype(), .device = x.device()}), 0, x, value);
}

Tensor multinomial(const Tensor& weights, std::int64_t count, MultinomialOptions options) {
    const CompositeOp here("multinomial");
    const bool replacement = options.replacement;
    check_floating("multinomial", weights);
    check(weights.dim() == 1 || weights.dim() == 2, ErrorKind::shape, "multinomial: weights ",
          weights.shape(), " are neither [classes] nor [rows, classes]");
    check(count > 0, ErrorKind::value, "multinomial: ", count, " indices per row");
    const std::int64_t rows = weights.dim() == 2 ? weights.size(0) : 1, needed = replacement ? 1 : count;
    if (rows == 0) return zeros({0, count}, integers_on(weights));
    const auto enough = [&](bool holds) {
        check(holds, ErrorKind::value, "multinomial: a row has fewer than ", needed,
              " weights that are not 0");
    };
    enough(weights.size(-1) > 0);
    const Tensor p = weights.detach().reshape({rows, weights.size(-1)}), largest = max(p, {1}, keep_dims());
    const std::vector<double> bounds =
        cast(stack({min(p), max(largest), min(largest)}), float64).to(cpu_device).to_vector<double>();
    check(bounds[0] >= 0 && std::isfinite(bounds[1]), ErrorKind::value,
          "multinomial: a weight is negative or not finite");
    enough(bounds[2] > 0);
    if (needed > 1) enough(all(ge(count_nonzero(p, {1}), double(needed))).item<bool>());
    // Divided by the largest, so that neither sums nor quotients overflow; those of other types can't.
    const Tensor scaled = p.dtype() == float64 ? p / largest : p;
    const Tensor y = replacement ? drawn_with_replacement(scaled, count) : drawn_once_each(scaled, count);
    return weights.dim() == 2 ? y : y.reshape({count});
}

}  // namespace mezzo
