// The training loop, step by step. Written to be read together with the header, and copied from.
#include "mezzo/train/trainer.h"

#include <cmath>

#include "autograd/op_observer.h"
#include "core/enumerators.h"
#include "core/gradient/unlisted.h"
#include "mezzo/eval_mode.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"

namespace mezzo::training {

namespace {

amp::GradScalerOptions scaler_options(const TrainerOptions& options) {
    amp::GradScalerOptions result = options.scaler;
    // Only float16 has such a small range that its gradients need scaling.
    result.enabled = options.precision == Precision::float16 && result.enabled;
    return result;
}

bool computes_in_16_bits(const amp::Handle& preset) {
    const amp::Properties& p = preset.properties();
    return p.autocast || p.cast_model_type == amp::CastModel::to_float16 ||
           p.cast_model_type == amp::CastModel::to_bfloat16;
}

// Finds parameters that a backward reaches and that no module lists, so that they are neither trained nor
// saved.
class UnlistedWatch final : public OpObserver {
public:
    const UnlistedParameters& found() const { return found_; }
    void visiting(const Node& node) override {
        for (const Edge& edge : node.edges) found_.note(edge.leaf, node.op->name());
    }

private:
    UnlistedParameters found_;
};

}  // namespace

Trainer::Trainer(nn::Module& model, optim::Optimizer& optimizer, const TrainerOptions& options)
    : model_(model), optimizer_(optimizer), options_(options), scaler_(scaler_options(options)) {
    const TrainerOptions& o = options_;
    check(o.epochs >= 1 && o.accumulate >= 1 && o.log_every >= 1, ErrorKind::value, "Trainer: epochs is ",
          o.epochs, ", accumulate is ", o.accumulate, ", log_every is ", o.log_every,
          "; all must be positive");
    check(o.max_steps >= 0 && o.patience >= 0 && o.checkpoint_every >= 0 && o.evaluate_every >= 0,
          ErrorKind::value, "Trainer: max_steps is ", o.max_steps, ", patience ", o.patience,
          ", checkpoint_every ", o.checkpoint_every, ", evaluate_every ", o.evaluate_every,
          "; none may be negative");
    check_enumerator("Trainer", "precision", o.precision, Precision::fp8);
    check_enumerator("Trainer", "better", o.better, Better::lower);
    check(std::find(o.logs.begin(), o.logs.end(), nullptr) == o.logs.end(), ErrorKind::value,
          "Trainer: one of the ", o.logs.size(), " logs is null");
    check(o.max_norm >= 0 && std::isfinite(o.max_norm), ErrorKind::value, "Trainer: max_norm is ",
          o.max_norm);
    const bool monitors = o.patience > 0 || o.plateau != nullptr || o.keep_best > 0;
    check(!monitors || (o.evaluate && !o.monitor.empty()), ErrorKind::value,
          "Trainer: patience, plateau and keep_best need evaluate and monitor");
    check(o.evaluate_every == 0 || o.evaluate, ErrorKind::value, "Trainer: evaluate_every is ",
          o.evaluate_every, ", and there is no evaluate");
    check(o.preset == nullptr || (o.precision == Precision::float32 && o.accumulate == 1), ErrorKind::value,
          "Trainer: precision ", int(o.precision), " and accumulate ", o.accumulate,
          " with a preset; the preset replaces the precision, and takes one batch per step");
}

amp::AutocastOptions Trainer::autocast() const {
    amp::AutocastOptions result{.dtype = options_.precision == Precision::float16 ? float16 : bfloat16,
                                .enabled = options_.precision != Precision::float32};
    if (options_.precision == Precision::fp8) result.fp8 = options_.fp8;
    return result;
}

const distributed::Group* Trainer::group() const {
    return options_.parallel != nullptr ? &options_.parallel->group() : nullptr;
}

// Agrees on stopping, so that all ranks stop in the same step if any rank is to stop.
void Trainer::agree_to_stop() {
    const bool here = stop_called_ || (options_.stop_on_signals && StopSignals::last() != 0);
    stopping_ = stopping_ || (group() != nullptr ? group()->any(here) : here);
}

void Trainer::begin(LoaderRef loader, Size batches) {
    batches_ = batches;
    accumulated_ = unreported_ = 0;
    loss_ = losses_ = Tensor();
    stopping_ = false;
    bool loaded = false;
    status_.epochs = options_.epochs;
    status_.steps = options_.max_steps;
    if (batches) {
        const std::int64_t each = *batches / options_.accumulate + (*batches % options_.accumulate != 0);
        std::int64_t all = 0;  // if it does not fit, max_steps ends the training, or stop() does
        if (!__builtin_mul_overflow(each, options_.epochs, &all))
            status_.steps = options_.max_steps > 0 ? std::min(all, options_.max_steps) : all;
    }
    if (!options_.checkpoints.empty()) {
        CheckpointParts parts{.model = model_, .optimizer = optimizer_, .scaler = scaler_, .loader = loader};
        if (options_.preset != nullptr) parts.scaler = *options_.preset;
        if (options_.plateau != nullptr) parts.schedule = *options_.plateau;
        if (options_.average != nullptr) parts.average = *options_.average;
        parts.others = options_.others;
        const bool fp8 = options_.preset == nullptr && options_.precision == Precision::fp8;
        if (fp8 && options_.fp8.recipe == amp::Recipe::delayed)
            parts.others.emplace_back("trainer_fp8", fp8_state_.emplace(model_));
        parts.optional = {"trainer_fp8"};  // a training may go on in another precision
        parts.others.emplace_back("trainer", *this);
        parts.settings = options_.settings;
        parts.group = group();
        checkpoint_.emplace(std::move(parts));
        folder_.emplace(options_.checkpoints, CheckpointFolderOptions{options_.keep_last, options_.keep_best,
                                                                      options_.monitor, options_.better});
        loaded = options_.resume && load_newest();
        check(loaded || status_.step > 0 || folder_->files().empty(), ErrorKind::value,
              "Trainer: ", options_.checkpoints,
              " has checkpoints; set .resume = true to go on from them, or use another folder");
    }
    loader.set_position(loader.position());  // the rest of an epoch that has been begun
    // With another batch size, the count of batches says nothing about the rest of the epoch.
    const bool other = counted_of_ != 0 && counted_of_ != batches_.value_or(0);
    if (loader.position().samples == 0 || other) batch_ = 0;
    counted_of_ = batches_.value_or(0);
    optimizer_.zero_grad();
    if (!model_.training()) model_.train();
    status_.lr = optimizer_.lr();
    if (options_.on_start) (*options_.on_start)(status_);
    agree_to_stop();
    stop_called_ = false;  // the fit that begins ends by it, once
    // A training that was stopped in step max_steps has not evaluated it yet.
    const bool last_step = reached_end() && status_.epoch < options_.epochs;
    if (loaded && last_step && options_.evaluate && !evaluated_ && !stopping_) end_epoch(false);
}

// Returns false if there is no checkpoint. A checkpoint has metrics if its step has been evaluated.
bool Trainer::load_newest() {
    const std::optional<CheckpointInfo> info = folder_->load_newest(*checkpoint_);
    if (!info) return false;
    evaluated_ = !info->metrics.empty();
    if (evaluated_) status_.metrics = info->metrics;
    return true;
}

void Trainer::add_gradients(const Tensor& loss, double weight) {
    if (accumulated_ == 0) {
        parts_ = options_.accumulate;
        if (batches_) parts_ = std::clamp<std::int64_t>(*batches_ - batch_, 1, parts_);
    }
    const double factor = weight / double(parts_);
    const Tensor part = factor == 1 ? loss : loss * factor;
    {
        // Only the last backward pass reduces the accumulated gradients over the ranks.
        std::optional<distributed::DataParallel::Local> here;
        if (options_.parallel != nullptr && accumulated_ + 1 < parts_) here.emplace(*options_.parallel);
        std::optional<UnlistedWatch> watch;
        if (status_.step == 0 && accumulated_ == 0) watch.emplace();
        if (options_.preset != nullptr)
            options_.preset->scale_loss(part, optimizer_, [](const Tensor& scaled) { scaled.backward(); });
        else
            scaler_.scale(part).backward();
        if (watch) watch->found().warn("Trainer");
    }
    const Tensor shown = size_of(part.dtype()) < 4 ? part.detach().to(float32) : part.detach();
    loss_ = loss_.defined() ? loss_ + shown : shown;
    ++accumulated_;
    ++batch_;
}

// Clips the gradients and updates the parameters, unless a gradient has overflowed.
void Trainer::update() {
    const bool scaled = options_.preset == nullptr;  // a preset has unscaled the gradients already
    if (options_.max_norm > 0) {
        if (scaled) scaler_.unscale_(optimizer_);
        nn::clip_grad_norm_(optimizer_.parameters(), options_.max_norm);
    }
    if (scaled) {
        scaler_.step(optimizer_);
        scaler_.update();
    } else {
        optimizer_.step();
    }
    optimizer_.zero_grad();
}

void Trainer::step(bool ends_epoch) {
    update();
    status_.lr = optimizer_.lr();
    if (options_.scheduler != nullptr) options_.scheduler->step();
    if (options_.average != nullptr) options_.average->update_parameters(model_);
    losses_ = losses_.defined() ? losses_ + loss_ : loss_;
    loss_ = Tensor();
    accumulated_ = 0;
    evaluated_ = false;
    ++unreported_;
    const auto every = [&](std::int64_t steps) { return steps > 0 && status_.step % steps == 0; };
    ++status_.step;
    if (every(options_.log_every)) report();
    const bool last = ends_epoch || (batches_ && batch_ >= *batches_) || reached_end();
    if (every(options_.evaluate_every) && !last) {  // end_epoch() evaluates after the last step
        report();
        evaluate();
    }
    if (options_.on_step) (*options_.on_step)(status_);
    agree_to_stop();
    // The last step is saved by end_epoch(), after its evaluation and callback.
    if (every(options_.checkpoint_every) && !ended() && !ends_epoch) save();
}

// Reads the losses, which stay on the device until then.
void Trainer::report() {
    if (unreported_ == 0) return;
    const Tensor mean = group() != nullptr ? group()->mean(losses_) : losses_;
    status_.loss = mean.item<double>() / double(unreported_);
    status_.skipped = optimizer_.skipped_steps();
    io::Metrics metrics{{"loss", status_.loss}, {"lr", status_.lr}};
    if (options_.preset != nullptr ? computes_in_16_bits(*options_.preset) : scaler_.is_enabled()) {
        status_.scale = scaler().get_scale();
        metrics.insert(metrics.end(), {{"scale", *status_.scale}, {"skipped", double(status_.skipped)}});
    }
    losses_ = Tensor();
    unreported_ = 0;
    for (io::MetricWriter* const log : options_.logs) log->log(status_.step, metrics);
    if (options_.progress != nullptr) options_.progress->show(status_);
}

// `whole`: the loader has no more batches in this epoch, and begins the next one.
void Trainer::end_epoch(bool whole) {
    if (whole && accumulated_ > 0) {  // of a loader of unknown size: fewer batches than the step was to have
        const double factor = double(parts_) / double(accumulated_);
        for (const Tensor& p : optimizer_.parameters())
            if (p.grad().defined()) p.grad().mul_(factor);
        loss_ = loss_ * factor;
        step(true);
    }
    report();
    const bool over = whole || (!stopping_ && batches_ && batch_ >= *batches_);
    if (over) {
        ++status_.epoch;
        batch_ = 0;
    }
    if (over || !stopping_) {
        if (!evaluated_) evaluate();  // evaluate_every may have done so after the last step
        if (options_.on_epoch) (*options_.on_epoch)(status_);
        agree_to_stop();
    }
    save();
}

void Trainer::evaluate() {
    if (!options_.evaluate) return;
    if (options_.parallel != nullptr) options_.parallel->broadcast_buffers();
    {
        const nn::EvalMode evaluating(model_);
        const NoGrad no_grad;
        const amp::Autocast scope(autocast());
        status_.metrics = (*options_.evaluate)();
    }
    if (group() != nullptr)
        for (auto& [name, value] : status_.metrics)
            value = group()->mean(full({}, value, {.dtype = float64})).item<double>();
    evaluated_ = true;
    for (io::MetricWriter* const log : options_.logs) log->log(status_.step, status_.metrics);
    if (options_.monitor.empty()) return;
    const auto found = std::find_if(status_.metrics.begin(), status_.metrics.end(),
                                    [&](const auto& metric) { return metric.first == options_.monitor; });
    check(found != status_.metrics.end(), ErrorKind::value, "Trainer: monitor is \"", options_.monitor,
          "\", and evaluate() has not returned it");
    const double value = found->second;
    if (options_.plateau != nullptr) options_.plateau->step(value);
    const bool better = options_.better == Better::higher ? value > best_ : value < best_;
    const bool best = better || (std::isnan(best_) && !std::isnan(value));
    if (best) best_ = value;
    not_best_ = best ? 0 : not_best_ + 1;
}

// Mean losses begin anew with each checkpoint, so that the log of a resumed training is that of an
// uninterrupted one.
void Trainer::save() {
    if (!folder_) return;
    report();
    for (io::MetricWriter* const log : options_.logs) log->flush();
    folder_->save(*checkpoint_,
                  {.step = status_.step, .metrics = evaluated_ ? status_.metrics : io::Metrics()});
}

bool Trainer::reached_end() const {
    return status_.epoch >= options_.epochs || (options_.max_steps > 0 && status_.step >= options_.max_steps);
}

Ended Trainer::finish() {
    if (options_.progress != nullptr) options_.progress->end_line();
    for (io::MetricWriter* const log : options_.logs) log->flush();
    stop_called_ = false;  // done, or too late
    if (stopping_) return Ended::stopped;
    return reached_end() ? Ended::finished : Ended::early;
}

// Counts are exact in float64 up to 2^53.
StateDict Trainer::state_dict() const {
    return {{"progress", Tensor::from(std::vector{double(status_.epoch), double(status_.step), double(batch_),
                                                  double(counted_of_), double(not_best_), best_},
                                      {6})}};
}

void Trainer::load_state_dict(const StateDict& state) {
    const bool known = state.size() == 1 && state[0].first == "progress" && state[0].second.defined() &&
                       state[0].second.shape() == Shape{6};
    check(known, ErrorKind::value, "Trainer: its state is one entry, \"progress\" of shape [6]");
    const std::vector<double> v = state[0].second.to_vector<double>();
    std::int64_t* const counters[] = {&status_.epoch, &status_.step, &batch_, &counted_of_, &not_best_};
    for (std::size_t i = 0; i < 5; ++i)
        check(v[i] >= 0 && v[i] < 0x1p53 && v[i] == std::floor(v[i]), ErrorKind::value, "Trainer: counter ",
              i, " of its state is ", v[i]);
    for (std::size_t i = 0; i < 5; ++i) *counters[i] = std::int64_t(v[i]);
    best_ = v[5];
}

}  // namespace mezzo::training
