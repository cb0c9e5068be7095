// Sizes of 0 and 1: every op of op_cases.cpp with either at every dimension, and products of every shape, on
// one, two and three threads and with every instruction set.
#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "cpu/gemm/gemm.h"
#include "cpu/isa/isa.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "tests/support/op_inputs.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

// Runs body(where) with one, two and three threads and every instruction set of this processor.
class Everywhere {
public:
    ~Everywhere() {
        cpu::force_isa(before_);
        set_num_threads(threads_);
    }
    template <class F> void each(const F& body) {
        for (const cpu::Isa isa :
             {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512_bf16}) {
            if (isa > cpu::best_isa()) continue;
            cpu::force_isa(isa);
            for (const int threads : {1, 2, 3}) {
                set_num_threads(threads);
                CAPTURE(cpu::name(isa), threads);
                body();
            }
        }
    }

private:
    cpu::Isa before_ = cpu::active_isa();
    int threads_ = num_threads();
};

// The shapes with one of their sizes replaced wherever it occurs: equal sizes are one quantity.
std::vector<std::vector<Shape>> resized(const std::vector<Shape>& shapes) {
    std::set<std::int64_t> sizes;
    for (const Shape& s : shapes) sizes.insert(s.begin(), s.end());
    std::vector<std::vector<Shape>> result;
    for (const std::int64_t old : sizes)
        for (const std::int64_t size : {0, 1}) {
            result.push_back(shapes);
            for (Shape& s : result.back())
                for (int d = 0; d < s.size(); ++d)
                    if (s[d] == old) s[d] = size;
        }
    return result;
}

// Whether the shapes have valid indices: without classes there are none.
bool possible(const OpCase& c, const std::vector<Shape>& shapes) {
    for (std::size_t i = 0; i < shapes.size(); ++i)
        if ((kind(c, i) == 'i' || kind(c, i) == 'c') && shapes[i].numel() > 0 && shapes[0].back() == 0)
            return false;
    return true;
}

struct Outcome {
    std::vector<std::vector<double>> values;  // of the result, and of the gradients
};

// Result of f and the gradients of its square; runs second derivatives as well. Empty if f refuses the input.
std::optional<Outcome> outcome(const OpCase& c, const Tensors& inputs) {
    Tensors x, leaves;
    for (const Tensor& given : inputs) {
        x.push_back(given.detach().clone());
        if (is_floating(given.dtype()) && c.gradient) leaves.push_back(x.back().set_requires_grad());
    }
    try {
        const Tensor y = c.function(x);
        Outcome result{{doubles(y)}};
        if (!y.requires_grad()) return result;
        const Tensor objective = sum(square(y.to(float64)));
        for (const Tensor& g :
             autograd::grad({objective}, leaves, {.create_graph = true, .allow_unused = true})) {
            if (!g.defined()) continue;
            result.values.push_back(doubles(g));
            if (g.requires_grad())
                (void)autograd::grad({sum(square(g))}, leaves, {.retain_graph = true, .allow_unused = true});
        }
        return result;
    } catch (const Error&) {
        return std::nullopt;
    }
}

bool indexed(const OpCase& c) { return std::string(c.kinds).find_first_of("ic") != std::string::npos; }

void compare(const OpCase& c, const Tensors& inputs, const std::optional<Outcome>& wanted) {
    const auto actual = outcome(c, inputs);
    REQUIRE(actual.has_value() == wanted.has_value());
    if (!actual) return;
    REQUIRE(actual->values.size() == wanted->values.size());
    for (std::size_t i = 0; i < actual->values.size(); ++i)
        CHECK(difference(actual->values[i], wanted->values[i], {2e-4 * c.loose, 2e-4 * c.loose}) == "");
}

// Result of the op's decomposition in float64, or of the op itself if the decomposition refuses tensors
// without elements.
std::optional<Outcome> reference(const OpCase& c, const Tensors& inputs) {
    {
        ByDecomposition composed;
        if (auto composed_outcome = outcome(c, exact(inputs))) return composed_outcome;
    }
    return outcome(c, exact(inputs));
}

}  // namespace

TEST_CASE("sizes: every op with 0 and 1 in every position", "[sizes]") {
    for (const OpCase& c : op_cases()) {
        CAPTURE(c.name);
        bool computed = false;
        for (const std::vector<Shape>& shapes : resized(c.shapes)) {
            if (!possible(c, shapes)) continue;
            CAPTURE(shapes);
            const Tensors inputs = make_inputs(c, shapes, float32, cpu_device);
            // The index is outside a table that has become too small: the CPU refuses it, a GPU gives NaN.
            if (indexed(c) && !outcome(c, inputs)) continue;
            const auto wanted = reference(c, inputs);
            computed = computed || wanted;
            Everywhere().each([&] { compare(c, inputs, wanted); });
            if (devices().size() > 1) compare(c, make_inputs(c, shapes, float32, devices()[1]), wanted);
        }
        CHECK(computed);
    }
}

TEST_CASE("sizes: products of every shape", "[sizes]") {
    const std::int64_t sizes[] = {0, 1, 5, 9, 200, 700};
    for (const std::int64_t m : sizes)
        for (const std::int64_t n : sizes)
            for (const std::int64_t k : {0, 1}) {
                CAPTURE(m, n, k);
                const std::size_t count = std::size_t(m * n);
                const std::vector<float> a(std::size_t(m * k), 3), b(std::size_t(k * n), 5),
                    bias(std::size_t(n), 7);
                Everywhere().each([&] {
                    for (const bool transposed : {false, true}) {
                        std::vector<float> c(count, 11);
                        cpu::gemm({.m = m,
                                   .n = n,
                                   .k = k,
                                   .trans_a = transposed,
                                   .trans_b = transposed,
                                   .a = a.data(),
                                   .lda = transposed ? m : k,
                                   .b = b.data(),
                                   .ldb = transposed ? k : n,
                                   .c = c.data(),
                                   .ldc = n,
                                   .bias = bias.data(),
                                   .beta = 0.5f});
                        CHECK(c == std::vector<float>(count, 15.0f * float(k) + 12.5f));
                        std::vector<bfloat16_t> low(count, bfloat16_t(11.0f));
                        cpu::gemm({.m = m,
                                   .n = n,
                                   .k = k,
                                   .a = a.data(),
                                   .lda = k,
                                   .b = b.data(),
                                   .ldb = n,
                                   .c = low.data(),
                                   .c_type = bfloat16,
                                   .ldc = n,
                                   .activation = Activation::relu});
                        CHECK(std::all_of(low.begin(), low.end(),
                                          [&](bfloat16_t x) { return float(x) == 15.0f * float(k); }));
                    }
                });
            }
}

TEST_CASE("sizes: an empty batch trains nothing and breaks nothing", "[sizes]") {
    for (const std::int64_t width : {3, 64, 600}) {
        CAPTURE(width);
        Everywhere().each([&] {
            nn::Sequential net(nn::Linear(width, 2 * width), nn::ReLU(), nn::Linear(2 * width, width),
                               nn::GELU(), nn::Linear(width, 4));
            const Tensor y = net(zeros({0, width}));
            CHECK(y.shape() == Shape{0, 4});
            sum(y).backward();
            for (const Tensor& p : net.parameters()) CHECK(all_close(p.grad(), zeros_like(p)));
            const Tensor none = matmul(ones({width, 0}), ones({0, width}));
            CHECK(all_close(none, zeros({width, width})));
        });
    }
}
