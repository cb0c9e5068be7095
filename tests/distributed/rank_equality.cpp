// Training in float16 with an overflow on one rank: the same bits on all ranks, with a sharded optimizer too,
// and the same as in one process that adds the ranks' gradients.
#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;

namespace rank_test {
namespace {

constexpr int steps = 20, overflow_step = 3;
constexpr std::int64_t several_buckets = 20000, one_bucket = 1 << 20;  // bytes

// A model and its loss on batch `part`; a rank numbers its batches step * ranks + rank.
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

struct Way {
    std::string name;
    int passes = 1;  // micro-batches of a rank for one update
    bool clip = false;
    bool shard = false;
    md::DataParallelOptions options = {};
};

// Runs one training step after another; the caller computes a step's gradients.
template <class Model> class Loop {
public:
    Loop(const Way& way, std::uint64_t seed)
        : model(seeded<Model>(seed)), way_(way), optimizer_(model.net.named_parameters(), {.lr = 0.01}) {}

    void shard(const md::DataParallel& parallel) { md::shard(optimizer_, parallel); }
    mz::Tensor scaled_loss(int step, int ranks, int rank, int pass) const {
        const mz::amp::Autocast scope({.dtype = mz::float16});
        const mz::Tensor loss = model.loss((step * way_.passes + pass) * ranks + rank);
        const bool overflow = step == overflow_step && rank == 1 && pass == 0;
        return scaler_.scale(overflow ? loss * std::numeric_limits<double>::infinity() : loss);
    }
    void update() {
        if (way_.clip) {
            scaler_.unscale_(optimizer_);
            mz::nn::clip_grad_norm_(model.net.parameters(), 0.1);
        }
        scaler_.step(optimizer_);
        scaler_.update();
        optimizer_.zero_grad();
    }
    // Checks the counts, then returns weights, moments and the scaler's state.
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
    const Way way_;
    mz::optim::AdamW optimizer_;
    mutable mz::amp::GradScaler scaler_{{.init_scale = 1024, .growth_interval = 6}};
};

template <class Model> mz::StateDict train(const md::Group& group, const Way& way) {
    Loop<Model> loop(way, 5 + std::uint64_t(group.rank()));  // rank 0's values are the start of all
    md::DataParallel parallel(loop.model.net, group, way.options);
    if (way.shard) loop.shard(parallel);
    for (int step = 0; step < steps; ++step) {
        for (int pass = 0; pass < way.passes; ++pass) {
            // The last pass reduces in odd steps; in the others the update does.
            const bool reduces = pass + 1 == way.passes && (way.passes == 1 || step % 2 == 1);
            std::optional<md::DataParallel::Local> here;
            if (!reduces) here.emplace(parallel);
            loop.scaled_loss(step, group.size(), group.rank(), pass).backward();
        }
        loop.update();
    }
    return loop.end();
}

// sent() is a rank's term in the sum of gradients, received() the mean made of the sum. On a 16-bit wire both
// are rounded to its dtype.
mz::Tensor sent(const mz::Tensor& gradient, mz::Dtype wire, int ranks) {
    return wire == mz::float32 ? gradient : (gradient * (1.0 / ranks)).to(wire).to(mz::float32);
}
mz::Tensor received(const mz::Tensor& sum, mz::Dtype wire, int ranks) {
    return wire == mz::float32 ? sum * (1.0 / ranks) : sum.to(wire).to(mz::float32);
}

template <class Model> mz::StateDict train_alone(int ranks, const Way& way) {
    Loop<Model> loop(way, 5);
    const mz::Tensors parameters = loop.model.net.parameters();
    for (int step = 0; step < steps; ++step) {
        mz::Tensors sums(parameters.size());
        for (int rank = 0; rank < ranks; ++rank) {
            for (int pass = 0; pass < way.passes; ++pass)
                loop.scaled_loss(step, ranks, rank, pass).backward();
            for (std::size_t i = 0; i < parameters.size(); ++i) {
                const mz::Tensor part = sent(parameters[i].grad(), way.options.wire, ranks);
                sums[i] = rank == 0 ? part : sums[i] + part;
                parameters[i].set_grad({});
            }
        }
        for (std::size_t i = 0; i < sums.size(); ++i)
            parameters[i].set_grad(received(sums[i], way.options.wire, ranks));
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

// Checks with several buckets and, if all_sizes, with one bucket as well.
template <class Model> void check(const md::Group& group, Way way, bool all_sizes = false) {
    const mz::StateDict alone = train_alone<Model>(group.size(), way);
    const bool by_16_bits = way.options.wire != mz::float32;  // which is ordered anyway
    for (const bool ordered : {false, true})
        for (const std::int64_t bytes : {several_buckets, one_bucket}) {
            if ((ordered && by_16_bits) || (bytes == one_bucket && !all_sizes)) continue;
            const std::string what =
                fmt::format("{}, ordered {}, buckets of {} bytes", way.name, ordered, bytes);
            way.options.ordered = ordered;
            way.options.first_bucket_bytes = way.options.bucket_bytes = bytes;
            way.shard = false;
            const mz::StateDict state = train<Model>(group, way);
            md::require_same(group, state);
            if (ordered || by_16_bits || group.size() == 2)
                require_same(state, alone, what + ": as in one process");
            if (ordered || bytes == one_bucket) continue;
            way.shard = true;
            require_same(train<Model>(group, way), state, what + ": as without shard()");
        }
}

}  // namespace

void train_equally() {
    const md::Group group = join();
    check<Mlp>(group, {.name = "MLP"}, true);
    check<Bert>(group, {.name = "BERT"}, true);
    write_outcome("ok");
}

void train_equally_in_passes() {
    const md::Group group = join();
    check<Mlp>(group, {.name = "MLP", .passes = 2, .clip = true});
    check<Bert>(group, {.name = "BERT", .passes = 2, .clip = true});
    write_outcome("ok");
}

void train_equally_by_16_bits() {
    const md::Group group = join();
    check<Mlp>(group, {.name = "float16", .options = {.wire = mz::float16}});
    check<Mlp>(group, {.name = "bfloat16", .options = {.wire = mz::bfloat16}});
    check<Mlp>(group,
               {.name = "bfloat16, 2 passes", .passes = 2, .clip = true, .options = {.wire = mz::bfloat16}});
    write_outcome("ok");
}

}  // namespace rank_test
