#include "cuda/gemm/plans.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "core/step_recorder.h"
#include "cuda/gemm/check_epilogue.h"
#include "cuda/gemm/memory.h"
#include "cuda/runtime/devices.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/cuda.h"
#include "mezzo/error.h"
#include "mezzo/matmul_precision.h"

namespace mezzo::cuda {
namespace {

// Split-K needs room for its partial sums; 32 MiB is NVIDIA's recommendation for Hopper.
constexpr std::size_t workspace_size = 32 << 20;
constexpr std::size_t max_plans = 8192;
// A bias slice aligned to less than this has made cuBLASLt kernels fault.
constexpr std::uint16_t vector_alignment = 16;
// Leading dimension and batch stride of aux must be multiples of this (cublasLt.h).
constexpr std::int64_t aux_multiple = 8;
// Some split-K kernels drop the last (k mod block_k) terms. None has been seen to do so where k is a multiple
// of 64.
constexpr std::int64_t safe_k = 64;

std::atomic<std::size_t> workspace_total{0};

struct Mixer {
    std::uint64_t h = 0xcbf29ce484222325u;
    template <class T> void operator()(T value) {
        h = (h ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
};

std::uint16_t alignment_of(const void* p) {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return static_cast<std::uint16_t>(address == 0 ? 256
                                                   : std::min<std::uintptr_t>(address & (~address + 1), 256));
}

void* workspace(GemmService& s, int device) {
    const auto index = static_cast<std::size_t>(device);
    if (s.workspaces.size() <= index) s.workspaces.resize(index + 1);
    if (s.workspaces[index] == nullptr) {
        s.workspaces[index] = gemm_block(device, workspace_size);
        workspace_total += workspace_size;
    }
    return s.workspaces[index]->address;
}

// Memory in which the library stores its result.
void* target_of(const Gemm& g, lt::Epilogue e) {
    return g.pre_activation != nullptr && !lt::writes_before(e) ? g.pre_activation : g.c;
}

// Whether the bias is written into a 16-bit C before the product adds to it: after the product it would be
// added to a sum that has been rounded.
bool bias_in_c(const Gemm& g, lt::Epilogue e) {
    return e == lt::Epilogue::none && g.bias != nullptr && g.bias_type == g.c_type && is_16bit(g.c_type) &&
           g.beta == 0;
}

// Memory that the epilogue reads or writes as aux: the mask, the activation's saved tensor, or the
// pre-activation.
void* aux_of(const Gemm& g, lt::Epilogue e) {
    if (lt::has_mask(e)) return g.mask;
    if (lt::reads_before(e)) return const_cast<void*>(g.saved);
    return lt::writes_before(e) ? g.pre_activation : nullptr;
}

// Memory for the sums that the library computes.
void* bias_grad_of(const Gemm& g, lt::Epilogue e) {
    if (e == lt::Epilogue::bgrad_b) return g.a_sums;
    return lt::has_bias_grad(e) ? g.bias_grad : nullptr;
}

lt::Operands operands_of(const Gemm& g, lt::Epilogue e) {
    lt::Operands o;
    o.a = g.b;
    o.b = g.a;
    o.bias = lt::has_bias(e) ? g.bias : nullptr;
    o.d = target_of(g, e);
    o.aux = aux_of(g, e);
    o.bias_grad = bias_grad_of(g, e);
    o.a_scale = g.b_scale;
    o.b_scale = g.a_scale;
    o.alpha = g.alpha;
    o.beta = bias_in_c(g, e) ? 1 : g.beta;
    return o;
}

// Runs the rest of a product with `saved` that the library's epilogue has not done.
void finish_gradient(const Gemm& g, lt::Epilogue e) {
    if (!lt::is_gradient(e)) return gemm_activation_grad(g);
    if (g.bias_grad != nullptr && !lt::has_bias_grad(e)) gemm_bias_grad(g);
}

// Runs the rest of a product that the library's epilogue has not done: bias, activation, mask. With beta != 0
// the bias is added last: (alpha AB + beta C) + bias is the same sum.
void finish(const Gemm& g, lt::Epilogue e) {
    if (g.saved != nullptr) return finish_gradient(g, e);
    const bool bias_left = g.bias != nullptr && !lt::has_bias(e) && !bias_in_c(g, e);
    const bool activation_left = g.activation != Activation::none && !lt::has_activation(e);
    const bool copy_left = g.pre_activation != nullptr && !lt::writes_before(e);
    if (bias_left || activation_left || copy_left) {
        Gemm rest = g;
        if (!bias_left) {
            rest.bias = nullptr;
            rest.pre_activation = nullptr;  // the library has stored it
        }
        gemm_epilogue(rest, target_of(g, e));
    }
    if (g.mask != nullptr && !lt::writes_mask(e)) gemm_mask(g);
    if (g.a_sums != nullptr && e != lt::Epilogue::bgrad_b) gemm_a_sums(g);
}

// Whether the library supports a matrix of C's layout as aux.
bool matrix_fits(const Gemm& g, const void* matrix) {
    return g.ldc % aux_multiple == 0 && (g.batch == 1 || g.stride_c % aux_multiple == 0) &&
           alignment_of(matrix) >= vector_alignment;
}
bool mask_fits(const Gemm& g) { return g.mask != nullptr && alignment_of(g.mask) >= vector_alignment; }

std::vector<lt::Epilogue> gradient_epilogues(const Gemm& g) {
    using enum lt::Epilogue;
    const bool is_relu = g.activation == Activation::relu;
    std::vector<lt::Epilogue> epilogues;
    if (is_relu ? mask_fits(g) : g.activation == Activation::gelu_tanh && matrix_fits(g, g.saved)) {
        // cuBLASLt gives the sums in C's type, and a bias's gradient is never rounded to 16 bit
        const bool sums_fit = lt::bias_grad_type(g.c_type) == g.c_type;
        if (g.bias_grad != nullptr && sums_fit && alignment_of(g.bias_grad) >= vector_alignment)
            epilogues.push_back(is_relu ? drelu_bgrad : dgelu_tanh_bgrad);
        epilogues.push_back(is_relu ? drelu : dgelu_tanh);
    }
    epilogues.push_back(none);
    return epilogues;
}

// The epilogues of a weight gradient. For a 16-bit C the library would round the sums to C's dtype.
std::vector<lt::Epilogue> weight_epilogues(const Gemm& g) {
    const bool fits = !is_16bit(g.c_type) && g.alpha == 1 && alignment_of(g.a_sums) >= vector_alignment;
    if (!fits) return {lt::Epilogue::none};
    return {lt::Epilogue::bgrad_b, lt::Epilogue::none};
}

// Drops the plans, but not the choices: they are checked again before their next use.
void forget_plans(GemmService& s) {
    s.plans.clear();
    s.epilogue_results.clear();
    for (const auto& [request, choice] : s.settled)
        if (choice) s.loaded.emplace(request, *choice);
    s.settled.clear();
}

// Returns the documented requirement of cuBLASLt that a product of float8 codes does not meet, or null.
const char* outside_float8(const Gemm& g) {
    constexpr std::int64_t multiple = 16;
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    // Version of the library. 12.8 has scales of blocks, but may propose algorithms of products without them.
    constexpr std::uint64_t first_scale_modes = 120900;
    const int capability = compute_capability(current_device());
    if (capability < 89) return "float8 before compute capability 8.9";
    const bool has_modes = lt::version() >= first_scale_modes;
    if (g.scales == Granularity::row && !(capability == 90 && has_modes))
        return "scales of rows: they need compute capability 9.0 and cuBLAS 12.9";
    if (g.scales == Granularity::block32 && !(capability >= 100 && has_modes))
        return "scales of blocks: they need compute capability 10.0 and cuBLAS 12.9";
    if (g.a_type == float8_e5m2 && g.b_type == float8_e5m2) return "two operands in E5M2";
    if (g.c_type == float64) return "a float64 result of float8 operands";
    if (g.batch != 1 || g.saved != nullptr || g.a_sums != nullptr) return "float8 with more than one result";
    if (g.trans_a || !g.trans_b) return "float8 operands whose rows do not run along k";
    for (const std::int64_t size : {g.m, g.n, g.k, g.lda, g.ldb, g.ldc})
        if (size % multiple != 0) return "a size of float8 operands is no multiple of 16";
    for (const void* p :
         {g.a, g.b, static_cast<const void*>(g.c), static_cast<const void*>(g.pre_activation)})
        if (alignment_of(p) < multiple) return "float8 operands are not 16-byte aligned";
    return std::max({g.m, g.n, g.k}) > most ? "more than 2^31 - 1 rows or columns" : nullptr;
}

}  // namespace

std::size_t PlanHash::operator()(const lt::Problem& p) const {
    Mixer mix;
    for (auto v : {p.m, p.n, p.k, p.lda, p.ldb, p.ldd, p.batch, p.stride_a, p.stride_b, p.stride_d}) mix(v);
    for (auto v : {p.align_a, p.align_b, p.align_d, p.align_bias, p.align_aux}) mix(v);
    for (auto v : {p.a_type, p.b_type, p.d_type}) mix(v);
    mix(p.device);
    mix(int(p.epilogue) << 6 | int(p.scales) << 4 | p.trans_a << 3 | p.trans_b << 2 | p.tf32 << 1 |
        int(p.beta_is_zero));
    return mix.h;
}

std::size_t PlanHash::operator()(const lt::Request& r) const {
    Mixer mix{(*this)(r.problem)};
    mix(int(r.activation) << 1 | int(r.keeps_before));
    return mix.h;
}

GemmService& gemm_service() {
    // Leaked: the driver may be gone when destructors of statics run.
    static GemmService* s = new GemmService;
    return *s;
}

// Row-major C = A B is column-major C^T = B^T A^T: the operands are swapped, and no data moves.
lt::Problem problem_of(const Gemm& g, lt::Epilogue epilogue) {
    lt::Problem p;
    p.m = g.n;
    p.n = g.m;
    p.k = g.k;
    p.lda = g.ldb;
    p.ldb = g.lda;
    p.ldd = g.ldc;
    p.batch = g.batch;
    if (g.batch > 1) {
        p.stride_a = g.stride_b;
        p.stride_b = g.stride_a;
        p.stride_d = g.stride_c;
    }
    p.device = current_device();
    p.align_a = alignment_of(g.b);
    p.align_b = alignment_of(g.a);
    p.align_d = alignment_of(target_of(g, epilogue));
    if (lt::has_bias(epilogue)) p.align_bias = alignment_of(g.bias);
    if (lt::has_bias_grad(epilogue)) p.align_bias = alignment_of(bias_grad_of(g, epilogue));
    if (lt::has_aux(epilogue)) p.align_aux = alignment_of(aux_of(g, epilogue));
    p.a_type = g.b_type;
    p.b_type = g.a_type;
    p.d_type = g.c_type;
    p.trans_a = g.trans_b;
    p.trans_b = g.trans_a;
    p.epilogue = epilogue;
    p.tf32 = g.a_type == float32 && float32_matmul_precision() != Float32MatmulPrecision::highest;
    p.scales = g.scales;
    p.beta_is_zero = g.beta == 0 && !bias_in_c(g, epilogue);
    return p;
}

lt::Request request_of(const Gemm& g, lt::Epilogue most) {
    const bool keeps = g.saved == nullptr && (g.pre_activation != nullptr || g.mask != nullptr);
    return {problem_of(g, most), g.activation, keeps};
}

bool give_workspace(GemmService& s, int device, const lt::Algo& algo, lt::Operands& operands) {
    if (algo.workspace > workspace_size) return false;
    if (algo.workspace > 0) give_whole_workspace(s, device, operands);
    return true;
}

void give_whole_workspace(GemmService& s, int device, lt::Operands& operands) {
    operands.workspace = workspace(s, device);
    operands.workspace_bytes = workspace_size;
}

CachedPlan& plan_for(GemmService& s, const Gemm& g, lt::Epilogue epilogue) {
    const lt::Problem problem = problem_of(g, epilogue);
    const auto found = s.plans.find(problem);
    if (found != s.plans.end()) return found->second;
    refuse_in_capture("gemm",
                      "meet a product for the first time; its warm-up runs must have had every shape");
    if (s.plans.size() >= max_plans) forget_plans(s);
    CachedPlan cached;
    cached.plan = lt::make_plan(problem);
    cached.candidates = proposals(g, epilogue, *cached.plan, gemm_options().candidates);
    return s.plans.emplace(problem, std::move(cached)).first->second;
}

std::vector<lt::Algo> proposals(const Gemm& g, lt::Epilogue epilogue, lt::Plan& plan, int count) {
    return lt::heuristics(plan, operands_of(g, epilogue), workspace_size, count);
}

bool run_algo(GemmService& s, const Gemm& g, lt::Epilogue epilogue, CachedPlan& cached,
              const lt::Algo& algo) {
    lt::Operands operands = operands_of(g, epilogue);
    if (!give_workspace(s, current_device(), algo, operands)) return false;
    if (bias_in_c(g, epilogue)) gemm_bias_rows(g, operands.d);
    if (!lt::run(*cached.plan, algo, operands)) return false;
    finish(g, epilogue);
    return true;
}

const char* outside_library(const Gemm& g) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (g.k == 0) return "nothing to sum";
    if (lt::is_float8(g.a_type) && lt::is_float8(g.b_type)) return outside_float8(g);
    if (g.a_type != g.b_type) return "operands of two dtypes";
    if (g.c_type != g.a_type && !(is_16bit(g.a_type) && g.c_type == float32))
        return "a result of another dtype than the operands";
    if (g.batch > most) return "more than 2^31 - 1 matrices";
    if (std::max({g.m, g.n, g.k}) > most) return "more than 2^31 - 1 rows or columns";
    return nullptr;
}

std::vector<lt::Epilogue> epilogues_of(const Gemm& g) {
    using enum lt::Epilogue;
    // A bias of a float32 result would be bfloat16, and the checks of epilogues are for E4M3.
    if (lt::is_float8(g.a_type) &&
        (g.c_type == float32 || g.a_type != float8_e4m3fn || g.b_type != float8_e4m3fn))
        return {none};
    if (g.saved != nullptr) return gradient_epilogues(g);
    if (g.a_sums != nullptr) return weight_epilogues(g);
    const bool bias_fits =
        g.bias != nullptr && g.bias_type == g.c_type && alignment_of(g.bias) >= vector_alignment;
    std::vector<lt::Epilogue> epilogues;
    if (g.bias == nullptr || bias_fits) {
        // never for Activation::gelu: the library has the tanh form only
        const bool gelu = g.activation == Activation::gelu_tanh, keeps = g.pre_activation != nullptr;
        const bool relu_alone = !keeps && g.activation == Activation::relu;
        if (keeps && gelu && !lt::is_float8(g.a_type) && matrix_fits(g, g.pre_activation))
            epilogues.push_back(bias_fits ? gelu_tanh_aux_bias : gelu_tanh_aux);
        if (!keeps && gelu) epilogues.push_back(bias_fits ? gelu_tanh_bias : gelu_tanh);
        if (relu_alone && mask_fits(g) && !lt::is_float8(g.a_type))
            epilogues.push_back(bias_fits ? relu_aux_bias : relu_aux);
        if (relu_alone) epilogues.push_back(bias_fits ? relu_bias : relu);
    }
    if (bias_fits) epilogues.push_back(bias);
    epilogues.push_back(none);
    return epilogues;
}

bool take_over(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues,
               const lt::Choice& choice) {
    if (std::find(epilogues.begin(), epilogues.end(), choice.epilogue) == epilogues.end()) return false;
    CachedPlan& cached = plan_for(s, g, choice.epilogue);
    lt::Algo algo = choice.algo;
    if (!lt::accepts(*cached.plan, algo) || !passes_check(s, problem_of(g, choice.epilogue), algo))
        return false;
    cached.candidates.insert(cached.candidates.begin(), algo);
    cached.chosen = 0;
    cached.verified = true;
    return true;
}

bool run_library(GemmService& s, const Gemm& g, lt::Epilogue epilogue) {
    CachedPlan& cached = plan_for(s, g, epilogue);
    for (; cached.chosen < cached.candidates.size(); ++cached.chosen, cached.verified = false) {
        const lt::Algo& algo = cached.candidates[cached.chosen];
        if (!cached.verified) {
            const bool sums_are_safe = g.k % safe_k == 0 && !lt::is_float8(g.a_type) &&
                                       !lt::has_aux(epilogue) && !lt::has_bias_grad(epilogue);
            const lt::Problem problem = problem_of(g, epilogue);
            cached.verified =
                sums_are_safe ? has_right_epilogue(s, problem, algo) : passes_check(s, problem, algo);
        }
        if (cached.verified && run_algo(s, g, epilogue, cached, algo)) return true;
    }
    return false;
}

std::size_t workspace_bytes() { return workspace_total; }

void clear_gemm_plans() {
    GemmService& s = gemm_service();
    const std::lock_guard lock(s.mutex);
    s.plans.clear();
    s.epilogue_results.clear();
    s.settled.clear();
    s.loaded.clear();
}

}  // namespace mezzo::cuda
