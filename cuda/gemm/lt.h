// Interface of the GEMM library behind gemm(): cuBLASLt, or in the emulated tests replacements of its
// functions. Column-major, as in BLAS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm_plan.h"

namespace mezzo::cuda::lt {

using namespace gemm_plan;

struct Operands {
    const void *a = nullptr, *b = nullptr, *bias = nullptr;
    void *d = nullptr, *aux = nullptr;  // aux is read by gradient epilogues, otherwise written
    void* bias_grad = nullptr;          // written, never added to
    const void *a_scale = nullptr, *b_scale = nullptr;  // factors of float8 operands
    double alpha = 1, beta = 0;                         // rounded to float unless the problem is float64
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
};

// A problem's descriptors, made once.
struct Plan;
std::shared_ptr<Plan> make_plan(const Problem& problem);

// Algorithms for the plan, the one that is expected to be fastest first, with partial sums of at least
// float32. The list may be empty. The alignments of bias and aux are taken from the operands, those of
// matrices from the problem. Throws Error(memory) if the library has no memory for its own use, even after
// the allocator's cache was released.
std::vector<Algo> heuristics(Plan& plan, const Operands& operands, std::size_t max_workspace, int max_count);

// Whether an algorithm from a file is one that heuristics() may have given for the plan; also sets the
// workspace it needs.
bool accepts(Plan& plan, Algo& algo);

// One of the library's kernel families and the values that each of its settings may take (tile, stages,
// split-K, ...). Most of its configurations, one value of each, do not fit a given problem.
struct AlgoFamily {
    int id = 0;
    std::vector<std::vector<std::uint32_t>> values;

    std::uint64_t size() const {
        std::uint64_t count = 1;
        for (const auto& v : values) count *= v.size();
        return count;
    }
};

// The families for the plan's types that add in at least float32.
std::vector<AlgoFamily> families(Plan& plan);

// Configuration `number` < family.size(); none if the library does not take it for the plan.
std::optional<Algo> configuration(Plan& plan, const AlgoFamily& family, std::uint64_t number);

// The algorithms that differ from this one in a single setting, as far as the library takes them for the
// plan.
std::vector<Algo> neighbours(Plan& plan, const Algo& algo);

// Readable text of the algorithm's settings.
std::string describe(const Algo& algo);

// The version of the library.
std::uint64_t version();

// Enqueues the GEMM on the current stream. False if the library refuses the algorithm; the caller then tries
// the next one. Throws Error(memory) as heuristics() does.
bool run(Plan& plan, const Algo& algo, const Operands& operands);

// The last call for the plan that gave no algorithm or refused to execute one, with its status; "" if there
// was none.
std::string refusal(const Plan& plan);

}  // namespace mezzo::cuda::lt
