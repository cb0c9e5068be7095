// The GEMM service behind gemm(): a plan with its algorithms per problem, and per request what timing or a
// file has chosen. Everything here needs the service's mutex.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cuda/gemm.h"
#include "cuda/lt.h"

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
    std::vector<Block*> workspaces;                                // by device
};
GemmService& gemm_service();

// The library's problem if it does `epilogue` of the product.
lt::Problem problem_of(const Gemm& g, lt::Epilogue epilogue);

// The problem's plan, made at need with the library's candidates.
CachedPlan& plan_for(GemmService& s, const Gemm& g, lt::Epilogue epilogue);

// Runs the product with one algorithm, own kernels for what `epilogue` leaves included. False if the library
// refuses the algorithm, or it wants more workspace than there is for any. Throws Error(memory) when the
// workspace cannot be had now: an algorithm is not given up for that.
bool run_algo(GemmService& s, const Gemm& g, lt::Epilogue epilogue, CachedPlan& cached, const lt::Algo& algo);

// Whether the algorithm sums all k terms: matrices of ones must give exactly k. Throws Error(memory) when
// there is none to try it.
bool sums_every_term(GemmService& s, const lt::Problem& problem, const lt::Algo& algo);

// Runs the product with the plan's first candidate that sums all terms and executes, own kernels for the rest
// included. False if there is none.
bool run_library(GemmService& s, const Gemm& g, lt::Epilogue epilogue);

// What the library may do of a product: the most first, nothing last.
std::vector<lt::Epilogue> epilogues_of(const Gemm& g);

// The choice of a file for the product: false if its algorithm does not fit or does not pass the check.
bool take_over(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues,
               const lt::Choice& choice);

// Times every candidate of every epilogue that sums all terms, on copies of the operands that the L2 cache
// does not hold. Leaves the plans' candidates in order of their times, and gives the fastest; none if no
// candidate is right or there is no memory for the copies. Ties: the epilogue that does more, the library's
// order.
std::optional<lt::Choice> tune(GemmService& s, const Gemm& g, const std::vector<lt::Epilogue>& epilogues);

}  // namespace mezzo::cuda
