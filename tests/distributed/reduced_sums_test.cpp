// Reduced gradients compared with the sums of the ranks' gradients in float64, and in float32, in one
// process.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>

#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallel;
using distributed::DataParallelOptions;
using distributed::Group;

namespace {

// A model and the loss of one rank's shard of the batch.
struct Mlp {
    nn::Sequential net = make_mlp(5);
    Tensor loss(int part) const { return mse_loss(net(rows(part)), rows(part + 1000)); }
};
struct Bert {
    nn::BertForSequenceClassification net = make_bert(5);
    Tensor loss(int part) const {
        return cross_entropy(net(token_ids(part)), Tensor::from(std::vector<std::int64_t>{0, 1, 1, 0}, {4}));
    }
};

// Gradients of each shard, computed one after the other in one process.
template <class Model> std::vector<Snapshot> gradients_of_parts(int ranks) {
    std::vector<Snapshot> parts;
    for (int rank = 0; rank < ranks; ++rank) {
        const Model model;
        model.loss(rank).backward();
        parts.push_back(gradients_of(model.net));
    }
    return parts;
}

// Mean of the shards' gradients, added in the order of the ranks.
template <class Float> Snapshot mean_of(const std::vector<Snapshot>& parts) {
    Snapshot mean = parts[0];
    for (std::size_t i = 0; i < mean.size(); ++i)
        for (std::size_t k = 0; k < mean[i].second.size(); ++k) {
            auto sum = Float(parts[0][i].second[k]);
            for (std::size_t rank = 1; rank < parts.size(); ++rank) sum += Float(parts[rank][i].second[k]);
            mean[i].second[k] = double(sum * Float(1.0 / double(parts.size())));
        }
    return mean;
}

template <class Model> std::vector<Snapshot> reduced(int ranks, const DataParallelOptions& options) {
    std::vector<Snapshot> results(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](const Group& group) {
        const Model model;
        DataParallel parallel(model.net, group, options);
        model.loss(group.rank()).backward();
        results[std::size_t(group.rank())] = gradients_of(model.net);
    });
    return results;
}

double norm(const std::vector<double>& x) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    return std::sqrt(sum);
}

// Error of each parameter's gradient as a whole, relative to its size: the largest of all, with the name.
std::pair<double, std::string> relative_error(const Snapshot& found, const Snapshot& exact) {
    std::pair<double, std::string> worst;
    for (std::size_t i = 0; i < exact.size(); ++i) {
        std::vector<double> errors = found[i].second;
        for (std::size_t k = 0; k < errors.size(); ++k) errors[k] -= exact[i].second[k];
        const double size = norm(exact[i].second);
        worst = std::max(worst, {size == 0 ? norm(errors) : norm(errors) / size, exact[i].first});
    }
    return worst;
}

template <class Model> void check_sums(int ranks) {
    const std::vector<Snapshot> parts = gradients_of_parts<Model>(ranks);
    const Snapshot exact = mean_of<double>(parts), in_order = mean_of<float>(parts);
    for (const bool ordered : {false, true})
        for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{3000}, std::int64_t{1} << 20}) {
            CAPTURE(ranks, ordered, bytes);
            const DataParallelOptions options{
                .first_bucket_bytes = bytes, .bucket_bytes = bytes, .ordered = ordered};
            for (const Snapshot& rank : reduced<Model>(ranks, options)) {
                REQUIRE(rank.size() == exact.size());
                const auto [error, name] = relative_error(rank, exact);
                CAPTURE(name);
                CHECK(error < 1e-6);
                if (ordered || ranks == 2) CHECK(first_difference(rank, in_order) == "");
            }
        }
}

}  // namespace

TEST_CASE(
    "data parallel: reduced gradients are the sums in float64 up to 1e-6, and in order the bits in float32",
    "[distributed]") {
    for (const int ranks : {2, 3, 4}) {
        SECTION("MLP, " + std::to_string(ranks)) { check_sums<Mlp>(ranks); }
        SECTION("BERT, " + std::to_string(ranks)) { check_sums<Bert>(ranks); }
    }
}
