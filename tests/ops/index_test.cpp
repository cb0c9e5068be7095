// embedding, index_select, gather and scatter_add beyond their cases in op_cases: indices out of range,
// padding, repeated indices in tables of every size, and sums that no number of threads changes.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "tests/support/kernels.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Values = std::vector<double>;
using Indices = std::vector<std::int64_t>;

// `count` indices below n; every other one is one of the first three.
Indices some_indices(std::int64_t count, std::int64_t n) {
    Indices index;
    for (std::int64_t i = 0; i < count; ++i) index.push_back((i % 2 ? i * i * 7 + i : i / 2 % 3) % n);
    return index;
}

// Allowed difference of sums of `terms` values.
Tolerance of_sums(Dtype dtype, double terms) {
    Tolerance t = tolerance(dtype);
    t.absolute = t.relative * std::sqrt(terms) * 4;
    return t;
}

Values summed(const Values& g, const Indices& index, std::int64_t n, std::int64_t dim, std::int64_t skip) {
    Values sums(std::size_t(n * dim), 0);
    for (std::size_t i = 0; i < index.size(); ++i)
        for (std::int64_t j = 0; index[i] != skip && j < dim; ++j)
            sums[std::size_t(index[i] * dim + j)] += g[i * std::size_t(dim) + std::size_t(j)];
    return sums;
}

struct Refused {
    const char* op;
    std::int64_t index;
    void (*run)(const Tensor& x, const Tensor& index);
};

}  // namespace

TEST_CASE("embedding reads rows and sums their gradients, in tables of every size", "[ops][index]") {
    struct {
        std::int64_t n, dim, count;
    } cases[] = {{1, 1, 3},      {2, 384, 1000}, {3, 5, 2500},    {70, 300, 900},
                 {2000, 64, 50}, {5000, 8, 0},   {500, 130, 6000}};
    for (Device device : devices())
        for (Dtype dtype : {float32, float16, float64})
            for (const auto& c : cases) {
                CAPTURE(name(device.type()), name(dtype), c.n, c.dim, c.count);
                Tensor weight =
                    tensor_of(random_values(c.n * c.dim, 1, Domain::any), {c.n, c.dim}, dtype, device);
                weight.set_requires_grad();
                const Indices index = some_indices(c.count, c.n);
                const Tensor at = Tensor::from(index, {c.count}).to(device);
                const Tensor y = embedding(weight, at);
                const Values table = doubles(weight), rows = doubles(y);
                bool same = true;
                for (std::size_t i = 0; i < index.size(); ++i)
                    for (std::int64_t j = 0; j < c.dim; ++j)
                        same = same && rows[i * std::size_t(c.dim) + std::size_t(j)] ==
                                           table[std::size_t(index[i] * c.dim + j)];
                CHECK(same);
                const Tensor g =
                    tensor_of(random_values(c.count * c.dim, 2, Domain::any), y.shape(), dtype, device);
                autograd::backward({y}, {.grad_outputs = {g}});
                CHECK(difference(doubles(weight.grad()), summed(doubles(g), index, c.n, c.dim, -1),
                                 of_sums(dtype, double(c.count + 1))) == "");
            }
}

TEST_CASE("a long sum of 16-bit rows is rounded once", "[ops][index]") {
    for (Device device : devices()) {
        // Rows of whole packs, whose list of indices is cut into segments.
        const Tensor table = zeros({2, 16}, {.dtype = bfloat16, .device = device, .requires_grad = true});
        const Tensor rows = embedding(table, zeros({256}, {.dtype = int64, .device = device}));
        autograd::backward(
            {rows}, {.grad_outputs = {full({256, 16}, 1.0078125, {.dtype = bfloat16, .device = device})}});
        CHECK(doubles(table.grad().select(0, 0)) == Values(16, 258));
        const Tensor weight = zeros({3, 4}, {.dtype = float16, .device = device, .requires_grad = true});
        const Tensor index = zeros({3000}, {.dtype = int64, .device = device});
        const Tensor y = embedding(weight, index);
        autograd::backward({y}, {.grad_outputs = {ones_like(y)}});
        CHECK(doubles(weight.grad().select(0, 0)) == Values(4, 3000));
        const Tensor x = zeros({3}, {.dtype = float16, .device = device});
        const Tensor sum = scatter_add(x, 0, index, ones({3000}, {.dtype = float16, .device = device}));
        CHECK(doubles(sum) == Values{3000, 0, 0});
    }
}

TEST_CASE("the padding row is read and gets no gradient", "[ops][index]") {
    for (Device device : devices())
        for (bool by_decomposition : {false, true}) {
            CAPTURE(name(device.type()), by_decomposition);
            const Tensor weight = rand({4, 3}, {.device = device, .requires_grad = true});
            const Tensor index = Tensor::from(Indices{1, 2, 1, 3, 2}, {5}).to(device);
            const auto run = [&] {
                const Tensor y = embedding(weight, index, 2);
                CHECK(doubles(y.select(0, 1)) == doubles(weight.select(0, 2)));
                return autograd::grad({y}, {weight}, {.grad_outputs = {ones_like(y)}})[0];
            };
            Tensor grad;
            if (by_decomposition) {
                ByDecomposition reference;
                grad = run();
            } else {
                grad = run();
            }
            CHECK(doubles(grad) == Values{0, 0, 0, 2, 2, 2, 0, 0, 0, 1, 1, 1});
        }
}

TEST_CASE("a table's gradient is added to grad() row by row, without a second table", "[ops][index]") {
    for (Device device : devices()) {
        const std::int64_t n = 4000, dim = 64;
        const Tensor weight = rand({n, dim}, {.device = device, .requires_grad = true});
        const Indices first = some_indices(30, n), second = some_indices(100, n);
        const auto backward = [&](const Indices& index, std::int64_t padding) {
            const Tensor y =
                embedding(weight, Tensor::from(index, {std::int64_t(index.size())}).to(device), padding);
            autograd::backward({y}, {.grad_outputs = {ones_like(y)}});
        };
        backward(first, -1);
        const Tensor grad = weight.grad();
        const std::size_t table = std::size_t(n * dim * 4);
        const std::size_t before = memory_stats(device).allocated;
        reset_peak(device);
        backward(second, 1);
        CHECK(memory_stats(device).max_allocated < before + table / 2);
        CHECK(weight.grad().impl() == grad.impl());
        Values wanted = summed(Values(30 * 64, 1), first, n, dim, -1);
        const Values more = summed(Values(100 * 64, 1), second, n, dim, 1);
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += more[i];
        CHECK(doubles(weight.grad()) == wanted);
    }
}

TEST_CASE("embedding's gradient is the same bits on any number of threads", "[ops][index]") {
    const int threads = num_threads();
    for (std::int64_t n : {2, 1000}) {
        std::vector<Values> seen;
        for (int count : {1, 2, 5}) {
            set_num_threads(count);
            const Tensor weight = zeros({n, 384}, {.requires_grad = true});
            const Tensor y = embedding(weight, Tensor::from(some_indices(3000, n), {3000}));
            const Tensor g = tensor_of(random_values(y.numel(), 2, Domain::any), y.shape(), float32);
            autograd::backward({y}, {.grad_outputs = {g}});
            seen.push_back(doubles(weight.grad()));
        }
        CHECK(seen[0] == seen[1]);
        CHECK(seen[0] == seen[2]);
    }
    set_num_threads(threads);
}

TEST_CASE("an index outside throws on the CPU and names itself", "[ops][index][errors]") {
    const Refused refused[] = {
        {"embedding", 3, [](const Tensor& x, const Tensor& i) { embedding(x, i); }},
        {"embedding", -1, [](const Tensor& x, const Tensor& i) { embedding(x, i); }},
        {"index_select", 3, [](const Tensor& x, const Tensor& i) { index_select(x, 0, i); }},
        {"gather", 3, [](const Tensor& x, const Tensor& i) { gather(x, 0, i.unsqueeze(-1)); }},
        {"scatter_add", -7, [](const Tensor& x, const Tensor& i) { scatter_add(x, 0, i.unsqueeze(-1), x); }},
    };
    const Tensor x = ones({3, 2});
    for (const Refused& r : refused) {
        CAPTURE(r.op, r.index);
        const Tensor index = Tensor::from(Indices{0, r.index}, {2});
        try {
            r.run(x, index);
            FAIL("no error");
        } catch (const Error& e) {
            const std::string text = e.what();
            CAPTURE(text);
            CHECK(e.kind() == ErrorKind::value);
            CHECK(text.rfind(std::string(r.op) + ": index " + std::to_string(r.index), 0) == 0);
            CHECK(text.find("position 1") != std::string::npos);
            CHECK(text.find("[0, 3)") != std::string::npos);
        }
    }
    const Tensor out = full({2, 2}, 7);
    const Tensor inputs[] = {x, Tensor::from(Indices{0, 3}, {2})};
    CHECK_THROWS_AS(test::cpu_kernel<kernels::Embedding>(inputs, {}, Out(&out, 1)), Error);
    CHECK_THROWS_AS(
        test::cpu_kernel<kernels::EmbeddingGrad>(inputs, {.rows = 2, .accumulate = true}, Out(&out, 1)),
        Error);
    CHECK(doubles(out) == Values(4, 7));
}

TEST_CASE("an index outside gives NaN on CUDA and adds nothing", "[ops][index]") {
    for (Device device : devices()) {
        if (device == cpu_device) continue;
        for (std::int64_t dim : {3, 8}) {
            const Tensor weight = ones({4, dim}, {.device = device, .requires_grad = true});
            const Tensor index = Tensor::from(Indices{0, 4, -1, 3}, {4}).to(device);
            const Tensor y = embedding(weight, index);
            const Values rows = doubles(sum(isfinite(y).to(float32), {1}));
            CHECK(rows == Values{double(dim), 0, 0, double(dim)});
            autograd::backward({y}, {.grad_outputs = {ones_like(y)}});
            CHECK(doubles(sum(weight.grad(), {1})) == Values{double(dim), 0, 0, double(dim)});
            const Tensor numbers = arange(4).to(device);
            CHECK(doubles(gather(numbers, 0, index)) == Values{0, 0, 0, 3});
            CHECK(doubles(scatter_add(numbers, 0, index, numbers)) == Values{0, 1, 2, 6});
        }
    }
}

TEST_CASE("gather and scatter_add along every dimension, with indices smaller than the input",
          "[ops][index]") {
    const Shape shape{4, 5, 6}, smaller{3, 7, 4};
    for (Device device : devices())
        for (Dtype dtype : {float32, float64, int64, int32})
            for (int dim : {0, 1, 2}) {
                CAPTURE(name(device.type()), name(dtype), dim);
                Shape own = smaller;  // no larger than the input but along dim
                for (int d : {0, 1, 2})
                    if (d != dim) own[d] = std::min(own[d], shape[d]);
                Shape wide = own;
                for (int d : {0, 1, 2}) wide[d] += d == 1;
                const Tensor x = arange(shape.numel()).to(dtype).reshape(shape).to(device);
                const Tensor src = arange(wide.numel()).to(dtype).reshape(wide).to(device);
                const Indices index = some_indices(own.numel(), shape[dim]);
                const Tensor at = Tensor::from(index, own).to(device);
                Values gathered, scattered = doubles(x);
                for (std::int64_t i = 0; i < own.numel(); ++i) {
                    std::int64_t place[] = {i / (own[1] * own[2]), i / own[2] % own[1], i % own[2]};
                    const std::int64_t from = (place[0] * wide[1] + place[1]) * wide[2] + place[2];
                    place[dim] = index[std::size_t(i)];
                    const std::int64_t to = (place[0] * shape[1] + place[1]) * shape[2] + place[2];
                    gathered.push_back(double(to));
                    scattered[std::size_t(to)] += double(from);
                }
                CHECK(doubles(gather(x, dim, at)) == gathered);
                CHECK(doubles(scatter_add(x, dim, at, src)) == scattered);
                CHECK(doubles(x) == doubles(arange(shape.numel())));
            }
}

TEST_CASE("index_select takes slices of any dtype, repeated and out of order", "[ops][index]") {
    for (Device device : devices())
        for (Dtype dtype : {boolean, uint8, int32, int64, bfloat16, float64}) {
            const Tensor x = arange(12).to(dtype).reshape({2, 3, 2}).to(device);
            const Tensor index = Tensor::from(Indices{2, 0, 2, 1}, {4}).to(device);
            const Tensor y = index_select(x, 1, index);
            CHECK(y.dtype() == dtype);
            Values wanted;
            for (int o : {0, 1})
                for (int j : {2, 0, 2, 1})
                    for (int i : {0, 1})
                        wanted.push_back(dtype == boolean ? o + j + i > 0 : o * 6 + j * 2 + i);
            CHECK(doubles(y) == wanted);
        }
}

TEST_CASE("a long scatter_add into few elements", "[ops][index]") {
    for (Device device : devices())
        for (const Shape& shape : {Shape{9}, Shape{2, 9}}) {
            const std::int64_t count = 5000, rows = shape.numel() / 9;
            Shape own = shape;
            own.back() = count;
            const Indices index = some_indices(own.numel(), 9);
            const Values values = random_values(own.numel(), 3, Domain::any);
            const Tensor x = ones(shape, {.device = device});
            const Tensor y = scatter_add(x, -1, Tensor::from(index, own).to(device),
                                         tensor_of(values, own, float32, device));
            Values wanted(std::size_t(shape.numel()), 1);
            for (std::int64_t i = 0; i < rows * count; ++i)
                wanted[std::size_t(i / count * 9 + index[std::size_t(i)])] += values[std::size_t(i)];
            CHECK(difference(doubles(y), wanted, {1e-5, 2e-3}) == "");
        }
}

TEST_CASE("a long scatter_add into one element", "[ops][index]") {
    for (Device device : devices())
        for (const Dtype dtype : {float32, float64, int64, float16})
            for (const auto& [size, count] :
                 {std::pair<std::int64_t, std::int64_t>{1, 1000}, {3, 1000}, {3, 100}}) {
                CAPTURE(device, dtype, size, count);
                const Tensor y = scatter_add(ones({size}, {.dtype = dtype, .device = device}), 0,
                                             zeros({count}, {.dtype = int64, .device = device}),
                                             ones({count}, {.dtype = dtype, .device = device}));
                CHECK(doubles(y)[0] == double(count + 1));
                CHECK(doubles(sum(y.to(float64)))[0] == double(count + size));
            }
}

TEST_CASE("scatter_add promotes inside an Autocast scope", "[ops][index][autocast]") {
    for (const Device device : devices()) {
        const Tensor index = Tensor::from(std::vector<std::int64_t>{0, 1, 0}, {3, 1}).to(device);
        for (const bool wide_input : {true, false})
            for (const Dtype low : {float16, bfloat16}) {
                const Tensor x = ones({2, 2}, {.dtype = wide_input ? float32 : low, .device = device});
                const Tensor src = full({3, 2}, 0.5, {.dtype = wide_input ? low : float32, .device = device});
                CHECK_THROWS_WITH(scatter_add(x, 0, index, src), Catch::Contains("they must agree"));
                const Tensor input = alias(x).set_requires_grad(), values = alias(src).set_requires_grad();
                const Tensor nothing = zeros({0, 1}, {.dtype = int64, .device = device});
                Tensor y, same;
                {
                    const amp::Autocast scope({.device = device.type(), .dtype = low});
                    y = scatter_add(input, 0, index, values);
                    same = scatter_add(input, 0, nothing, values);
                    CHECK(scatter_add(x.to(low), 0, index, src.to(low)).dtype() == low);
                    CHECK_THROWS_WITH(scatter_add(x.to(float64), 0, index, src), Catch::Contains("float64"));
                }
                CHECK(y.dtype() == float32);
                CHECK(same.dtype() == float32);
                CHECK(doubles(y) == std::vector<double>{2, 1, 1.5, 1});
                sum(y).backward();
                CHECK(input.grad().dtype() == x.dtype());
                CHECK(values.grad().dtype() == src.dtype());
                CHECK(doubles(input.grad()) == std::vector<double>(4, 1));
                CHECK(doubles(values.grad()) == std::vector<double>{1, 0, 1, 0, 1, 0});
            }
    }
}
