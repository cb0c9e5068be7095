// Element-wise ops of mezzo/ops.def and related ones: any strides, broadcasting, mixed dtypes.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"
#include "kernels/elementwise.h"

namespace mezzo {
namespace {

using namespace cpu;

// A loop and the type of the elements it reads and writes.
template <class L> struct TypedLoop {
    L loop;
    Dtype type;
};

// The loop that reads tensors of one 16-bit type as they are, if there is one, else the one that computes in
// a wider type.
template <class L>
TypedLoop<L> loop_for(const L (&narrow)[2], const L (&wide)[compute_count], In in, Out out) {
    const Dtype type = out[0]->dtype;
    bool same = is_16bit(type);
    for (const Tensor& x : in) same = same && x->dtype == type;
    if (same && narrow[index_16bit(type)]) return {narrow[index_16bit(type)], type};
    const Compute compute = compute_for(type);
    return {wide[int(compute)], dtype_of(compute)};
}

void unary(UnaryOp op, In in, Out out, double alpha = 0, double beta = 0) {
    const Loops& loops = active_loops();
    const auto [loop, type] = loop_for(loops.unary16[int(op)], loops.unary[int(op)], in.first(1), out);
    const Source x(in[0], out[0]->shape, type);
    const Sink y(out[0], type);
    if (x.direct() && y.direct()) {
        parallel_for(out[0]->numel, grain, [&, loop = loop](std::int64_t begin, std::int64_t end) {
            loop(y.at(begin), x.at(begin), end - begin, alpha, beta);
        });
        return;
    }
    for_chunks(out[0]->numel, [&, loop = loop](std::int64_t begin, std::int64_t n) {
        Chunk buffer;
        const void* from = x.read(begin, n, buffer);
        loop(y.open(begin, buffer), from, n, alpha, beta);
        y.finish(begin, n, buffer);
    });
}

// A length of runs that suits both operands, of which at most one repeats an element in a run; 0 for none.
std::int64_t common_run(const Source& a, const Source& b) {
    const std::int64_t shorter = std::min(a.run(), b.run()), longer = std::max(a.run(), b.run());
    if (shorter == 0 || (a.repeats_in_run() && b.repeats_in_run())) return 0;
    return longer == std::numeric_limits<std::int64_t>::max() || longer % shorter == 0 ? shorter : 0;
}

// Runs `loop` over a and b read as `compute`; the result has dtype `result` before it is stored.
void binary(BinaryLoop loop, Dtype compute, Dtype result, In in, Out out) {
    const Source a(in[0], out[0]->shape, compute), b(in[1], out[0]->shape, compute);
    const Sink y(out[0], result);
    const bool single_a = a.single() && !b.single(), single_b = b.single();
    const Single single = single_a ? Single::a : single_b ? Single::b : Single::none;
    if ((a.direct() || single_a) && (b.direct() || single_b) && y.direct()) {
        parallel_for(out[0]->numel, grain, [&](std::int64_t begin, std::int64_t end) {
            loop(y.at(begin), single_a ? a.value() : a.at(begin), single_b ? b.value() : b.at(begin),
                 end - begin, single);
        });
        return;
    }
    constexpr std::int64_t long_run = 128;  // where the division for each run costs less than copies
    if (const std::int64_t run = common_run(a, b); run >= long_run && y.direct()) {
        const Single repeated = a.repeats_in_run()   ? Single::a
                                : b.repeats_in_run() ? Single::b
                                                     : Single::none;
        parallel_for(out[0]->numel, grain, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin, n = 0; i < end; i += n) {
                n = std::min(end - i, run - i % run);
                loop(y.at(i), a.run_at(i), b.run_at(i), n, repeated);
            }
        });
        return;
    }
    for_chunks(out[0]->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer_a, buffer_b;
        const void* from_a = single_a ? a.value() : a.read(begin, n, buffer_a);
        const void* from_b = single_b ? b.value() : b.read(begin, n, buffer_b);
        loop(y.open(begin, buffer_a), from_a, from_b, n, single);
        y.finish(begin, n, buffer_a);
    });
}

void arithmetic(BinaryOp op, In in, Out out) {
    const Loops& loops = active_loops();
    const auto [loop, type] = loop_for(loops.binary16[int(op)], loops.binary[int(op)], in.first(2), out);
    binary(loop, type, type, in, out);
}

// Logical and, or logical or, of eight truth values at a time. A byte that is not 0 is true.
std::uint64_t truths(const bool* x) {
    constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7fu;
    std::uint64_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return (((bytes & low) + low) | bytes) >> 7 & 0x0101010101010101u;
}
template <bool both>
void join_truths(void* dst, const void* pa, const void* pb, std::int64_t n, Single single) {
    bool a[8] = {}, b[8] = {};  // a repeated operand, and the last elements
    if (single == Single::a) std::fill_n(a, 8, *static_cast<const bool*>(pa));
    if (single == Single::b) std::fill_n(b, 8, *static_cast<const bool*>(pb));
    bool* const to = static_cast<bool*>(dst);
    const auto join = [](const bool* x, const bool* y, bool* z, std::size_t count) {
        const std::uint64_t bytes = both ? truths(x) & truths(y) : truths(x) | truths(y);
        std::memcpy(z, &bytes, count);
    };
    const bool *const x = single == Single::a ? nullptr : static_cast<const bool*>(pa),
                      *const y = single == Single::b ? nullptr : static_cast<const bool*>(pb);
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) join(x ? x + i : a, y ? y + i : b, to + i, 8);
    if (x) std::copy(x + i, x + n, a);
    if (y) std::copy(y + i, y + n, b);
    if (i < n) join(a, b, to + i, std::size_t(n - i));
}

void compare(CompareOp op, In in, Out out) {
    const bool both = op == CompareOp::logical_and;
    if (in[0]->dtype == boolean && in[1]->dtype == boolean && (both || op == CompareOp::logical_or))
        return binary(both ? join_truths<true> : join_truths<false>, boolean, boolean, in, out);
    const Compute compute = compute_for(promote(in[0]->dtype, in[1]->dtype));
    binary(active_loops().compare[int(op)][int(compute)], dtype_of(compute), boolean, in, out);
}

// result[i] = f(x[i]) with x as T.
template <class T, class F> void test(In in, Out out, const F& f) {
    const Source x(in[0], out[0]->shape, dtype_of<T>());
    const Sink y(out[0], boolean);
    for_chunks(out[0]->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer_x, buffer_y;
        const T* from = x.template read_as<T>(begin, n, buffer_x);
        bool* to = y.template open_as<bool>(begin, buffer_y);
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(from[i]);
        y.finish(begin, n, buffer_y);
    });
}

// y = condition ? a : b on the bits of y's dtype.
void select(const Tensor& condition, const Source& a, const Source& b, const Tensor& out) {
    const Source c(condition, out->shape, boolean);
    const Sink y(out, out->dtype);
    const SelectLoop loop = active_loops().select[std::bit_width(size_of(out->dtype)) - 1];
    const Single single = a.single() ? Single::a : Single::none;
    for_chunks(out->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer_c, buffer_a, buffer_b;
        const void* from_a = a.single() ? a.value() : a.read(begin, n, buffer_a);
        loop(y.open(begin, buffer_a), c.read_as<std::uint8_t>(begin, n, buffer_c), from_a,
             b.read(begin, n, buffer_b), n, single);
        y.finish(begin, n, buffer_a);
    });
}

// Finite values beyond the range of a 16-bit dtype become its lowest or highest finite number.
double saturate(double value, Dtype dtype) {
    if (!is_16bit(dtype) || !std::isfinite(value)) return value;
    const double highest = dtype_info(dtype).max;
    return value > highest ? highest : value < -highest ? -highest : value;
}

template <class T> void clamp_grad(In in, const kernels::ClampGrad& at, Out out) {
    const Source g(in[0], out[0]->shape, dtype_of<T>()), x(in[1], out[0]->shape, dtype_of<T>());
    const Sink y(out[0], dtype_of<T>());
    for_chunks(out[0]->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer_g, buffer_x;
        const T* from_g = g.template read_as<T>(begin, n, buffer_g);
        const T* from_x = x.template read_as<T>(begin, n, buffer_x);
        real_loops<T>().clamp_grad(y.template open_as<T>(begin, buffer_g), from_g, from_x, n, T(at.low),
                                   T(at.high));
        y.finish(begin, n, buffer_g);
    });
}

}  // namespace

namespace cpu_kernels {

#define MEZZO_UNARY(op, cast, ints, save, gradient) \
    void op(In in, const kernels::op&, Out out) { unary(UnaryOp::op, in, out); }
#define MEZZO_UNARY_SCALAR(op, cast, ints, save, gradient) \
    void op(In in, const kernels::op& at, Out out) { unary(UnaryOp::op, in, out, at.alpha, at.beta); }
#define MEZZO_BINARY(op, cast, ints, save, gradient_a, gradient_b) \
    void op(In in, const kernels::op&, Out out) { arithmetic(BinaryOp::op, in, out); }
#define MEZZO_COMPARE(op) \
    void op(In in, const kernels::op&, Out out) { compare(CompareOp::op, in, out); }
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#undef MEZZO_COMPARE

void logical_not(In in, const kernels::LogicalNot&, Out out) {
    test<bool>(in, out, [](bool x) { return !x; });
}

void isfinite(In in, const kernels::IsFinite&, Out out) {
    if (in[0]->dtype == float64)
        test<double>(in, out, [](double x) { return std::isfinite(x); });
    else if (is_floating(in[0]->dtype))
        test<float>(in, out, [](float x) { return std::isfinite(x); });
    else
        test<bool>(in, out, [](bool) { return true; });
}

void where(In in, const kernels::Where&, Out out) {
    const Dtype dtype = out[0]->dtype;
    select(in[0], Source(in[1], out[0]->shape, dtype), Source(in[2], out[0]->shape, dtype), out[0]);
}

void masked_fill(In in, const kernels::MaskedFill& at, Out out) {
    const Dtype dtype = out[0]->dtype;
    const double value = saturate(at.value, dtype);
    StridedLayout repeat;
    repeat.dims = 1;
    repeat.sizes[0] = out[0]->numel;
    repeat.strides[0] = 0;
    select(in[1], Source(&value, float64, repeat, dtype), Source(in[0], out[0]->shape, dtype), out[0]);
}

void clamp_grad(In in, const kernels::ClampGrad& at, Out out) {
    with_real(out[0]->dtype, [&]<class T>(T) { mezzo::clamp_grad<T>(in, at, out); });
}

#define MEZZO_UNARY(op, cast, ints, save, gradient) op,
#define MEZZO_UNARY_SCALAR(op, cast, ints, save, gradient) op,
#define MEZZO_BINARY(op, cast, ints, save, gradient_a, gradient_b) op,
#define MEZZO_COMPARE(op) op,
constinit const KernelList elementwise_list = kernel_list<
#include "mezzo/ops.def"
    logical_not, isfinite, where, masked_fill, clamp_grad>;
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
#undef MEZZO_COMPARE

}  // namespace cpu_kernels
}  // namespace mezzo
