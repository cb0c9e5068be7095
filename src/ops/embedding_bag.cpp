// Sums, means and maxima of the rows of a table, bag by bag.
#include <algorithm>
#include <cmath>

#include "autograd/op_observer.h"
#include "core/enumerators.h"
#include "mezzo/reduce_ops.h"
#include "mezzo/sort_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

constexpr const char* op = "embedding_bag";

// The indices of the bags: a matrix with `real` false for padding, or a line with the bag of each.
struct Bags {
    Tensor index, weights;
    std::int64_t count = 0;
    Tensor real = {}, bag = {};
};

void check_bags(const Tensor& weight, const Tensor& index, const EmbeddingBagOptions& o) {
    check_floating(op, weight, "weight");
    check_defined(op, index);
    check_enumerator(op, "mode", o.mode, BagMode::max);
    check(weight.dim() == 2, ErrorKind::shape, op, ": weight ", weight.shape(), " is not [n, dim]");
    check(o.offsets.defined() ? index.dim() == 1 && o.offsets.dim() == 1 : index.dim() == 2, ErrorKind::shape,
          op, ": index ", index.shape(),
          " is neither [bags, length] without offsets nor [count] with "
          "offsets [bags]");
    const Tensor& factors = o.per_sample_weights;
    check(!factors.defined() || o.mode == BagMode::sum, ErrorKind::value, op,
          ": per_sample_weights need BagMode::sum");
    check(!factors.defined() || factors.shape() == index.shape(), ErrorKind::shape, op,
          ": per_sample_weights ", factors.defined() ? factors.shape() : Shape{}, " are not like index ",
          index.shape());
    check(o.padding_idx < weight.size(0), ErrorKind::value, op, ": padding_idx ", o.padding_idx,
          " is outside the ", weight.size(0), " rows");
}

// The beginnings of the bags and, last, the number of indices, checked on the host. Waits for the device.
std::vector<std::int64_t> host_offsets(const Tensor& begins, std::int64_t count) {
    std::vector<std::int64_t> result = begins.to_vector<std::int64_t>();
    result.push_back(count);
    check((result.front() == 0 || result.size() == 1) && std::is_sorted(result.begin(), result.end()),
          ErrorKind::value, op, ": offsets do not ascend from 0 to at most ", count,
          ", the number of indices");
    return result;
}

Bags bags_by_offsets(const Tensor& index, const EmbeddingBagOptions& o) {
    const std::int64_t count = index.size(0), bags = o.offsets.size(0) - (o.include_last_offset ? 1 : 0);
    check(bags > 0 || (bags == 0 && count == 0), ErrorKind::value, op, ": ", o.offsets.size(0),
          " offsets name no bag for ", count, " indices");
    const Tensor begins = o.offsets.slice(0, 0, bags);
    std::vector<std::int64_t> ends;
    if (o.mode == BagMode::max || index.device().type() == DeviceType::cpu)
        ends = host_offsets(begins, count);
    Bags result{.index = index, .weights = o.per_sample_weights, .count = bags};
    if (o.mode != BagMode::max) {
        const Tensor each = arange(count, {.dtype = int64, .device = index.device()});
        result.bag = searchsorted(begins.to(int64), each, {.right = true}) - 1;
        return result;
    }
    std::int64_t longest = 0;
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) longest = std::max(longest, ends[i + 1] - ends[i]);
    std::vector<std::int64_t> positions, real;
    for (std::size_t i = 0; i + 1 < ends.size(); ++i)
        for (std::int64_t j = 0; j < longest; ++j) {
            real.push_back(ends[i] + j < ends[i + 1]);
            positions.push_back(real.back() ? ends[i] + j : 0);
        }
    const Shape shape{bags, longest};
    const Tensor at = Tensor::from(positions, {shape.numel()}).to(index.device());
    result.index = index.index_select(0, at).reshape(shape);
    result.real = ne(Tensor::from(real, shape).to(index.device()), 0);
    return result;
}

// The sums of rows, one per index, over the bags.
Tensor bag_sum(const Bags& bags, const Tensor& rows) {
    if (!bags.bag.defined()) return sum(rows, {1});
    const Shape shape{bags.count, rows.size(1)};
    return scatter_add(zeros(shape, {.dtype = rows.dtype(), .device = rows.device()}), 0,
                       bags.bag.unsqueeze(1).expand(rows.shape()), rows);
}

// The first row with the largest value, per element.
Tensor bag_max(const Tensor& rows, const Tensor& real) {
    if (rows.size(1) == 0)
        return zeros({rows.size(0), rows.size(2)}, {.dtype = rows.dtype(), .device = rows.device()});
    if (!real.defined()) return gather(rows, 1, argmax(rows, 1, {.keepdim = true})).squeeze(1);
    const Tensor seen = masked_fill(rows, logical_not(real).unsqueeze(2), -INFINITY);
    const Tensor y = gather(seen, 1, argmax(seen, 1, {.keepdim = true})).squeeze(1);
    const Tensor empty = eq(sum(real.to(int64), {1}, keep_dims()), 0);
    return masked_fill(y, empty, 0);
}

}  // namespace

Tensor embedding_bag(const Tensor& weight, const Tensor& index, const EmbeddingBagOptions& o) {
    const CompositeOp here(op);
    check_bags(weight, index, o);
    Bags bags = o.offsets.defined()
                    ? bags_by_offsets(index, o)
                    : Bags{.index = index, .weights = o.per_sample_weights, .count = index.size(0)};
    Tensor rows = widened(embedding(weight, bags.index, o.padding_idx));
    if (o.padding_idx >= 0) {
        const Tensor counts = ne(bags.index, o.padding_idx);
        bags.real = bags.real.defined() ? logical_and(bags.real, counts) : counts;
    }
    if (o.mode == BagMode::max) return cast(bag_max(rows, bags.real), weight.dtype());
    if (bags.weights.defined()) rows = rows * bags.weights.unsqueeze(-1);
    if (bags.real.defined()) rows = masked_fill(rows, logical_not(bags.real).unsqueeze(-1), 0);
    Tensor y = bag_sum(bags, rows);
    if (o.mode == BagMode::mean) {
        const Tensor real = bags.real.defined() ? bags.real : ne(ones_like(bags.index), 0);
        const Tensor size = bag_sum(bags, real.to(rows.dtype()).unsqueeze(-1));
        y = y / clamp(size, 1, INFINITY);
    }
    return cast(y, weight.dtype());
}

}  // namespace mezzo
