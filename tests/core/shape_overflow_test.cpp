// Counts of elements and bytes beyond 63 bits: every call that makes a shape ends in an Error, never in a
// tensor without memory.
#include <catch2/catch.hpp>
#include <limits>

#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "mezzo/optim.h"
#include "mezzo/text/tokenizer.h"
#include "mezzo/transformer.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t wide = std::int64_t(1) << 32;
constexpr std::int64_t wraps_to_1 = 0x6DB6DB6DB6DB6DB7;  // 7 times it is 1 modulo 2^64

template <class F> ErrorKind kind_of(const F& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.kind();
    }
    FAIL("nothing thrown");
    return {};
}
#define REFUSED_SHAPE(expression) CHECK(kind_of([&] { (void)(expression); }) == ErrorKind::shape)
#define REFUSED_MEMORY(expression) CHECK(kind_of([&] { (void)(expression); }) == ErrorKind::memory)

}  // namespace

TEST_CASE("counts: the product of a shape is exact or refused", "[counts]") {
    CHECK(count_elements({}) == 1);
    CHECK(count_elements({3, 0, 5}) == 0);
    CHECK(count_elements({most}) == most);
    CHECK(count_elements({most / 4}, 4) == most / 4);
    CHECK(count_elements({most / 4 + 1}, 4) == -1);
    CHECK(count_elements({7, wraps_to_1}) == -1);
    CHECK(count_elements({wide, wide}) == -1);
    CHECK(count_elements({0, wide, wide}) == -1);  // its strides would not fit
    CHECK(count_elements({2, -1}) == -1);
    CHECK(Shape{2, 3}.numel() == 6);
    REFUSED_SHAPE((Shape{7, wraps_to_1}.numel()));
    REFUSED_SHAPE((Shape{-1}.numel()));
    CHECK_THROWS_WITH(checked_numel("op", {wide, wide}),
                      "op: shape [4294967296, 4294967296] has more than 2^63 elements");
    CHECK_THROWS_WITH(checked_numel("op", {wide, wide / 4}, 8),
                      Contains("of 8-byte elements is beyond 2^63 bytes"));
    CHECK_THROWS_WITH(checked_numel("op", {2, -3}), "op: negative size in shape [2, -3]");
}

TEST_CASE("counts: views", "[counts]") {
    const Tensor one = ones({1}), none = zeros({0});
    CHECK_THROWS_WITH(one.reshape({7, wraps_to_1}), Contains("reshape: shape [7, 7905747460161236407]"));
    CHECK_THROWS_WITH(one.expand({7, wraps_to_1}), Contains("expand: shape [7, 7905747460161236407]"));
    CHECK_THROWS_WITH(none.reshape({wide, wide}), Contains("reshape: shape [4294967296, 4294967296]"));
    REFUSED_SHAPE(none.reshape({wide, wide, -1}));
    REFUSED_SHAPE(none.reshape({0, wide, wide}));
    REFUSED_SHAPE(one.reshape({-1, wide, wide, 1}));
    REFUSED_SHAPE(one.reshape({-1, 7, wraps_to_1}));
    REFUSED_SHAPE(one.expand({wide, wide}));
    REFUSED_SHAPE(one.expand({most / 2}));  // of four bytes each
    REFUSED_SHAPE(one.to(float64).expand({most / 8 + 1}));
    const Tensor large = one.expand({wide, 64});  // no memory behind it, yet a tensor
    CHECK(large.numel() == wide * 64);
    CHECK(large.flatten().select(0, -1).item<float>() == 1);
    REFUSED_SHAPE(large.unsqueeze(0).expand({wide, wide, 64}));
}

TEST_CASE("counts: slices with steps up to the largest integer", "[counts]") {
    const Tensor x = arange(5, {.dtype = float32}).set_requires_grad();
    for (const std::int64_t step :
         {std::int64_t(5), std::int64_t(6), wide, most / 4, most / 2, most - 4, most - 1, most}) {
        CAPTURE(step);
        const Tensor y = x.slice(0, 1, 5, step);
        CHECK(y.to_vector<float>() == std::vector<float>{1});
        CHECK(x.slice(0, 2, 2, step).numel() == 0);
        CHECK(x.slice(0, -most, most, step).to_vector<float>() == std::vector<float>{0});
        const Tensor grid = arange(6, {.dtype = float32}).reshape({3, 2}).set_requires_grad();
        const Tensor row = grid.slice(0, 1, 3, step);
        CHECK(row.to_vector<float>() == std::vector<float>{2, 3});
        CHECK((row * 1.0).to_vector<float>() == std::vector<float>{2, 3});
        CHECK(row.reshape({2}).to_vector<float>() == std::vector<float>{2, 3});
        CHECK(row.unsqueeze(0).contiguous().numel() == 2);
        const Tensor g = autograd::grad({sum(row)}, {grid}, {.create_graph = true})[0];
        CHECK(g.to_vector<float>() == std::vector<float>{0, 0, 1, 1, 0, 0});
    }
    CHECK(x.slice(0, 0, 5, 4).to_vector<float>() == std::vector<float>{0, 4});
}

TEST_CASE("counts: factories, joins, indices and products", "[counts]") {
    for (const auto& make :
         std::vector<Tensor (*)(const Shape&, TensorOptions)>{empty, zeros, ones, rand, randn}) {
        REFUSED_SHAPE(make({7, wraps_to_1}, {}));
        REFUSED_SHAPE(make({wide, wide}, {}));
        REFUSED_SHAPE(make({most}, {}));
        REFUSED_MEMORY(make({most / 4}, {}));
    }
    REFUSED_SHAPE(full({wide, wide}, 1));
    REFUSED_SHAPE(randint(0, 2, {wide, wide}));
    REFUSED_SHAPE(arange(most));
    REFUSED_MEMORY(arange(most / 8));
    REFUSED_SHAPE(Tensor::from<float>(std::vector<float>(), {wide, wide}));
    const RandomState state = random_state();
    REFUSED_SHAPE(randn({wide, wide}));
    CHECK(random_state().offset == state.offset);

    const Tensor bytes = zeros({1}, {.dtype = uint8});
    const Tensor huge = bytes.expand({most}), half = bytes.expand({most / 2 + 1});
    REFUSED_SHAPE(cat({huge, bytes}));
    REFUSED_SHAPE(cat({half, half}));
    REFUSED_MEMORY(huge.to_vector<float>());
    REFUSED_MEMORY(huge.clone());
    // These first make their inputs contiguous, for which no machine has the memory.
    CHECK_THROWS_AS(stack({huge, huge}), Error);
    constexpr std::int64_t far = std::int64_t(1) << 44;
    const Tensor row = ones({1, 1}).expand({1, far}), column = ones({1, 1}).expand({far, 1});
    const Tensor index = zeros({1}, {.dtype = int64}).expand({far});
    CHECK_THROWS_AS(matmul(column, row), Error);
    CHECK_THROWS_AS(index_select(row, 0, index), Error);
    CHECK_THROWS_AS(embedding(row, index), Error);
    CHECK_THROWS_AS(gt(row, 0.0), Error);
    REFUSED_SHAPE(row + column);
    REFUSED_SHAPE(maximum(column, row));
}

TEST_CASE("counts: optimizers and layers", "[counts]") {
    const Tensor large = ones({1}).expand({most / 4});
    large.set_requires_grad();
    large.set_grad(zeros({1}).expand({most / 4}));
    const Tensor more = ones({1}).expand({most / 4});
    more.set_requires_grad();
    more.set_grad(zeros({1}).expand({most / 4}));
    optim::Adam optimizer(Tensors{large, more});
    REFUSED_MEMORY(optimizer.step());
    REFUSED_SHAPE(nn::Linear(wide, wide));
    REFUSED_SHAPE(nn::Embedding(wide, wide));
    REFUSED_SHAPE(nn::MultiheadAttention(most, 1));
    const std::vector<data::Encoding> encodings(2);
    CHECK_THROWS_AS(data::pad(encodings, {.length = most}), Error);
}
