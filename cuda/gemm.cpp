#include "cuda/gemm.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/capture.h"
#include "cuda/lt.h"
#include "cuda/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

// Split-K needs room for its partial sums; 32 MiB is NVIDIA's recommendation for Hopper.
constexpr std::size_t workspace_size = 32 << 20;
constexpr int candidate_count = 8;
constexpr std::size_t max_plans = 8192;
// A bias slice aligned to less than this has made cuBLASLt kernels fault.
constexpr std::uint16_t bias_alignment = 16;
// Some split-K kernels drop the last (k mod block_k) terms; no block_k seen is odd beyond a multiple of 64.
constexpr std::int64_t safe_k = 64;
// The longest run of ones whose sum every floating dtype holds exactly (bfloat16: integers up to 256).
constexpr std::int64_t exact_16bit_sum = 256;

std::atomic<bool> tf32_allowed{false};
std::atomic<std::size_t> workspace_total{0};

struct ProblemHash {
    std::size_t operator()(const lt::Problem& p) const {
        std::uint64_t h = 0xcbf29ce484222325u;
        const auto mix = [&](auto value) {
            h = (h ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
            h ^= h >> 29;
        };
        for (auto v : {p.m, p.n, p.k, p.lda, p.ldb, p.ldd, p.batch, p.stride_a, p.stride_b, p.stride_d})
            mix(v);
        for (auto v : {p.align_a, p.align_b, p.align_d, p.align_bias}) mix(v);
        for (auto v : {p.a_type, p.b_type, p.d_type}) mix(v);
        mix(p.device);
        mix(int(p.epilogue) << 4 | p.trans_a << 3 | p.trans_b << 2 | p.tf32 << 1 | int(p.beta_is_zero));
        return h;
    }
};

struct CachedPlan {
    std::shared_ptr<lt::Plan> plan;
    std::vector<lt::Algo> candidates;
    std::size_t chosen = 0;
    bool verified = false;
};

struct Service {
    std::mutex mutex;  // plans are patched with pointers at each call
    std::unordered_map<lt::Problem, CachedPlan, ProblemHash> plans;
    std::vector<void*> workspaces;  // by device
};

Service& service() {
    static Service* s = new Service;  // leaked: the driver may be gone when destructors of statics run
    return *s;
}

std::uint16_t alignment_of(const void* p) {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return static_cast<std::uint16_t>(address == 0 ? 256
                                                   : std::min<std::uintptr_t>(address & (~address + 1), 256));
}

void* workspace(Service& s, int device) {
    const auto index = static_cast<std::size_t>(device);
    if (s.workspaces.size() <= index) s.workspaces.resize(index + 1);
    if (s.workspaces[index] == nullptr) {
        s.workspaces[index] = device_malloc(workspace_size);
        if (s.workspaces[index] != nullptr) workspace_total += workspace_size;
    }
    return s.workspaces[index];
}

// Row-major C = A B is column-major C^T = B^T A^T: the operands change places, no data moves.
lt::Problem swapped(const Gemm& g, lt::Epilogue epilogue, const void* d) {
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
    p.align_d = alignment_of(d);
    p.align_bias = lt::has_bias(epilogue) ? alignment_of(g.bias) : std::uint16_t(256);
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

std::int64_t extent(std::int64_t columns, std::int64_t ld, std::int64_t batch, std::int64_t stride) {
    return columns * ld + (batch - 1) * stride;
}

struct Scratch {
    void* memory;
    explicit Scratch(std::int64_t bytes) : memory(device_malloc(static_cast<std::size_t>(bytes))) {
        check(memory != nullptr, ErrorKind::memory, "gemm: no ", bytes,
              " bytes of device memory to verify an algorithm; free memory before the first call of a shape");
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { device_free(memory); }
};

// Whether the algorithm sums all k terms: matrices of ones must give exactly k. Outputs that cannot hold k
// exactly get ones in the last 256 terms only, where the known defects are.
bool sums_every_term(const lt::Problem& p, const lt::Algo& algo, void* work, std::size_t work_bytes) {
    lt::Problem plain = p;
    plain.align_a = plain.align_b = plain.align_d = plain.align_bias = 256;
    plain.beta_is_zero = true;
    const std::int64_t size_a = extent(p.trans_a ? p.m : p.k, p.lda, p.batch, p.stride_a);
    const std::int64_t size_b = extent(p.trans_b ? p.k : p.n, p.ldb, p.batch, p.stride_b);
    const std::int64_t size_d = extent(p.n, p.ldd, p.batch, p.stride_d);
    const Scratch a(size_a * std::int64_t(size_of(p.a_type))), b(size_b * std::int64_t(size_of(p.b_type)));
    const Scratch d(size_d * std::int64_t(size_of(p.d_type))), bias(p.m * std::int64_t(size_of(p.d_type)));
    const std::int64_t terms = is_16bit(p.d_type) ? std::min(p.k, exact_16bit_sum) : p.k;
    fill_ones(a.memory, p.a_type, size_a, p.lda, p.stride_a, p.trans_a, p.k, terms < p.k ? terms : 0);
    fill_ones(b.memory, p.b_type, size_b, p.ldb, p.stride_b, !p.trans_b, p.k, 0);
    fill_zero(bias.memory, static_cast<std::size_t>(p.m) * size_of(p.d_type));
    fill_zero(d.memory, static_cast<std::size_t>(size_d) * size_of(p.d_type));
    const auto plan = lt::make_plan(plain);
    // gelu(x) is exactly x for large x only; 16 times a sum below 16 is exact in every dtype
    const bool gelu = p.epilogue == lt::Epilogue::gelu_tanh || p.epilogue == lt::Epilogue::gelu_tanh_bias;
    const double scale = gelu && terms < 16 ? 16 : 1;
    const lt::Operands operands{a.memory, b.memory, bias.memory, d.memory, scale, 0.0, work, work_bytes};
    if (!lt::run(*plan, algo, operands)) {
        synchronize();
        return false;
    }
    return count_different(d.memory, p.d_type, p.m, p.n, p.ldd, p.batch, p.stride_d, double(terms) * scale) ==
           0;
}

CachedPlan& plan_for(Service& s, const lt::Problem& problem, const void* bias) {
    const auto found = s.plans.find(problem);
    if (found != s.plans.end()) return found->second;
    refuse_in_capture("gemm",
                      "meet a product for the first time; its warm-up runs must have had every shape");
    if (s.plans.size() >= max_plans) s.plans.clear();
    CachedPlan cached;
    cached.plan = lt::make_plan(problem);
    cached.candidates = lt::heuristics(*cached.plan, bias, workspace_size, candidate_count);
    cached.verified = problem.k % safe_k == 0;
    return s.plans.emplace(problem, std::move(cached)).first->second;
}

// Runs the product with the first candidate that sums all terms and executes. False if there is none.
bool run_library(const Gemm& g, lt::Epilogue epilogue, void* d) {
    const lt::Problem problem = swapped(g, epilogue, d);
    Service& s = service();
    const std::lock_guard lock(s.mutex);
    const void* bias = lt::has_bias(epilogue) ? g.bias : nullptr;
    CachedPlan& cached = plan_for(s, problem, bias);
    for (; cached.chosen < cached.candidates.size();
         ++cached.chosen, cached.verified = problem.k % safe_k == 0) {
        const lt::Algo& algo = cached.candidates[cached.chosen];
        void* work = algo.workspace != 0 ? workspace(s, problem.device) : nullptr;
        if (algo.workspace != 0 && work == nullptr) continue;
        const std::size_t work_bytes = work != nullptr ? workspace_size : 0;
        if (!cached.verified) cached.verified = sums_every_term(problem, algo, work, work_bytes);
        if (!cached.verified) continue;
        if (lt::run(*cached.plan, algo, {g.b, g.a, bias, d, g.alpha, g.beta, work, work_bytes})) return true;
    }
    return false;
}

bool library_takes(const Gemm& g) {
    if (g.a_type != g.b_type || g.k == 0) return false;
    return g.c_type == g.a_type || (is_16bit(g.a_type) && g.c_type == float32);
}

// The part of the epilogue the library may do.
lt::Epilogue fused_epilogue(const Gemm& g) {
    const bool bias_fits =
        g.bias != nullptr && g.bias_type == g.c_type && alignment_of(g.bias) >= bias_alignment;
    if (g.bias != nullptr && !bias_fits) return lt::Epilogue::none;
    if (g.pre_activation == nullptr && g.activation == Activation::relu)
        return bias_fits ? lt::Epilogue::relu_bias : lt::Epilogue::relu;
    if (g.pre_activation == nullptr && g.activation == Activation::gelu_tanh)
        return bias_fits ? lt::Epilogue::gelu_tanh_bias : lt::Epilogue::gelu_tanh;
    return bias_fits ? lt::Epilogue::bias : lt::Epilogue::none;
}

bool fuses_activation(lt::Epilogue e) { return e != lt::Epilogue::none && e != lt::Epilogue::bias; }

void check_gemm(const Gemm& g) {
    check(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0, ErrorKind::shape,
          "gemm: negative size, m = ", g.m, ", n = ", g.n, ", k = ", g.k, ", batch = ", g.batch);
    for (Dtype t : {g.a_type, g.b_type, g.c_type, g.bias_type})
        check(is_floating(t), ErrorKind::dtype, "gemm: operands must be floating, one is ", t);
    check(g.lda >= (g.trans_a ? g.m : g.k) && g.ldb >= (g.trans_b ? g.k : g.n) && g.ldc >= g.n,
          ErrorKind::shape, "gemm: a leading dimension is shorter than a row: lda = ", g.lda,
          ", ldb = ", g.ldb, ", ldc = ", g.ldc, " for m = ", g.m, ", n = ", g.n, ", k = ", g.k);
    check(g.batch < 2 || g.stride_c >= (g.m - 1) * g.ldc + g.n, ErrorKind::value,
          "gemm: stride_c = ", g.stride_c, " makes results of the batch overlap");
    check(g.beta == 0 || (g.activation == Activation::none && g.pre_activation == nullptr), ErrorKind::value,
          "gemm: beta = ", double(g.beta), " with an activation; add in a separate op");
}

}  // namespace

void gemm(const Gemm& g) {
    check_gemm(g);
    if (g.m == 0 || g.n == 0 || g.batch == 0) return;
    if (!library_takes(g)) return gemm_fallback(g);
    const lt::Epilogue fused = fused_epilogue(g);
    void* target = g.pre_activation != nullptr ? g.pre_activation : g.c;
    if (fused != lt::Epilogue::none && run_library(g, fused, target)) {
        if (fuses_activation(fused) || (g.activation == Activation::none && g.pre_activation == nullptr))
            return;
        Gemm rest = g;
        if (lt::has_bias(fused)) rest.bias = nullptr;
        rest.pre_activation = nullptr;
        return gemm_epilogue(rest, target);
    }
    // With beta != 0 the bias is added after: D = (alpha AB + beta C) + bias is the same sum.
    if (!run_library(g, lt::Epilogue::none, target)) return gemm_fallback(g);
    if (g.bias != nullptr || g.activation != Activation::none || g.pre_activation != nullptr)
        gemm_epilogue(g, target);
}

void set_allow_tf32(bool allow) { tf32_allowed = allow; }
bool allow_tf32() { return tf32_allowed; }
std::size_t workspace_bytes() { return workspace_total; }

void clear_gemm_plans() {
    Service& s = service();
    const std::lock_guard lock(s.mutex);
    s.plans.clear();
}

}  // namespace mezzo::cuda
