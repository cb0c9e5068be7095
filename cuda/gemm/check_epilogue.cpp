#include "cuda/gemm/check_epilogue.h"

#include <algorithm>

#include "cuda/gemm/check.h"
#include "cuda/gemm/memory.h"
#include "cuda/gemm/plans.h"
#include "cuda/runtime/runtime.h"

namespace mezzo::cuda {
namespace {

using Shows = EpilogueTrial::Shows;

constexpr std::int64_t trial_m = 128, trial_n = 64;
// The fewest arguments that show an activation, where the library does not take 128 x 64.
constexpr std::int64_t enough_arguments = 1024;
// An odd sum, by one beyond the integers that the dtype holds exactly: 257 + 1 is 258 in bfloat16, but 256 if
// 257 is rounded first. Likewise 2049 in float16; each bias of the trial distinguishes the two.
constexpr std::int64_t odd_sum(Dtype dtype) { return dtype == bfloat16 ? 257 : 2049; }

bool applies_relu(lt::Epilogue e) { return lt::has_activation(e) && !applies_gelu(e); }
bool rounds_bias(const lt::Problem& p) { return lt::has_bias(p.epilogue) && is_16bit(p.d_type); }
bool is_curved(lt::Epilogue e) { return applies_gelu(e) || lt::reads_before(e); }

Activation activation_of(lt::Epilogue e) {
    if (is_curved(e)) return Activation::gelu_tanh;
    return applies_relu(e) ? Activation::relu : Activation::none;
}

// The same kind of problem with another size, on scratch without gaps.
lt::Problem trial_problem(const lt::Problem& p, std::int64_t m, std::int64_t n) {
    const std::int64_t multiple = lt::is_float8(p.a_type) ? 16 : 8;
    const auto whole = [=](std::int64_t length) { return (length + multiple - 1) / multiple * multiple; };
    lt::Problem t;
    t.m = m;
    t.n = n;
    // An odd sum needs two terms, or so many that each of them is a float8 code.
    t.k = std::max(p.k, std::int64_t(lt::is_float8(p.a_type) ? 256 : 2));
    t.lda = whole(p.trans_a ? t.k : m);
    t.ldb = whole(p.trans_b ? n : t.k);
    t.ldd = whole(m);
    t.device = p.device;
    t.a_type = p.a_type, t.b_type = p.b_type, t.d_type = p.d_type;
    t.trans_a = p.trans_a, t.trans_b = p.trans_b;
    t.epilogue = p.epilogue;
    t.tf32 = p.tf32;
    t.scales = p.scales;
    return t;
}

class Trials {
public:
    Trials(GemmService& service, const lt::Problem& problem, const lt::Algo& algo)
        : s_(service),
          p_(problem),
          algo_(algo),
          plan_(lt::make_plan(problem)),
          item_(std::int64_t(size_of(p_.d_type))),
          a_(p_.lda * (p_.trans_a ? p_.m : p_.k) * std::int64_t(size_of(p_.a_type))),
          b_(p_.ldb * (p_.trans_b ? p_.k : p_.n) * std::int64_t(size_of(p_.b_type))),
          d_(p_.ldd * p_.n * item_),
          aux_(aux_bytes(p_, p_.ldd * p_.n * item_)),
          bias_(p_.m * item_),
          a_scale_(scale_bytes(p_, p_.m)),
          b_scale_(scale_bytes(p_, p_.n)),
          sums_(p_.m * std::int64_t(sizeof(double))),
          count_(sizeof(unsigned long long)) {}

    // None if the library does not take the algorithm for this size.
    std::optional<bool> passed() {
        auto* const count = static_cast<unsigned long long*>(count_.memory);
        fill_zero(count, sizeof *count);
        if ((rounds_bias(p_) || applies_relu(p_.epilogue)) && !run(Shows::rounding)) return std::nullopt;
        if (is_curved(p_.epilogue) && !run(Shows::activation)) return std::nullopt;
        unsigned long long wrong = 0;
        copy_to_host(&wrong, count, sizeof wrong);
        return wrong == 0;
    }

private:
    EpilogueTrial trial(Shows shows) const {
        EpilogueTrial t{};
        t.shows = shows;
        t.activation = activation_of(p_.epilogue);
        t.is_gradient = lt::is_gradient(p_.epilogue);
        t.has_bias = lt::has_bias(p_.epilogue);
        t.keeps = lt::writes_before(p_.epilogue);
        t.type = p_.a_type, t.d_type = p_.d_type;
        t.is_float8 = lt::is_float8(p_.a_type);
        t.trans_a = p_.trans_a, t.trans_b = p_.trans_b;
        t.m = p_.m, t.n = p_.n, t.k = p_.k;
        t.lda = p_.lda, t.ldb = p_.ldb, t.ldd = p_.ldd;
        // without a bias the sum itself must have a value in the result's dtype, and its terms in A's
        t.sum = odd_sum(is_16bit(p_.d_type) ? p_.d_type : p_.a_type) - (t.has_bias ? 0 : 1);
        t.accuracy = accuracy_of(p_.d_type);
        t.a = a_.memory, t.b = b_.memory, t.bias = bias_.memory, t.d = d_.memory, t.aux = aux_.memory;
        return t;
    }

    bool run(Shows shows) {
        const EpilogueTrial t = trial(shows);
        lt::Operands o;
        o.a = t.a, o.b = t.b, o.bias = t.bias, o.d = t.d, o.aux = t.aux, o.bias_grad = sums_.memory;
        o.a_scale = a_scale_.memory, o.b_scale = b_scale_.memory;
        give_whole_workspace(s_, p_.device, o);
        fill_trial(t);
        if (t.is_float8) {
            fill_scales(a_scale_.memory, p_, false, Trial::ones);
            fill_scales(b_scale_.memory, p_, true, Trial::ones);
        }
        if (!lt::run(*plan_, algo_, o)) {
            synchronize();
            return false;
        }
        add_wrong_results(t, static_cast<unsigned long long*>(count_.memory));
        return true;
    }

    GemmService& s_;
    const lt::Problem& p_;
    const lt::Algo& algo_;
    const std::shared_ptr<lt::Plan> plan_;
    const std::int64_t item_;
    const GemmScratch a_, b_, d_, aux_, bias_, a_scale_, b_scale_, sums_, count_;
};

// Result of the trials for this problem and algorithm: an earlier call's if there is one, otherwise runs
// them.
std::optional<bool> result(GemmService& s, const lt::Problem& problem, const lt::Algo& algo) {
    std::vector<EpilogueResult>& known = s.epilogue_results[problem];
    lt::Algo named = algo;
    named.workspace = 0;  // depends on the size
    for (const EpilogueResult& earlier : known)
        if (earlier.algo == named) return earlier.is_right;
    known.push_back({named, Trials(s, problem, algo).passed()});
    return known.back().is_right;
}

}  // namespace

bool applies_gelu(lt::Epilogue e) {
    return lt::writes_before(e) || e == lt::Epilogue::gelu_tanh || e == lt::Epilogue::gelu_tanh_bias;
}

std::int64_t aux_bytes(const lt::Problem& p, std::int64_t matrix_bytes) {
    if (lt::has_mask(p.epilogue)) return relu_mask_bytes(p.n, p.m);
    return lt::has_aux(p.epilogue) ? matrix_bytes : 1;
}

bool has_right_epilogue(GemmService& s, const lt::Problem& p, const lt::Algo& algo) {
    if (!rounds_bias(p) && !applies_relu(p.epilogue) && !is_curved(p.epilogue)) return true;
    if (const auto right = result(s, trial_problem(p, trial_m, trial_n), algo)) return *right;
    if (is_curved(p.epilogue) && p.m * p.n < enough_arguments) return false;
    return result(s, trial_problem(p, p.m, p.n), algo).value_or(false);
}

}  // namespace mezzo::cuda
