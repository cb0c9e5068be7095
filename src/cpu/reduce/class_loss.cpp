// Losses over class indices: negative log likelihood and cross entropy with ignored rows and label smoothing
// as in torch.nn.functional. A mean is over the rows that are not ignored; if all are, it is NaN.
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/loss.h"

namespace mezzo {
namespace {

using namespace cpu;

struct Targets {
    const std::int64_t* index;
    std::int64_t rows, classes, ignored, counted = 0;
    bool ignores(std::int64_t row) const { return index[row] == ignored; }

    // Throws Error(value), before anything is written, if a target that is not ignored is no class.
    Targets(const char* op, const Tensor& target, std::int64_t class_count, std::int64_t ignore_index)
        : index(target->numel ? reinterpret_cast<const std::int64_t*>(target->bytes()) : nullptr),
          rows(target->numel),
          classes(class_count),
          ignored(ignore_index) {
        for (std::int64_t row = 0; row < rows; ++row) {
            if (ignores(row)) continue;
            check(index[row] >= 0 && index[row] < classes, ErrorKind::value, op, ": target ", index[row],
                  " in row ", row, " is not a class; there are ", classes, " classes, so targets are 0 to ",
                  classes - 1, " or ignore_index ", ignored);
            ++counted;
        }
    }
};

// A row of x as T, as stored or in a thread-local buffer.
template <class T> const T* read_row(const Tensor& x, std::int64_t row, std::int64_t classes) {
    const char* from = x->bytes() + row * classes * std::int64_t(size_of(x->dtype));
    if (x->dtype == dtype_of<T>()) return reinterpret_cast<const T*>(from);
    thread_local std::vector<T> memory;
    memory.resize(std::size_t(classes));
    convert(from, x->dtype, memory.data(), dtype_of<T>(), classes);
    return memory.data();
}

// Calls fill(row, to) with room for a row of T and stores it as y's dtype.
template <class T, class F>
void write_row(const Tensor& y, std::int64_t row, std::int64_t classes, const F& fill) {
    char* to = y->bytes() + row * classes * std::int64_t(size_of(y->dtype));
    if (y->dtype == dtype_of<T>()) return fill(reinterpret_cast<T*>(to));
    thread_local std::vector<T> memory;
    memory.resize(std::size_t(classes));
    fill(memory.data());
    convert(memory.data(), dtype_of<T>(), to, y->dtype, classes);
}

void store_reduced(const std::vector<double>& losses, const Targets& targets, Reduction reduction,
                   const Tensor& y) {
    if (reduction == Reduction::none) {
        const Sink sink(y, float64);
        for (std::int64_t i = 0; i < targets.rows; i += chunk)
            sink.store(i, targets.rows - i < chunk ? targets.rows - i : chunk, losses.data() + i);
        return;
    }
    double total = 0;
    for (const double loss : losses) total += loss;
    if (reduction == Reduction::mean) total /= double(targets.counted);
    Sink(y, float64).store(0, 1, &total);
}

// The gradient of one row's loss: that of the result, for a mean divided by the number of rows that count.
double row_gradient(const Tensor& g, const Targets& targets, Reduction reduction, std::int64_t row) {
    double value = 0;
    const std::int64_t at = reduction == Reduction::none ? row * std::int64_t(size_of(g->dtype)) : 0;
    convert(g->bytes() + at, g->dtype, &value, float64, 1);
    return reduction == Reduction::mean ? value / double(targets.counted) : value;
}

double element(const Tensor& x, std::int64_t i) {
    double value = 0;
    convert(x->bytes() + i * std::int64_t(size_of(x->dtype)), x->dtype, &value, float64, 1);
    return value;
}

// The mean of x - shift. It is subtracted from each element first: in a sum of large numbers the differences
// would be rounded away.
template <class T> double shifted_mean(const T* x, std::int64_t n, T shift) {
    Chunk buffer;
    double total = 0;
    for (std::int64_t i = 0; i < n; i += chunk) {
        const std::int64_t count = n - i < chunk ? n - i : chunk;
        active_loops().unary[int(UnaryOp::add_scalar)][int(compute_for(dtype_of<T>()))](
            buffer.bytes, x + i, count, -double(shift), 0);
        total += real_loops<T>().sum(buffer.as<T>(), count);
    }
    return total / double(n);
}

// loss = lse - (1 - s) x[target] - s mean(x), lse = ln sum e^x, s the smoothing. The largest logit and the
// sum of e^(x - largest) are two results for the gradient: combined to lse, large logits would round the sum
// away.
template <class T> void cross_entropy_of(In in, const kernels::CrossEntropy& at, Out out) {
    const Tensor& x = in[0];
    const std::int64_t classes = x->shape[1];
    const Targets targets("cross_entropy", in[1], classes, at.ignore_index);
    const RealLoops<T>& loops = real_loops<T>();
    std::vector<double> losses(static_cast<std::size_t>(targets.rows)), maxima(losses.size()),
        sums(losses.size());
    for_rows(targets.rows, classes, [&](std::int64_t row) {
        const T* p = read_row<T>(x, row, classes);
        const T largest = loops.max(p, classes);
        const double total = loops.exp_sum(nullptr, p, classes, largest);
        const double log_sum = log_of_exp_sum(p, classes, largest, total);
        maxima[std::size_t(row)] = double(largest);
        sums[std::size_t(row)] = total;
        double& loss = losses[std::size_t(row)];
        if (targets.ignores(row)) return;
        loss = (double(largest) - double(p[targets.index[row]])) + log_sum;
        if (at.label_smoothing != 0) {
            const double smooth = log_sum - shifted_mean(p, classes, largest);
            loss = at.label_smoothing == 1  // 0 times an infinite loss would be NaN
                       ? smooth
                       : (1 - at.label_smoothing) * loss + at.label_smoothing * smooth;
        }
    });
    store_reduced(losses, targets, at.reduction, out[0]);
    store_reduced(maxima, targets, Reduction::none, out[1]);
    store_reduced(sums, targets, Reduction::none, out[2]);
}

// (softmax(x) - (1 - s) [i == target] - s / classes) g
template <class T> void cross_entropy_grad_of(In in, const kernels::CrossEntropyGrad& at, Out out) {
    const Tensor& x = in[1];
    const std::int64_t classes = x->shape[1];
    const Targets targets("cross_entropy", in[2], classes, at.ignore_index);
    const Loops& all = active_loops();
    const int compute = int(compute_for(dtype_of<T>()));
    for_rows(targets.rows, classes, [&](std::int64_t row) {
        write_row<T>(out[0], row, classes, [&](T* to) {
            if (targets.ignores(row)) {
                for (std::int64_t i = 0; i < classes; ++i) to[i] = 0;
                return;
            }
            const T g = T(row_gradient(in[0], targets, at.reduction, row));
            const T* p = read_row<T>(x, row, classes);
            real_loops<T>().exp_sum(to, p, classes, T(element(in[3], row)));
            const std::int64_t target = targets.index[row];
            const double total = element(in[4], row);
            // 1 - p of the target. Near 0 it is the sum of the other probabilities, because the difference
            // would cancel.
            double others = 1 - double(to[target]) / total;
            if (others < 0.5) {
                others = real_loops<T>().sum(to, target);
                others += real_loops<T>().sum(to + target + 1, classes - target - 1);
                others /= total;
            }
            all.unary[int(UnaryOp::mul_scalar)][compute](to, to, classes, double(g) / total, 0);
            to[target] = T(double(g) * (at.label_smoothing - others));
            if (at.label_smoothing != 0)
                all.unary[int(UnaryOp::add_scalar)][compute](
                    to, to, classes, -double(g) * at.label_smoothing / double(classes), 0);
        });
    });
}

}  // namespace

namespace cpu_kernels {

void nll_loss(In in, const kernels::NllLoss& at, Out out) {
    const std::int64_t classes = in[0]->shape[1];
    const Targets targets("nll_loss", in[1], classes, at.ignore_index);
    std::vector<double> losses(static_cast<std::size_t>(targets.rows));
    for (std::int64_t row = 0; row < targets.rows; ++row)
        if (!targets.ignores(row))
            losses[std::size_t(row)] = -element(in[0], row * classes + targets.index[row]);
    store_reduced(losses, targets, at.reduction, out[0]);
}

void nll_loss_grad(In in, const kernels::NllLossGrad& at, Out out) {
    const std::int64_t classes = at.classes;
    const Targets targets("nll_loss", in[1], classes, at.ignore_index);
    for_rows(targets.rows, classes, [&](std::int64_t row) {
        write_row<double>(out[0], row, classes, [&](double* to) {
            for (std::int64_t i = 0; i < classes; ++i) to[i] = 0;
            if (!targets.ignores(row))
                to[targets.index[row]] = -row_gradient(in[0], targets, at.reduction, row);
        });
    });
}

void cross_entropy(In in, const kernels::CrossEntropy& at, Out out) {
    with_real(in[0]->dtype, [&]<class T>(T) { cross_entropy_of<T>(in, at, out); });
}

void cross_entropy_grad(In in, const kernels::CrossEntropyGrad& at, Out out) {
    with_real(in[1]->dtype, [&]<class T>(T) { cross_entropy_grad_of<T>(in, at, out); });
}

constinit const KernelList class_loss_list =
    kernel_list<nll_loss, nll_loss_grad, cross_entropy, cross_entropy_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
