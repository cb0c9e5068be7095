// LBFGS: its step, the line search, and its state.
#include "mezzo/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/step_recorder.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "mezzo/product_ops.h"
#include "mezzo/record_function.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

using Type = OptionField::Type;

#define MEZZO_FIELD(field, ...) \
    { #field, offsetof(LBFGSOptions, field), __VA_ARGS__ }
constexpr OptionField lbfgs_options[] = {MEZZO_FIELD(lr, Type::real),
                                         MEZZO_FIELD(max_iter, Type::integer, 1),
                                         MEZZO_FIELD(max_eval, Type::integer),
                                         MEZZO_FIELD(tolerance_grad, Type::real),
                                         MEZZO_FIELD(tolerance_change, Type::real),
                                         MEZZO_FIELD(history_size, Type::integer, 1),
                                         MEZZO_FIELD(line_search_fn, Type::enumerator, 0, 1),
                                         MEZZO_FIELD(maximize, Type::flag)};
#undef MEZZO_FIELD
constexpr OptimizerTable table{"LBFGS", lbfgs_options, {}};

OptimizerImpl* make(const Tensors& params, const LBFGSOptions& options, const StateDict& named) {
    TableOptimizer optimizer(table);
    optimizer.add(params, &options, named);
    return optimizer.release();
}

double largest(const Tensor& x) { return x.numel() == 0 ? 0 : max(abs(x)).item<double>(); }

// A point of the line search: its distance along the direction, and the loss, gradient and slope there.
struct Point {
    double length = 0, loss = 0;
    Tensor gradient;
    double slope = 0;
};

// The minimum of the cubic through the losses and slopes of two points, within bounds; the middle of the
// bounds if the cubic has none (Nocedal and Wright, equation 3.59).
double cubic_minimum(const Point& a, const Point& b, double low, double high) {
    const Point &x = a.length <= b.length ? a : b, &y = a.length <= b.length ? b : a;
    const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.length - b.length);
    const double d2 = std::sqrt(d1 * d1 - a.slope * b.slope);  // NaN without a minimum
    const double at = y.length - (y.length - x.length) * ((y.slope + d2 - d1) / (y.slope - x.slope + 2 * d2));
    if (std::isnan(at)) return (low + high) / 2;
    return std::min(std::max(at, low), high);
}

// Search for a point that satisfies the strong Wolfe conditions (Nocedal and Wright, algorithms 3.5 and 3.6),
// with at most `budget` evaluations after the first.
template <class Evaluate> class WolfeSearch {
public:
    WolfeSearch(const Point& start, double span, double tolerance, std::int64_t budget, Evaluate& evaluate)
        : start_(start), span_(span), tolerance_(tolerance), budget_(budget), evaluate_(evaluate) {}

    // `first` is the first length to try. Widens the interval until it brackets such a point.
    Point run(double first) {
        Point before = start_, now = evaluate_(first);
        for (; tries_ < budget_; ++tries_) {
            if (too_high(now) || (tries_ > 1 && now.loss >= before.loss)) return zoom(before, now);
            if (flat(now)) return now;
            if (now.slope >= 0) return zoom(before, now);
            const double next =
                cubic_minimum(before, now, now.length + 0.01 * (now.length - before.length), now.length * 10);
            before = now;
            now = evaluate_(next);
        }
        return zoom(start_, now);
    }

private:
    bool too_high(const Point& p) const {
        return p.loss > start_.loss + 1e-4 * p.length * start_.slope;  // Armijo's condition is violated
    }
    bool flat(const Point& p) const { return std::abs(p.slope) <= -0.9 * start_.slope; }

    // Narrows the bracket between two points.
    Point zoom(const Point& a, const Point& b) {
        Point ends[] = {a, b};
        int low = b.loss < a.loss ? 1 : 0;
        for (bool hesitant = false; tries_ < budget_; ++tries_) {
            if (std::abs(ends[1].length - ends[0].length) * span_ < tolerance_) break;
            const Point now = evaluate_(next_length(ends, hesitant));
            if (too_high(now) || now.loss >= ends[low].loss) {
                ends[1 - low] = now;
                low = ends[1].loss < ends[0].loss ? 1 : 0;
                continue;
            }
            const bool done = flat(now);
            if (!done && now.slope * (ends[1 - low].length - ends[low].length) >= 0)
                ends[1 - low] = ends[low];
            ends[low] = now;
            if (done) break;
        }
        return ends[low];
    }
    // The length to try next: a tenth inside of the bracket if the cubic's minimum is on a bound, or near one
    // for the second time.
    static double next_length(const Point (&ends)[2], bool& hesitant) {
        const double low = std::min(ends[0].length, ends[1].length);
        const double high = std::max(ends[0].length, ends[1].length), margin = 0.1 * (high - low);
        const double length = cubic_minimum(ends[0], ends[1], low, high);
        if (std::min(high - length, length - low) >= margin) {
            hesitant = false;
            return length;
        }
        if (!hesitant && length < high && length > low) {
            hesitant = true;
            return length;
        }
        hesitant = false;
        return std::abs(length - high) < std::abs(length - low) ? high - margin : low + margin;
    }

    Point start_;
    double span_, tolerance_;
    std::int64_t budget_, tries_ = 0;
    Evaluate& evaluate_;
};

}  // namespace

// One call of LBFGS::step(): the parameters as a vector, and the history, which replaces the optimizer's own
// when the step is complete.
struct LBFGSStep {
    using Closure = autograd::Callback<Tensor()>;
    LBFGSStep(LBFGS& optimizer, const Closure& closure);

    Tensor run();

private:
    double option(const char* name) const {
        return impl_.groups[0].options[std::size_t(impl_.kind->find(name))];
    }
    std::int64_t budget() const {  // evaluations that are left
        const double given = option("max_eval");
        const double most = given != 0 ? given : std::floor(option("max_iter") * 5 / 4);
        return std::int64_t(std::min(most, 0x1p62)) - evaluations_;
    }
    double evaluate();
    Tensor flat_gradient() const;
    void write(const Tensor& values) const;
    Point point(double length);
    Tensor direction();
    void remember();
    bool advance(bool last);
    void iterate();
    void count(bool applied) const;

    LBFGS& optimizer_;
    OptimizerImpl& impl_;
    const Closure& closure_;
    LBFGS::History history_;
    Dtype dtype_ = float32;
    Tensor x_;                 // values at the begin of the iteration
    Tensor first_, gradient_;  // the first loss, the gradient at x_
    double loss_ = 0;
    std::int64_t evaluations_ = 0;
};

LBFGSStep::LBFGSStep(LBFGS& optimizer, const Closure& closure)
    : optimizer_(optimizer), impl_(optimizer.impl()), closure_(closure), history_(optimizer.history_) {
    const Device device = impl_.device();
    Tensors values;
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < impl_.slots.size(); ++i) {
        const Tensor& param = impl_.slots[i].param;
        check(param.device() == device, ErrorKind::device, "LBFGS.step: parameter ", i, " is on ",
              param.device(), ", others are on ", device, "; all must be on one device");
        if (param.dtype() == float64) dtype_ = float64;
        indices.push_back(i);
    }
    const NoGrad plain;
    make_masters(impl_, indices, device);
    for (Slot& slot : impl_.slots) {
        if (has_master(impl_, slot)) refresh_master(impl_, slot);
        values.push_back((has_master(impl_, slot) ? slot.master : slot.param).detach().to(dtype_).flatten());
    }
    x_ = cat(values);
    for (Tensors* const list : {&history_.gradient_changes, &history_.moves, &history_.inverse_products})
        for (Tensor& x : *list) x = x.to(device).to(dtype_);
    for (Tensor* const x : {&history_.direction, &history_.gradient, &history_.scale})
        if (x->defined()) *x = x->to(device).to(dtype_);
}

// Writes all parameters, and their masters.
void LBFGSStep::write(const Tensor& values) const {
    const NoGrad plain;
    std::int64_t offset = 0;
    for (Slot& slot : impl_.slots) {
        const std::int64_t n = slot.param.numel();
        const Tensor part = values.slice(0, offset, offset + n).reshape(slot.param.shape());
        offset += n;
        slot.param.detach().copy_(part);
        if (!has_master(impl_, slot)) continue;
        slot.master.detach().copy_(part);
        slot.master_version = slot.param.version();
    }
}

Tensor LBFGSStep::flat_gradient() const {
    const NoGrad plain;
    Tensors parts;
    for (std::size_t i = 0; i < impl_.slots.size(); ++i) {
        const Tensor& param = impl_.slots[i].param;
        check(!param->grads().gradient.has_scale_state(scaled_part), ErrorKind::state,
              "LBFGS.step: the gradient of ", impl_.describe(i),
              " is scaled; call backward() on the loss itself: LBFGS does not work with a GradScaler");
        const Tensor gradient = param.grad();
        parts.push_back(gradient.defined()
                            ? gradient.detach().to(dtype_).flatten()
                            : zeros({param.numel()}, {.dtype = dtype_, .device = param.device()}));
    }
    const Tensor all = cat(parts);
    return option("maximize") != 0 ? -all : all;
}

// Calls the closure. Returns the loss, and stores it in first_ if it is the first.
double LBFGSStep::evaluate() {
    const EnableGrad recorded;
    const Tensor loss = closure_();
    check(loss.defined() && loss.numel() == 1, ErrorKind::value,
          "LBFGS.step: the closure must return the loss, one number");
    if (!first_.defined()) first_ = loss.detach();
    ++evaluations_;
    ++history_.evaluations;
    const double value = loss.detach().item<double>();
    return option("maximize") != 0 ? -value : value;
}

// A point of the line search. A loss or slope that is not a number is as high as infinity.
Point LBFGSStep::point(double length) {
    write(x_ + history_.direction * length);
    const double loss = evaluate();
    const Tensor gradient = flat_gradient();
    const double slope = dot(gradient, history_.direction).item<double>();
    const bool number = !std::isnan(loss) && !std::isnan(slope);
    return {length, number ? loss : std::numeric_limits<double>::infinity(), gradient, slope};
}

// Adds the last iteration to the history, unless the curvature along it is not positive.
void LBFGSStep::remember() {
    LBFGS::History& h = history_;
    const Tensor change = gradient_ - h.gradient, move = h.direction * h.length;
    const Tensor curvature = dot(change, move);
    if (!(curvature.item<double>() > 1e-10)) return;
    while (double(h.moves.size()) >= option("history_size")) {
        h.gradient_changes.erase(h.gradient_changes.begin());
        h.moves.erase(h.moves.begin());
        h.inverse_products.erase(h.inverse_products.begin());
    }
    h.gradient_changes.push_back(change);
    h.moves.push_back(move);
    h.inverse_products.push_back(1.0 / curvature);
    h.scale = curvature / dot(change, change);
}

// The product of the approximate inverse Hessian and the negative gradient (the two loops of Nocedal and
// Wright, algorithm 7.4).
Tensor LBFGSStep::direction() {
    const LBFGS::History& h = history_;
    Tensor q = -gradient_;
    Tensors alpha(h.moves.size());
    for (std::size_t i = h.moves.size(); i-- > 0;) {
        alpha[i] = dot(h.moves[i], q) * h.inverse_products[i];
        q = q - alpha[i] * h.gradient_changes[i];
    }
    if (h.scale.defined()) q = q * h.scale;
    for (std::size_t i = 0; i < h.moves.size(); ++i)
        q = q + (alpha[i] - dot(h.gradient_changes[i], q) * h.inverse_products[i]) * h.moves[i];
    return q;
}

// One iteration. Returns whether there is reason for another one.
bool LBFGSStep::advance(bool last) {
    LBFGS::History& h = history_;
    const double tolerance = option("tolerance_change"), lr = optimizer_.lr();
    if (++h.iterations > 1) remember();
    h.direction = direction();
    h.gradient = gradient_;
    const double before = loss_;
    h.length = h.iterations > 1 ? lr : std::min(1.0, 1 / sum(abs(gradient_)).item<double>()) * lr;
    const double slope = dot(gradient_, h.direction).item<double>();
    if (slope > -tolerance) return false;
    if (option("line_search_fn") != 0) {
        const auto at = [this](double length) { return point(length); };
        WolfeSearch search({0, loss_, gradient_, slope}, largest(h.direction), tolerance, budget(), at);
        const Point found = search.run(h.length);
        h.length = found.length;
        loss_ = found.loss;
        gradient_ = found.gradient;
        x_ = x_ + h.direction * h.length;
        write(x_);
    } else {
        const Tensor next = x_ + h.direction * h.length;
        write(next);
        if (!last) {  // nothing reads a loss after the last iteration
            loss_ = evaluate();
            gradient_ = flat_gradient();
        }
        x_ = next;
    }
    return !last && budget() > 0 && !(largest(gradient_) <= option("tolerance_grad")) &&
           !(largest(h.direction * h.length) <= tolerance) && !(std::abs(loss_ - before) < tolerance);
}

void LBFGSStep::count(bool applied) const {
    const auto add = [&](std::size_t offset) {
        impl_.state.select(0, std::int64_t(offset / sizeof(float)))
            .add_(scalar(1, {.device = impl_.device()}));
    };
    add(applied ? offsetof(StepState, applied) : offsetof(StepState, skipped));
    if (applied) impl_.steps.add_(scalar(1, {.device = impl_.device()}));
    if (!impl_.counts_on_device) ++(applied ? impl_.applied : impl_.skipped);
    end_step(impl_);
}

void LBFGSStep::iterate() {
    if (largest(gradient_) <= option("tolerance_grad")) return;
    const double iterations = option("max_iter");
    const NoGrad plain;
    for (double i = 1; i <= iterations; ++i)
        if (!advance(i == iterations)) break;
}

Tensor LBFGSStep::run() {
    const Tensor before = x_;
    prepare_state(impl_);
    bool finite = false;
    try {
        loss_ = evaluate();
        gradient_ = flat_gradient();
        finite = std::isfinite(loss_) && std::isfinite(largest(gradient_));
        if (finite) iterate();
    } catch (...) {
        write(before);
        throw;
    }
    count(finite);
    if (finite) optimizer_.history_ = std::move(history_);
    return first_;
}

LBFGS::LBFGS(const Tensors& params, const LBFGSOptions& options)
    : CustomOptimizer(make(params, options, {})) {}
LBFGS::LBFGS(const StateDict& named_params, const LBFGSOptions& options)
    : CustomOptimizer(make({}, options, named_params)) {}

Tensor LBFGS::step(const autograd::Callback<Tensor()>& closure) {
    const insight::RecordFunction scope("LBFGS.step");
    refuse_in_capture("LBFGS.step", "read the loss");
    return LBFGSStep(*this, closure).run();
}

void LBFGS::update(ParameterUpdate&) {
    fail(ErrorKind::state,
         "LBFGS.step: it evaluates the loss several times; call step(closure), without a GradScaler");
}

namespace {

constexpr const char* prefix = "lbfgs.";
Tensor number(double value) { return scalar(value, {.dtype = float64}); }
Tensor listed(const Tensors& list) { return list.empty() ? Tensor() : stack(list); }
Tensors rows(const Tensor& stacked) {
    Tensors result;
    for (std::int64_t i = 0; stacked.defined() && i < stacked.size(0); ++i)
        result.push_back(stacked.select(0, i).clone());
    return result;
}

}  // namespace

StateDict LBFGS::saved_state() const {
    StateDict state = CustomOptimizer::saved_state();
    const NoGrad plain;
    const auto add = [&](const char* name, const Tensor& value) {
        if (value.defined()) state.emplace_back(prefix + std::string(name), value.detach().clone());
    };
    add("n_iter", number(double(history_.iterations)));
    add("func_evals", number(double(history_.evaluations)));
    add("t", number(history_.length));
    add("d", history_.direction);
    add("prev_flat_grad", history_.gradient);
    add("old_dirs", listed(history_.gradient_changes));
    add("old_stps", listed(history_.moves));
    add("ro", listed(history_.inverse_products));
    add("H_diag", history_.scale);
    return state;
}

namespace {

// The entries of a history, checked.
class HistoryReader {
public:
    explicit HistoryReader(const StateDict& entries) : entries_(entries) {}
    // A copy of an entry with this shape.
    Tensor tensor(const char* name, const Shape& shape) {
        const Tensor value = find(name);
        check(value.defined(), ErrorKind::value, "LBFGS.load_state_dict: ", prefix, name, " is missing");
        check(value.shape() == shape, ErrorKind::shape, "LBFGS.load_state_dict: ", prefix, name,
              " has shape ", value.shape(), "; it must be ", shape);
        check(is_floating(value.dtype()), ErrorKind::dtype, "LBFGS.load_state_dict: ", prefix, name, " is ",
              value.dtype(), "; a floating dtype is needed");
        ++read_;
        return value.detach().clone();
    }
    double number(const char* name) { return tensor(name, {}).item<double>(); }
    std::int64_t count(const char* name) {
        const double value = number(name);
        check(value >= 0 && value < 0x1p53 && value == std::floor(value), ErrorKind::value,
              "LBFGS.load_state_dict: ", prefix, name, " is ", value, "; it must be a whole number");
        return std::int64_t(value);
    }
    // The first size of an entry, 0 if there is none.
    std::int64_t rows(const char* name) const {
        const Tensor value = find(name);
        return value.defined() && value.dim() > 0 ? value.size(0) : 0;
    }
    void refuse_others() const {
        check(read_ == entries_.size(), ErrorKind::value, "LBFGS.load_state_dict: ", entries_.size() - read_,
              " entries ", prefix, "… are unknown or there twice");
    }

private:
    Tensor find(const char* name) const {
        const Tensor* const value = entries_.find(prefix + std::string(name));
        return value != nullptr ? *value : Tensor();
    }
    const StateDict& entries_;
    std::size_t read_ = 0;
};

}  // namespace

void LBFGS::restore_state(const StateDict& state) {
    const NoGrad plain;
    StateDict others, own;
    for (const auto& [name, value] : state)
        (name.starts_with(prefix) ? own : others).emplace_back(name, value);
    std::int64_t n = 0;
    for (const Slot& slot : impl().slots) n += slot.param.numel();
    HistoryReader reader(own);
    History loaded;
    loaded.iterations = reader.count("n_iter");
    loaded.evaluations = reader.count("func_evals");
    loaded.length = reader.number("t");
    if (loaded.iterations > 0) {
        loaded.direction = reader.tensor("d", {n});
        loaded.gradient = reader.tensor("prev_flat_grad", {n});
    }
    if (const std::int64_t saved = reader.rows("ro"); saved > 0) {
        loaded.gradient_changes = rows(reader.tensor("old_dirs", {saved, n}));
        loaded.moves = rows(reader.tensor("old_stps", {saved, n}));
        loaded.inverse_products = rows(reader.tensor("ro", {saved}));
        loaded.scale = reader.tensor("H_diag", {});
    }
    reader.refuse_others();
    CustomOptimizer::restore_state(others);
    history_ = std::move(loaded);
}

}  // namespace mezzo::optim
