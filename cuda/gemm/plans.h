// The GEMM service behind gemm(): a plan with its algorithms for each problem, and for each request what
// timing or a file has chosen. The caller of each function holds the service's mutex.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.h"

namespace mezzo {
struct Block;  // core/memory/allocator.h
}

namespace mezzo::cuda {

struct PlanHash {
    std::size_t operator()(const lt::Problem& p) const;
    std::size_t operator()(const lt::Request& r) const;
};

struct CachedPlan {
    std::shared_ptr<lt::Plan> plan;
    std::vector<lt::Algo> candidates;
    std::size_t chosen = 0;
    bool verified = false;  // the chosen one
};

// Result of the check of an algorithm's epilogue; empty if the library did not run it.
struct EpilogueResult {
    lt::Algo algo;
    std::optional<bool> is_right;
};

struct GemmService {
    std::mutex mutex;  // each call writes its pointers into the plan
    std::unordered_map<lt::Problem, CachedPlan, PlanHash> plans;
    // Requests that are decided; there is no choice where nothing could be timed.
    std::unordered_map<lt::Request, std::optional<lt::Choice>, PlanHash> settled;
    std::unordered_map<lt::Request, lt::Choice, PlanHash> loaded;  // from files, not checked yet
    // Results by the problem that was checked (check_epilogue.h).
    std::unordered_map<lt::Problem, std::vector<EpilogueResult>, PlanHash> epilogue_results;
    std::vector<Block*> workspaces;  // by device
};
GemmService& gemm_service();

// The problem that the library solves if it does `epilogue` of the product.
lt::Problem problem_of(const Gemm& g, lt::Epilogue epilogue);

// The product as it is named in files. `most`: the most complete epilogue that the library may do.
lt::Request request_of(const Gemm& g, lt::Epilogue most);

// The problem's plan. If there is none yet, it is made with the library's proposals as candidates.
CachedPlan& plan_for(GemmService& s, const Gemm& g, lt::Epilogue epilogue);

// The library's proposals for the product, up to `count`, its best guess first.
std::vector<lt::Algo> proposals(const Gemm& g, lt::Epilogue epilogue, lt::Plan& plan, int count);

// Runs the product with one algorithm, and mezzo's own kernels for what `epilogue` leaves to do. False if the
// library refuses the algorithm, or if it needs more workspace than any algorithm may have. Throws
// Error(memory) when the workspace cannot be had now; the algorithm stays a candidate.
bool run_algo(GemmService& s, const Gemm& g, lt::Epilogue epilogue, CachedPlan& cached, const lt::Algo& algo);

// Whether the algorithm has the right epilogue (check_epilogue.h) and sums all k terms: matrices of ones must
// give exactly k. A mask that it writes or reads must be laid out as in kernels/activation.h, with bits set
// for values above 0 (a ReLU's gradient at 0 is 0) and for NaN. The gradient of an activation must be right
// where it is simple, and the sums of a bias's gradient exact. Throws Error(memory) when there is no memory
// for the check.
bool passes_check(GemmService& s, const lt::Problem& problem, const lt::Algo& algo);

// Puts the workspace that the algorithm needs into the operands. False if it needs more than any algorithm
// may have.
bool give_workspace(GemmService& s, int device, const lt::Algo& algo, lt::Operands& operands);
// Gives trials the whole workspace, because their sizes may need more than the product for which the
// algorithm was proposed.
void give_whole_workspace(GemmService& s, int device, lt::Operands& operands);

// Runs the product with the plan's first candidate that passes the check and executes, and mezzo's own
// kernels for the rest. False if there is none.
bool run_library(GemmService& s, const Gemm& g, lt::Epilogue epilogue);

// Reason why the library does not get a product: types that are not in cuBLASLt's table of supported types,
// numbers beyond what its descriptors hold, or nothing to sum. Null if it gets the product.
const char* outside_library(const Gemm& g);

// The epilogues that the library may do for a product: the most complete first, Epilogue::none last.
std::vector<lt::Epilogue> epilogues_of(const Gemm& g);

// Adopts a choice from a file for the product. False if it does not fit or its algorithm does not pass the
// check.
bool take_over(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues,
               const lt::Choice& choice);

// Times every candidate of every epilogue that passes the check, on copies of the operands that are not in
// the L2 cache. Puts the plans' candidates in order of their times, and returns the fastest; none if no
// candidate is right or there is no memory for the copies. Among equal times the epilogue that does more
// wins, then the library's order.
std::optional<lt::Choice> tune(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues);

// Milliseconds of the product with one algorithm on operands that are not in the L2 cache: the median that
// tune() compares, or the better of two runs. None if the algorithm does not execute.
enum class Timing { median, quick };
using TimeAlgo = std::function<std::optional<float>(lt::Epilogue, const lt::Algo&, Timing)>;

// Calls `use` with a function that times algorithms of the product as tune() does. Throws Error(memory) when
// there is no memory for copies of the operands.
void with_timer(GemmService& s, const Gemm& g, const std::function<void(const TimeAlgo&)>& use);

}  // namespace mezzo::cuda
