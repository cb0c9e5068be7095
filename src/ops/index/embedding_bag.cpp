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

// The indices of the bags: a matrix with `real` false for padding, or a line with the bag of each, which is
// `count` for an index behind the last bag.
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

// The beginnings of the bags and, last, the end, checked on the host. Waits for the device.
std::vector<std::int64_t> host_offsets(const EmbeddingBagOptions& o, std::int64_t count) {
    std::vector<std::int64_t> result = o.offsets.to_vector<std::int64_t>();
    if (!o.include_last_offset) result.push_back(count);
    check(result.front() == 0 && std::is_sorted(result.begin(), result.end()) && result.back() <= count,
          ErrorKind::value, op, ": offsets do not ascend from 0 to at most ", count,
          ", the number of indices");
    return result;
}

Bags bags_by_offsets(const Tensor& index, const EmbeddingBagOptions& o) {
    check(o.offsets.dtype() == int64 || o.offsets.dtype() == int32, ErrorKind::dtype, op, ": offsets are ",
          o.offsets.dtype(), ", but must be int64 or int32; convert them with to(int64)");
    const std::int64_t count = index.size(0), bags = o.offsets.size(0) - (o.include_last_offset ? 1 : 0);
    check(bags > 0 || (bags == 0 && (count == 0 || o.include_last_offset)), ErrorKind::value, op, ": ",
          o.offsets.size(0), " offsets name no bag for ", count, " indices");
    std::vector<std::int64_t> ends;
    if (o.mode == BagMode::max || index.device().type() == DeviceType::cpu) ends = host_offsets(o, count);
    Bags result{.index = index, .weights = o.per_sample_weights, .count = bags};
    if (o.mode != BagMode::max) {
        const Tensor each = arange(count, {.dtype = int64, .device = index.device()});
        result.bag = searchsorted(o.offsets.to(int64), each, {.right = true}) - 1;
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
    const Shape shape{bags.count + 1, rows.size(1)};
    const Tensor sums = scatter_add(zeros(shape, {.dtype = rows.dtype(), .device = rows.device()}), 0,
                                    bags.bag.unsqueeze(1).expand(rows.shape()), rows);
    return sums.slice(0, 0, bags.count);
}

// The first row with the largest value, per element.
Tensor bag_max(const Tensor& rows, const Tensor& real) {
    if (rows.size(1) == 0) return sum(rows, {1});  // zeros that have the history of rows
    if (!real.defined()) return gather(rows, 1, argmax(rows, 1, {.keepdim = true})).squeeze(1);
    const Tensor seen = masked_fill(rows, logical_not(real).unsqueeze(2), -INFINITY);
    const Tensor largest = argmax(seen, 1, {.keepdim = true}), numbers = real.to(int64);
    // Padding is found only if all real rows are -inf. Their first one is the largest, too.
    const Tensor found = gather(real.unsqueeze(2).expand(rows.shape()), 1, largest);
    const Tensor at = where(found, largest, argmax(numbers, 1, {.keepdim = true}).unsqueeze(2));
    return masked_fill(gather(seen, 1, at).squeeze(1), eq(sum(numbers, {1}, keep_dims()), 0), 0);
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
