// Sampling of one token from its logits, on the host.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/philox.h"
#include "mezzo/error.h"
#include "models/sampling.h"

namespace mezzo::nn {

namespace {

// Returns the largest logit. Looks at several at once, so that no comparison waits for the one before.
float checked_maximum(const std::vector<float>& logits) {
    check(!logits.empty(), ErrorKind::value, "sample_token: there are no logits");
    constexpr std::size_t lanes = 16;
    float top[lanes];
    int wrong[lanes] = {};
    std::fill_n(top, lanes, -INFINITY);
    const auto take = [&](std::size_t lane, float x) {
        top[lane] = x > top[lane] ? x : top[lane];
        wrong[lane] |= !(x < INFINITY);
    };
    std::size_t i = 0;
    for (; i + lanes <= logits.size(); i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) take(lane, logits[i + lane]);
    for (; i < logits.size(); ++i) take(0, logits[i]);
    for (std::size_t lane = 1; lane < lanes; ++lane) take(0, top[lane]), wrong[0] |= wrong[lane];
    if (wrong[0] != 0) {
        const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < INFINITY); });
        fail(ErrorKind::value, "sample_token: the logit of token ", std::int64_t(at - logits.begin()), " is ",
             double(*at), "; the model's parameters or its 16-bit activations have left their range");
    }
    check(top[0] != -INFINITY, ErrorKind::value, "sample_token: all ", std::int64_t(logits.size()),
          " logits are -inf");
    return top[0];
}

// Logits of float32 stay finite: a difference of two infinite ones is NaN.
void penalize(std::vector<float>& logits, std::vector<std::int64_t> text, double penalty) {
    std::sort(text.begin(), text.end());
    text.erase(std::unique(text.begin(), text.end()), text.end());
    for (const std::int64_t id : text) {
        if (id < 0 || id >= std::int64_t(logits.size())) continue;
        float& x = logits[std::size_t(id)];
        constexpr double limit = std::numeric_limits<float>::max();
        if (x != -INFINITY) x = float(std::clamp(x > 0 ? x / penalty : x * penalty, -limit, limit));
    }
}

// A number in [0, 1) of 53 bits.
double uniform(const SamplingPosition& position) {
    const PhiloxWords words = philox(position.seed, position.step, position.row);
    return double((std::uint64_t(words.v[0]) << 21) ^ (words.v[1] >> 11)) * 0x1p-53;
}

struct Candidate {
    std::int64_t token;
    double weight;  // proportional to the probability
};

bool likelier(const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
}

double total_of(const std::vector<Candidate>& candidates) {
    double total = 0;
    for (const Candidate& c : candidates) total += c.weight;
    return total;
}

// All tokens with their logits as weights, or the k likeliest of them, the likeliest first.
std::vector<Candidate> candidates_of(const std::vector<float>& logits, std::size_t k) {
    std::vector<Candidate> kept;
    kept.reserve(std::min(k, logits.size()));
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const Candidate next{std::int64_t(i), double(logits[i])};
        if (i < k) {
            kept.push_back(next);
        } else if (i == k) {
            std::make_heap(kept.begin(), kept.end(), likelier);  // the least likely is in front
        }
        if (i < k || next.weight <= kept.front().weight) continue;
        std::pop_heap(kept.begin(), kept.end(), likelier);
        kept.back() = next;
        std::push_heap(kept.begin(), kept.end(), likelier);
    }
    if (k < logits.size()) std::sort_heap(kept.begin(), kept.end(), likelier);
    return kept;
}

// Keeps the likeliest tokens that make up p. Sorting 50,000 tokens would take as long as a small model, so
// unlikely ones are removed first: all tokens less likely than (1 - p) / n together have less than 1 - p, so
// all of them can go. Half of that limit leaves room for rounding.
void keep_top_p(std::vector<Candidate>& candidates, double p) {
    const double total = total_of(candidates), least = 0.5 * (1 - p) / double(candidates.size()) * total;
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight < least; });
    std::sort(candidates.begin(), candidates.end(), likelier);
    double sum = 0;
    std::size_t kept = 0;
    while (kept < candidates.size() && sum < p * total) sum += candidates[kept++].weight;
    candidates.resize(kept);
}

}  // namespace

void check_sampling(const char* op, const SamplingOptions& o) {
    check(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty), ErrorKind::value, op,
          ": repetition_penalty is ", o.repetition_penalty,
          "; it must be positive and finite, 1 changes nothing");
    check(o.temperature >= 0 && std::isfinite(o.temperature), ErrorKind::value, op, ": temperature is ",
          o.temperature, "; it must be finite and not negative, 0 always takes the likeliest token");
    check(o.top_k >= 0, ErrorKind::value, op, ": top_k is ", o.top_k,
          "; it must not be negative, 0 keeps all tokens");
    check(o.top_p > 0 && o.top_p <= 1, ErrorKind::value, op, ": top_p is ", o.top_p,
          "; it must be in (0, 1], 1 keeps all tokens");
}

std::int64_t sample_token(const std::vector<float>& given, const std::vector<std::int64_t>& text,
                          const SamplingOptions& options, const SamplingPosition& position) {
    check_sampling("sample_token", options);
    float top = checked_maximum(given);
    std::vector<float> changed;
    if (options.repetition_penalty != 1) {
        changed = given;
        penalize(changed, text, options.repetition_penalty);
        top = *std::max_element(changed.begin(), changed.end());
    }
    const std::vector<float>& logits = changed.empty() ? given : changed;
    const std::int64_t likeliest = std::find(logits.begin(), logits.end(), top) - logits.begin();
    if (options.temperature == 0) return likeliest;

    const std::size_t k = options.top_k > 0 ? std::size_t(options.top_k) : logits.size();
    std::vector<Candidate> candidates = candidates_of(logits, k);
    for (Candidate& c : candidates) c.weight = std::exp((c.weight - double(top)) / options.temperature);
    if (options.top_p < 1) keep_top_p(candidates, options.top_p);
    const double drawn = uniform(position) * total_of(candidates);
    double sum = 0;
    for (const Candidate& c : candidates) {
        sum += c.weight;
        if (drawn < sum) return c.token;
    }
    return likeliest;  // if rounding has made the drawn number as large as the total
}

}  // namespace mezzo::nn
