// Searches all of the GEMM library's algorithms for a product, to see how much faster it could be than
// mezzo's own choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cuda/gemm/gemm.h"

namespace mezzo {

struct SearchOptions {
    double seconds = 3;  // for trying configurations, in equal shares for the library's kernel families
    std::size_t finalists = 12;        // algorithms whose median is taken after one or two quick runs of each
    std::function<double()> now = {};  // seconds; a steady clock unless set
};

// Microseconds of one call on operands that are not in the L2 cache, with mezzo's own kernels for bias and
// activation; 0 where the library has no right algorithm.
struct SearchResult {
    double heuristic_us = 0;  // what mezzo runs by default: the library's first proposal that sums all terms
    double autotuned_us = 0;  // the choice of cuda::GemmOptions::autotune
    double best_us = 0;       // the fastest of those two and of all tried; it sums all terms
    std::string best;         // its settings
    std::uint64_t configurations = 0;  // that the library's families have, whether they fit or not
    std::uint64_t tried = 0, accepted = 0, wrong = 0;  // of those; algorithms run; finalists that drop terms
    bool complete = false;                             // every configuration was tried
};

// First all of the library's proposals, in at most a third of the time. Then, from the fastest ones so far,
// what differs in one setting, as long as that makes it faster. Then all configurations, in equal shares of
// the time left for the library's kernel families and in an order that visits all parts of a family early, so
// that a search cut short is a fair sample. Throws Error(memory) without room for copies of the operands. No
// capture may be open.
SearchResult search_algorithms(const cuda::Gemm& g, const SearchOptions& options = {});

}  // namespace mezzo
