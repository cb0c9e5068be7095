// Element-wise losses and their gradients with reduction none, mean or sum. Partial sums are those of fixed
// chunks and are added up in order, in double, so that any number of threads gives the same bits.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/loss.h"

namespace mezzo {
namespace {

using namespace cpu;

// Computes a loss; only smooth_l1 and huber read beta.
template <class T> void loss(LossOp op, In in, Reduction reduction, double beta, Out out) {
    const Tensor& y = out[0];
    const Shape& shape = in[0]->shape;
    const std::int64_t numel = in[0]->numel;
    const Source x(in[0], shape, dtype_of<T>()), target(in[1], shape, dtype_of<T>());
    const RealLoops<T>& loops = real_loops<T>();
    const auto values = [&](std::int64_t begin, std::int64_t n, T* to) {
        Chunk buffer_x, buffer_t;
        loops.loss[int(op)](to, x.template read_as<T>(begin, n, buffer_x),
                            target.template read_as<T>(begin, n, buffer_t), n, T(beta));
    };
    if (reduction == Reduction::none) {
        const Sink sink(y, dtype_of<T>());
        for_chunks(numel, [&](std::int64_t begin, std::int64_t n) {
            Chunk buffer;
            values(begin, n, sink.template open_as<T>(begin, buffer));
            sink.finish(begin, n, buffer);
        });
        return;
    }
    const std::int64_t chunks = (numel + chunk - 1) / chunk;
    std::vector<double> partial(static_cast<std::size_t>(chunks));
    parallel_for(chunks, grain / chunk, [&](std::int64_t first, std::int64_t last) {
        Chunk buffer;
        for (std::int64_t i = first; i < last; ++i) {
            const std::int64_t n = numel - i * chunk < chunk ? numel - i * chunk : chunk;
            values(i * chunk, n, buffer.as<T>());
            partial[std::size_t(i)] = loops.sum(buffer.as<T>(), n);
        }
    });
    double total = 0;
    for (const double value : partial) total += value;
    if (reduction == Reduction::mean) total /= double(numel);
    Sink(y, float64).store(0, 1, &total);
}

template <class T> void loss_grad(LossOp op, In in, Reduction reduction, double beta, Out out) {
    const Shape& shape = in[1]->shape;
    const std::int64_t numel = in[1]->numel;
    const Source g(in[0], shape, dtype_of<T>());
    const Source x(in[1], shape, dtype_of<T>()), target(in[2], shape, dtype_of<T>());
    const Sink sink(out[0], dtype_of<T>());
    const double divisor = reduction == Reduction::mean ? double(numel) : 1.0;
    const double slopes = op == LossOp::mse ? 2 : 1;  // the loops of mse give half of its derivative
    const RealLoops<T>& loops = real_loops<T>();
    const Compute compute = compute_for(dtype_of<T>());
    const Loops& all = active_loops();
    for_chunks(numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer_x, buffer_t;
        const T* from = x.template read_as<T>(begin, n, buffer_x);
        const T* wanted = target.template read_as<T>(begin, n, buffer_t);
        T* const to = sink.template open_as<T>(begin, buffer_x);
        loops.loss_grad[int(op)](to, from, wanted, n, T(beta));
        if (g.single() || numel == 1) {
            T factor = *static_cast<const T*>(g.single() ? g.value() : g.read(0, 1, buffer_t));
            const double scale = double(factor) / divisor;
            // A factor that leaves the range when doubled is applied in two steps.
            const bool twice = std::abs(scale) > double(std::numeric_limits<T>::max()) / 2;
            factor = T(twice ? scale : scale * slopes);
            all.binary[int(BinaryOp::mul)][int(compute)](to, to, &factor, n, Single::b);
            if (twice) all.unary[int(UnaryOp::mul_scalar)][int(compute)](to, to, n, slopes, 0);
        } else {
            const T* factors = g.template read_as<T>(begin, n, buffer_t);
            all.binary[int(BinaryOp::mul)][int(compute)](to, to, factors, n, Single::none);
            const double scale = slopes / divisor;
            if (scale != 1) all.unary[int(UnaryOp::mul_scalar)][int(compute)](to, to, n, scale, 0);
        }
        sink.finish(begin, n, buffer_x);
    });
}

// Throws Error(value), before anything is written, if an element is outside [0, 1]. NaN is let through.
template <class T> void check_probabilities(const Tensor& x) {
    const Source source(x, x->shape, dtype_of<T>());
    for_chunks(x->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer;
        const T* const values = source.template read_as<T>(begin, n, buffer);
        bool outside = false;
        for (std::int64_t i = 0; i < n; ++i) outside |= values[i] < T(0) || values[i] > T(1);
        for (std::int64_t i = 0; outside && i < n; ++i)
            check(!(values[i] < T(0) || values[i] > T(1)), ErrorKind::value, "binary_cross_entropy: input ",
                  values[i], " at element ", begin + i,
                  " is no probability; it must be between 0 and 1, or use binary_cross_entropy_with_logits");
    });
}

void run_loss(LossOp op, In in, Reduction reduction, double beta, Out out) {
    with_real(promote(promote(in[0]->dtype, in[1]->dtype), out[0]->dtype),
              [&]<class T>(T) { loss<T>(op, in, reduction, beta, out); });
}
void run_loss_grad(LossOp op, In in, Reduction reduction, double beta, Out out) {
    with_real(promote(promote(in[1]->dtype, in[2]->dtype), out[0]->dtype),
              [&]<class T>(T) { loss_grad<T>(op, in, reduction, beta, out); });
}

template <LossOp op, class A> void forward(In in, const A& at, Out out) {
    if constexpr (op == LossOp::bce)
        with_real(in[0]->dtype, [&]<class T>(T) { check_probabilities<T>(in[0]); });
    run_loss(op, in, at.reduction, beta_of(at), out);
}
template <LossOp op, class A> void backward(In in, const A& at, Out out) {
    run_loss_grad(op, in, at.reduction, beta_of(at), out);
}

}  // namespace

namespace cpu_kernels {

using namespace kernels;

constinit const KernelList loss_list =
    kernel_list<forward<LossOp::mse, MseLoss>, backward<LossOp::mse, MseLossGrad>,
                forward<LossOp::l1, L1Loss>, backward<LossOp::l1, L1LossGrad>,
                forward<LossOp::smooth_l1, SmoothL1Loss>, backward<LossOp::smooth_l1, SmoothL1LossGrad>,
                forward<LossOp::huber, HuberLoss>, backward<LossOp::huber, HuberLossGrad>,
                forward<LossOp::bce, BinaryCrossEntropy>, backward<LossOp::bce, BinaryCrossEntropyGrad>,
                forward<LossOp::bce_with_logits, BinaryCrossEntropyWithLogits>,
                backward<LossOp::bce_with_logits, BinaryCrossEntropyWithLogitsGrad>>;

}  // namespace cpu_kernels
}  // namespace mezzo
