// Small models that ranks train, and snapshots to compare them.
#pragma once

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/grad_scaler.h"
#include "mezzo/models/bert.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/support/support.h"

namespace mezzo::test {

inline constexpr std::int64_t net_width = 24;

// Makes an object after manual_seed(). Ranks are threads of one process and share the stream of random
// numbers.
template <class Make> auto seeded(std::uint64_t seed, const Make& make) {
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    manual_seed(seed);
    return make();
}

inline nn::Sequential make_mlp(std::uint64_t seed) {
    return seeded(seed, [] {
        return nn::Sequential{nn::Linear(net_width, 40), nn::LayerNorm(40), nn::ReLU(),
                              nn::Linear(40, 32),        nn::Tanh(),        nn::Linear(32, net_width)};
    });
}

// Identity; if `fails`, its backward throws.
struct Failing : nn::Module {
    explicit Failing(bool fails_) : fails(fails_) {}
    Tensor operator()(const Tensor& x) const {
        const Tensor y = x * 1.0;
        if (fails)
            autograd::add_hook(y, [](const Tensor&) -> Tensor { throw std::runtime_error("out of luck"); });
        return y;
    }
    bool fails;
    MEZZO_MODULE(Failing)
};

inline nn::BertForSequenceClassification make_bert(std::uint64_t seed) {
    return seeded(seed, [] {
        return nn::BertForSequenceClassification({.vocab_size = 50,
                                                  .hidden_size = 16,
                                                  .num_hidden_layers = 2,
                                                  .num_attention_heads = 2,
                                                  .intermediate_size = 32,
                                                  .hidden_dropout_prob = 0,
                                                  .attention_probs_dropout_prob = 0,
                                                  .max_position_embeddings = 16});
    });
}

inline Tensor rows(int seed, std::int64_t count = 8, std::int64_t width = net_width) {
    return tensor_of(random_values(count * width, std::uint64_t(seed), Domain::any), {count, width}, float32);
}

inline Tensor token_ids(int seed, std::int64_t texts = 4, std::int64_t length = 6) {
    std::vector<std::int64_t> ids;
    for (const double v : random_values(texts * length, std::uint64_t(seed), Domain::unit))
        ids.push_back(std::int64_t(v * 50));
    return Tensor::from(ids, {texts, length});
}

// Named tensors as doubles: equal where the tensors' values are equal, exactly.
using Snapshot = std::vector<std::pair<std::string, std::vector<double>>>;

inline void append(Snapshot& to, const std::string& prefix, const StateDict& state) {
    for (const auto& [name, x] : state) to.emplace_back(prefix + name, doubles(x.detach()));
}

inline Snapshot gradients_of(const nn::Module& net) {
    Snapshot result;
    for (const auto& [name, p] : net.named_parameters())
        result.emplace_back(name, p.grad().defined() ? doubles(p.grad()) : std::vector<double>{});
    return result;
}

inline Snapshot weights_of(const nn::Module& net) {
    Snapshot result;
    append(result, "", net.named_parameters());
    return result;
}

// The name of the first entry that differs in any value; NaN equals NaN. Empty if there is none.
inline std::string first_difference(const Snapshot& a, const Snapshot& b) {
    if (a.size() != b.size()) return "the number of entries";
    for (std::size_t i = 0; i < a.size(); ++i)
        if (a[i].first != b[i].first || a[i].second.size() != b[i].second.size() ||
            !difference(a[i].second, b[i].second, {0, 0}).empty())
            return a[i].first;
    return "";
}

// The largest difference, relative to the largest value of its entry.
inline double largest_difference(const Snapshot& a, const Snapshot& b) {
    double largest = a.size() == b.size() ? 0 : 1e30;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        double size = 1e-30;
        for (const double v : a[i].second) size = std::max(size, std::abs(v));
        for (std::size_t k = 0; k < a[i].second.size(); ++k)
            largest = std::max(largest, std::abs(a[i].second[k] - b[i].second[k]) / size);
    }
    return largest;
}

}  // namespace mezzo::test
