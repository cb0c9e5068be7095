// Searches all algorithms of the GEMM library for a product, to measure how much faster it could be than with
// mezzo's choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "cuda/gemm/gemm.h"

namespace mezzo {

struct SearchOptions {
    double seconds = 3;  // for trying configurations, in equal shares for the library's kernel families
    std::size_t finalists = 12;  // algorithms whose median is taken, after one or two quick runs of each
    std::function<double()> now = {};  // seconds; a steady clock unless set
};

// Microseconds per call on operands that are not in the L2 cache, with mezzo's own kernels for bias and
// activation; 0 if the library has no correct algorithm.
struct SearchResult {
    double heuristic_us = 0;           // mezzo's default: the library's first proposal that sums all terms
    double autotuned_us = 0;           // the choice of cuda::GemmOptions::autotune
    double best_us = 0;                // fastest of these two and of all tried algorithms that sum all terms
    std::string best;                  // its settings
    std::uint64_t configurations = 0;  // in the library's families, whether they fit or not
    std::uint64_t tried = 0, accepted = 0, wrong = 0;  // of those; algorithms run; finalists that drop terms
    bool complete = false;                             // every configuration was tried
};

// Tries all of the library's proposals first, in at most a third of the time; then neighbours of the fastest
// that differ in one setting, as long as that makes them faster; then all configurations. The time left is
// divided equally between the library's kernel families, and the order visits all parts of a family early, so
// that a search cut short is a fair sample. Throws Error(memory) without room for copies of the operands. No
// capture may be open.
SearchResult search_algorithms(const cuda::Gemm& g, const SearchOptions& options = {});

}  // namespace mezzo
