// Kernels that work on lines in blocks, with lines shorter and longer than a block, ties and NaN, against one
// element after the other.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "mezzo/mezzo.h"

using namespace mezzo;

namespace {

const double inf = std::numeric_limits<double>::infinity(), nan_value = std::nan("");

// Few different values, so that there are ties; `special`: NaN and infinities among them.
std::vector<double> some_values(std::int64_t n, unsigned seed, bool special) {
    std::mt19937 bits(seed);
    std::vector<double> values(std::size_t(n), 0.0);
    for (double& v : values) {
        const int draw = int(bits() % 64);
        v = special && draw == 0   ? nan_value
            : special && draw == 1 ? inf
            : special && draw == 2 ? -inf
                                   : draw % 40;
    }
    return values;
}
Tensor make(const std::vector<double>& values, const Shape& shape, Dtype dtype = float32) {
    return Tensor::from<double>(values, shape, {.dtype = dtype});
}
Tensor random(const Shape& shape, unsigned seed, bool special = false, Dtype dtype = float32) {
    return make(some_values(shape.numel(), seed, special), shape, dtype);
}
template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i] && (a[i] == a[i] || b[i] == b[i])) return false;
    return true;
}
std::vector<double> values_of(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("topk has the first indices of a sort", "[lines]") {
    for (const std::int64_t n : {5, 63, 64, 65, 300, 1000, 20000})
        for (const std::int64_t k : {1, 2, 5, 50})
            for (const bool largest : {true, false})
                for (const Dtype dtype : {float32, bfloat16, float64, int32}) {
                    if (k > n) continue;
                    const Tensor x = random({3, n}, unsigned(n + k), is_floating(dtype), dtype);
                    const Tensor order = argsort(x, 1, {.descending = largest}).slice(1, 0, k);
                    CAPTURE(n, k, largest, dtype);
                    CHECK(topk(x, k, 1, {.largest = largest}).indices.to_vector<std::int64_t>() ==
                          order.to_vector<std::int64_t>());
                    CHECK(topk(x.t(), k, 0, {.largest = largest}).indices.t().to_vector<std::int64_t>() ==
                          order.to_vector<std::int64_t>());
                }
}

TEST_CASE("argmax and argmin find the first extreme or NaN", "[lines]") {
    for (const std::int64_t n : {1, 7, 31, 32, 100, 1024, 1025, 5000, 20000})
        for (const Dtype dtype : {float32, bfloat16})
            for (const bool special : {true, false}) {
                const Tensor x = random({2, n}, unsigned(n), special, dtype);
                const std::vector<double> v = values_of(x);
                std::vector<std::int64_t> highest, lowest;
                for (std::int64_t row = 0; row < 2; ++row) {
                    const double* const line = v.data() + row * n;
                    std::int64_t high = 0, low = 0;
                    for (std::int64_t i = 1; i < n; ++i) {
                        if (line[high] == line[high] && !(line[i] <= line[high])) high = i;
                        if (line[low] == line[low] && !(line[i] >= line[low])) low = i;
                    }
                    highest.push_back(high);
                    lowest.push_back(low);
                }
                CAPTURE(n, dtype, special);
                CHECK(argmax(x, 1).to_vector<std::int64_t>() == highest);
                CHECK(argmin(x, 1).to_vector<std::int64_t>() == lowest);
                CHECK(argmax(x.t(), 0).to_vector<std::int64_t>() == highest);
                CHECK(argmin(x.t().contiguous(), 0).to_vector<std::int64_t>() == lowest);
            }
}

TEST_CASE("argmax finds the only extreme, wherever it is", "[lines]") {
    for (const Dtype dtype : {float32, bfloat16})
        for (const std::int64_t at : {0, 4095, 4096, 9999}) {
            const Tensor x = zeros({2, 10000}, {.dtype = dtype});
            x.slice(1, at, at + 1).fill_(1);
            CAPTURE(dtype, at);
            CHECK(argmax(x, 1).to_vector<std::int64_t>() == std::vector<std::int64_t>(2, at));
            CHECK(argmax(x.t().contiguous(), 0).to_vector<std::int64_t>() ==
                  std::vector<std::int64_t>(2, at));
        }
}

TEST_CASE("true elements are counted", "[lines]") {
    for (const std::int64_t n : {1, 7, 8, 2040, 2041, 70000}) {
        const Tensor flags = gt(random({3, n}, unsigned(n)), 0.0);
        const std::vector<double> v = values_of(flags);
        std::vector<double> rows(3, 0.0), columns(std::size_t(n), 0.0);
        for (std::size_t i = 0; i < v.size(); ++i)
            rows[i / std::size_t(n)] += v[i], columns[i % std::size_t(n)] += v[i];
        CHECK(values_of(sum(flags, {1})) == rows);
        CHECK(values_of(sum(flags, {0})) == columns);
        CHECK(values_of(sum(flags)) == std::vector<double>{rows[0] + rows[1] + rows[2]});
    }
    CHECK(sum(ones({5000}, {.dtype = boolean})).item<std::int64_t>() == 5000);
}

TEST_CASE("rows, columns and scalars of one operand are repeated", "[lines]") {
    const std::int64_t rows = 70, cols = 1500;
    const Tensor x = random({2, rows, cols}, 1);
    for (const Dtype dtype : {float32, bfloat16, int64})
        for (const Shape& shape : {Shape{cols}, Shape{rows, 1}, Shape{rows, cols}, Shape{2, 1, 1},
                                   Shape{2, rows, 1}, Shape{1, 1, cols}}) {
            const Tensor b = random(shape, 2, false, dtype), all = b.expand(x.shape()).contiguous();
            CAPTURE(dtype, shape);
            CHECK(same(values_of(x - b), values_of(x - all)));
            CHECK(same(values_of(b - x), values_of(all - x)));
            CHECK(same(values_of(lt(x, b)), values_of(lt(x, all))));
            const Tensor a = x.to(dtype);
            CHECK(same(values_of(a - b), values_of(a - all)));
            CHECK(same(values_of(b - a), values_of(all - a)));
        }
    const Tensor column = random({rows, 1}, 3), row = random({1, cols}, 4);
    CHECK(same(values_of(column - row), values_of(column.expand({rows, cols}).contiguous() - row)));
    CHECK(same(values_of(row - column), values_of(row - column.expand({rows, cols}).contiguous())));
}

TEST_CASE("where and masked_fill choose elements of every size", "[lines]") {
    const Shape shape{7, 999};
    const Tensor flags = gt(random(shape, 5), 20.0);
    const std::vector<double> c = values_of(flags);
    for (const Dtype dtype : {boolean, uint8, float16, float32, int64, float64}) {
        const Tensor a = random(shape, 6, false, dtype), b = random(shape, 7, false, dtype);
        std::vector<double> chosen = values_of(a), filled = chosen;
        const std::vector<double> other = values_of(b);
        for (std::size_t i = 0; i < c.size(); ++i) {
            if (c[i] == 0) chosen[i] = other[i];
            if (c[i] != 0) filled[i] = 1;
        }
        CAPTURE(dtype);
        CHECK(values_of(where(flags, a, b)) == chosen);
        CHECK(values_of(masked_fill(a, flags, 1)) == filled);
    }
}

TEST_CASE("the gradient of a maximum is divided among ties", "[lines]") {
    const Shape shape{3, 40, 5, 50};
    for (const Axes& axes :
         {Axes{0}, Axes{1}, Axes{3}, Axes{1, 2}, Axes{0, 2}, Axes{1, 3}, Axes{0, 1, 3}, Axes()}) {
        for (const Dtype dtype : {float32, bfloat16}) {
            const Tensor x = random(shape, 8, false, dtype).set_requires_grad(true);
            const Tensor y = max(x, axes, {.keepdim = true});
            y.backward({.gradient = full(y.shape(), 3.0, {.dtype = dtype})});
            NoGrad plain;
            const Tensor chosen = eq(x, y).to(float32), ties = sum(chosen, axes, {.keepdim = true});
            CAPTURE(axes, dtype);
            CHECK(values_of(x.grad()) == values_of((chosen * (3.0 / ties)).to(dtype)));
        }
    }
}

TEST_CASE("rows of one index are added up, whatever their length", "[lines]") {
    for (const std::int64_t inner : {1, 3, 15, 16, 64, 65, 200})
        for (const std::int64_t count : {1, 300, 3000}) {
            const Tensor x = zeros({2, 9, inner}).set_requires_grad(true);
            std::vector<std::int64_t> index;
            for (const double v : some_values(count, unsigned(count), false))
                index.push_back(std::int64_t(v) % 9);
            const Tensor at = Tensor::from<std::int64_t>(index, {count}), g = random({2, count, inner}, 9);
            index_select(x, 1, at).backward({.gradient = g});
            std::vector<double> expected(std::size_t(2 * 9 * inner), 0.0);
            const std::vector<double> from = values_of(g);
            for (std::int64_t o = 0; o < 2; ++o)
                for (std::int64_t j = 0; j < count; ++j)
                    for (std::int64_t i = 0; i < inner; ++i)
                        expected[std::size_t((o * 9 + index[std::size_t(j)]) * inner + i)] +=
                            from[std::size_t((o * count + j) * inner + i)];
            CAPTURE(inner, count);
            CHECK(values_of(x.grad()) == expected);
            const Tensor each = at.reshape({1, count, 1}).expand({2, count, inner});
            for (const Dtype dtype : {float32, float64, int64})
                CHECK(values_of(scatter_add(zeros({2, 9, inner}, {.dtype = dtype}), 1, each, g.to(dtype))) ==
                      expected);
        }
}

TEST_CASE("nonzero lists coordinates in order", "[lines]") {
    for (const Shape& shape : {Shape{50}, Shape{7, 13}, Shape{4, 1, 6}, Shape{3, 0}, Shape{2, 3, 4, 5}}) {
        const Tensor x = relu(random(shape, 10) - 30.0);
        const std::vector<double> v = values_of(x);
        std::vector<double> expected, chosen;
        for (std::int64_t i = 0; i < shape.numel(); ++i) {
            if (v[std::size_t(i)] == 0) continue;
            chosen.push_back(v[std::size_t(i)]);
            const Strides steps = contiguous_strides(shape);
            for (int d = 0; d < shape.size(); ++d) expected.push_back(double(i / steps[d] % shape[d]));
        }
        const Tensor found = nonzero(x);
        CHECK(found.shape() == Shape{std::int64_t(chosen.size()), shape.size()});
        CHECK(values_of(found) == expected);
        CHECK(values_of(masked_select(x, ne(x, 0.0))) == chosen);
    }
}

TEST_CASE("running sums and products of lines", "[lines]") {
    for (const std::int64_t n : {1, 3, 4, 5, 1023, 1024, 1030}) {
        const Tensor x = random({3, n}, unsigned(n));
        const Tensor few =
            where(lt(x, 13.0), full({}, 0.5), where(lt(x, 27.0), full({}, -1.0), full({}, 2.0)));
        std::vector<double> sums, products;
        const std::vector<double> v = values_of(x), f = values_of(few);
        for (std::int64_t row = 0; row < 3; ++row) {
            double total = 0, product = 1;
            for (std::int64_t i = row * n; i < (row + 1) * n; ++i) {
                sums.push_back(total += v[std::size_t(i)]);
                products.push_back(product *= f[std::size_t(i)]);
            }
        }
        CAPTURE(n);
        CHECK(values_of(cumsum(x, 1)) == sums);
        CHECK(values_of(cumsum(x.to(int32), 1)) == sums);
        CHECK(values_of(cumsum(x.t(), 0).t()) == sums);
        CHECK(values_of(cumprod(few.to(float64), 1)) == products);
        CHECK(values_of(prod(few.to(float64), {1})) == std::vector<double>{products[std::size_t(n - 1)],
                                                                           products[std::size_t(2 * n - 1)],
                                                                           products.back()});
        // The gradient of running sums is sums from the end.
        const Tensor leaf = x.clone().set_requires_grad(true);
        cumsum(leaf, 1).backward({.gradient = few});
        std::vector<double> reversed = values_of(sum(few, {1}, {.keepdim = true}) - cumsum(few, 1) + few);
        CHECK(values_of(leaf.grad()) == reversed);
    }
}

TEST_CASE("running sums of another dtype are those of the converted lines", "[lines]") {
    for (const Dtype dtype : {float16, bfloat16, float32, int32})
        for (const Dtype result : {float32, float64, float16}) {
            const Tensor x = random({5, 37}, 9, false, dtype);
            CAPTURE(dtype, result);
            CHECK(values_of(cumsum(x, 1, result)) == values_of(cumsum(x.to(result), 1)));
            if (!is_floating(dtype)) continue;
            const Tensor leaf = x.clone().set_requires_grad(true);
            const Tensor y = cumsum(leaf, 1, result);
            CHECK(y.dtype() == result);
            sum(y).backward();
            CHECK(leaf.grad().dtype() == dtype);
            CHECK(values_of(leaf.grad().slice(1, 0, 1)) == std::vector<double>(5, 37));
        }
}

TEST_CASE("softmax down columns is that along rows", "[lines]") {
    for (const std::int64_t n : {1, 2, 63, 64, 65, 200})
        for (const std::int64_t inner : {2, 5, 64, 70})
            for (const Dtype dtype : {float32, float64}) {
                const Tensor x = (random({2, n, inner}, unsigned(n + inner), false, dtype) * 0.1);
                const Tensor g = random(x.shape(), 3, false, dtype);
                const Tensor down = x.clone().set_requires_grad(true);
                const Tensor along = x.transpose(1, 2).contiguous().set_requires_grad(true);
                const Tensor y = softmax(down, 1), expected = softmax(along, 2);
                y.backward({.gradient = g});
                expected.backward({.gradient = g.transpose(1, 2).contiguous()});
                NoGrad plain;
                const double bound = dtype == float32 ? 1e-6 : 1e-15;
                CAPTURE(n, inner, dtype);
                CHECK(max(abs(y - expected.transpose(1, 2))).item<double>() <= bound);
                CHECK(max(abs(down.grad() - along.grad().transpose(1, 2))).item<double>() <= 40 * bound);
            }
    Tensor x = random({3, 100, 8}, 1);
    x.slice(1, 7, 8).slice(2, 2, 3).fill_(nan_value);
    const Tensor y = softmax(x, 1);
    CHECK(sum(ne(y, y)).item<std::int64_t>() == 300);
}

TEST_CASE("running sums and products of float64 leave its range no earlier than one after the other",
          "[lines]") {
    const auto running = [](const std::vector<double>& v, bool product) {
        const Tensor x = make(v, {std::int64_t(v.size())}, float64);
        return values_of(product ? cumprod(x, 0) : cumsum(x, 0));
    };
    CHECK(running({0, 1, 1, 1, 1e200, 1e200, 1, 1}, true) == std::vector<double>(8, 0));
    CHECK(running({1e-200, 1, 1, 1, 1e200, 1e200, 1, 1}, true).back() == 1e-200 * 1e200 * 1e200);
    CHECK(running({-1.5e308, 0, 0, 0, 1e308, 1e308, 0, 0}, false).back() == (-1.5e308 + 1e308) + 1e308);
    CHECK(running({1e308, 1e308, -1e308, -1e308}, false).back() == inf);
    const Tensor x = make({1e30, 1e30, 1e-30, 1e-30}, {4}).set_requires_grad(true);
    cumprod(x, 0, float64).select(0, 3).backward();
    CHECK(values_of(x.grad())[2] == Approx(1e30));
}

TEST_CASE("repeated tensors are copies", "[lines]") {
    const Tensor flat = random({3, 1}, 1), turned = random({2, 3, 1}, 2).transpose(0, 1);
    for (Tensor y : {flat.repeat({2, 4}), flat.repeat({1, 1}), repeat_interleave(turned, 4, 2),
                     turned.repeat({1, 1, 4}), repeat_interleave(flat, 1, 0)}) {
        CHECK(y.is_contiguous());
        const std::vector<double> before = values_of(flat);
        y.add_(ones({1}));
        CHECK(values_of(flat) == before);
    }
    const Tensor x = flat.clone().set_requires_grad(true);
    sum(x.repeat({2, 4}) * 3.0).backward();
    CHECK(values_of(x.grad()) == std::vector<double>(3, 24));
}
