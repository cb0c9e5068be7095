// Trainings in float16 with an overflow on one rank: the same bits on all ranks, and as in one process that adds the ranks' gradients.
#include <fmt/format.h>

#include <limits>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;

namespace rank_test {
namespace {

constexpr int steps = 20, overflow_step = 3;

// The losses of a part of the batch: step * ranks + rank.
struct Mlp {
    mz::nn::Sequential net{mz::nn::Linear(24, 300), mz::nn::LayerNorm(300), mz::nn::ReLU(),
                           mz::nn::Linear(300, 10)};
    mz::Tensor loss(int part) const {
        mz::manual_seed(100 + std::uint64_t(part));
        const mz::Tensor x = mz::randn({8, 24}), y = mz::randn({8, 10});
        return mz::mse_loss(net(x).to(mz::float32), y);
    }
};
struct Bert {
    mz::nn::BertForSequenceClassification net{mz::nn::BertConfig{.vocab_size = 50,
                                                                 .hidden_size = 32,
                                                                 .num_hidden_layers = 2,
                                                                 .num_attention_heads = 2,
                                                                 .intermediate_size = 64,
                                                                 .hidden_dropout_prob = 0,
                                                                 .attention_probs_dropout_prob = 0,
                                                                 .max_position_embeddings = 16}};
    mz::Tensor loss(int part) const {
        mz::manual_seed(100 + std::uint64_t(part));
        const mz::Tensor ids = mz::randint(0, 50, {4, 12}), y = mz::randint(0, 2, {4});
        return mz::cross_entropy(net(ids).to(mz::float32), y);
    }
};

template <class Model> Model seeded(std::uint64_t seed) {
    mz::manual_seed(seed);
    return Model();
}

// One training step after another; how a step's gradients come about is the caller's.
template <class Model> class Loop {
public:
    explicit Loop(std::uint64_t seed)
        : model(seeded<Model>(seed)), optimizer_(model.net.named_parameters(), {.lr = 0.01}) {}

    mz::Tensor scaled_loss(int step, int ranks, int rank) const {
        const mz::amp::Autocast scope({.dtype = mz::float16});
        const mz::Tensor loss = model.loss(step * ranks + rank);
        const bool overflow = step == overflow_step && rank == 1;
        return scaler_.scale(overflow ? loss * std::numeric_limits<double>::infinity() : loss);
    }
    void update() {
        scaler_.step(optimizer_);
        scaler_.update();
        optimizer_.zero_grad();
    }
    // Weights, moments and the scaler's state, after checks of the counts.
    mz::StateDict end() const {
        require(optimizer_.applied_steps() == steps - 1 && optimizer_.skipped_steps() == 1,
                "counts of steps");
        require(scaler_.get_scale() == 2048, "the scale: 1024, halved once, doubled twice");
        mz::StateDict state = model.net.named_parameters();
        for (const auto& entry : optimizer_.state_dict()) state.push_back(entry);
        for (const auto& entry : scaler_.state_dict()) state.push_back(entry);
        return state;
    }

    const Model model;

private:
    mz::optim::AdamW optimizer_;
    mutable mz::amp::GradScaler scaler_{{.init_scale = 1024, .growth_interval = 6}};
};

template <class Model> mz::StateDict train(const md::Group& group, const md::DataParallelOptions& options) {
    Loop<Model> loop(5 + std::uint64_t(group.rank()));  // rank 0's values are the start of all
    md::DataParallel parallel(loop.model.net, group, options);
    for (int step = 0; step < steps; ++step) {
        loop.scaled_loss(step, group.size(), group.rank()).backward();
        loop.update();
    }
    return loop.end();
}

template <class Model> mz::StateDict train_alone(int ranks) {
    Loop<Model> loop(5);
    const mz::Tensors parameters = loop.model.net.parameters();
    for (int step = 0; step < steps; ++step) {
        mz::Tensors sums;
        for (int rank = 0; rank < ranks; ++rank) {
            const mz::Tensors parts =
                mz::autograd::grad({loop.scaled_loss(step, ranks, rank)}, parameters, {.allow_unused = true});
            for (std::size_t i = 0; i < parts.size(); ++i)
                if (rank == 0)
                    sums.push_back(parts[i].clone());
                else
                    sums[i].add_(parts[i]);
        }
        for (std::size_t i = 0; i < sums.size(); ++i) parameters[i].set_grad(sums[i].mul_(1.0 / ranks));
        loop.update();
    }
    return loop.end();
}

void require_same(const mz::StateDict& a, const mz::StateDict& b, const std::string& what) {
    require(a.size() == b.size(), what + ": the number of entries");
    for (std::size_t i = 0; i < a.size(); ++i)
        require(a[i].first == b[i].first && mz::all_close(a[i].second.detach(), b[i].second.detach(), 0, 0),
                what + ": " + a[i].first);
}

template <class Model> void check(const md::Group& group, const std::string& model) {
    const mz::StateDict alone = train_alone<Model>(group.size());
    for (const bool ordered : {false, true})
        for (const std::int64_t bytes : {std::int64_t{20000}, std::int64_t{1} << 20}) {
            const mz::StateDict state =
                train<Model>(group, {.first_bucket_bytes = bytes, .bucket_bytes = bytes, .ordered = ordered});
            const std::string what =
                fmt::format("{}, ordered {}, buckets of {} bytes", model, ordered, bytes);
            md::require_same(group, state);
            if (ordered || group.size() == 2) require_same(state, alone, what + ": as in one process");
        }
}

}  // namespace

void train_equally() {
    const md::Group group = join();
    check<Mlp>(group, "MLP");
    check<Bert>(group, "BERT");
    write_outcome("ok");
}

}  // namespace rank_test
