// Connectionist temporal classification: the forward-backward algorithm of Graves et al. (ICML 2006, section
// 4), in logarithms and double. A target a b has the states
//
//   state   0  1  2  3  4
//   class   -  a  -  b  -      (-: blank)
//
// A path stays in its state, goes on by one, or skips a blank between two different labels.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/loss.h"

namespace mezzo {
namespace {

using namespace cpu;

constexpr double infinity = std::numeric_limits<double>::infinity();
using Row = std::vector<double>;

const std::int64_t* integers(const Tensor& x) {
    return x->numel ? reinterpret_cast<const std::int64_t*>(x->bytes()) : nullptr;
}

// ln(e^a + e^b + e^c)
double log_sum(double a, double b, double c) {
    if (b > a) std::swap(a, b);
    if (c > a) std::swap(a, c);
    if (a == -infinity) return a + b + c;  // NaN, if one of them is
    return a + std::log(1 + std::exp(b - a) + std::exp(c - a));
}

// The inputs of the losses, checked.
struct Batch {
    Batch(const Tensor& log_probs, const Tensor& targets, const Tensor& inputs, const Tensor& lengths,
          std::int64_t blank_class, std::int64_t width)
        : x(log_probs),
          time(x->shape[0]),
          batch(x->shape[1]),
          classes(x->shape[2]),
          blank(blank_class),
          input_length(integers(inputs)),
          target_length(integers(lengths)) {
        std::int64_t joined = 0;
        for (std::int64_t b = 0; b < batch; ++b) {
            check_length("input", b, input_length[b], time);
            check_length("target", b, target_length[b], width >= 0 ? width : targets->numel - joined);
            first.push_back(integers(targets) + (width >= 0 ? b * width : joined));
            joined += target_length[b];
            for (std::int64_t i = 0; i < target_length[b]; ++i)
                check(first[std::size_t(b)][i] >= 0 && first[std::size_t(b)][i] < classes, ErrorKind::value,
                      "ctc_loss: target ", first[std::size_t(b)][i], " at position ", i, " of sequence ", b,
                      " is not one of the ", classes, " classes");
        }
        check(width >= 0 || joined == targets->numel, ErrorKind::value,
              "ctc_loss: the target lengths add up to ", joined, ", but there are ", targets->numel,
              " targets");
    }
    static void check_length(const char* what, std::int64_t b, std::int64_t length, std::int64_t most) {
        check(length >= 0 && length <= most, ErrorKind::value, "ctc_loss: ", what, " length ", length,
              " of sequence ", b, " is outside [0, ", most, "]");
    }

    // The index of a class's logarithm at a time.
    std::int64_t place(std::int64_t t, std::int64_t b, std::int64_t c) const {
        return (t * batch + b) * classes + c;
    }

    const Tensor& x;
    std::int64_t time, batch, classes, blank;
    const std::int64_t *input_length, *target_length;
    std::vector<const std::int64_t*> first;  // per sequence: its targets
};

// One sequence of the batch.
class Sequence {
public:
    Sequence(const Batch& all, std::int64_t b)
        : all_(all),
          b_(b),
          steps(all.input_length[b]),
          states(2 * all.target_length[b] + 1),
          target_(all.first[std::size_t(b)]) {}

    std::int64_t class_of(std::int64_t s) const { return s % 2 ? target_[s / 2] : all_.blank; }
    double log_prob(std::int64_t t, std::int64_t s) const {
        return real_at(all_.x, all_.place(t, b_, class_of(s)));
    }
    // Whether a path may go from state s - 2 to s.
    bool skips_to(std::int64_t s) const {
        return s % 2 && s >= 3 && s < states && target_[s / 2] != target_[s / 2 - 1];
    }

    // Logarithms of the probability of being in each state at time t, after the steps up to it. before: those
    // of t - 1.
    void forward(std::int64_t t, const double* before, double* now) const {
        for (std::int64_t s = 0; s < states; ++s) {
            double sum = s < 2 ? 0 : -infinity;
            if (t > 0)
                sum = log_sum(before[s], s > 0 ? before[s - 1] : -infinity,
                              skips_to(s) ? before[s - 2] : -infinity);
            now[s] = log_prob(t, s) + sum;
        }
    }
    // The same from the end: of the steps from time t on, for paths in each state at t. behind: those of
    // t + 1.
    void backward(std::int64_t t, const double* behind, double* now) const {
        for (std::int64_t s = 0; s < states; ++s) {
            double sum = s >= states - 2 ? 0 : -infinity;
            if (t + 1 < steps)
                sum = log_sum(behind[s], s + 1 < states ? behind[s + 1] : -infinity,
                              skips_to(s + 2) ? behind[s + 2] : -infinity);
            now[s] = log_prob(t, s) + sum;
        }
    }
    // The loss, from the forward variables of the last step.
    double loss(const double* last) const {
        if (steps == 0) return states == 1 ? 0 : infinity;
        return -log_sum(last[states - 1], states > 1 ? last[states - 2] : -infinity, -infinity);
    }

private:
    const Batch& all_;
    std::int64_t b_;

public:
    const std::int64_t steps, states;

private:
    const std::int64_t* target_;
};

double loss_of(const Sequence& one) {
    Row before(std::size_t(one.states)), now(std::size_t(one.states));
    for (std::int64_t t = 0; t < one.steps; ++t) {
        one.forward(t, before.data(), now.data());
        before.swap(now);
    }
    return one.loss(before.data());
}

// Writes g (e^log_probs - p), p the probability of each class at each time, given the target.
void write_gradient(const Batch& all, std::int64_t b, double g, const Tensor& y) {
    const Sequence one(all, b);
    const std::int64_t steps = g == 0 ? 0 : one.steps;
    for (std::int64_t t = steps; t < all.time; ++t)
        for (std::int64_t c = 0; c < all.classes; ++c) store_real(y, all.place(t, b, c), 0);
    if (steps == 0) return;
    Row forward(std::size_t(steps * one.states));
    for (std::int64_t t = 0; t < steps; ++t)
        one.forward(t, forward.data() + std::max<std::int64_t>(t - 1, 0) * one.states,
                    forward.data() + t * one.states);
    const double loss = one.loss(forward.data() + (steps - 1) * one.states);
    Row behind(std::size_t(one.states)), now(std::size_t(one.states)), p(std::size_t(all.classes));
    for (std::int64_t t = steps - 1; t >= 0; --t) {
        one.backward(t, behind.data(), now.data());
        std::fill(p.begin(), p.end(), loss == infinity ? std::numeric_limits<double>::quiet_NaN() : 0);
        const double* const before = forward.data() + t * one.states;
        for (std::int64_t s = 0; s < one.states; ++s)
            if (before[s] != -infinity && now[std::size_t(s)] != -infinity)  // both have the factor log_prob
                p[std::size_t(one.class_of(s))] +=
                    std::exp(before[s] + now[std::size_t(s)] - one.log_prob(t, s) + loss);
        for (std::int64_t c = 0; c < all.classes; ++c) {
            const std::int64_t at = all.place(t, b, c);
            store_real(y, at, g * (std::exp(real_at(all.x, at)) - p[std::size_t(c)]));
        }
        behind.swap(now);
    }
}

}  // namespace

namespace cpu_kernels {

void ctc_loss(In in, const kernels::CtcLoss& at, Out out) {
    const Batch all(in[0], in[1], in[2], in[3], at.blank, at.width);
    parallel_for(all.batch, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) store_real(out[0], b, loss_of(Sequence(all, b)));
    });
}

void ctc_loss_grad(In in, const kernels::CtcLossGrad& at, Out out) {
    const Batch all(in[1], in[2], in[3], in[4], at.blank, at.width);
    parallel_for(all.batch, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) write_gradient(all, b, real_at(in[0], b), out[0]);
    });
}

constinit const KernelList ctc_list = kernel_list<ctc_loss, ctc_loss_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
