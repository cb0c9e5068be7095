// Check of a GEMM algorithm before its first use, on operands whose product is known exactly.
#include "cuda/gemm/check.h"

#include <algorithm>

#include "cuda/gemm/check_epilogue.h"
#include "cuda/gemm/memory.h"
#include "cuda/gemm/plans.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

// The longest run of ones whose sum every floating dtype holds exactly (bfloat16: integers up to 256).
constexpr std::int64_t exact_16bit_sum = 256;
// float32 holds every integer up to here.
constexpr std::int64_t exact_sum = std::int64_t(1) << 24;

std::int64_t extent(std::int64_t columns, std::int64_t ld, std::int64_t batch, std::int64_t stride) {
    return columns * ld + (batch - 1) * stride;
}

// Memory that holds zeros at first.
struct Scratch : GemmScratch {
    explicit Scratch(std::int64_t bytes) : GemmScratch(bytes) {
        fill_zero(memory, static_cast<std::size_t>(bytes));
    }
};

// Number of terms that are ones. If the output type cannot hold k exactly, only the last terms are ones: the
// known defects drop last terms.
std::int64_t terms_of(const lt::Problem& p) {
    // Tensor Cores add products of float8 codes with fewer bits than float32 has.
    const bool few_bits = is_16bit(p.d_type) || lt::is_float8(p.a_type);
    std::int64_t terms = few_bits ? std::min(p.k, exact_16bit_sum) : p.k;
    if (p.epilogue == lt::Epilogue::bgrad_b)
        return p.k < exact_sum / 4 ? std::max(p.k - 1, std::int64_t(1)) : 0;
    if (lt::has_bias_grad(p.epilogue)) terms = std::min(terms, exact_sum / p.n);
    return terms;
}

// B's first term in a check of its sums. A has a zero at that position, so that the term is visible in the
// sums alone, as a fraction of 1 that 16 bits cannot hold in a sum with k - 1.
double first_term(const lt::Problem& p) {
    if (p.epilogue != lt::Epilogue::bgrad_b || p.k == 1) return 1;
    return p.k < 8192 ? 0x1p-10 : 0.5;
}

// Check of one algorithm, with operands of its own.
class Check {
public:
    Check(GemmService& service, const lt::Problem& problem, const lt::Algo& algo)
        : s_(service),
          p_(problem),
          algo_(algo),
          item_(std::int64_t(size_of(p_.d_type))),
          size_a_(extent(p_.trans_a ? p_.m : p_.k, p_.lda, p_.batch, p_.stride_a)),
          size_b_(extent(p_.trans_b ? p_.k : p_.n, p_.ldb, p_.batch, p_.stride_b)),
          size_d_(extent(p_.n, p_.ldd, p_.batch, p_.stride_d)),
          terms_(terms_of(p_)),
          a_(size_a_ * std::int64_t(size_of(p_.a_type))),
          b_(size_b_ * std::int64_t(size_of(p_.b_type))),
          d_(size_d_ * item_),
          aux_(aux_bytes(p_, size_d_ * item_)),
          bias_(p_.m * item_),
          a_scale_(scale_bytes(p_, p_.m)),
          b_scale_(scale_bytes(p_, p_.n)),
          sums_(std::max(p_.m, p_.n) * std::int64_t(sizeof(double))) {}

    bool passed() {
        if (terms_ == 0) return false;  // no sum of a bias's gradient would be exact
        if (!right(p_.scales == Granularity::row ? Trial::scales : Trial::ones)) return false;
        if (p_.scales == Granularity::block32 && !right(Trial::blocks)) return false;
        if (lt::writes_mask(p_.epilogue)) return right(Trial::signs);
        if (p_.epilogue == lt::Epilogue::bgrad_b) return right(Trial::products);
        if (lt::reads_mask(p_.epilogue)) return right(Trial::bits);
        return !lt::reads_before(p_.epilogue) || right(Trial::slopes);
    }

private:
    void fill(Trial trial) {
        if (lt::is_float8(p_.a_type)) {
            fill_scales(a_scale_.memory, p_, false, trial);
            fill_scales(b_scale_.memory, p_, true, trial);
        }
        const std::int64_t tail = terms_ < p_.k && trial != Trial::blocks ? terms_ : 0;
        fill_operand({a_.memory, p_.a_type, size_a_, p_.lda, p_.stride_a, p_.trans_a, p_.k, tail, 1, false},
                     trial);
        fill_operand(
            {b_.memory, p_.b_type, size_b_, p_.ldb, p_.stride_b, !p_.trans_b, p_.k, 0, first_term(p_), true},
            trial);
        if (lt::reads_mask(p_.epilogue)) fill_mask(aux_.memory, p_.m, p_.n, trial);
        if (lt::reads_before(p_.epilogue)) fill_before(aux_.memory, p_.d_type, p_.m, p_.n, p_.ldd, trial);
    }

    bool run(double scale) {
        lt::Problem plain = p_;
        plain.align_a = plain.align_b = plain.align_d = plain.align_bias = plain.align_aux = 256;
        plain.beta_is_zero = true;
        lt::Operands o;
        o.a = a_.memory, o.b = b_.memory, o.bias = bias_.memory;
        o.d = d_.memory, o.aux = aux_.memory, o.bias_grad = sums_.memory;
        o.a_scale = a_scale_.memory, o.b_scale = b_scale_.memory;
        o.alpha = scale;
        give_whole_workspace(s_, p_.device, o);
        if (lt::run(*lt::make_plan(plain), algo_, o)) return true;
        synchronize();
        return false;
    }

    // The results of an earlier trial stay in the buffers, so that an algorithm that adds to them or does not
    // write them is noticed.
    bool right(Trial trial) {
        fill(trial);
        // gelu(x) is exactly x for large x only; 16 times a sum below 16 is exact in every dtype
        const std::int64_t terms = trial == Trial::blocks ? 1 : terms_;
        const double scale = applies_gelu(p_.epilogue) && terms < 16 ? 16 : 1;
        if (!run(scale)) return false;
        const bool one_scale = lt::is_float8(p_.a_type) && trial == Trial::ones;
        const double unit = double(terms) * scale * (one_scale ? first_a_scale * first_b_scale : 1);
        const TrialResult d{d_.memory, p_.d_type, p_.m, p_.n, p_.k, p_.ldd, p_.batch, p_.stride_d};
        if (count_different(d, trial, unit) != 0) return false;
        TrialResult before = d;
        before.matrix = aux_.memory;
        if (lt::writes_before(p_.epilogue) && count_different(before, trial, unit) != 0) return false;
        if (lt::writes_mask(p_.epilogue) && count_different_bits(aux_.memory, p_.m, p_.n, trial) != 0)
            return false;
        return !lt::has_bias_grad(p_.epilogue) || different_sums(trial, unit) == 0;
    }

    std::int64_t different_sums(Trial trial, double unit) const {
        const Dtype dtype = lt::bias_grad_type(p_.d_type);
        if (p_.epilogue == lt::Epilogue::bgrad_b)
            return count_different_b_sums(sums_.memory, dtype, p_.n, trial,
                                          double(p_.k - 1) + first_term(p_));
        return count_different_sums(sums_.memory, dtype, p_.m, p_.n, trial, unit);
    }

    GemmService& s_;
    const lt::Problem& p_;
    const lt::Algo& algo_;
    const std::int64_t item_, size_a_, size_b_, size_d_, terms_;
    const Scratch a_, b_, d_, aux_, bias_, a_scale_, b_scale_, sums_;
};

}  // namespace

bool passes_check(GemmService& s, const lt::Problem& problem, const lt::Algo& algo) {
    return Check(s, problem, algo).passed() && has_right_epilogue(s, problem, algo);
}

}  // namespace mezzo::cuda
