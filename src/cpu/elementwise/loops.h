// The inner loops of the CPU kernels other than matrix products and attention: contiguous, single-threaded,
// one table per instruction set. Plain function pointers, because the units that fill the tables may share no
// inline function with the rest of the library (vector.h says why).
#pragma once

#include <cstdint>

#include "core/internal.h"
#include "mezzo/dtype.h"
#include "mezzo/optim_options.h"

namespace mezzo {
struct Block8;  // kernels/narrow_state.h
}

namespace mezzo::cpu {

// The types that arithmetic happens in; 16-bit elements are computed in f32, small integers in i32.
enum class Compute : std::uint8_t { f32, f64, i32, i64 };
inline constexpr int compute_count = 4;

// The ops of mezzo/ops.def in its order.
enum class UnaryOp : int {
#define MEZZO_UNARY(name, cast, ints, save, gradient) name,
#define MEZZO_UNARY_SCALAR(name, cast, ints, save, gradient) name,
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
    count
};
enum class BinaryOp : int {
#define MEZZO_BINARY(name, cast, ints, save, gradient_a, gradient_b) name,
#include "mezzo/ops.def"
#undef MEZZO_BINARY
    count
};
enum class CompareOp : int {
#define MEZZO_COMPARE(name) name,
#include "mezzo/ops.def"
#undef MEZZO_COMPARE
    count
};
#define MEZZO_OPTIMIZER(name) +1
inline constexpr int optimizer_loops = 0
#include "mezzo/optimizers.def"
    ;
enum class GateOp : int { glu, swiglu, count };
enum class LossOp : int { mse, l1, smooth_l1, huber, bce, bce_with_logits, count };

// The operand of a binary loop that is one element instead of n, if any.
enum class Single : std::uint8_t { none, a, b };

// dst may be x (or a or b) itself; other overlap is not allowed.
using UnaryLoop = void (*)(void* dst, const void* x, std::int64_t n, double alpha, double beta);
using BinaryLoop = void (*)(void* dst, const void* a, const void* b, std::int64_t n, Single single);

// dst = condition ? a : b, elements of 1, 2, 4 or 8 bytes; `single` is none or a.
using SelectLoop = void (*)(void* dst, const std::uint8_t* condition, const void* a, const void* b,
                            std::int64_t n, Single single);

// One parameter's update by an optimizer of kernels/optimizers.h; `multiplier` scales the gradient.
template <class T> struct UpdateLoop {
    T* param;
    T* state[3];  // null where the way does not use it
    const T* grad;
    std::int64_t n;
    T multiplier;
    unsigned way;
    const void* formula;  // the row's Formula<T>
};

// A row to normalise: y = (x - mean) rstd weight + bias. y may be x.
template <class T> struct NormLoop {
    T* y;
    const T *x, *weight, *bias;  // no bias: null
    std::int64_t n;
    double eps;
    bool centred;       // false: the mean is not subtracted (root mean square)
    double mean, rstd;  // results
};
// The gradients of a normalised row; bias_grad is null if the mean was not subtracted. dx may be g.
template <class T> struct NormGradLoop {
    T *dx, *weight_grad, *bias_grad;  // the loop adds to the last two
    const T *g, *x, *weight;
    std::int64_t n;
    T mean, rstd;
};
// dst = dropout(x + bias) + residual; bias and residual may be null, and words, too: no dropout. Element i is
// dropped if half-word first_half + i of `words` (low half first) is less than threshold.
template <class T> struct DroppedSumLoop {
    T* dst;
    const T *x, *bias, *residual;  // without a residual the bias is ignored
    std::int64_t n;
    const std::uint32_t* words;
    std::int64_t first_half;
    std::uint32_t threshold;
    T scale;  // of the elements that are not dropped
};

constexpr std::int64_t softmax_width = 64;

// Loops over floating T. A sum of floats is cut into blocks of at most 1,024 elements; a block has at least
// 16 partial sums in float, which are added up in double.
template <class T> struct RealLoops {
    double (*sum)(const T* x, std::int64_t n);
    void (*row_sums)(double* dst, const T* x, std::int64_t rows, std::int64_t n);  // dst[i] = sum of row i
    // y[i] = before + x[0] + ... + x[i], in double; [1] backwards from x[n - 1] on. Returns the last sum.
    double (*running_sum[2])(T* y, const T* x, std::int64_t n, double before);
    double (*sum_squares)(const T* x, std::int64_t n);
    double (*product)(const T* x, std::int64_t n);
    double (*dot)(const T* a, const T* b, std::int64_t n);
    T (*max)(const T* x, std::int64_t n);  // n > 0; NaN if any element is
    T (*min)(const T* x, std::int64_t n);
    // Sum of e^(x - shift), which also goes to dst unless it is null.
    double (*exp_sum)(T* dst, const T* x, std::int64_t n, T shift);
    // Of `rows` rows of n elements.
    void (*softmax)(T* dst, const T* x, std::int64_t rows, std::int64_t n);
    void (*softmax_grad)(T* dst, const T* g, const T* y, std::int64_t rows,
                         std::int64_t n);  // y (g - sum(g y))
    // Of n <= softmax_width columns of `rows` rows, which lie `stride` elements apart.
    void (*softmax_columns)(T* dst, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n);
    void (*softmax_grad_columns)(T* dst, const T* g, const T* y, std::int64_t rows, std::int64_t stride,
                                 std::int64_t n);
    void (*log_softmax_grad)(T* dst, const T* g, const T* y, std::int64_t n, double sum);  // g - e^y sum
    void (*clamp_grad)(T* dst, const T* g, const T* x, std::int64_t n, T low, T high);
    // By GateOp. The results may be operands.
    void (*gate[int(GateOp::count)])(T* y, const T* a, const T* b, std::int64_t n);
    void (*gate_grad[int(GateOp::count)])(T* da, T* db, const T* g, const T* a, const T* b, std::int64_t n);
    // dst[j] += x[i * stride + j] for i < rows and j < n, row after row.
    void (*add_to_double)(double* dst, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t n);
    void (*loss[int(LossOp::count)])(T* dst, const T* x, const T* target, std::int64_t n, T beta);
    void (*loss_grad[int(LossOp::count)])(T* dst, const T* x, const T* target, std::int64_t n, T beta);
    // Whether every x * factor is finite.
    bool (*all_finite)(const T* x, std::int64_t n, T factor);
    // By OptimizerId; those of double are in loops_portable only.
    void (*update[optimizer_loops])(const UpdateLoop<T>& loop);
    void (*norm_row)(NormLoop<T>& loop);
    void (*norm_grad_row)(const NormGradLoop<T>& loop);
    void (*dropped_sum)(const DroppedSumLoop<T>& loop);
};

// The index of a 16-bit dtype in unary16 and binary16.
constexpr int index_16bit(Dtype dtype) { return dtype == Dtype::float16 ? 0 : 1; }

struct Loops {
    UnaryLoop unary[int(UnaryOp::count)]
                   [compute_count];  // null for integers in ops that compute in real numbers
    BinaryLoop binary[int(BinaryOp::count)][compute_count];
    BinaryLoop compare[int(CompareOp::count)][compute_count];  // dst: bool
    RealLoops<float> f32;
    RealLoops<double> f64;
    // Loops over float16 or bfloat16 operands and results, which convert in registers; by index_16bit(). Null
    // for most ops: their elements are converted in chunks before and after.
    UnaryLoop unary16[int(UnaryOp::count)][2];
    BinaryLoop binary16[int(BinaryOp::count)][2];
    // RealLoops' row_sums and add_to_double over float16 or bfloat16 elements x.
    void (*row_sums16[2])(double* dst, const void* x, std::int64_t rows, std::int64_t n);
    void (*add16_to_double[2])(double* dst, const void* x, std::int64_t rows, std::int64_t stride,
                               std::int64_t n);
    SelectLoop select[4];  // by the logarithm of the size
    std::int64_t (*sum_i64)(const std::int64_t* x, std::int64_t n);
    // words[4 * i + j] = word j of Philox block counter + i.
    void (*philox_blocks)(std::uint32_t* words, std::uint64_t key, std::uint64_t counter,
                          std::int64_t blocks);
    // to[i] = whether half-word first_half + i of `words` (low half first) >= threshold.
    void (*kept)(std::uint8_t* to, const std::uint32_t* words, std::int64_t first_half, std::int64_t n,
                 std::uint32_t threshold);
    // dst = x * scale where half-word i of `words` (low half first) >= threshold, else 0.
    void (*dropout)(float* dst, const float* x, const std::uint32_t* words, std::int64_t n,
                    std::uint32_t threshold, float scale);
    // Makes `pairs` pairs of words into pairs of standard normal numbers, by Box and Muller.
    void (*box_muller)(float* dst, const std::uint32_t* words, std::int64_t pairs);
    // kernels/narrow_state.h. Numbers from and to two halves each; `high` is bfloat16.
    void (*join_halves)(float* dst, const std::uint16_t* high, const std::uint16_t* low, std::int64_t n);
    void (*split_halves)(std::uint16_t* high, std::uint16_t* low, const float* x, std::int64_t n);
    // Stochastic rounding to bfloat16: element i takes half-word i of `words`, low half first.
    void (*round_stochastically)(std::uint16_t* dst, const float* x, const std::uint32_t* words,
                                 std::int64_t n);
    void (*read_blocks)(float* dst, const Block8* blocks, std::int64_t n, bool with_sign);
    void (*write_blocks)(Block8* blocks, const float* x, std::int64_t n, bool with_sign);
};

// The tables as the units fill them; loop_tables.h replaces missing entries.
extern const Loops loops_portable, loops_avx2, loops_avx512;

// The loops for an instruction set.
enum class Isa : std::uint8_t;
const Loops& loops_of(Isa isa);
// The loops of active_isa().
MEZZO_INTERNAL const Loops& active_loops();

}  // namespace mezzo::cpu
