// Training with checkpoints whose process kills itself at a planned point.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;

namespace rank_test {
namespace {

constexpr std::int64_t all_steps = 24, save_every = 2;

// One planned kill. TEST_KILLS has one for each start of the ranks, separated by commas: "1:7:after:2500"
// kills rank 1 in step 7, 2500 us after the step has begun; "0:8:write:1000" kills rank 0 after it has
// written 1000 bytes of the checkpoint of step 8.
struct Kill {
    int rank = -1;
    std::int64_t step = 0;
    std::string how;
    std::uint64_t amount = 0;
};

Kill kill_of_this_start() {
    const char* const plan = std::getenv("TEST_KILLS");
    std::istringstream all(plan != nullptr ? plan : "");
    std::string text;
    for (int i = 0; i <= int(option("MEZZO_RESTART_COUNT", 0)); ++i)
        if (!std::getline(all, text, ',')) return {};
    std::istringstream parts(text);
    Kill kill;
    char colon = 0;
    parts >> kill.rank >> colon >> kill.step >> colon;
    std::getline(parts, kill.how, ':');
    parts >> kill.amount;
    require(!parts.fail(), "TEST_KILLS=" + text);
    return kill;
}

// Kills this process at its first write beyond `bytes` of a file, for which the system sends SIGXFSZ.
void kill_when_written(std::uint64_t bytes) {
    signal(SIGXFSZ, [](int) { kill_self(); });
    const rlimit limit{bytes, RLIM_INFINITY};
    require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
}

mz::data::Dataset make_data() {
    mz::manual_seed(11);
    const mz::Tensor x = mz::randn({50, 16});
    return {x, mz::argmax(x.slice(1, 0, 5), 1)};
}

class Training {
public:
    explicit Training(const md::Group& group)
        : group_(group),
          loader_(make_data(), {.batch_size = 12, .shuffle = true, .seed = 4, .shard = group.shard()}),
          kill_(kill_of_this_start()) {
        md::manual_seed(group, 5);
        net_ = mz::nn::Sequential{mz::nn::Linear(16, 32), mz::nn::ReLU(), mz::nn::Dropout(0.25),
                                  mz::nn::Linear(32, 5)};
        optimizer_.emplace(net_.named_parameters(), mz::optim::AdamWOptions{.lr = 1e-2});
        parallel_.emplace(net_, group_);
        if (option("TEST_SHARD", 0) != 0) md::shard(*optimizer_, *parallel_);
    }

    void run(const std::string& path, const std::string& result) {
        resume(path);
        while (step_ < all_steps)
            for (const mz::data::Batch& batch : loader_) {
                train(batch);
                if (step_ % save_every == 0) save(path);
                if (step_ == all_steps) break;
            }
        md::save_checkpoint(group_, result, state());
        write_outcome("done");
    }

private:
    bool is_due(const char* how) const {
        return kill_.rank == group_.rank() && kill_.step == step_ && kill_.how == how;
    }

    void resume(const std::string& path) {
        if (md::checkpoint_exists(group_, path)) {
            const mz::io::Checkpoint saved = md::load_checkpoint(group_, path);
            net_.load_state_dict(saved.model);
            optimizer_->load_state_dict(saved.optimizer);
            scaler_.load_state_dict(saved.scaler);
            loader_.set_position(saved.position);
            mz::set_random_state(saved.random);
            step_ = saved.extra.at(0).second.item<std::int64_t>();
        }
        write_outcome(fmt::format("begun at step {}", step_));
    }

    void train(const mz::data::Batch& batch) {
        ++step_;
        if (is_due("after") && kill_.amount == 0) kill_self();
        if (is_due("after"))
            killer_ = std::jthread([delay = std::chrono::microseconds(kill_.amount)] {
                std::this_thread::sleep_for(delay);
                kill_self();
            });
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope({.dtype = mz::float16});
            loss = mz::cross_entropy(net_(batch.x), batch.y);
        }
        scaler_.scale(loss * batch.weight).backward();
        scaler_.step(*optimizer_);
        scaler_.update();
        optimizer_->zero_grad();
    }

    void save(const std::string& path) {
        const mz::io::Checkpoint all = state();
        if (is_due("write")) kill_when_written(kill_.amount);
        md::save_checkpoint(group_, path, all);
    }

    mz::io::Checkpoint state() {
        return {.model = net_.state_dict(),
                .optimizer = optimizer_->state_dict(),
                .scaler = scaler_.state_dict(),
                .extra = {{"step", mz::scalar(double(step_)).to(mz::int64)}},
                .position = loader_.position()};
    }

    const md::Group group_;
    mz::data::DataLoader loader_;
    mz::nn::Sequential net_;
    std::optional<mz::optim::AdamW> optimizer_;
    std::optional<md::DataParallel> parallel_;
    // The first scales overflow, and later ones may.
    mz::amp::GradScaler scaler_{{.init_scale = 16777216, .growth_interval = 4}};
    const Kill kill_;
    std::int64_t step_ = 0;
    std::jthread killer_;  // joined before this process ends, so that the process never ends in another way
};

}  // namespace

void train_and_save() {
    const md::Group group = join();
    Training(group).run(std::getenv("TEST_CHECKPOINT"), std::getenv("TEST_RESULT"));
}

}  // namespace rank_test
