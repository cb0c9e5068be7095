#include "cuda/gemm/fallbacks.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "cuda/gemm/gemm.h"

namespace mezzo::cuda {
namespace {

struct Count {
    std::mutex mutex;
    GemmFallbacks seen;
};
Count& counted() {
    static auto& count = *new Count;  // products may come from destructors of statics
    return count;
}

thread_local bool trying = false;

}  // namespace

Trials::Trials() : outer_(std::exchange(trying, true)) {}
Trials::~Trials() { trying = outer_; }

GemmFallbacks gemm_fallbacks() {
    Count& count = counted();
    const std::lock_guard lock(count.mutex);
    return count.seen;
}

void count_fallback(const Gemm& g, const std::string& reason) {
    std::string text =
        fmt::format("[{}, {}] = [{}, {}] x [{}, {}], {} = {} x {}, batch {}: {}", g.m, g.n, g.m, g.k, g.k,
                    g.n, name(g.c_type), name(g.a_type), name(g.b_type), g.batch, reason);
    Count& count = counted();
    const std::lock_guard lock(count.mutex);
    ++count.seen.products;
    count.seen.last = std::move(text);
}

// The library's matrices are column-major, and so its problem is that of the transposed product.
void count_invalid_problem(const gemm_plan::Problem& p, const std::string& reason) {
    if (trying) return;
    std::string text = fmt::format("[{}, {}] = [{}, {}] x [{}, {}], {} = {} x {}, batch {}, epilogue {}: {}",
                                   p.n, p.m, p.n, p.k, p.k, p.m, name(p.d_type), name(p.b_type),
                                   name(p.a_type), p.batch, int(p.epilogue), reason);
    Count& count = counted();
    const std::lock_guard lock(count.mutex);
    ++count.seen.invalid;
    count.seen.last = std::move(text);
}

}  // namespace mezzo::cuda
