// Op cases of index_ops.h and of x[{...}] with tensors.
#include <algorithm>

#include "mezzo/index_ops.h"
#include "mezzo/ops.h"
#include "tests/support/op_cases.h"

namespace mezzo::test {

namespace {

using enum Under;
using enum Domain;
using enum ScatterReduction;

const Shape input{3, 7}, part{3, 4};  // indices below 7

// One of the numbers below the rows of x per column.
Tensor rows_of(const Tensor& x, const Tensor& index) {
    return index.remainder(std::max<std::int64_t>(x.size(0), 1));
}

// clang-format off
#define OF(name, call, ...) \
    {name, [](In x) { return call; }, __VA_ARGS__}
#define SHAPES(...) {__VA_ARGS__}, nullptr

std::vector<OpCase> lookups() {
    return {
        OF("index", (x[0][{Slice(), x[1]}]), SHAPES(input, {5}), keep, any, "fc"),
        OF("index of rows and columns", (x[0][{rows_of(x[0], x[1]), x[1]}]), SHAPES(input, {5}), keep, any, "fc", "", true, true, false),
        OF("index of two apart", (x[0][{x[1], Slice(0, 2), x[2]}]), SHAPES({7, 3, 7}, {2, 1}, {4}), keep, any, "fcc", "", true, true, false),
        OF("index by a mask", (x[0][x[1]]), SHAPES(input, input), keep, any, "fb"),
        OF("index by a mask and more", (x[0][{ellipsis, x[1], newaxis}]), SHAPES({2, 3, 4}, {4}), keep, any, "fb"),
        OF("take", take(x[0], x[1]), SHAPES(input, {2, 4}), keep, any, "fc", "", true, true, false),
        OF("take_along_dim", take_along_dim(x[0], x[1], 1), SHAPES(input, {1, 4}), keep, any, "fc"),
    };
}

std::vector<OpCase> writes() {
    return {
        OF("scatter", scatter(x[0], 1, x[1], x[2]), SHAPES(input, {3, 9}, {3, 9}), keep, any, "fcf"),
        OF("scatter of the first", scatter(x[0], 0, rows_of(x[0], x[1]), x[2]), SHAPES({4, 5}, {2, 5}, {3, 5}), keep, any, "fcf", "", true, true, false),
        OF("scatter of a number", scatter(x[0], 1, x[1], 2.5), SHAPES(input, part), keep, any, "fc"),
        OF("scatter_reduce", scatter_reduce(x[0], 1, x[1], x[2], prod), SHAPES(input, {3, 9}, {3, 9}), keep, any, "fcf"),
        OF("scatter_reduce to the largest", scatter_reduce(x[0], 1, x[1], x[2], amax), SHAPES(input, {3, 9}, {3, 9}), keep, distinct, "fcf"),
        OF("scatter_reduce to the smallest", scatter_reduce(x[0], 1, x[1], x[2], amin, {.include_self = false}),
           SHAPES(input, {3, 9}, {3, 9}), keep, distinct, "fcf"),
        OF("scatter_reduce to the mean", scatter_reduce(x[0], 1, x[1], x[2], mean), SHAPES(input, {3, 9}, {3, 9}), keep, any, "fcf"),
        OF("scatter_reduce to the sum alone", scatter_reduce(x[0], 1, x[1], x[2], ScatterReduction::sum, {.include_self = false}),
           SHAPES(input, {3, 9}, {3, 9}), keep, any, "fcf"),
        OF("index_reduce", index_reduce(x[0], 1, x[1], x[2], mean), SHAPES(input, {4}, part), keep, any, "fcf"),
        OF("index_copy", index_copy(x[0], 1, x[1], x[2]), SHAPES(input, {9}, {3, 9}), keep, any, "fcf"),
        OF("index_add", index_add(x[0], 1, x[1], x[2], 0.5), SHAPES(input, {9}, {3, 9}), keep, any, "fcf"),
        OF("index_fill", index_fill(x[0], 1, x[1], 2), SHAPES(input, {4}), keep, any, "fc"),
        OF("index_put", index_put(x[0], {Slice(), x[1]}, x[2]), SHAPES(input, {4}, part), keep, any, "fcf"),
        OF("index_put that adds", index_put(x[0], {Slice(), x[1]}, x[2], {.accumulate = true}), SHAPES(input, {9}, {9}), keep, any, "fcf"),
        OF("index_put by a mask", index_put(x[0], {x[1]}, 0.5), SHAPES(input, input), keep, any, "fb"),
        OF("masked_scatter", masked_scatter(x[0], x[1], x[2]), SHAPES(input, input, input), keep, any, "fbf"),
        OF("put", put(x[0], x[1], x[2]), SHAPES(input, part, part), keep, any, "fcf", "", true, true, false),
    };
}
// clang-format on

}  // namespace

std::vector<OpCase> index_cases() {
    std::vector<OpCase> all = lookups();
    const std::vector<OpCase> more = writes();
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

}  // namespace mezzo::test
