#include "cuda/gemm_plans.h"

#include <algorithm>
#include <atomic>

#include "core/allocator.h"
#include "core/capture.h"
#include "cuda/runtime.h"
#include "mezzo/cuda.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

// Split-K needs room for its partial sums; 32 MiB is NVIDIA's recommendation for Hopper.
constexpr std::size_t workspace_size = 32 << 20;
constexpr std::size_t max_plans = 8192;
// A bias slice aligned to less than this has made cuBLASLt kernels fault.
constexpr std::uint16_t vector_alignment = 16;
// Leading dimension and batch stride of aux must be multiples of this (cublasLt.h).
constexpr std::int64_t aux_multiple = 8;
// Some split-K kernels drop the last (k mod block_k) terms; no block_k seen is odd beyond a multiple of 64.
constexpr std::int64_t safe_k = 64;
// The longest run of ones whose sum every floating dtype holds exactly (bfloat16: integers up to 256).
constexpr std::int64_t exact_16bit_sum = 256;

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

// From the caching allocator, so that statistics and limits cover it, but past the memory plan of a step that
// happens to be traced.
Block* device_block(int device, std::size_t bytes) {
    refuse_in_capture("gemm", "take memory for a product");
    return allocator(Device(DeviceType::cuda, device)).allocate(bytes);
}

void* workspace(GemmService& s, int device) {
    const auto index = static_cast<std::size_t>(device);
    if (s.workspaces.size() <= index) s.workspaces.resize(index + 1);
    if (s.workspaces[index] == nullptr) {
        s.workspaces[index] = device_block(device, workspace_size);
        workspace_total += workspace_size;
    }
    return s.workspaces[index]->address;
}

// Puts the workspace the algorithm needs into the operands. False if it wants more than there is for any.
bool give_workspace(GemmService& s, int device, const lt::Algo& algo, lt::Operands& operands) {
    if (algo.workspace == 0) return true;
    if (algo.workspace > workspace_size) return false;
    operands.workspace = workspace(s, device);
    operands.workspace_bytes = workspace_size;
    return true;
}

// Where the library stores its result.
void* target_of(const Gemm& g, lt::Epilogue e) {
    return g.pre_activation != nullptr && !lt::has_aux(e) ? g.pre_activation : g.c;
}

lt::Operands operands_of(const Gemm& g, lt::Epilogue e) {
    lt::Operands o;
    o.a = g.b;
    o.b = g.a;
    o.bias = lt::has_bias(e) ? g.bias : nullptr;
    o.d = target_of(g, e);
    o.aux = lt::has_aux(e) ? g.pre_activation : nullptr;
    o.alpha = g.alpha;
    o.beta = g.beta;
    return o;
}

// What the library has left to do. With beta != 0 the bias is added after: (alpha AB + beta C) + bias is the
// same sum.
void finish(const Gemm& g, lt::Epilogue e) {
    const bool bias_left = g.bias != nullptr && !lt::has_bias(e);
    const bool activation_left = g.activation != Activation::none && !lt::has_activation(e);
    const bool copy_left = g.pre_activation != nullptr && !lt::has_aux(e);
    if (!bias_left && !activation_left && !copy_left) return;
    Gemm rest = g;
    if (!bias_left) {
        rest.bias = nullptr;
        rest.pre_activation = nullptr;  // the library has stored it
    }
    gemm_epilogue(rest, target_of(g, e));
}

std::int64_t extent(std::int64_t columns, std::int64_t ld, std::int64_t batch, std::int64_t stride) {
    return columns * ld + (batch - 1) * stride;
}

struct Scratch {
    Block* const block;
    void* const memory;
    explicit Scratch(std::int64_t bytes)
        : block(device_block(current_device(), static_cast<std::size_t>(bytes))), memory(block->address) {}
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { block->owner->release(block); }
};

bool is_gelu(lt::Epilogue e) {
    return lt::has_aux(e) || e == lt::Epilogue::gelu_tanh || e == lt::Epilogue::gelu_tanh_bias;
}

// Decisions stay when plans go, to be checked again.
void forget_plans(GemmService& s) {
    s.plans.clear();
    for (const auto& [request, choice] : s.settled)
        if (choice) s.loaded.emplace(request, *choice);
    s.settled.clear();
}

}  // namespace

std::size_t PlanHash::operator()(const lt::Problem& p) const {
    Mixer mix;
    for (auto v : {p.m, p.n, p.k, p.lda, p.ldb, p.ldd, p.batch, p.stride_a, p.stride_b, p.stride_d}) mix(v);
    for (auto v : {p.align_a, p.align_b, p.align_d, p.align_bias, p.align_aux}) mix(v);
    for (auto v : {p.a_type, p.b_type, p.d_type}) mix(v);
    mix(p.device);
    mix(int(p.epilogue) << 4 | p.trans_a << 3 | p.trans_b << 2 | p.tf32 << 1 | int(p.beta_is_zero));
    return mix.h;
}

std::size_t PlanHash::operator()(const lt::Request& r) const {
    Mixer mix{(*this)(r.problem)};
    mix(int(r.activation) << 1 | int(r.keeps_before));
    return mix.h;
}

GemmService& gemm_service() {
    static GemmService* s =
        new GemmService;  // leaked: the driver may be gone when destructors of statics run
    return *s;
}

// Row-major C = A B is column-major C^T = B^T A^T: the operands change places, no data moves.
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
    if (lt::has_aux(epilogue)) p.align_aux = alignment_of(g.pre_activation);
    p.a_type = g.b_type;
    p.b_type = g.a_type;
    p.d_type = g.c_type;
    p.trans_a = g.trans_b;
    p.trans_b = g.trans_a;
    p.epilogue = epilogue;
    p.tf32 = g.a_type == float32 && allow_tf32();
    p.beta_is_zero = g.beta == 0;
    return p;
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
    cached.candidates =
        lt::heuristics(*cached.plan, operands_of(g, epilogue), workspace_size, gemm_options().candidates);
    return s.plans.emplace(problem, std::move(cached)).first->second;
}

bool run_algo(GemmService& s, const Gemm& g, lt::Epilogue epilogue, CachedPlan& cached,
              const lt::Algo& algo) {
    lt::Operands operands = operands_of(g, epilogue);
    if (!give_workspace(s, current_device(), algo, operands)) return false;
    if (!lt::run(*cached.plan, algo, operands)) return false;
    finish(g, epilogue);
    return true;
}

// Outputs that cannot hold k exactly get ones in the last 256 terms only, where the known defects are.
bool sums_every_term(GemmService& s, const lt::Problem& p, const lt::Algo& algo) {
    lt::Problem plain = p;
    plain.align_a = plain.align_b = plain.align_d = plain.align_bias = plain.align_aux = 256;
    plain.beta_is_zero = true;
    const std::int64_t size_a = extent(p.trans_a ? p.m : p.k, p.lda, p.batch, p.stride_a);
    const std::int64_t size_b = extent(p.trans_b ? p.k : p.n, p.ldb, p.batch, p.stride_b);
    const std::int64_t size_d = extent(p.n, p.ldd, p.batch, p.stride_d),
                       item = std::int64_t(size_of(p.d_type));
    const Scratch a(size_a * std::int64_t(size_of(p.a_type))), b(size_b * std::int64_t(size_of(p.b_type)));
    const std::int64_t aux_bytes = lt::has_aux(p.epilogue) ? size_d * item : 1;
    const Scratch d(size_d * item), bias(p.m * item), aux(aux_bytes);
    const std::int64_t terms = is_16bit(p.d_type) ? std::min(p.k, exact_16bit_sum) : p.k;
    fill_ones(a.memory, p.a_type, size_a, p.lda, p.stride_a, p.trans_a, p.k, terms < p.k ? terms : 0);
    fill_ones(b.memory, p.b_type, size_b, p.ldb, p.stride_b, !p.trans_b, p.k, 0);
    fill_zero(bias.memory, static_cast<std::size_t>(p.m * item));
    fill_zero(d.memory, static_cast<std::size_t>(size_d * item));  // an earlier check may have left k there
    fill_zero(aux.memory, static_cast<std::size_t>(aux_bytes));
    const auto plan = lt::make_plan(plain);
    // gelu(x) is exactly x for large x only; 16 times a sum below 16 is exact in every dtype
    const double scale = is_gelu(p.epilogue) && terms < 16 ? 16 : 1;
    lt::Operands operands{a.memory, b.memory, bias.memory, d.memory, aux.memory, scale, 0.0};
    if (!give_workspace(s, p.device, algo, operands)) return false;
    if (!lt::run(*plan, algo, operands)) {
        synchronize();
        return false;
    }
    const auto right = [&](const Scratch& result) {
        return count_different(result.memory, p.d_type, p.m, p.n, p.ldd, p.batch, p.stride_d,
                               double(terms) * scale) == 0;
    };
    return right(d) && (!lt::has_aux(p.epilogue) || right(aux));
}

std::vector<lt::Epilogue> epilogues_of(const Gemm& g) {
    using enum lt::Epilogue;
    const bool bias_fits =
        g.bias != nullptr && g.bias_type == g.c_type && alignment_of(g.bias) >= vector_alignment;
    const bool aux_fits = g.ldc % aux_multiple == 0 && (g.batch == 1 || g.stride_c % aux_multiple == 0) &&
                          alignment_of(g.pre_activation) >= vector_alignment;
    std::vector<lt::Epilogue> epilogues;
    if (g.bias == nullptr || bias_fits) {
        const bool gelu = g.activation == Activation::gelu_tanh, keeps = g.pre_activation != nullptr;
        if (keeps && gelu && aux_fits) epilogues.push_back(bias_fits ? gelu_tanh_aux_bias : gelu_tanh_aux);
        if (!keeps && gelu) epilogues.push_back(bias_fits ? gelu_tanh_bias : gelu_tanh);
        if (!keeps && g.activation == Activation::relu) epilogues.push_back(bias_fits ? relu_bias : relu);
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
    if (!lt::accepts(*cached.plan, algo) || !sums_every_term(s, problem_of(g, choice.epilogue), algo))
        return false;
    cached.candidates.insert(cached.candidates.begin(), algo);
    cached.chosen = 0;
    cached.verified = true;
    return true;
}

// Runs the product with the first candidate that sums all terms and executes. False if there is none.
bool run_library(GemmService& s, const Gemm& g, lt::Epilogue epilogue) {
    CachedPlan& cached = plan_for(s, g, epilogue);
    for (; cached.chosen < cached.candidates.size(); ++cached.chosen, cached.verified = false) {
        const lt::Algo& algo = cached.candidates[cached.chosen];
        if (!cached.verified)
            cached.verified = g.k % safe_k == 0 || sums_every_term(s, problem_of(g, epilogue), algo);
        if (cached.verified && run_algo(s, g, epilogue, cached, algo)) return true;
    }
    return false;
}

std::size_t workspace_bytes() { return workspace_total; }

void clear_gemm_plans() {
    GemmService& s = gemm_service();
    const std::lock_guard lock(s.mutex);
    s.plans.clear();
    s.settled.clear();
    s.loaded.clear();
}

}  // namespace mezzo::cuda
