// scaled_dot_product_attention of one query per head without history, which has a kernel of its own on the
// CPU. References are the decomposition in float64.
#include <catch2/catch.hpp>

#include "cpu/isa/isa.h"
#include "mezzo/attention_ops.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

struct Sizes {
    std::int64_t batch, heads, key, dim;
};

enum class MaskKind { none, padding, gaps, heads };

Tensor random_tensor(const Shape& shape, std::uint64_t seed, Dtype dtype) {
    return tensor_of(random_values(shape.numel(), seed, Domain::any), shape, dtype);
}

// Padding at both ends that hides all keys of the last item, gaps between the keys, or gaps that each head
// has at other keys.
Tensor mask_of(MaskKind kind, const Sizes& s) {
    if (kind == MaskKind::none) return {};
    const Shape shape{s.batch, kind == MaskKind::heads ? s.heads : 1, 1, s.key};
    std::vector<double> values = random_values(shape.numel(), 77, Domain::unit);
    for (std::size_t n = 0; n < values.size(); ++n) {
        const std::int64_t j = std::int64_t(n) % s.key, b = std::int64_t(n) / (shape.numel() / s.batch);
        if (kind == MaskKind::padding) values[n] = j >= 1 && j < s.key - 2 && b + 1 < s.batch;
        if (kind != MaskKind::padding) values[n] = values[n] > 0.4;
    }
    return gt(Tensor::from(values, shape), 0.0);
}

struct Inputs {
    Tensor q, k, v;
    AttentionOptions options;
    Tensor result() const {
        const NoGrad plain;
        return scaled_dot_product_attention(q, k, v, options);
    }
    Tensor reference() const {
        const ByDecomposition composed;
        return Inputs{q.to(float64), k.to(float64), v.to(float64), options}.result();
    }
};

std::string error(const Tensor& y, const Tensor& want, double allowed) {
    return difference(doubles(y), doubles(want), {allowed, allowed});
}

}  // namespace

TEST_CASE("attention of one query, in every instruction set", "[ops][attention]") {
    for (const Sizes& s : {Sizes{1, 3, 1, 8}, {2, 4, 300, 64}, {3, 2, 2500, 20}, {1, 2, 7, 0}})
        for (const Dtype dtype : {float32, bfloat16, float16})
            for (const MaskKind kind : {MaskKind::none, MaskKind::padding, MaskKind::gaps, MaskKind::heads}) {
                CAPTURE(s.batch, s.heads, s.key, s.dim, name(dtype), int(kind));
                const Shape keys{s.batch, s.heads, s.key, s.dim};
                const Inputs in{random_tensor({s.batch, s.heads, 1, s.dim}, 1, dtype),
                                random_tensor(keys, 2, dtype),
                                random_tensor(keys, 3, dtype),
                                {.mask = mask_of(kind, s), .causal = true}};
                const Tensor want = in.reference();
                for (const cpu::Isa isa : cpu::all_isas) {
                    if (isa > cpu::best_isa()) continue;
                    cpu::force_isa(isa);
                    CAPTURE(cpu::name(isa));
                    CHECK(error(in.result(), want, dtype == float32 ? 2e-5 : 1e-2) == "");
                }
                cpu::release_isa();
            }
}

TEST_CASE("attention of one query: heads that share keys and values, and threads", "[ops][attention]") {
    const int threads = num_threads();
    for (const MaskKind kind : {MaskKind::none, MaskKind::padding, MaskKind::heads}) {
        const Sizes s{3, 6, 1100, 24};
        const Shape keys{s.batch, s.heads, s.key, s.dim};
        Inputs in{random_tensor({s.batch, s.heads, 1, s.dim}, 1, bfloat16),
                  random_tensor({s.batch, 1, s.key, s.dim}, 2, bfloat16).expand(keys),
                  random_tensor({s.batch, 1, s.key, s.dim}, 3, bfloat16).expand(keys),
                  {.mask = mask_of(kind, s)}};
        set_num_threads(1);
        const Tensor y = in.result();
        set_num_threads(3);
        CHECK(error(in.result(), y, 0) == "");
        set_num_threads(threads);
        in.k = in.k.contiguous();
        CHECK(error(in.result(), y, 1e-2) == "");
    }
}

TEST_CASE("attention of one query: hidden keys and values may be anything, others reach the result",
          "[ops][attention]") {
    Inputs in{random_tensor({1, 2, 1, 8}, 1, float32),
              random_tensor({1, 2, 9, 8}, 2, float32),
              random_tensor({1, 2, 9, 8}, 3, float32),
              {.mask = gt(Tensor::from({0.f, 1, 1, 0, 1, 1, 1, 1, 0}).reshape({1, 1, 1, 9}), 0.0)}};
    const Tensor want = in.result();
    for (const std::int64_t hidden : {0, 3, 8}) {
        in.k.slice(2, hidden, hidden + 1).fill_(NAN);
        in.v.slice(2, hidden, hidden + 1).fill_(INFINITY);
    }
    CHECK(error(in.result(), want, 1e-5) == "");
    in.v.slice(2, 4, 5).slice(1, 1, 2).fill_(NAN);
    const Tensor y = in.result();
    CHECK(error(y.slice(1, 0, 1), want.slice(1, 0, 1), 1e-5) == "");
    CHECK(std::isnan(y.to_vector<float>()[8]));
}
