// x[{...}] with tensors, and writes by index: shapes as in PyTorch, all dtypes, gradients of repeated
// indices, and what is refused.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/index_ops.h"
#include "mezzo/shape_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;
using How = ScatterReduction;

Tensor of(const Integers& values, Device device = cpu_device) {
    return Tensor::from(values, {std::int64_t(values.size())}).to(device);
}
Tensor of(const Integers& values, const Shape& shape, Device device = cpu_device) {
    return Tensor::from(values, shape).to(device);
}
// 0, 1, 2, ... in a shape.
Tensor counted(const Shape& shape, Dtype dtype, Device device) {
    return arange(shape.numel()).to(dtype).reshape(shape).to(device);
}

struct Refused {
    const char* op;
    ErrorKind kind;
    const char* text;
    Tensor (*run)();
};

void check_refused(std::initializer_list<Refused> all) {
    for (const Refused& r : all) {
        CAPTURE(r.op, r.text);
        try {
            (void)r.run();
            FAIL_CHECK("no error");
        } catch (const Error& e) {
            CHECK(e.kind() == r.kind);
            CHECK_THAT(e.what(), Catch::StartsWith(std::string(r.op) + ":") && Catch::Contains(r.text));
        }
    }
}

}  // namespace

TEST_CASE("index tensors in brackets have PyTorch's shapes", "[ops][index]") {
    for (const Device device : devices()) {
        const Tensor x = counted({2, 3, 4, 5}, float32, device);
        const Tensor i = of({1, 0}, device), j = of({0, 2, 1}, {3, 1}, device);
        const Tensor mask = of({1, 0, 0, 1, 1, 0}, {2, 3}, device) == 1;
        CHECK(x[i].shape() == Shape{2, 3, 4, 5});
        CHECK(x[{Slice(), j}].shape() == Shape{2, 3, 1, 4, 5});
        CHECK(x[{i, j}].shape() == Shape{3, 2, 4, 5});
        CHECK(x[{Slice(), i, j}].shape() == Shape{2, 3, 2, 5});
        CHECK(x[{i, Slice(), j}].shape() == Shape{3, 2, 3, 5});  // apart: first
        CHECK(x[{i, newaxis, j}].shape() == Shape{3, 2, 1, 4, 5});
        CHECK(x[{i, 0, j}].shape() == Shape{3, 2, 5});  // a number does not part them
        CHECK(x[{ellipsis, j, Slice(1, 3)}].shape() == Shape{2, 3, 3, 1, 2});
        CHECK(x[mask].shape() == Shape{3, 4, 5});
        CHECK(x[{mask, of({1, 2, 3}, device)}].shape() == Shape{3, 5});
        CHECK(x[{0, scalar(2, {.dtype = int64, .device = device}), i}].shape() == Shape{2, 5});
        CHECK(x[x > 100].shape() == Shape{19});
        CHECK(x[scalar(1, {.dtype = boolean, .device = device})].shape() == Shape{1, 2, 3, 4, 5});
        CHECK(x[of({}, device)].shape() == Shape{0, 3, 4, 5});
        CHECK(doubles(x[{i, of({-1, 0}, device), 1, -1}]) == Values{1 * 60 + 2 * 20 + 5 + 4, 5 + 4});
        CHECK(doubles(x[{1, Slice(1, 2), i.to(int32), 2}]) == Values{60 + 20 + 5 + 2, 60 + 20 + 2});
        CHECK(doubles(x[{i, Slice(), of({0, 3}, device), 0}]) == Values{60, 80, 100, 15, 35, 55});
        CHECK(doubles(index(x, {i, 0, 0, ellipsis, -1})) == Values{64, 4});
    }
}

TEST_CASE("index tensors take any dtype and sum the gradients of repeated indices", "[ops][index]") {
    for (const Device device : devices()) {
        for (const Dtype dtype : {boolean, uint8, int32, int64, bfloat16, float64}) {
            const Tensor y = counted({6}, dtype, device)[of({3, 0, -1}, device)];
            CHECK(y.dtype() == dtype);
            CHECK(doubles(y) == (dtype == boolean ? Values{1, 0, 1} : Values{3, 0, 5}));
        }
        const Tensor x = counted({2, 3}, float32, device).set_requires_grad();
        x[{of({1, 1, 0}, device), of({2, -1, 0}, device)}].sum().backward();
        CHECK(doubles(x.grad()) == Values{1, 0, 0, 0, 0, 2});
        // A copy: what is written to it does not reach x.
        const Tensor plain = x.detach();
        plain[of({0}, device)].fill_(9);
        CHECK(doubles(plain) == Values{0, 1, 2, 3, 4, 5});
    }
}

TEST_CASE("writes to repeated indices: the last value counts and has the gradient", "[ops][index]") {
    for (const Device device : devices()) {
        const Tensor x = zeros({4}, {.device = device, .requires_grad = true});
        const Tensor src = (counted({5}, float32, device) + 1).set_requires_grad();
        const Tensor at = of({2, 0, 2, 3, 2}, device);
        const Tensor weights = counted({4}, float32, device) + 1;
        for (const int way : {0, 1, 2, 3}) {
            CAPTURE(way);
            x.set_grad({}), src.set_grad({});
            const Tensor y = way == 0   ? scatter(x, 0, at, src)
                             : way == 1 ? index_copy(x, 0, at, src)
                             : way == 2 ? index_put(x, {at}, src)
                                        : put(x, at, src);
            CHECK(doubles(y) == Values{2, 0, 5, 4});
            (y * weights).sum().backward();
            CHECK(doubles(x.grad()) == Values{0, 2, 0, 0});
            CHECK(doubles(src.grad()) == Values{0, 1, 0, 4, 3});
        }
    }
}

TEST_CASE("scatter writes numbers and tensors of any dtype", "[ops][index]") {
    for (const Device device : devices())
        for (const Dtype dtype : {boolean, uint8, int32, int64, float16, float64}) {
            CAPTURE(name(device.type()), name(dtype));
            const Tensor x = zeros({2, 3}, {.dtype = dtype, .device = device});
            const Tensor at = of({2, 0, 1}, {1, 3}, device);
            CHECK(doubles(scatter(x, 1, at, ones({2, 4}, {.dtype = dtype, .device = device}))) ==
                  Values{1, 1, 1, 0, 0, 0});
            CHECK(doubles(scatter(x, 0, of({1}, {1, 1}, device), 1)) == Values{0, 0, 0, 1, 0, 0});
            CHECK(doubles(x.index_put({of({-1}, device), Slice(1, 3)}, 1)) == Values{0, 0, 0, 0, 1, 1});
            CHECK(doubles(index_fill(x, 1, of({-2}, device), 1)) == Values{0, 1, 0, 0, 1, 0});
            CHECK(doubles(masked_scatter(x, of({1, 0, 1}, device) == 1,
                                         ones({4}, {.dtype = dtype, .device = device}))) ==
                  Values{1, 0, 1, 1, 0, 1});
            CHECK(doubles(x) == Values(6, 0));
        }
}

TEST_CASE("index_put broadcasts its values", "[ops][index]") {
    for (const Device device : devices()) {
        const Tensor x = zeros({3, 4}, {.device = device});
        const Tensor rows = of({2, 0}, device);
        const Tensor row = counted({4}, float32, device) + 1;
        CHECK(doubles(index_put(x, {rows}, row)) == Values{1, 2, 3, 4, 0, 0, 0, 0, 1, 2, 3, 4});
        CHECK(doubles(index_put(x, {rows}, row.reshape({1, 1, 4}))) == doubles(index_put(x, {rows}, row)));
        CHECK(doubles(index_put(x, {1, Slice(0, 4, 2)}, 7)) == Values{0, 0, 0, 0, 7, 0, 7, 0, 0, 0, 0, 0});
        CHECK(doubles(index_put(x, {Slice(), row > 2}, 7)) == doubles(where(row > 2, 7, x)));
    }
}

TEST_CASE("index_put of a mask of leading dimensions", "[ops][index]") {
    for (const Device device : devices()) {
        const Tensor x = zeros({3, 2}, {.device = device});
        const Tensor mask = of({1, 0, 1}, device) == 1;
        CHECK(doubles(index_put(x, {mask}, 7)) == Values{7, 7, 0, 0, 7, 7});
        CHECK(doubles(index_put(x, {mask}, of({1, 2}, device).to(float32))) == Values{1, 2, 0, 0, 1, 2});
        CHECK(doubles(index_put(x, {mask, 1}, 3, {.accumulate = true})) == Values{0, 3, 0, 0, 0, 3});
    }
}

TEST_CASE("scatter_reduce: reductions, with and without the old value", "[ops][index]") {
    struct {
        How how;
        Values with, alone;
    } const cases[] = {{How::sum, {16, 20, 30}, {6, 20, 5}},
                       {How::prod, {80, 20, 125}, {8, 20, 5}},
                       {How::mean, {16.0 / 3, 20, 15}, {3, 20, 5}},
                       {How::amax, {10, 20, 25}, {4, 20, 5}},
                       {How::amin, {2, 20, 5}, {2, 20, 5}}};
    for (const Device device : devices())
        for (const Dtype dtype : {uint8, int32, int64, float16, float32, float64})
            for (const auto& c : cases) {
                CAPTURE(name(device.type()), name(dtype), int(c.how));
                const Tensor x = of({10, 20, 25}, device).to(dtype), src = of({2, 5, 4}, device).to(dtype);
                const Tensor at = of({0, 2, 0}, device);
                Values with = c.with, alone = c.alone;
                if (!is_floating(dtype))
                    for (double& v : with) v = std::floor(v);
                const Tolerance allowed{is_16bit(dtype) ? 1e-3 : 1e-6, 0};
                CHECK(difference(doubles(scatter_reduce(x, 0, at, src, c.how)), with, allowed) == "");
                const Tensor y = index_reduce(x, 0, at, src, c.how, {.include_self = false});
                CHECK(y.dtype() == dtype);
                CHECK(difference(doubles(y), alone, allowed) == "");
            }
}

TEST_CASE("gradients of scatter_reduce at ties, zeros and NaN", "[ops][index]") {
    for (const Device device : devices()) {
        const auto gradients = [&](const Values& x_values, const Values& src_values, How how) {
            const Tensor x = tensor_of(x_values, {2}, float32, device).set_requires_grad();
            const Tensor src = tensor_of(src_values, {3}, float32, device).set_requires_grad();
            const Tensor y = scatter_reduce(x, 0, of({0, 0, 1}, device), src, how);
            (y * tensor_of({6, 1}, {2}, float32, device)).sum().backward();
            Values all = doubles(x.grad());
            for (const double g : doubles(src.grad())) all.push_back(g);
            return all;
        };
        CHECK(gradients({3, 2}, {3, 3, 1}, How::amax) == Values{2, 1, 2, 2, 0});
        CHECK(gradients({1, 2}, {3, 1, 1}, How::amin) == Values{3, 0, 0, 3, 1});
        CHECK(gradients({5, 2}, {0, 3, 4}, How::prod) == Values{0, 4, 90, 0, 2});  // one zero
        CHECK(gradients({0, 2}, {0, 3, 4}, How::prod) == Values{0, 4, 0, 0, 2});   // two
        CHECK(gradients({0, 2}, {2, 3, 0}, How::prod) == Values{36, 0, 0, 0, 2});
        const Tensor nan = tensor_of({1, NAN, 2}, {3}, float32, device),
                     none = zeros({1}, {.device = device});
        for (const How how : {How::amax, How::amin})
            CHECK(std::isnan(doubles(scatter_reduce(none, 0, of({0, 0, 0}, device), nan, how))[0]));
    }
}

TEST_CASE("indices of 0 dimensions and int32", "[ops][index]") {
    for (const Device device : devices()) {
        const Tensor x = counted({3, 2}, float32, device),
                     one = scalar(1, {.dtype = int32, .device = device});
        CHECK(index_select(x, 0, one).shape() == Shape{1, 2});
        CHECK(doubles(index_select(x, 0, of({2, 0}, device).to(int32))) == Values{4, 5, 0, 1});
        const Tensor number = scalar(5, {.device = device}),
                     none = scalar(0, {.dtype = int64, .device = device});
        CHECK(index_select(number, 0, none).shape() == Shape{});
        CHECK(gather(number, 0, none).item<double>() == 5);
        CHECK(scatter_add(number, 0, none, number).item<double>() == 10);
        CHECK(scatter(number, 0, none, 3).item<double>() == 3);
        CHECK(scatter(number, 0, none, number * 2).shape() == Shape{});
        CHECK(index_copy(number, 0, none, number * 2).item<double>() == 10);
        CHECK(index_add(number, 0, none, number, 2).item<double>() == 15);
        CHECK(index_fill(number, 0, none, 1).item<double>() == 1);
        CHECK(take(x, none).shape() == Shape{});
        CHECK(embedding(x, of({2}, device).to(int32)).shape() == Shape{1, 2});
        CHECK(doubles(gather(x, 0, of({2, 0}, {1, 2}, device).to(int32))) == Values{4, 1});
    }
}

TEST_CASE("sums of slices in 16 bit are rounded once, and integers are exact", "[ops][index]") {
    for (const Device device : devices()) {
        const Tensor x = full({1, 4}, 2048, {.dtype = float16, .device = device});
        const Tensor at = zeros({3}, {.dtype = int64, .device = device});
        const Tensor half = ones({3, 4}, {.dtype = float16, .device = device});
        CHECK(doubles(index_add(x, 0, at, half)) == Values(4, 2052));  // 2051 is between two numbers
        const std::int64_t large = (std::int64_t(1) << 53) + 1;
        const Tensor whole = full({1, 32}, large, {.dtype = int64, .device = device});
        const Tensor sum =
            index_add(whole, 0, at.slice(0, 0, 1), ones({1, 32}, {.dtype = int64, .device = device}));
        CHECK(sum.to_vector<std::int64_t>() == Integers(32, large + 1));
    }
}

TEST_CASE("index_put promotes inside an Autocast scope", "[ops][index][autocast]") {
    for (const Device device : devices()) {
        const Tensor x = zeros({2}, {.device = device}), at = of({1}, device);
        const Tensor value = full({1}, 0.5, {.dtype = float16, .device = device});
        CHECK_THROWS_WITH(index_put(x, {at}, value), Catch::Contains("float16"));
        const amp::Autocast scope({.device = device.type(), .dtype = float16});
        const Tensor y = index_put(x, {at}, value);
        CHECK(y.dtype() == float32);
        CHECK(doubles(y) == Values{0, 0.5});
    }
}

TEST_CASE("an index outside gives NaN on CUDA and writes nothing", "[ops][index]") {
    for (const Device device : devices()) {
        if (device == cpu_device) continue;
        const Tensor x = ones({2, 3}, {.device = device});
        const Tensor rows = of({0, 2, -3, 1}, device), columns = of({0, 0, 0, -5}, device);
        const Values picked = doubles(x[{rows, columns}]);
        CHECK(picked[0] == 1);
        for (const std::size_t i : {1, 2, 3}) CHECK(std::isnan(picked[i]));
        CHECK(doubles(index_put(x, {rows, columns}, 5)) == Values{5, 1, 1, 1, 1, 1});
        CHECK(doubles(index_put(x, {rows}, 5)) == Values(6, 5));
        CHECK(doubles(scatter(x, 1, of({3}, {1, 1}, device), 5)) == Values(6, 1));
    }
}

TEST_CASE("indices are refused with the op, the value and the size", "[ops][index][errors]") {
    check_refused({
        {"index", ErrorKind::value, "index 2 at position 1 is outside [-2, 2)",
         [] {
             return ones({2, 3})[of({0, 2})];
         }},
        {"index", ErrorKind::value, "index -4 at position 0 is outside [-3, 3)",
         [] {
             return ones({2, 3})[{Slice(), of({-4})}];
         }},
        {"index", ErrorKind::dtype, "float32", [] { return ones({2})[ones({2})]; }},
        {"index", ErrorKind::dtype, "uint8", [] { return ones({2})[ones({2}, {.dtype = uint8})]; }},
        {"index", ErrorKind::shape, "mask [3] does not fit [2, 3]",
         [] {
             return ones({2, 3})[ones({3}) == 1];
         }},
        {"index", ErrorKind::shape, "[2] and [3]",
         [] {
             return ones({2, 3})[{of({0, 1}), of({0, 1, 2})}];
         }},
        {"index", ErrorKind::shape, "3 entries",
         [] {
             return ones({2, 3})[{ones({2, 3}) == 1, 0}];
         }},
        {"index", ErrorKind::value, "undefined", [] { return ones({2})[Tensor()]; }},
        {"slice", ErrorKind::value, "flip()", [] { return ones({2})[Slice(0, 2, -1)]; }},
        {"index_put", ErrorKind::shape, "shapes [3] and [2] do not broadcast",
         [] { return index_put(ones({3}), {Slice()}, ones({2})); }},
        {"index_put", ErrorKind::dtype, "int64", [] { return index_put(ones({3}), {of({0})}, of({1})); }},
        {"scatter", ErrorKind::value, "index 3 at position 0",
         [] { return scatter(ones({3}), 0, of({3}), ones({1})); }},
        {"scatter", ErrorKind::dtype, "int64", [] { return scatter(ones({3}), 0, of({0}), of({0})); }},
        {"scatter", ErrorKind::shape, "[2] does not fit src [1]",
         [] {
             return scatter(ones({3}), 0, of({0, 1}), ones({1}));
         }},
        {"scatter_reduce", ErrorKind::dtype, "boolean",
         [] { return scatter_reduce(ones({1}) == 1, 0, of({0}), ones({1}) == 1, How::prod); }},
        {"scatter_reduce", ErrorKind::value, "reduction",
         [] { return scatter_reduce(ones({1}), 0, of({0}), ones({1}), How(9)); }},
        {"index_copy", ErrorKind::value, "negative",
         [] { return index_copy(ones({3}), 0, of({-1}), ones({1})); }},
        {"index_copy", ErrorKind::shape, "[2, 3]",
         [] {
             return index_copy(ones({3, 3}), 0, of({0, 1}), ones({2, 2}));
         }},
        {"index_add", ErrorKind::value, "index 3 at position 1",
         [] {
             return index_add(ones({3}), 0, of({0, 3}), ones({2}));
         }},
        {"index_fill", ErrorKind::value, "index -4", [] { return index_fill(ones({3}), 0, of({-4}), 0); }},
        {"masked_scatter", ErrorKind::value, "3 elements, and source has 2",
         [] { return masked_scatter(ones({3}), ones({3}) == 1, ones({2})); }},
        {"take", ErrorKind::value, "index 6",
         [] {
             return take(ones({2, 3}), of({6}));
         }},
        {"put", ErrorKind::shape, "[2]", [] { return put(ones({3}), of({0}), ones({2})); }},
        {"take_along_dim", ErrorKind::shape, "numbers of dimensions",
         [] {
             return take_along_dim(ones({2, 3}), of({0}), 0);
         }},
    });
}

TEST_CASE("take_along_dim broadcasts and counts negative indices from the end", "[ops][index]") {
    for (const Device device : devices()) {
        const Tensor x = counted({2, 3}, float32, device);
        CHECK(doubles(take_along_dim(x, of({-1, 0}, {1, 2}, device), 1)) == Values{2, 0, 5, 3});
        CHECK(doubles(take_along_dim(x, of({-1, 0}, device))) == Values{5, 0});
        CHECK(doubles(x.take_along_dim(x.argsort(1, {.descending = true}), 1)) == Values{2, 1, 0, 5, 4, 3});
    }
}

TEST_CASE("scatter_reduce: means of large integers, and NaN", "[ops][index]") {
    for (const Device device : devices()) {
        const std::int64_t big = (std::int64_t(1) << 60) + 1;
        const Tensor mean = scatter_reduce(zeros({1}, {.dtype = int64, .device = device}), 0, of({0}, device),
                                           Tensor::from(std::vector<std::int64_t>{big}, {1}).to(device),
                                           ScatterReduction::mean, {.include_self = false});
        CHECK(mean.item<std::int64_t>() == big);
        const Tensor src = tensor_of({NAN, 3}, {2}, float32, device).set_requires_grad();
        const Tensor y = scatter_reduce(zeros({1}, {.device = device}), 0, of({0, 0}, device), src,
                                        ScatterReduction::amax);
        CHECK(std::isnan(y.item<double>()));
        y.sum().backward();
        for (const double g : doubles(src.grad())) CHECK(std::isnan(g));  // as that of max()
    }
}

TEST_CASE("scatter_reduce: second derivatives of products with a 0", "[ops][index]") {
    const Tensor src = tensor_of({0, 3}, {2}, float64).set_requires_grad();
    const Tensor y =
        scatter_reduce(ones({1}, {.dtype = float64}), 0, of({0, 0}), src, ScatterReduction::prod);
    const Tensor first = autograd::grad({y.sum()}, {src}, {.create_graph = true})[0];
    CHECK(doubles(first) == Values{3, 0});
    CHECK(doubles(autograd::grad({first.sum()}, {src})[0]) == Values{1, 1});
}

TEST_CASE("writes by an empty index copy the input and keep the history of the source", "[ops][index]") {
    const auto copies = [](Dtype dtype, auto f) {
        const Tensor x = Tensor::from({-0.0f, 2.0f, NAN}, {3}).to(dtype);
        const Tensor src = ones({3}, {.dtype = dtype}).set_requires_grad();
        const Tensor y = f(x, zeros({0}, {.dtype = int64}), src);
        CHECK(y.dtype() == dtype);
        CHECK(std::signbit(y[0].to(float64).item<double>()));
        y.backward({.gradient = ones_like(y)});
        CHECK(doubles(src.grad()) == Values(3, 0));
        y.detach().fill_(77);
        CHECK(x[1].to(float64).item<double>() == 2);
    };
    for (const Dtype dtype : {float32, bfloat16}) {
        copies(dtype,
               [](const Tensor& x, const Tensor& i, const Tensor& src) { return scatter_add(x, 0, i, src); });
        copies(dtype,
               [](const Tensor& x, const Tensor& i, const Tensor& src) { return scatter(x, 0, i, src); });
        copies(dtype, [](const Tensor& x, const Tensor& i, const Tensor& src) {
            return scatter_reduce(x, 0, i, src, How::amax);
        });
        copies(dtype, [](const Tensor& x, const Tensor& i, const Tensor& src) {
            return index_copy(x, 0, i, src.slice(0, 0, 0));
        });
        copies(dtype, [](const Tensor& x, const Tensor&, const Tensor& src) {
            return masked_scatter(x, zeros({3}, {.dtype = boolean}), src);
        });
    }
    const amp::Autocast scope;
    const Tensor x = ones({2}), half = ones({2}, {.dtype = bfloat16});
    scatter_add(x, 0, zeros({0}, {.dtype = int64}), half).fill_(77);
    CHECK(doubles(x) == Values(2, 1));
}
