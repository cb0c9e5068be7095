// Normalisation of rows and its gradients, in one pass over memory: a row, or its converted copy, is computed
// while it is in the L1 cache. The gradients of weight and bias are partial sums over blocks of rows, whose
// size depends on the shape only, added up in order: any number of threads gives the same bits.
#include <cmath>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/norm.h"

namespace mezzo {
namespace {

using namespace cpu;

// The rows of a contiguous matrix as T, directly or through scratch memory.
template <class T> class RowsOf {
public:
    RowsOf(const Tensor& x, std::int64_t cols, int slot)
        : base_(x->numel ? x->bytes() : nullptr),
          dtype_(x->dtype),
          cols_(cols),
          slot_(slot),
          direct_(x->dtype == dtype_of<T>()) {}
    const T* read(std::int64_t row) const {
        if (direct_) return reinterpret_cast<const T*>(at(row));
        T* const values = scratch<T>(cols_, slot_);
        convert(at(row), dtype_, values, dtype_of<T>(), cols_);
        return values;
    }
    // The memory to compute a row in; write() then stores it.
    T* open(std::int64_t row) const {
        return direct_ ? reinterpret_cast<T*>(at(row)) : scratch<T>(cols_, slot_);
    }
    void write(std::int64_t row, const T* values) const {
        if (!direct_) convert(values, dtype_of<T>(), at(row), dtype_, cols_);
    }
    // Writes a row that write() has stored to another matrix.
    void copy(std::int64_t row, const Tensor& to) const {
        const std::int64_t place = row * cols_ * std::int64_t(size_of(to->dtype));
        convert(at(row), dtype_, to->bytes() + place, to->dtype, cols_);
    }

private:
    char* at(std::int64_t row) const { return base_ + row * cols_ * std::int64_t(size_of(dtype_)); }
    char* base_;
    Dtype dtype_;
    std::int64_t cols_;
    int slot_;
    bool direct_;
};

// A vector as T, converted once; null if it is undefined.
template <class T> class VectorOf {
public:
    explicit VectorOf(const Tensor& x) {
        if (!x.defined() || x->numel == 0) return;
        values_ = reinterpret_cast<const T*>(x->bytes());
        if (x->dtype == dtype_of<T>()) return;
        own_.resize(std::size_t(x->numel));
        convert(x->bytes(), x->dtype, own_.data(), dtype_of<T>(), x->numel);
        values_ = own_.data();
    }
    const T* get() const { return values_; }

private:
    std::vector<T> own_;
    const T* values_ = nullptr;
};

struct Matrix {
    std::int64_t rows, cols;
    explicit Matrix(const Tensor& x) : rows(1), cols(x->shape.back()) {
        for (int d = 0; d + 1 < x->shape.size(); ++d) rows *= x->shape[d];
    }
};

struct Forward {
    bool centred;
    double eps;
};
// Inputs x, weight [, bias] -> y = norm(x) [, mean (if centred), rstd].
template <class T> void norm_rows(const Forward& f, In in, Out out) {
    const Tensor copy = kernels::taken_copy(out);
    const Matrix m(in[0]);
    const RowsOf<T> x(in[0], m.cols, 0), y(out[0], m.cols, 1);
    const VectorOf<T> weight(in[1]), bias(f.centred ? in[2] : Tensor());
    for_rows(m.rows, m.cols, [&](std::int64_t row) {
        NormLoop<T> loop{y.open(row), x.read(row), weight.get(), bias.get(), m.cols, f.eps, f.centred, 0, 0};
        real_loops<T>().norm_row(loop);
        y.write(row, loop.y);
        if (copy.defined()) y.copy(row, copy);
        if (out.size() < 2) return;
        if (f.centred) store_real(out[1], row, loop.mean);
        store_real(out.back(), row, loop.rstd);
    });
}

// Dropout of the rows of a matrix, by the random stream of core/philox.h.
struct Dropout {
    double p;
    std::uint64_t seed, offset;
    Dropout(double probability, const RandomState& stream)
        : p(probability), seed(stream.seed), offset(stream.offset) {}

    // dst = dropout(x + bias) + residual for one row.
    template <class T> void sum(T* dst, const T* x, const T* bias, const T* residual, std::int64_t row,
                                std::int64_t cols) const {
        std::uint32_t
            words[chunk / 2 + 4];  // half a word per element, and the start of the first one's block
        const auto threshold = std::uint32_t(std::lround(p * 65536.0));
        for (std::int64_t begin = 0; begin < cols; begin += chunk) {
            const std::int64_t n = cols - begin < chunk ? cols - begin : chunk;
            const std::int64_t first = row * cols + begin, skipped = first % 8;
            if (p > 0)
                active_loops().philox_blocks(words, seed, offset + std::uint64_t(first / 8),
                                             (skipped + n + 7) / 8);
            real_loops<T>().dropped_sum({dst + begin, x + begin, bias ? bias + begin : nullptr,
                                         residual ? residual + begin : nullptr, n, p > 0 ? words : nullptr,
                                         skipped, threshold, T(1 / (1 - p))});
        }
    }
};

// Inputs weight, x, x_bias, residual, bias -> y [, z, mean, rstd].
template <class T> void dropout_norm_rows(In in, const kernels::DropoutAddLayerNorm& at, Out out) {
    const Tensor copy = kernels::taken_copy(out);
    const Matrix m(in[1]);
    const Dropout dropout(at.dropout_p, at.stream);
    const bool recorded = out.size() > 1;
    const RowsOf<T> x(in[1], m.cols, 0), residual(in[3], m.cols, 1), y(out[0], m.cols, 2);
    const RowsOf<T> z(out[recorded], m.cols, 3);
    const VectorOf<T> weight(in[0]), x_bias(in[2]), bias(in[4]);
    for_rows(m.rows, m.cols, [&](std::int64_t row) {
        T* const sum = recorded ? z.open(row) : scratch<T>(m.cols, 3);
        dropout.sum(sum, x.read(row), x_bias.get(), residual.read(row), row, m.cols);
        NormLoop<T> loop{y.open(row), sum, weight.get(), bias.get(), m.cols, at.eps, true, 0, 0};
        real_loops<T>().norm_row(loop);
        y.write(row, loop.y);
        if (copy.defined()) y.copy(row, copy);
        if (!recorded) return;
        z.write(row, sum);
        store_real(out[2], row, loop.mean);
        store_real(out[3], row, loop.rstd);
    });
}

// Sums over the rows of a matrix, of `count` vectors at once, as partial sums per block of rows.
template <class T> class ColumnSums {
public:
    ColumnSums(const Matrix& m, int count)
        : m_(m), width_(m.cols * count), height_(16384 / (m.cols + 1)), sums_() {
        height_ = height_ < 16 ? 16 : height_ > 256 ? 256 : height_;
        blocks_ = (m.rows + height_ - 1) / height_;
        sums_.resize(std::size_t(blocks_ * width_));
    }
    // Calls body(row, sums) for all rows, which adds the row's values to `sums`.
    template <class F> void for_rows(const F& body) {
        parallel_for(blocks_, grain / 4 / (height_ * m_.cols + 1) + 1,
                     [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t row = begin * height_; row < end * height_ && row < m_.rows; ++row)
                             body(row, sums_.data() + row / height_ * width_);
                     });
    }
    // Stores vector i of the sums to y.
    void store(int i, const Tensor& y) const {
        const Sink sink(y, float64);
        parallel_for(m_.cols, grain / (blocks_ + 1) + 1, [&](std::int64_t first, std::int64_t last) {
            Chunk buffer;
            double* const total = buffer.as<double>();
            for (std::int64_t begin = first; begin < last; begin += chunk) {
                const std::int64_t n = last - begin < chunk ? last - begin : chunk;
                for (std::int64_t j = 0; j < n; ++j) total[j] = 0;
                real_loops<T>().add_to_double(total, sums_.data() + i * m_.cols + begin, blocks_, width_, n);
                sink.store(begin, n, total);
            }
        });
    }

private:
    Matrix m_;
    std::int64_t width_, height_, blocks_;
    std::vector<T> sums_;
};

// Inputs g, x, weight, [mean,] rstd, waiting -> gradients of x, weight [, bias].
template <class T> void norm_grad(In in, Out out, bool centred) {
    const Matrix m(in[1]);
    const bool added = in.back().defined();
    const Tensor &rstd = in[in.size() - 2], &more = added ? in.back() : out[0];
    const RowsOf<T> g(in[0], m.cols, 0), x(in[1], m.cols, 1), dx(out[0], m.cols, 2), waiting(more, m.cols, 3);
    const VectorOf<T> weight(in[2]);
    const BinaryLoop add = active_loops().binary[int(BinaryOp::add)][int(compute_for(dtype_of<T>()))];
    ColumnSums<T> sums(m, centred ? 2 : 1);
    sums.for_rows([&](std::int64_t row, T* sum) {
        const double mean = centred ? real_at(in[3], row) : 0;
        const NormGradLoop<T> loop{dx.open(row), sum,         centred ? sum + m.cols : nullptr,
                                   g.read(row),  x.read(row), weight.get(),
                                   m.cols,       T(mean),     T(real_at(rstd, row))};
        real_loops<T>().norm_grad_row(loop);
        if (added) add(loop.dx, loop.dx, waiting.read(row), m.cols, Single::none);
        dx.write(row, loop.dx);
    });
    for (int i = 0; i < (centred ? 2 : 1); ++i) sums.store(i, out[std::size_t(i + 1)]);
}

// Inputs g, z, weight, mean, rstd -> gradients of x, residual, weight, bias [, x_bias].
template <class T> void dropout_norm_grad(In in, const kernels::DropoutAddLayerNormGrad& at, Out out) {
    const Matrix m(in[1]);
    const Dropout dropout(at.forward.dropout_p, at.forward.stream);
    const bool of_x_bias = out.size() > 4;
    const RowsOf<T> g(in[0], m.cols, 0), z(in[1], m.cols, 1), dx(out[0], m.cols, 2), dz(out[1], m.cols, 3);
    const VectorOf<T> weight(in[2]);
    const BinaryLoop add = active_loops().binary[int(BinaryOp::add)][int(compute_for(dtype_of<T>()))];
    ColumnSums<T> sums(m, of_x_bias ? 3 : 2);
    sums.for_rows([&](std::int64_t row, T* sum) {
        const NormGradLoop<T> loop{dz.open(row),          sum,          sum + m.cols, g.read(row),
                                   z.read(row),           weight.get(), m.cols,       T(real_at(in[3], row)),
                                   T(real_at(in[4], row))};
        real_loops<T>().norm_grad_row(loop);
        T* const dropped = dx.open(row);
        dropout.sum<T>(dropped, loop.dx, nullptr, nullptr, row, m.cols);
        if (of_x_bias) add(sum + 2 * m.cols, sum + 2 * m.cols, dropped, m.cols, Single::none);
        dz.write(row, loop.dx);
        dx.write(row, dropped);
    });
    for (std::size_t i = 2; i < out.size(); ++i) sums.store(int(i) - 2, out[i]);
}

}  // namespace

namespace cpu_kernels {

void layer_norm(In in, const kernels::LayerNorm& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype), [&]<class T>(T) {
        norm_rows<T>({true, at.eps}, in, out);
    });
}
void rms_norm(In in, const kernels::RmsNorm& at, Out out) {
    with_real(promote(in[0]->dtype, out[0]->dtype), [&]<class T>(T) {
        norm_rows<T>({false, at.eps}, in, out);
    });
}
void layer_norm_grad(In in, const kernels::LayerNormGrad&, Out out) {
    with_real(promote(in[1]->dtype, out[0]->dtype), [&]<class T>(T) { norm_grad<T>(in, out, true); });
}
void rms_norm_grad(In in, const kernels::RmsNormGrad&, Out out) {
    with_real(promote(in[1]->dtype, out[0]->dtype), [&]<class T>(T) { norm_grad<T>(in, out, false); });
}
void dropout_add_layer_norm(In in, const kernels::DropoutAddLayerNorm& at, Out out) {
    with_real(promote(promote(in[1]->dtype, in[3]->dtype), out[0]->dtype),
              [&]<class T>(T) { dropout_norm_rows<T>(in, at, out); });
}
void dropout_add_layer_norm_grad(In in, const kernels::DropoutAddLayerNormGrad& at, Out out) {
    with_real(promote(in[1]->dtype, out[0]->dtype), [&]<class T>(T) { dropout_norm_grad<T>(in, at, out); });
}

constinit const KernelList norm_list = kernel_list<layer_norm, layer_norm_grad, rms_norm, rms_norm_grad,
                                                   dropout_add_layer_norm, dropout_add_layer_norm_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
