// cuda/lt.h on the emulated device: linked in place of cuda/cublaslt.cpp. As strict as the real library about
// what it takes, and able to misbehave in the ways the real one is known to.
#include "cuda/lt.h"

#include <algorithm>
#include <cmath>

#include "cuda/runtime.h"
#include "mezzo/error.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/fake_lt.h"

namespace mezzo::cuda::lt {

struct Plan {
    Problem problem;
};

namespace {

using emulation::fake_lt;
constexpr int candidate_count = 3;

double load(const void* p, Dtype dtype, std::int64_t i) {
    switch (dtype) {
        case Dtype::float16:
            return float(static_cast<const float16_t*>(p)[i]);
        case Dtype::bfloat16:
            return float(static_cast<const bfloat16_t*>(p)[i]);
        case Dtype::float32:
            return static_cast<const float*>(p)[i];
        default:
            return static_cast<const double*>(p)[i];
    }
}

void store(void* p, Dtype dtype, std::int64_t i, double value) {
    switch (dtype) {
        case Dtype::float16:
            static_cast<float16_t*>(p)[i] = float16_t(float(value));
            break;
        case Dtype::bfloat16:
            static_cast<bfloat16_t*>(p)[i] = bfloat16_t(float(value));
            break;
        case Dtype::float32:
            static_cast<float*>(p)[i] = float(value);
            break;
        default:
            static_cast<double*>(p)[i] = value;
    }
}

double apply(Epilogue epilogue, double x) {
    if (epilogue == Epilogue::relu || epilogue == Epilogue::relu_bias) return x < 0 ? 0 : x;
    if (has_activation(epilogue))
        return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    return x;
}

// TF32 keeps 10 bits of the mantissa, rounded to nearest.
float to_tf32(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000u) & 0xffffe000u;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

double dot(const Problem& p, const Operands& o, std::int64_t batch, std::int64_t i, std::int64_t j,
           std::int64_t k) {
    const std::int64_t a0 = batch * p.stride_a + (p.trans_a ? i * p.lda : i), a_step = p.trans_a ? 1 : p.lda;
    const std::int64_t b0 = batch * p.stride_b + (p.trans_b ? j : j * p.ldb), b_step = p.trans_b ? p.ldb : 1;
    if (p.d_type == float64) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
            sum += load(o.a, p.a_type, a0 + l * a_step) * load(o.b, p.b_type, b0 + l * b_step);
        return sum;
    }
    float sum = 0;
    for (std::int64_t l = 0; l < k; ++l) {
        const float a = float(load(o.a, p.a_type, a0 + l * a_step));
        const float b = float(load(o.b, p.b_type, b0 + l * b_step));
        sum += p.tf32 ? to_tf32(a) * to_tf32(b) : a * b;
    }
    return sum;
}

void compute(const Problem& p, const Operands& o, std::int64_t k) {
    emulation::Engine& engine = emulation::Engine::get();
    engine.open_device_memory();
    for (std::int64_t batch = 0; batch < p.batch; ++batch)
        for (std::int64_t j = 0; j < p.n; ++j)
            for (std::int64_t i = 0; i < p.m; ++i) {
                const std::int64_t at = batch * p.stride_d + j * p.ldd + i;
                double value = o.alpha * dot(p, o, batch, i, j, k);
                if (o.beta != 0) value += o.beta * load(o.d, p.d_type, at);
                if (has_bias(p.epilogue)) value += load(o.bias, p.d_type, i);
                if (has_aux(p.epilogue) && !fake_lt.forgets_aux) store(o.aux, p.d_type, at, value);
                store(o.d, p.d_type, at, apply(p.epilogue, value));
            }
    engine.close_device_memory();
}

// Whether the real pointer keeps the alignment the plan was made for.
bool aligned(const void* p, std::uint16_t alignment) {
    return p != nullptr && reinterpret_cast<std::uintptr_t>(p) % alignment == 0;
}

bool whole_vectors(const Problem& p) {
    const auto fits = [](std::uint16_t alignment, std::int64_t ld, Dtype dtype) {
        return alignment >= 16 && ld * std::int64_t(size_of(dtype)) % 16 == 0;
    };
    return fits(p.align_a, p.lda, p.a_type) && fits(p.align_b, p.ldb, p.b_type) &&
           fits(p.align_d, p.ldd, p.d_type);
}

// Algorithms beyond the candidates are the hidden ones.
bool exists(std::uint64_t number) {
    const std::uint64_t hidden = number - candidate_count;
    return number < candidate_count || (hidden < fake_lt.hidden_ms.size() && fake_lt.hidden_ms[hidden] >= 0);
}

double ms_of(int number) {
    return number < candidate_count ? fake_lt.ms[number]
                                    : fake_lt.hidden_ms.at(std::size_t(number - candidate_count));
}

}  // namespace

std::shared_ptr<Plan> make_plan(const Problem& p) {
    ++fake_lt.plans;
    const bool types =
        p.a_type == p.b_type && (p.d_type == p.a_type || (is_16bit(p.a_type) && p.d_type == float32));
    check(types, ErrorKind::backend, "fake lt: unsupported types ", p.a_type, ", ", p.b_type, ", ", p.d_type);
    check(p.lda >= (p.trans_a ? p.k : p.m) && p.ldb >= (p.trans_b ? p.n : p.k) && p.ldd >= p.m,
          ErrorKind::backend, "fake lt: bad leading dimension");
    check(!has_bias(p.epilogue) || p.align_bias >= 16, ErrorKind::backend,
          "fake lt: bias is not 16-byte aligned");
    check(!has_aux(p.epilogue) || (p.align_aux >= 16 && p.ldd % 8 == 0 && p.stride_d % 8 == 0),
          ErrorKind::backend, "fake lt: aux is not 16-byte aligned");
    check(p.k > 0, ErrorKind::backend, "fake lt: k == 0");
    return std::make_shared<Plan>(Plan{p});
}

std::vector<Algo> heuristics(Plan& plan, const Operands& o, std::size_t max_workspace, int max_count) {
    ++fake_lt.heuristics;
    fake_lt.problems.push_back(plan.problem);
    check(!has_bias(plan.problem.epilogue) || aligned(o.bias, plan.problem.align_bias), ErrorKind::backend,
          "fake lt: no bias pointer");
    check(!has_aux(plan.problem.epilogue) || aligned(o.aux, plan.problem.align_aux), ErrorKind::backend,
          "fake lt: no aux pointer");
    if (fake_lt.no_algorithm || fake_lt.workspace > max_workspace) return {};
    if (fake_lt.no_fused && plan.problem.epilogue != Epilogue::none) return {};
    std::vector<Algo> algos;
    for (int i = 0; i < candidate_count && i < max_count; ++i) {
        Algo algo;
        algo.data[0] = std::uint64_t(i);
        algo.workspace = fake_lt.workspace;
        algos.push_back(algo);
    }
    if (fake_lt.vector_algorithm && whole_vectors(plan.problem) && max_count >= candidate_count)
        std::rotate(algos.begin(), algos.end() - 1, algos.end());
    return algos;
}

bool accepts(Plan& plan, Algo& algo) {
    const bool fused = plan.problem.epilogue != Epilogue::none;
    algo.workspace = fake_lt.workspace;
    return exists(algo.data[0]) && !(fused && fake_lt.no_fused);
}

std::vector<AlgoFamily> families(Plan&) {
    std::vector<AlgoFamily> result(2);
    for (std::uint32_t i = 0; i < fake_lt.hidden_ms.size(); ++i) {
        AlgoFamily& family = result[i % 2];
        if (family.values.empty()) family = {int(i % 2), {{}}};
        family.values[0].push_back(i);
    }
    std::erase_if(result, [](const AlgoFamily& family) { return family.values.empty(); });
    return result;
}

std::optional<Algo> configuration(Plan& plan, const AlgoFamily& family, std::uint64_t number) {
    ++fake_lt.configurations;
    Algo algo;
    algo.data[0] = candidate_count + family.values.at(0).at(number);
    return accepts(plan, algo) ? std::optional(algo) : std::nullopt;
}

std::vector<Algo> neighbours(Plan& plan, const Algo& algo) {
    std::vector<Algo> result;
    for (const std::uint64_t number : {algo.data[0] - 1, algo.data[0] + 1}) {
        Algo other;
        other.data[0] = number;
        if (accepts(plan, other)) result.push_back(other);
    }
    return result;
}

std::string describe(const Algo& algo) { return "algorithm " + std::to_string(algo.data[0]); }

std::uint64_t version() { return fake_lt.version; }

bool run(Plan& plan, const Algo& algo, const Operands& o) {
    const Problem& p = plan.problem;
    const int number = int(algo.data[0]);
    ++fake_lt.runs;
    count_launch();
    if (emulation::options.clock_ms >= 0) {
        const bool fused = p.epilogue != Epilogue::none;
        emulation::options.clock_ms +=
            ms_of(number) + (fused ? fake_lt.fused_ms : 0) + (has_aux(p.epilogue) ? fake_lt.aux_ms : 0);
    }
    if (number < fake_lt.failing || o.workspace_bytes < algo.workspace) {
        ++fake_lt.failed_runs;
        return false;
    }
    check(aligned(o.a, p.align_a) && aligned(o.b, p.align_b) && aligned(o.d, p.align_d), ErrorKind::backend,
          "fake lt: an operand is less aligned than its plan");
    check(p.beta_is_zero == (o.beta == 0), ErrorKind::backend, "fake lt: beta differs from the plan's");
    std::int64_t k = number < fake_lt.dropping_tail ? p.k / 32 * 32 : p.k;
    const bool drops = fake_lt.hidden_dropping >= 0 && number - candidate_count == fake_lt.hidden_dropping;
    if (number < fake_lt.dropping_last || drops) --k;
    emulation::run_or_record([p, o, k] {
        const std::string size = std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
        emulation::tell({nullptr, "product " + size});
        compute(p, o, k);
    });
    fake_lt.last_algorithm = number;
    fake_lt.last_problem = p;
    fake_lt.last_workspace = o.workspace;
    fake_lt.last_operands = o;
    if (fake_lt.on_run) fake_lt.on_run(o);
    return true;
}

}  // namespace mezzo::cuda::lt
