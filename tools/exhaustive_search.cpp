#include "tools/exhaustive_search.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "cuda/gemm/plans.h"
#include "mezzo/error.h"

namespace mezzo {
namespace {

using cuda::TimeAlgo;
using cuda::Timing;
namespace lt = cuda::lt;

// Medians of one algorithm differ between groups of runs, so each finalist gets this many medians, of which
// the best counts.
constexpr int rounds = 3;
constexpr int max_proposals = 1000;
constexpr std::size_t starts = 3;  // how many algorithms climb() starts from

double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Tried {
    float ms;
    lt::Algo algo;
};

bool faster(const Tried& a, const Tried& b) { return a.ms < b.ms; }

// Visits 0, 1 ... size - 1 in steps of about the golden section of the range.
class Jumps {
public:
    explicit Jumps(std::uint64_t size)
        : size_(size), step_(std::uint64_t(double(size) * 0.6180339887498949)) {
        for (step_ = std::max<std::uint64_t>(step_, 1); std::gcd(step_, size_) != 1;) ++step_;
    }
    std::uint64_t operator[](std::uint64_t i) {
        if (i > 0) at_ = (at_ + step_) % size_;
        return at_;
    }

private:
    std::uint64_t size_, step_, at_ = 0;
};

class Search {
public:
    Search(cuda::GemmService& s, const cuda::Gemm& g, const SearchOptions& options, const TimeAlgo& time)
        : s_(s), g_(g), options_(options), now_(options.now ? options.now : steady_seconds), time_(time) {}

    SearchResult run() {
        const std::vector<lt::Epilogue> epilogues = cuda::epilogues_of(g_);
        const lt::Epilogue usual = epilogues[lt::has_aux(epilogues[0]) ? 1 : 0];
        // Before tune(), which sorts the plan's candidates by their times.
        const std::optional<lt::Algo> proposed = first_right(usual);
        const std::optional<lt::Choice> tuned = cuda::tune(s_, g_, epilogues);
        const lt::Epilogue epilogue = tuned ? tuned->epilogue : usual;
        lt::Plan& plan = *cuda::plan_for(s_, g_, epilogue).plan;
        begin_ = now_();
        for (const lt::Algo& algo : cuda::proposals(g_, epilogue, plan, max_proposals))
            if (now_() < time_at(1.0 / 3)) try_algo(epilogue, algo);
        climb(plan, epilogue, time_at(2.0 / 3));
        try_families(plan, epilogue);
        std::vector<Entrant> entrants = finalists(epilogue);
        const auto add = [&](lt::Epilogue e, const lt::Algo& algo, double* us) {
            entrants.push_back({e, algo, us});
        };
        if (proposed) add(usual, *proposed, &result_.heuristic_us);
        if (tuned) add(epilogue, tuned->algo, &result_.autotuned_us);
        compare(entrants);
        return result_;
    }

private:
    struct Entrant {
        lt::Epilogue epilogue;
        lt::Algo algo;
        double* us = nullptr;  // where its time is stored
        double best_ms = 0;
    };

    std::optional<lt::Algo> first_right(lt::Epilogue epilogue) {
        const std::vector<lt::Algo> candidates = cuda::plan_for(s_, g_, epilogue).candidates;
        for (const lt::Algo& algo : candidates)
            if (right(epilogue, algo) && time_(epilogue, algo, Timing::quick)) return algo;
        return std::nullopt;
    }

    bool right(lt::Epilogue epilogue, const lt::Algo& algo) {
        return cuda::passes_check(s_, cuda::problem_of(g_, epilogue), algo);
    }

    double time_at(double share) const { return begin_ + share * options_.seconds; }

    // Returns the algorithm's time; nothing if it does not run or has been tried before.
    std::optional<float> try_algo(lt::Epilogue epilogue, const lt::Algo& algo) {
        if (!known_.insert(std::to_array(algo.data)).second) return std::nullopt;
        const auto ms = time_(epilogue, algo, Timing::quick);
        if (!ms) return std::nullopt;
        ++result_.accepted;
        tried_.push_back({*ms, algo});
        return ms;
    }

    // From each of the fastest algorithms so far, moves to a faster one that differs in one setting, as long
    // as there is one.
    void climb(lt::Plan& plan, lt::Epilogue epilogue, double end) {
        std::vector<Tried> fastest = tried_;
        const std::size_t count = std::min(starts, fastest.size());
        std::partial_sort(fastest.begin(), fastest.begin() + std::ptrdiff_t(count), fastest.end(), faster);
        for (std::size_t i = 0; i < count; ++i)
            for (Tried at = fastest[i]; now_() < end;) {
                const float before = at.ms;
                for (const lt::Algo& algo : lt::neighbours(plan, at.algo)) {
                    if (now_() >= end) break;
                    const auto ms = try_algo(epilogue, algo);
                    if (ms && *ms < at.ms) at = {*ms, algo};
                }
                if (at.ms == before) break;
            }
    }

    void try_families(lt::Plan& plan, lt::Epilogue epilogue) {
        const std::vector<lt::AlgoFamily> families = lt::families(plan);
        for (const lt::AlgoFamily& family : families) result_.configurations += family.size();
        for (std::size_t i = 0; i < families.size(); ++i) {
            const double left = time_at(1) - now_();  // what earlier families left over as well
            try_family(plan, epilogue, families[i], now_() + left / double(families.size() - i));
        }
        result_.complete = result_.tried == result_.configurations;
    }

    void try_family(lt::Plan& plan, lt::Epilogue epilogue, const lt::AlgoFamily& family, double end) {
        Jumps jumps(family.size());
        for (std::uint64_t i = 0; i < family.size() && now_() < end; ++i) {
            ++result_.tried;
            if (const auto algo = lt::configuration(plan, family, jumps[i])) try_algo(epilogue, *algo);
        }
    }

    // Returns the fastest of the tried algorithms that sum all terms.
    std::vector<Entrant> finalists(lt::Epilogue epilogue) {
        std::stable_sort(tried_.begin(), tried_.end(), faster);
        std::vector<Entrant> result;
        for (const Tried& t : tried_) {
            if (result.size() == options_.finalists) break;
            if (right(epilogue, t.algo))
                result.push_back({epilogue, t.algo});
            else
                ++result_.wrong;
        }
        return result;
    }

    // Times all finalists in turn, so that a change of the clock rate affects all alike.
    void compare(std::vector<Entrant>& entrants) {
        for (int round = 0; round < rounds; ++round)
            for (Entrant& e : entrants)
                if (const auto ms = time_(e.epilogue, e.algo, Timing::median))
                    e.best_ms = e.best_ms == 0 ? *ms : std::min(e.best_ms, double(*ms));
        for (const Entrant& e : entrants) {
            if (e.best_ms == 0) continue;
            if (e.us != nullptr) *e.us = 1e3 * e.best_ms;
            if (result_.best_us != 0 && 1e3 * e.best_ms >= result_.best_us) continue;
            result_.best_us = 1e3 * e.best_ms;
            result_.best = lt::describe(e.algo);
        }
    }

    cuda::GemmService& s_;
    const cuda::Gemm& g_;
    const SearchOptions& options_;
    std::function<double()> now_;
    const TimeAlgo& time_;
    double begin_ = 0;
    std::vector<Tried> tried_;
    std::set<std::array<std::uint64_t, 8>> known_;
    SearchResult result_;
};

}  // namespace

SearchResult search_algorithms(const cuda::Gemm& g, const SearchOptions& options) {
    check(g.a_type == g.b_type && g.m > 0 && g.n > 0 && g.k > 0, ErrorKind::value,
          "search_algorithms: the library takes operands of one dtype and no empty product: ", g.a_type, ", ",
          g.b_type, ", m = ", g.m, ", n = ", g.n, ", k = ", g.k);
    cuda::GemmService& s = cuda::gemm_service();
    const std::lock_guard lock(s.mutex);
    SearchResult result;
    cuda::with_timer(s, g, [&](const TimeAlgo& time) { result = Search(s, g, options, time).run(); });
    return result;
}

}  // namespace mezzo
