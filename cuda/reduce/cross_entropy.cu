// Classification losses: nll_loss, cross_entropy, and their gradients. A target outside [0, classes) that is
// not the ignored class makes the loss and its row of the gradient NaN: the device cannot throw.
#include "cuda/kernels.h"
#include "cuda/reduce/reduce.cuh"
#include "cuda/reduce/rows.cuh"
#include "kernels/loss.h"
#include "mezzo/ops.h"

namespace mezzo::cuda {
namespace {

// The class of each row.
struct Targets {
    const std::int64_t* target;
    std::int64_t ignored, classes;
    __device__ bool skip(std::int64_t row) const { return target[row] == ignored; }
    __device__ bool valid(std::int64_t row) const { return target[row] >= 0 && target[row] < classes; }
};

Targets targets_of(const Tensor& target, std::int64_t ignore_index, std::int64_t classes) {
    return {static_cast<const std::int64_t*>(raw(target)), ignore_index, classes};
}

// The sum of the losses of some rows, and how many of them count.
template <class C> struct Weighted { C sum, count; };
template <class C> struct WeightedOp {
    using Acc = Weighted<C>;
    using Result = C;
    bool mean;
    __device__ Acc identity() const { return {C(0), C(0)}; }
    __device__ Acc lift(const Acc& row, std::int64_t) const { return row; }
    __device__ Acc combine(const Acc& a, const Acc& b) const { return {a.sum + b.sum, a.count + b.count}; }
    __device__ C finish(const Acc& acc) const { return mean ? acc.sum / acc.count : acc.sum; }
};

// 1 for each row that counts, else 0: the sum is the number of rows that count.
template <class C> struct LoadCounted {
    Targets targets;
    __device__ Weighted<C> operator()(std::int64_t row, std::int64_t) const {
        return {targets.skip(row) ? C(0) : C(1), C(1)};
    }
};
// One loss per row: given, or read from log-probabilities.
template <class C> struct LoadRowLoss {
    AnyArray<C> x;
    Targets targets;
    bool pick;  // x is [rows, classes] log-probabilities
    __device__ Weighted<C> operator()(std::int64_t row, std::int64_t) const {
        if (targets.skip(row)) return {C(0), C(0)};
        if (!pick) return {x.load(row), C(1)};
        if (!targets.valid(row)) return {static_cast<C>(NAN), C(1)};
        return {-x.load(row * targets.classes + targets.target[row]), C(1)};
    }
};

// No reduction: every row is an output.
ReduceShape each_row(std::int64_t rows) { return reduce_shape(Shape{rows}, {}); }

template <class C>
void reduce_losses(const LoadRowLoss<C>& load, Reduction reduction, std::int64_t rows, const Tensor& out) {
    const bool each = reduction == Reduction::none;
    reduce(load, WeightedOp<C>{reduction == Reduction::mean},
           each ? each_row(rows) : ReduceShape(reduce_all(rows)), out);
}

// Gradient with respect to the loss of a row: g / (number of rows that count) for the mean, g for the sum,
// g[row] for none.
template <class C> struct RowGradient {
    AnyArray<C> g, count;
    Reduction reduction;
    __device__ C of(std::int64_t row) const {
        if (reduction == Reduction::none) return g.load(row);
        return reduction == Reduction::mean ? g.load(0) / count.load(0) : g.load(0);
    }
};

// The number of rows that count, on the device; undefined unless the mean needs it.
template <class C>
Tensor counted_rows(Reduction reduction, const Targets& targets, std::int64_t rows, const Tensor& like) {
    if (reduction != Reduction::mean) return {};
    Tensor count = empty({}, {.dtype = dtype_of<C>(), .device = like.device()});
    reduce(LoadCounted<C>{targets}, WeightedOp<C>{false}, reduce_all(rows), count);
    return count;
}

template <class C> RowGradient<C> row_gradient(const Tensor& g, Reduction reduction, const Tensor& count) {
    return {any_of<C>(g), count.defined() ? any_of<C>(count) : AnyArray<C>{}, reduction};
}

template <class C>
__global__ void nll_grad_kernel(RowGradient<C> g, Targets targets, AnyArray<C> out, std::int64_t rows) {
    for (std::int64_t i = first_item(); i < rows * targets.classes; i += item_step()) {
        const std::int64_t row = i / targets.classes, column = i - row * targets.classes;
        C value = 0;
        if (!targets.skip(row)) {
            if (!targets.valid(row)) value = static_cast<C>(NAN);
            if (targets.target[row] == column) value = -g.of(row);
        }
        out.store(i, value);
    }
}

// loss = (1 - smoothing) (lse - x[target]) + smoothing (lse - mean(x)), lse = max + ln(sum(exp(x - max))).
// Maximum and sum are saved for the gradient separately, because their log-sum-exp would round the sum away
// where logits are large.
template <class Team, class X>
__global__ void cross_entropy_kernel(X x, Targets targets, Rows r, AnyArray<typename X::C> loss,
                                     AnyArray<typename X::C> max, AnyArray<typename X::C> sum,
                                     typename X::C smoothing) {
    using C = typename X::C;
    for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
        const std::int64_t base = r.base(row);
        const MaxSum<C> stats = max_sum<Team>(x, base, r);
        const C log_sum = log_of_sum<Team>(x, base, r, stats);
        C mean = 0;
        if (smoothing != C(0)) {
            BlockedSum<C> total;
            for (std::int64_t j = Team::rank(); j < r.cols; j += Team::size())
                total.add(x.load(base + j) - stats.max);
            mean = Team::reduce(total.get(), C(0), Sum()) / static_cast<C>(r.cols);
        }
        if (Team::rank() != 0) continue;
        max.store(row, stats.max);
        sum.store(row, stats.sum);
        C value = targets.skip(row) ? C(0) : static_cast<C>(NAN);
        if (!targets.skip(row) && targets.valid(row)) {
            value = (stats.max - x.load(base + targets.target[row])) + log_sum;
            // 0 times an infinite loss would be NaN.
            if (smoothing == C(1))
                value = log_sum - mean;
            else if (smoothing != C(0))
                value = (C(1) - smoothing) * value + smoothing * (log_sum - mean);
        }
        loss.store(row, value);
    }
}

// g (p - (1 - smoothing) [column == target] - smoothing / classes), p = exp(x - max) / sum
template <class Team, class X, class Y>
__global__ void cross_entropy_grad_kernel(RowGradient<typename X::C> g, X x, Targets targets,
                                          AnyArray<typename X::C> max, AnyArray<typename X::C> sum, Y out,
                                          Rows r, typename X::C smoothing) {
    using C = typename X::C;
    for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
        const std::int64_t base = r.base(row), target = targets.target[row];
        const bool skip = targets.skip(row);
        const C gradient = targets.valid(row) ? g.of(row) : static_cast<C>(NAN);
        const C largest = max.load(row), inverse = C(1) / sum.load(row);
        const C spread = smoothing / static_cast<C>(r.cols);
        const auto probability = [&](std::int64_t j) {
            return functors::math::exp(x.load(base + j) - largest) * inverse;
        };
        BlockedSum<C> sum_others;
        for (std::int64_t j = Team::rank(); j < r.cols; j += Team::size()) {
            if (j == target) continue;
            const C p = probability(j);
            sum_others.add(p);
            out.store(base + j, skip ? C(0) : gradient * (p - spread));
        }
        if (!targets.valid(row)) continue;
        // 1 - p of the target. Near 0 it is the sum of the other probabilities, because the difference would
        // cancel.
        C others = C(1) - probability(target);
        if (others < C(0.5)) others = Team::reduce(sum_others.get(), C(0), Sum());
        if (Team::rank() == 0)
            out.store(base + target, skip ? C(0) : gradient * ((smoothing - others) - spread));
    }
}

template <class X> void forward(const X& x, In in, const kernels::CrossEntropy& at, Out out) {
    using C = typename X::C;
    const std::int64_t rows = in[0].shape()[0], classes = in[0].shape()[1];
    const Targets targets = targets_of(in[1], at.ignore_index, classes);
    const bool each = at.reduction == Reduction::none;
    const Tensor losses = each ? out[0] : empty({rows}, {.dtype = dtype_of<C>(), .device = out[0].device()});
    const Rows r{rows, classes, 1};
    with_row_team(r, [&](auto team, unsigned grid, unsigned block) {
        launch(cross_entropy_kernel<decltype(team), X>, grid, block, 0, x, targets, r, any_of<C>(losses),
               any_of<C>(out[1]), any_of<C>(out[2]), static_cast<C>(at.label_smoothing));
    });
    if (!each) reduce_losses(LoadRowLoss<C>{any_of<C>(losses), targets, false}, at.reduction, rows, out[0]);
}

template <class X, class Y>
void backward(const X& x, const Y& y, In in, const kernels::CrossEntropyGrad& at) {
    using C = typename X::C;
    const Rows r{in[1].shape()[0], in[1].shape()[1], 1};
    const Targets targets = targets_of(in[2], at.ignore_index, r.cols);
    const Tensor count = counted_rows<C>(at.reduction, targets, r.rows, in[0]);
    const auto g = row_gradient<C>(in[0], at.reduction, count);
    with_row_team(r, [&](auto team, unsigned grid, unsigned block) {
        launch(cross_entropy_grad_kernel<decltype(team), X, Y>, grid, block, 0, g, x, targets,
               any_of<C>(in[3]), any_of<C>(in[4]), y, r, static_cast<C>(at.label_smoothing));
    });
}

template <class T> void backward_of(In in, const kernels::CrossEntropyGrad& at, Out out) {
    if (out[0].dtype() == in[1].dtype()) return backward(array_of<T>(in[1]), array_of<T>(out[0]), in, at);
    backward(array_of<T>(in[1]), any_of<Compute<T>>(out[0]), in, at);
}

template <class C> void nll_backward(In in, const kernels::NllLossGrad& at, Out out) {
    const std::int64_t rows = out[0].shape()[0], classes = at.classes;
    const Targets targets = targets_of(in[1], at.ignore_index, classes);
    const Tensor count = counted_rows<C>(at.reduction, targets, rows, in[0]);
    const auto g = row_gradient<C>(in[0], at.reduction, count);
    launch(nll_grad_kernel<C>, grid_for(rows * classes, rows_block), rows_block, 0, g, targets,
           any_of<C>(out[0]), rows);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void nll_loss(In in, const kernels::NllLoss& at, Out out) {
    use_device_of(out[0]);
    const std::int64_t rows = in[0].shape()[0];
    const Targets targets = targets_of(in[1], at.ignore_index, in[0].shape()[1]);
    with_real({in[0].dtype(), out[0].dtype()}, [&]<class C>(C) {
        reduce_losses(LoadRowLoss<C>{any_of<C>(in[0]), targets, true}, at.reduction, rows, out[0]);
    });
}

void nll_loss_grad(In in, const kernels::NllLossGrad& at, Out out) {
    use_device_of(out[0]);
    with_real({in[0].dtype(), out[0].dtype()}, [&]<class C>(C) { nll_backward<C>(in, at, out); });
}

void cross_entropy(In in, const kernels::CrossEntropy& at, Out out) {
    use_device_of(out[0]);
    if (in[0].dtype() == float64) return forward(any_of<double>(in[0]), in, at, out);
    visit_dtype<Dtypes::up_to_32bit>(
        in[0].dtype(), [&]<class T>(std::type_identity<T>) { forward(array_of<T>(in[0]), in, at, out); });
}

void cross_entropy_grad(In in, const kernels::CrossEntropyGrad& at, Out out) {
    use_device_of(out[0]);
    if (in[1].dtype() == float64) return backward(any_of<double>(in[1]), any_of<double>(out[0]), in, at);
    visit_dtype<Dtypes::up_to_32bit>(in[1].dtype(),
                                     [&]<class T>(std::type_identity<T>) { backward_of<T>(in, at, out); });
}

constinit const KernelList cross_entropy_list =
    kernel_list<nll_loss, nll_loss_grad, cross_entropy, cross_entropy_grad>;

}  // namespace mezzo::cuda_kernels
