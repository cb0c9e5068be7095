// Trainer: a training loop with mixed precision, gradient accumulation, clipping, evaluation, early stopping,
// logs, checkpoints, resumption, and a clean end on SIGTERM and SIGINT. It uses only public functions; for
// another loop copy this header and src/train/trainer.cpp, and change them.
//
//   training::Trainer trainer(net, optimizer, {.epochs = 5, .precision = training::Precision::bfloat16});
//   trainer.fit(loader, [&](const data::Batch& batch) { return cross_entropy(net(batch.x), batch.y); });
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/amp.h"
#include "mezzo/autocast.h"
#include "mezzo/averaged_model.h"
#include "mezzo/callback.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/grad_scaler.h"
#include "mezzo/optim.h"
#include "mezzo/train/checkpoint.h"
#include "mezzo/train/progress.h"
#include "mezzo/train/stop_signals.h"

#pragma GCC visibility push(default)

namespace mezzo::training {

enum class Precision : std::uint8_t {
    float32,
    bfloat16,  // autocast
    float16,   // autocast, and a GradScaler
    fp8,       // autocast in bfloat16, with float8 products; checkpoints hold the history of Recipe::delayed
};

// Options of a Trainer. All referenced objects must outlive it.
struct TrainerOptions {
    std::int64_t epochs = 1;
    std::int64_t max_steps = 0;  // optimizer steps in all; 0: those of the epochs
    Precision precision = Precision::float32;
    amp::GradScalerOptions scaler = {};  // of float16
    amp::Fp8 fp8 = {};                   // of fp8
    // Result of amp::initialize() for the model and the optimizer; replaces `precision`, `scaler` and `fp8`.
    // The loss and `evaluate` call preset->forward(net, x) for the logits.
    amp::Handle* preset = nullptr;
    std::int64_t accumulate = 1;  // batches per step; at the end of an epoch as many as are left
    double max_norm = 0;          // of all gradients together; 0: no clipping

    optim::Scheduler* scheduler = nullptr;          // stepped after each step
    optim::ReduceLROnPlateau* plateau = nullptr;    // stepped with `monitor` after each evaluation
    optim::AveragedModel* average = nullptr;        // updated after each step
    distributed::DataParallel* parallel = nullptr;  // of a training by several ranks

    // After each epoch and every `evaluate_every` steps, with the model in eval mode, without gradients and
    // in the precision of the training:
    // .evaluate = [&] { return io::Metrics{{"accuracy", accuracy(net, test_set)}}; } With several ranks the
    // metrics are averaged over the ranks; all ranks must return the same names.
    std::optional<autograd::Callback<io::Metrics()>> evaluate = {};
    std::int64_t evaluate_every = 0;  // in steps, in addition to the end of each epoch; 0: only there
    std::string monitor = {};         // the metric that determines the best model
    Better better = Better::higher;
    std::int64_t patience = 0;  // evaluations in a row without a best one that end the training; 0: never

    // In steps, in addition to each checkpoint and the end of each epoch. Reading the loss waits for the
    // device.
    std::int64_t log_every = 10;
    // Get loss, lr, scale and skipped, and the metrics of evaluations. They are flushed before each
    // checkpoint: a killed training that is resumed logs the steps after its checkpoint again, and loses none
    // before it.
    std::vector<io::MetricWriter*> logs = {};
    ProgressBar* progress = nullptr;
    using OnStatus = autograd::Callback<void(const TrainingStatus&)>;
    // All three may call stop(). on_start runs before the first step of fit(), after a checkpoint has been
    // loaded: .on_start = [](const TrainingStatus& at) { if (at.step > 0) fmt::print("resumed\n"); }
    std::optional<OnStatus> on_start = {}, on_step = {}, on_epoch = {};

    bool stop_on_signals = true;   // SIGTERM and SIGINT, see StopSignals
    std::string checkpoints = {};  // folder; empty: none
    // in steps, in addition to the end of each epoch; 0: only there
    std::int64_t checkpoint_every = 0;
    std::int64_t keep_last = 3, keep_best = 0;                  // best by `monitor`
    bool resume = false;                                        // from the newest checkpoint, if there is one
    std::vector<std::pair<std::string, StateRef>> others = {};  // further states for the checkpoints
    io::Metadata settings = {};                                 // see CheckpointParts
};

enum class Ended : std::uint8_t {
    finished,  // all epochs, or max_steps
    early,     // `patience` evaluations without a best one
    stopped,   // by stop(), SIGTERM or SIGINT; once a step is done, a folder has a checkpoint of it
};

class Trainer {
public:
    // Error(value) for options out of range: epochs, accumulate or log_every below 1, other numbers below 0,
    // patience, plateau or keep_best without evaluate and monitor, and evaluate_every without evaluate; for a
    // preset with a precision or accumulate; for an enumerator that does not exist, and for a null in `logs`.
    // The numbers may be as large as std::int64_t: max_steps then says where the training ends, or stop().
    Trainer(nn::Module& model, optim::Optimizer& optimizer, const TrainerOptions& options = {});

    // Trains on a loader's batches, from its position() on, loss(batch) being their mean loss. With several
    // ranks it is multiplied by batch.weight or loader.weight(), if there is one. Throws what loader, loss,
    // callbacks and checkpoints throw; Error(value) for an evaluation without `monitor`, and for a folder
    // that has checkpoints and is not to be resumed from. A model in eval mode is put into train mode; in
    // others, modules in eval mode stay so. A Trainer that has finished returns `finished` at once.
    template <Positioned Loader, class Loss> Ended fit(Loader& loader, const Loss& loss) {
        std::optional<StopSignals> signals;
        if (options_.stop_on_signals) signals.emplace();
        begin(loader, size_of(loader));
        while (!ended()) {
            bool whole = true;
            for (const auto& batch : loader) {
                backward([&] { return loss(batch); }, weight_of(loader, batch));
                if (!step_is_due()) continue;
                step();
                whole = !ended();
                if (!whole) break;
            }
            end_epoch(whole);
        }
        return finish();
    }

    // Ends the training after the current step; a call on one rank ends it on all. Before fit(): the next
    // fit() returns `stopped` without a step, and the one after it trains.
    void stop() { stop_called_ = true; }
    [[nodiscard]] const TrainingStatus& status() const { return status_; }
    // The scaler of float16, or the preset's.
    [[nodiscard]] amp::GradScaler& scaler() { return options_.preset ? options_.preset->scaler() : scaler_; }

    // Epoch, step and best metric: part of each checkpoint.
    [[nodiscard]] StateDict state_dict() const;
    // Throws Error(value), with nothing changed, for a state that state_dict() cannot return.
    void load_state_dict(const StateDict& state);

private:
    using Size = std::optional<std::int64_t>;
    template <class Loader> static Size size_of(const Loader& loader) {
        if constexpr (requires { loader.size(); }) return loader.size();
        return std::nullopt;
    }
    template <class Loader, class Batch> static double weight_of(const Loader& loader, const Batch& batch) {
        if constexpr (requires { batch.weight; }) return batch.weight;
        if constexpr (requires { loader.weight(); }) return loader.weight();
        return 1;
    }
    template <class Loss> void backward(const Loss& loss, double weight) {
        Tensor value;
        {
            const amp::Autocast scope(autocast());
            value = loss();
        }
        add_gradients(value, weight);
    }
    [[nodiscard]] amp::AutocastOptions autocast() const;
    [[nodiscard]] const distributed::Group* group() const;
    void begin(LoaderRef loader, Size batches);
    bool load_newest();
    void add_gradients(const Tensor& loss, double weight);
    [[nodiscard]] bool step_is_due() const { return accumulated_ >= parts_; }
    void step(bool ends_epoch = false);
    void update();
    void report();
    void end_epoch(bool whole);
    void evaluate();
    void save();
    [[nodiscard]] bool reached_end() const;
    [[nodiscard]] bool ended() const { return stopping_ || reached_end() || no_better(); }
    [[nodiscard]] bool no_better() const { return options_.patience > 0 && not_best_ >= options_.patience; }
    void agree_to_stop();
    Ended finish();

    nn::Module& model_;
    optim::Optimizer& optimizer_;
    TrainerOptions options_;
    amp::GradScaler scaler_;
    TrainingStatus status_;
    std::optional<amp::Fp8State> fp8_state_;  // of fp8 with Recipe::delayed, for checkpoints
    std::optional<Checkpoint> checkpoint_;
    std::optional<CheckpointFolder> folder_;
    Size batches_;                        // of an epoch
    std::int64_t batch_ = 0, parts_ = 1;  // batches of this epoch so far; of the step that is under way
    std::int64_t counted_of_ = 0;         // batches of an epoch of the loader that batch_ counts; 0: unknown
    std::int64_t accumulated_ = 0;        // of its batches, those whose gradients are there
    Tensor loss_, losses_;                // of the step that is under way; sum since the last report
    std::int64_t unreported_ = 0;         // steps since then
    double best_ = std::numeric_limits<double>::quiet_NaN();
    std::int64_t not_best_ = 0;                    // evaluations since the best one
    bool stop_called_ = false, stopping_ = false;  // on this rank; on all
    bool evaluated_ = false;                       // after the last step
};

}  // namespace mezzo::training

#pragma GCC visibility pop
