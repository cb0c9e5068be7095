// The emulated device below the stand-in for cuBLASLt. Replaces cuda/gemm/cublaslt_library.cpp, which opens
// the library, and cuda/gemm/cublaslt_search.cpp.
#include "cuda/gemm/cublaslt.h"
#include "mezzo/error.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/fake_lt.h"
#include "tests/emulation/idle.h"
#include "tests/emulation/lt_device.h"

namespace mezzo::emulation::lt_device {

using namespace cuda::lt;

bool has_memory(std::size_t bytes) { return Engine::get().device_bytes() + bytes <= options.device_memory; }

int capability() { return options.capability; }

bool is_idle() { return idle; }

void enqueue(void*, const std::string& name, const std::function<void()>& work) {
    run_or_capture([=] {
        if (!name.empty()) tell({nullptr, name});
        Engine::get().open_device_memory();
        work();
        Engine::get().close_device_memory();
    });
}

void mark_written(const void*, std::size_t) {}

void pass_time(const Problem& p, int algorithm) {
    if (options.clock_ms < 0) return;
    const auto hidden = std::size_t(algorithm - candidate_count);
    const double ms = algorithm < candidate_count ? fake_lt.ms[algorithm] : fake_lt.hidden_ms.at(hidden);
    options.clock_ms += ms + (p.epilogue != Epilogue::none ? fake_lt.fused_ms : 0) +
                        (has_aux(p.epilogue) ? fake_lt.aux_ms : 0) +
                        (has_bias_grad(p.epilogue) ? fake_lt.bias_grad_ms : 0);
}

void misuse(const std::string& what) { fail(ErrorKind::backend, "fake lt: ", what); }

}  // namespace mezzo::emulation::lt_device

namespace mezzo::cuda::lt {

using emulation::candidate_count;
using emulation::fake_lt;

const Functions& functions() {
    static const Functions table = [] {
        Functions f{};
        f.create = cublasLtCreate;
        f.matmul = cublasLtMatmul;
        f.heuristic = cublasLtMatmulAlgoGetHeuristic;
        f.init_operation = cublasLtMatmulDescInit_internal;
        f.set_operation = cublasLtMatmulDescSetAttribute;
        f.init_layout = cublasLtMatrixLayoutInit_internal;
        f.set_layout = cublasLtMatrixLayoutSetAttribute;
        f.init_preference = cublasLtMatmulPreferenceInit_internal;
        f.set_preference = cublasLtMatmulPreferenceSetAttribute;
        f.check_algo = cublasLtMatmulAlgoCheck;
        f.get_algo = cublasLtMatmulAlgoConfigGetAttribute;
        f.version = cublasLtGetVersion;
        f.status_name = cublasLtGetStatusName;
        return f;
    }();
    return table;
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

}  // namespace mezzo::cuda::lt
