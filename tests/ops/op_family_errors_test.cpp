// Bad arguments of the ops of reduce_ops.h, sort_ops.h, shape_ops.h, pointwise_ops.h, product_ops.h and
// loss_ops.h: the kind of error, the op first, and what was wrong.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

using Integers = std::vector<std::int64_t>;

Tensor of(const Integers& values) { return Tensor::from(values, {std::int64_t(values.size())}); }

struct Bad {
    void (*run)();
    ErrorKind kind;
    const char *op, *text;
};

void check_errors(const std::vector<Bad>& all) {
    for (const Bad& bad : all) {
        CAPTURE(bad.op, bad.text);
        try {
            bad.run();
            FAIL_CHECK("no error");
        } catch (const Error& e) {
            CHECK(e.kind() == bad.kind);
            CHECK(std::string(e.what()).find(bad.op) == 0);
            CHECK_THAT(e.what(), Contains(bad.text));
        }
    }
}

Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

Tensor f(const Shape& shape) { return ones(shape); }

}  // namespace

TEST_CASE("op families: errors of reductions and order", "[op_family_errors]") {
    const std::vector<Bad> all{
        {[] { var(arange(3)); }, ErrorKind::dtype, "var:", "int64"},
        {[] {
             argmin(zeros({2, 0}));
         },
         ErrorKind::shape, "argmin:", "empty"},
        {[] { cumsum(f({2}), 1); }, ErrorKind::shape, "cumsum:", "1"},
        {[] { quantile(f({2}), 1.5); }, ErrorKind::value, "quantile:", "1.5"},
        {[] { quantile(f({0}), 0.5); }, ErrorKind::shape, "quantile:", "no elements"},
        {[] { softmax(f({2}), 0, int64); }, ErrorKind::dtype, "softmax:", "int64"},
        {[] { topk(f({2}), 3); }, ErrorKind::value, "topk:", "3"},
        {[] { kthvalue(f({2}), 0); }, ErrorKind::value, "kthvalue:", "from 1"},
        {[] {
             searchsorted(f({2, 3}), f({3, 3}));
         },
         ErrorKind::shape, "searchsorted:", "[3, 3]"},
        {[] { bincount(of(Integers{-1})); }, ErrorKind::value, "bincount:", "-1"},
        {[] { bincount(f({2})); }, ErrorKind::dtype, "bincount:", "float32"},
    };
    check_errors(all);
}

TEST_CASE("op families: errors of arrangements", "[op_family_errors]") {
    const std::vector<Bad> all{
        {[] { tril(f({3})); }, ErrorKind::shape, "tril:", "[3]"},
        {[] {
             diag(f({1, 1, 1}));
         },
         ErrorKind::shape, "diag:", "[1, 1, 1]"},
        {[] {
             flip(f({2}), {0, 0});
         },
         ErrorKind::shape, "flip:", "twice"},
        {[] { roll(f({2}), {1}, {}); }, ErrorKind::value, "roll:", "shifts"},
        {[] { roll(f({}), {1}, {0}); }, ErrorKind::shape, "roll:", "0-dim"},
        {[] {
             group_norm(f({2, 0}), 1);
         },
         ErrorKind::value, "group_norm:", "0 channels"},
        {[] {
             cat({f({0}), f({})});
         },
         ErrorKind::shape, "cat:", "0-dim"},
        {[] {
             cat({f({0, 3}), f({2, 4})});
         },
         ErrorKind::shape, "cat:", "differ"},
        {[] {
             repeat(f({2, 2}), {2});
         },
         ErrorKind::shape, "repeat:", "[2]"},
        {[] { repeat(f({2}), {-1}); }, ErrorKind::value, "repeat:", "-1"},
        {[] { split(f({5}), 0); }, ErrorKind::value, "split:", "0"},
        {[] {
             split(f({5}), {2, 2});
         },
         ErrorKind::value, "split:", "leave 1"},
        {[] {
             split(f({5}), {4, 4});
         },
         ErrorKind::value, "split:", "4"},
        {[] { chunk(f({5}), 0); }, ErrorKind::value, "chunk:", "0"},
        {[] { unbind(scalar(1)); }, ErrorKind::shape, "unbind:", "0-dim"},
        {[] { one_hot(of(Integers{3}), 3); }, ErrorKind::value, "one_hot:", "3"},
        {[] { one_hot(of(Integers{-1})); }, ErrorKind::value, "one_hot:", "-1"},
        {[] { masked_select(f({2}), f({2})); }, ErrorKind::dtype, "masked_select:", "boolean"},
        {[] {
             multinomial(Tensor::from({1, -1}), 1);
         },
         ErrorKind::value, "multinomial:", "negative"},
        {[] {
             multinomial(Tensor::from({1, 0}), 2);
         },
         ErrorKind::value, "multinomial:", "fewer than 2"},
        {[] {
             multinomial(zeros({2, 2}), 1, {.replacement = true});
         },
         ErrorKind::value, "multinomial:", "not 0"},
    };
    check_errors(all);
}

TEST_CASE("op families: errors of element-wise functions and products", "[op_family_errors]") {
    const std::vector<Bad> all{
        {[] { remainder(arange(3), 0); }, ErrorKind::value, "remainder:", "0"},
        {[] { hardtanh(f({2}), 1, 0); }, ErrorKind::value, "hardtanh:", "1"},
        {[] { glu(f({3})); }, ErrorKind::shape, "glu:", "[3]"},
        {[] { lerp(arange(3), f({3}), 0.5); }, ErrorKind::dtype, "lerp:", "int64"},
        {[] { addcmul(f({2}), f({3}), f({1})); }, ErrorKind::shape, "addcmul:", "[3]"},
        {[] {
             outer(f({2, 2}), f({2}));
         },
         ErrorKind::shape, "outer:", "[2, 2]"},
        {[] { dot(f({2}), f({3})); }, ErrorKind::shape, "dot:", "[3]"},
        {[] { dot(f({2}), ones({2}, {.dtype = float64})); }, ErrorKind::dtype, "dot:", "float64"},
        {[] {
             bmm(f({2, 2}), f({2, 2}));
         },
         ErrorKind::shape, "bmm:", "[2, 2]"},
        {[] {
             addmm(f({4}), f({2, 3}), f({3, 5}));
         },
         ErrorKind::shape, "addmm:", "[4]"},
        {[] {
             addmm(f({5}), f({2, 3}), f({4, 5}));
         },
         ErrorKind::shape, "addmm:", "inner"},
        {[] {
             baddbmm(f({5}), f({2, 3, 4}), f({3, 4, 5}));
         },
         ErrorKind::shape, "baddbmm:", "batches"},
        {[] {
             einsum("ij,jk", {f({2, 3})});
         },
         ErrorKind::value, "einsum:", "2 terms"},
        {[] {
             einsum("i1", {f({2, 3})});
         },
         ErrorKind::value, "einsum:", "'1'"},
        {[] {
             einsum("i.j", {f({2, 3})});
         },
         ErrorKind::value, "einsum:", "stray"},
        {[] { einsum("i->ij", {f({2})}); }, ErrorKind::value, "einsum:", "'j'"},
        {[] {
             einsum("ij->ii", {f({2, 2})});
         },
         ErrorKind::value, "einsum:", "twice"},
        {[] {
             einsum("ijk", {f({2, 2})});
         },
         ErrorKind::shape, "einsum:", "[2, 2]"},
        {[] {
             einsum("ij,jk", {f({2, 3}), f({4, 5})});
         },
         ErrorKind::shape, "einsum:", "'j' is 3"},
        {[] {
             einsum("ii", {f({2, 3})});
         },
         ErrorKind::shape, "einsum:", "both 2 and 3"},
    };
    check_errors(all);
}

TEST_CASE("op families: counts beyond 2^63 are errors", "[op_family_errors]") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    const std::vector<Bad> all{
        {[] {
             repeat_interleave(f({3}), of(Integers{most, most, 3}), 0);
         },
         ErrorKind::value, "repeat_interleave:", "9223372036854775807"},
        {[] { one_hot(of(Integers{most})); }, ErrorKind::value,
         "one_hot:", "9223372036854775807 is too large"},
        {[] { bincount(of(Integers{most})); }, ErrorKind::value,
         "bincount:", "9223372036854775807 is too large"},
    };
    check_errors(all);
}

TEST_CASE("op families: errors of distances and losses", "[op_family_errors]") {
    const std::vector<Bad> all{
        {[] { pairwise_distance(f({2}), f({2}), {.p = -1}); }, ErrorKind::value, "pairwise_distance:", "-1"},
        {[] { kl_div(f({2}), f({3})); }, ErrorKind::shape, "kl_div:", "[3]"},
        {[] { huber_loss(f({2}), f({2}), {.delta = 0}); }, ErrorKind::value, "huber_loss:", "0"},
        {[] {
             triplet_margin_loss(f({2, 3}), f({2, 3}), f({2, 3}), {.margin = -1});
         },
         ErrorKind::value, "triplet_margin_loss:", "margin is -1"},
        {[] {
             cosine_embedding_loss(f({2, 3}), f({2, 3}), f({3}));
         },
         ErrorKind::shape, "cosine_embedding_loss:", "[3]"},
        {[] {
             cross_entropy(f({2, 3}), of(Integers{0, 1}), {.weight = f({2})});
         },
         ErrorKind::shape, "cross_entropy:", "3 classes"},
        {[] {
             cross_entropy(f({2, 4, 3}), of(Integers{0, 1}));
         },
         ErrorKind::shape, "cross_entropy:", "[2, 4, 3]"},
        {[] {
             nll_loss(f({2, 3}), of(Integers{0, 1}), {.weight = arange(3)});
         },
         ErrorKind::dtype, "nll_loss:", "weight"},
    };
    check_errors(all);
}

TEST_CASE("op families: numbers beside integers are exact or refused", "[op_families]") {
    const double big = 0x1p53, beyond = 0x1p63;
    const std::int64_t id = (std::int64_t(1) << 53) + 1;
    for (const Device device : test::devices()) {
        const Tensor x = of(Integers{id, id - 1, INT64_MAX, INT64_MIN}).to(device);
        CHECK(integers(x == big) == Integers{0, 1, 0, 0});
        CHECK(integers(x > big) == Integers{1, 0, 1, 0});
        CHECK(integers(x <= big) == Integers{0, 1, 0, 1});
        CHECK(integers(big + 2 > x) == Integers{1, 1, 0, 1});
        CHECK(integers(x == beyond) == Integers{0, 0, 0, 0});
        CHECK(integers(x < beyond) == Integers{1, 1, 1, 1});
        CHECK(integers(x >= -beyond) == Integers{1, 1, 1, 1});
        CHECK(integers(x == -beyond) == Integers{0, 0, 0, 1});
        CHECK(integers(x != double(NAN)) == Integers{1, 1, 1, 1});
        CHECK(integers(x < double(INFINITY)) == Integers{1, 1, 1, 1});
        CHECK(integers(x > 0.5) == Integers{1, 1, 1, 0});
        CHECK(integers(x + 1)[0] == id + 1);
        CHECK((x + double(INFINITY)).dtype() == float32);
        const Tensor bytes = ones({2}, {.dtype = uint8, .device = device});
        const Tensor small = ones({2}, {.dtype = int32, .device = device});
        CHECK(integers(bytes - 1) == Integers{0, 0});
        CHECK(integers(bytes + 255) == Integers{0, 0});
        CHECK(integers(bytes < 300.0) == Integers{1, 1});
        CHECK(integers(small < 0x1p40) == Integers{1, 1});
        CHECK(integers(small - -0x1p31) == Integers{INT32_MIN + 1, INT32_MIN + 1});
        const std::vector<std::function<Tensor()>> refused = {
            [&] { return x + big; },
            [&] { return x - big; },
            [&] { return 1e16 - x; },
            [&] { return x * 1e300; },
            [&] { return x * beyond; },
            [&] { return remainder(x, 1e17); },
            [&] { return full({1}, big, {.dtype = int64, .device = device}); },
            [&] { return x.clone().fill_(big); },
            [&] { return x.clone().mul_(big); },
            [&] { return x.clone().add_(x, big); },
            [&] { return where(x > 0, big, x); },
            [&] { return where(x > 0, x, 1e17); },
            [&] { return masked_fill(x, x > 0, big); },
            [&] { return (x > 0) + big; },
            [&] { return bytes + 300; },
            [&] { return bytes * 2147483649.0; },
            [&] { return small + 2147483649.0; },
            [&] { return small * -2147483649.0; },
            [&] { return small.clone().mul_(2147483648.0); },
        };
        for (std::size_t i = 0; i < refused.size(); ++i) {
            CAPTURE(i);
            try {
                (void)refused[i]();
                FAIL("no error");
            } catch (const Error& e) {
                CHECK(e.kind() == ErrorKind::value);
            }
        }
    }
}

namespace {

// Runs every function that takes a number next to an int64 tensor x, with an integer of any type.
template <class Id> void check_exact(const Tensor& x, Id id) {
    const auto wide = std::int64_t(id);
    const auto size = std::uint64_t(wide);
    const TensorOptions options{.dtype = int64, .device = x.device()};
    const Tensor zero = zeros({2}, options), same = of(Integers{wide, wide}).to(x.device());
    const Integers found = integers(x), yes{1, 1}, no{0, 0}, both{wide, wide};
    Integers equal, less, more;
    for (const std::int64_t v : found) {
        equal.push_back(v == wide);
        less.push_back(v < wide);
        more.push_back(v > wide);
    }
    CHECK(integers(x == id) == equal);
    CHECK(integers(id == x) == equal);
    CHECK(integers(logical_not(x != id)) == equal);
    CHECK(integers(logical_not(ne(x, id))) == equal);
    CHECK(integers(x.eq(id)) == equal);
    CHECK(integers(x < id) == less);
    CHECK(integers(id > x) == less);
    CHECK(integers(logical_not(x.ge(id))) == less);
    CHECK(integers(logical_not(id <= x)) == less);
    CHECK(integers(x > id) == more);
    CHECK(integers(logical_not(le(x, id))) == more);
    CHECK(integers(logical_not(id >= x)) == more);
    CHECK(integers(ones({2}, {.dtype = int32, .device = x.device()}) == id) == no);
    CHECK(integers(ones({2}, {.dtype = uint8, .device = x.device()}) != id) == yes);

    CHECK(integers(zero + id) == both);
    CHECK(integers(id + zero) == both);
    CHECK(integers(id - zero) == both);
    CHECK(integers(same - id) == Integers{0, 0});
    CHECK(integers((zero + 1) * id) == both);
    CHECK(integers(id * (zero + 1)) == both);
    CHECK(integers(zero.eq(1) + id) == both);  // booleans are added as int64
    const std::int64_t negative(0 - size);
    CHECK(integers(zero - id) == Integers{negative, negative});
    Tensor sum = zero;
    sum += id;
    CHECK(integers(sum) == both);
    sum -= id;
    CHECK(integers(sum) == Integers{0, 0});
    sum += 1;
    sum *= id;
    CHECK(integers(sum) == both);
    CHECK(integers(remainder(same, id)) == Integers{0, 0});
    CHECK(integers(zero.remainder(id)) == Integers{0, 0});

    CHECK(integers(full({2}, id, options)) == both);
    CHECK(integers(scalar(id, options)) == Integers{wide});
    CHECK(integers(full_like(zero, id)) == both);
    CHECK(integers(zero.clone().fill_(id)) == both);
    CHECK(integers((zero + 1).mul_(id)) == both);
    CHECK(integers(zero.clone().add_(zero + 1, id)) == both);
    CHECK(integers(zeros({4}, options).slice(0, 0, 4, 2).fill_(id)) == both);
    CHECK(integers(where(zero == 0, id, zero)) == both);
    CHECK(integers(where(zero == 0, zero, id)) == Integers{0, 0});
    CHECK(integers(where(zero == 1, zero, id)) == both);
    CHECK(integers(masked_fill(zero, zero == 0, id)) == both);
    CHECK(integers(zero.masked_fill(zero == 1, id)) == Integers{0, 0});
    CHECK(integers(pad(zero, {{0, 1, -1}}, PadMode::constant, id)) == Integers{wide, 0});
    CHECK(integers(clamp(x, id, id)) == both);
    CHECK(integers(hardtanh(x, id, INT64_MAX)) == integers(maximum(x, same)));
    CHECK(integers(x.clamp(INT64_MIN, id)) == integers(minimum(x, same)));
    CHECK(integers(clamp(x, -INFINITY, id)) == integers(minimum(x, same)));
    CHECK(integers(clamp(x, id, 0x1p63)) == integers(maximum(x, same)));
}

enum Identity : std::int64_t { last_identity = INT64_MAX };

}  // namespace

TEST_CASE("op families: integers beside int64 tensors keep all of their bits", "[op_families]") {
    const std::int64_t id = (std::int64_t(1) << 53) + 1;
    for (const Device device : test::devices())
        for (const Integers& values : {Integers{id, id - 1}, Integers{INT64_MAX, INT64_MIN}}) {
            const Tensor x = of(values).to(device);
            for (const std::int64_t v :
                 {id, id - 1, -id, INT64_MAX, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1}) {
                CAPTURE(v, values);
                check_exact(x, v);
            }
            check_exact(x, static_cast<long long>(id));
            check_exact(x, std::uint64_t(id));
            check_exact(x, last_identity);
        }
}

TEST_CASE("op families: a captured step sees all bits of an integer", "[op_families]") {
    const std::int64_t id = INT64_MAX - 1;
    cuda::CapturedStep step([&](const Tensors& in) {
        return Tensors{in[0] == id, in[0] - id, masked_fill(in[0], in[0] == id, id - 1),
                       clamp(in[0], id, id)};
    });
    for (int call = 0; call < 6; ++call) {
        const Tensors y = step({of(Integers{id, id + 1 - call % 2})});
        CHECK(integers(y[0]) == Integers{1, call % 2});
        CHECK(integers(y[1]) == Integers{0, 1 - call % 2});
        CHECK(integers(y[2]) == Integers{id - 1, call % 2 == 1 ? id - 1 : id + 1});
        CHECK(integers(y[3]) == Integers{id, id});
    }
}

TEST_CASE("op families: a fraction is true as a boolean, on every device", "[op_families]") {
    for (const Device device : test::devices()) {
        const Tensor x = zeros({2}, {.dtype = boolean, .device = device});
        CHECK(integers(full_like(x, 0.5)) == Integers{1, 1});
        CHECK(integers(x.clone().fill_(-0.5)) == Integers{1, 1});
        CHECK(integers(masked_fill(x, x == 0, 0.5)) == Integers{1, 1});
        CHECK(integers(pad(x, {{0, 1, 0}}, PadMode::constant, 0.5)) == Integers{1, 0, 0});
    }
}

TEST_CASE("op families: integers that a dtype lacks are refused, and compare as they are", "[op_families]") {
    const std::int64_t id = (std::int64_t(1) << 53) + 1;
    const std::uint64_t beyond = std::uint64_t(1) << 63;  // as an std::int64_t it would be negative
    for (const Device device : test::devices()) {
        const Tensor x = of(Integers{INT64_MAX, INT64_MIN}).to(device);
        CHECK(integers(x == beyond) == Integers{0, 0});
        CHECK(integers(x < beyond) == Integers{1, 1});
        CHECK(integers(UINT64_MAX <= x) == Integers{0, 0});
        const Tensor small = ones({2}, {.dtype = int32, .device = device});
        const Tensor bytes = ones({2}, {.dtype = uint8, .device = device});
        CHECK(integers(clamp(small, INT64_MIN, id)) == Integers{1, 1});
        const std::vector<std::function<Tensor()>> refused = {
            [&] { return x + beyond; },
            [&] { return beyond - x; },
            [&] { return x * UINT64_MAX; },
            [&] { return remainder(x, beyond); },
            [&] { return full({1}, beyond, {.dtype = int64, .device = device}); },
            [&] { return x.clone().fill_(beyond); },
            [&] { return where(x > 0, beyond, x); },
            [&] { return masked_fill(x, x > 0, beyond); },
            [&] {
                return pad(x, {{0, 1, 1}}, PadMode::constant, beyond);
            },
            [&] { return clamp(x, beyond, UINT64_MAX); },
            [&] { return small + id; },
            [&] { return small - INT64_MIN; },
            [&] { return small * id; },
            [&] { return small + (std::int64_t(1) << 31); },
            [&] { return full_like(small, id); },
            [&] { return small.clone().fill_(-id); },
            [&] { return small.clone().mul_(id); },
            [&] { return small.clone().add_(small, id); },
            [&] { return where(small == 1, id, small); },
            [&] { return masked_fill(small, small == 1, id); },
            [&] { return clamp(small, id, INT64_MAX); },
            [&] { return bytes + id; },
            [&] { return bytes - INT64_MIN; },
            [&] { return full_like(bytes, id); },
            [&] { return arange(id, id + 2); },
            [&] { return arange(0.5, id); },
            [&] { return linspace(id, id + 2, 3, {.dtype = int64, .device = device}); },
        };
        for (std::size_t i = 0; i < refused.size(); ++i) {
            CAPTURE(i);
            try {
                (void)refused[i]();
                FAIL_CHECK("no error");
            } catch (const Error& e) {
                CHECK(e.kind() == ErrorKind::value);
            }
        }
    }
}

TEST_CASE("op families: an integer beside a floating tensor is rounded once to its dtype", "[op_families]") {
    // 2^60 + 2^36 + 1 is nearer to the float32 above it. As a double it would lie halfway between two
    // float32.
    const std::int64_t id = (std::int64_t(1) << 60) + (std::int64_t(1) << 36) + 1;
    const amp::Autocast autocast({.dtype = bfloat16});
    for (const Device device : test::devices())
        for (const Dtype dtype : {float32, float64}) {
            CAPTURE(dtype);
            const Tensor x = zeros({1}, {.dtype = dtype, .device = device}).set_requires_grad();
            const Tensor right = of({id}).to(dtype).to(device);
            const auto same = [&](const Tensor& y) {
                CHECK(y.dtype() == dtype);
                CHECK(y.to_vector<double>() == right.to_vector<double>());
            };
            same(x + id);
            same(id - x);
            same(-(x - id));
            same((x + 1) * id);
            same(full({1}, id, {.dtype = dtype, .device = device}));
            same(x.detach().clone().fill_(id));
            same(where(x == 0, id, x));
            same(masked_fill(x, x == 0, id));
            same(clamp(x, id, INT64_MAX));
            CHECK((right == id).item<bool>());
            CHECK((right == right.item<double>()).item<bool>());
            CHECK(((x + 1) * id).requires_grad());
        }
}
