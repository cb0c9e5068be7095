// The GEMM service behind gemm(): a plan with its algorithms per problem, and per request what timing or a
// file has chosen. Everything here needs the service's mutex.
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
struct Block;  // core/allocator.h
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

struct GemmService {
    std::mutex mutex;  // plans are patched with pointers at each call
    std::unordered_map<lt::Problem, CachedPlan, PlanHash> plans;
    // Requests that need no more thought; without a choice where nothing could be timed.
    std::unordered_map<lt::Request, std::optional<lt::Choice>, PlanHash> settled;
    std::unordered_map<lt::Request, lt::Choice, PlanHash> loaded;  // from files, not checked yet
    std::vector<Block*> workspaces;  // by device and branch: products side by side must not share one
};
GemmService& gemm_service();

// The library's problem if it does `epilogue` of the product.
lt::Problem problem_of(const Gemm& g, lt::Epilogue epilogue);

// The product as files know it; most: the most that the library may do of it.
lt::Request request_of(const Gemm& g, lt::Epilogue most);

// The problem's plan, made at need with the library's candidates.
CachedPlan& plan_for(GemmService& s, const Gemm& g, lt::Epilogue epilogue);

// The library's proposals for the product, up to `count`, its best guess first.
std::vector<lt::Algo> proposals(const Gemm& g, lt::Epilogue epilogue, lt::Plan& plan, int count);

// Runs the product with one algorithm, own kernels for what `epilogue` leaves included. False if the library
// refuses the algorithm, or it wants more workspace than there is for any. Throws Error(memory) when the
// workspace cannot be had now: an algorithm is not given up for that.
bool run_algo(GemmService& s, const Gemm& g, lt::Epilogue epilogue, CachedPlan& cached, const lt::Algo& algo);

// Whether the algorithm sums all k terms: matrices of ones must give exactly k. A mask it writes or reads
// must be laid out as kernels/activation.h says, and be that of values above 0 (a ReLU's gradient at 0 is 0);
// the gradient of an activation must be right where it is simple, and the sums of a bias's gradient exact.
// Throws Error(memory) when there is none to try it.
bool passes_check(GemmService& s, const lt::Problem& problem, const lt::Algo& algo);

// Puts the workspace the algorithm needs into the operands. False if it wants more than there is for any.
bool give_workspace(GemmService& s, int device, const lt::Algo& algo, lt::Operands& operands);

// Runs the product with the plan's first candidate that passes the check and executes, own kernels for the
// rest included. False if there is none.
bool run_library(GemmService& s, const Gemm& g, lt::Epilogue epilogue);

// What the library may do of a product: the most first, nothing last.
std::vector<lt::Epilogue> epilogues_of(const Gemm& g);

// The choice of a file for the product: false if its algorithm does not fit or does not pass the check.
bool take_over(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues,
               const lt::Choice& choice);

// Times every candidate of every epilogue that passes the check, on copies of the operands that the L2 cache
// does not hold. Leaves the plans' candidates in order of their times, and gives the fastest; none if no
// candidate is right or there is no memory for the copies. Ties: the epilogue that does more, the library's
// order.
std::optional<lt::Choice> tune(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues);

// Milliseconds of the product with one algorithm on operands that the L2 cache does not hold: the median that
// tune() compares, or the better of two runs. None if it does not execute.
enum class Timing { median, quick };
using TimeAlgo = std::function<std::optional<float>(lt::Epilogue, const lt::Algo&, Timing)>;

// Calls `use` with a function that times algorithms of the product as tune() does. Throws Error(memory) when
// there is none for the operands' copies.
void with_timer(GemmService& s, const Gemm& g, const std::function<void(const TimeAlgo&)>& use);

}  // namespace mezzo::cuda
