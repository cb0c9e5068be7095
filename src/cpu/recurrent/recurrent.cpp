// Steps of recurrent layers, forward and backward.
#include "kernels/recurrent_loop.h"

#include <cstring>

#include "cpu/elementwise/loop_tables.h"
#include "cpu/elementwise/strided.h"
#include "cpu/gemm/repeated_product.h"
#include "cpu/kernels.h"
#include "cpu/recurrent/recurrent_loops.h"

namespace mezzo {
namespace {

using namespace cpu;
using kernels::RecurrentGradStep;
using kernels::RecurrentStep;

const RecurrentLoopsOf& loops_of(Dtype dtype) {
    const RecurrentLoops& loops =
        loops_for<RecurrentLoops, recurrent_portable, recurrent_avx2, recurrent_avx512>(active_isa());
    return dtype == float64 ? loops.f64 : loops.f32;
}

// Pointer to row `row` of rows of `bytes`; null if the base is null.
template <class P> P* row_at(P* base, std::int64_t row, std::int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
    return base == nullptr ? nullptr : static_cast<Byte*>(base) + row * bytes;
}

// Copies a row, or zeros if `from` is null.
void copy_row(void* to, const void* from, std::int64_t bytes) {
    if (to == nullptr) return;
    if (from == nullptr)
        std::memset(to, 0, std::size_t(bytes));
    else if (from != to)
        std::memcpy(to, from, std::size_t(bytes));
}

// Bytes of a row of `hidden` elements, and the numbers of such rows that the gates and the saved gates take.
struct RowBytes {
    explicit RowBytes(const auto& step)
        : own(step.hidden * std::int64_t(size_of(step.dtype))),
          wide(step.hidden * std::int64_t(size_of(step.wide))),
          gates(recurrent_gates(step.cell)),
          saved(kernels::saved_gates(step.cell)) {}
    std::int64_t own, wide, gates, saved;
};

bool has_ended(const auto& step, std::int64_t b) {
    return step.lengths != nullptr && step.time >= step.lengths[b];
}

// Elements cost about this many times what those of a plain loop do.
constexpr std::int64_t weight_of_element = 16;
std::int64_t rows_worth_a_thread(std::int64_t hidden) { return grain / (weight_of_element * hidden) + 1; }

void pass(const RecurrentStep& s) {
    const auto loop = loops_of(s.dtype).forward[int(s.cell)];
    const RowBytes bytes(s);
    const auto compute = [&](std::int64_t b) {
        const RecurrentRow row{.dtype = s.dtype,
                               .n = s.hidden,
                               .gates = row_at(s.gates, b, bytes.own * bytes.gates),
                               .bias = s.bias,
                               .state = row_at(s.state, b, bytes.own),
                               .product = row_at(s.product, b, bytes.wide * bytes.gates),
                               .cell_state = row_at(s.cell_state, b, bytes.wide),
                               .new_state = row_at(s.new_state, b, bytes.own),
                               .saved = row_at(s.saved, b, bytes.own * bytes.saved),
                               .new_cell = row_at(s.new_cell, b, bytes.wide),
                               .last_cell = row_at(s.last_cell, b, bytes.wide)};
        if (!has_ended(s, b)) return loop(row);
        copy_row(row.new_state, row.state, bytes.own);
        copy_row(row.saved, nullptr, bytes.own * bytes.saved);
        copy_row(row.new_cell, row.cell_state, bytes.wide);
        copy_row(row.last_cell, row.cell_state, bytes.wide);
    };
    parallel_for(s.batch, rows_worth_a_thread(s.hidden), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) compute(b);
    });
}

// Backward step of a sequence that has ended: passes all of its gradient on to the step before.
void pass_on(const RecurrentGradStep& s, const RecurrentGradRow& row, const RowBytes& bytes) {
    copy_row(row.gates, nullptr, bytes.own * bytes.gates);
    copy_row(row.product, nullptr, bytes.own * bytes.gates);
    if (row.carried == nullptr) return;
    copy_row(row.carried, row.carried_in, bytes.wide);
    if (row.g == nullptr) return;
    const auto sum = active_loops().binary[int(BinaryOp::add)];
    for (std::int64_t i = 0; i < s.hidden; i += chunk) {
        const std::int64_t n = s.hidden - i < chunk ? s.hidden - i : chunk;
        Chunk wide;
        convert(row_at(row.g, i, std::int64_t(size_of(s.dtype))), s.dtype, wide.bytes, s.wide, n);
        void* const to = row_at(row.carried, i, std::int64_t(size_of(s.wide)));
        sum[int(compute_for(s.wide))](to, to, wide.bytes, n, Single::none);
    }
}

void grad_pass(const RecurrentGradStep& s) {
    const auto loop = loops_of(s.dtype).grad[int(s.cell)];
    const RowBytes bytes(s);
    parallel_for(s.batch, rows_worth_a_thread(s.hidden), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
            const RecurrentGradRow row{.dtype = s.dtype,
                                       .n = s.hidden,
                                       .g = row_at(s.g, b, bytes.own),
                                       .carried_in = row_at(s.carried_in, b, bytes.wide),
                                       .new_state = row_at(s.new_state, b, bytes.own),
                                       .state = row_at(s.state, b, bytes.own),
                                       .saved = row_at(s.saved, b, bytes.own * bytes.saved),
                                       .new_cell = row_at(s.new_cell, b, bytes.wide),
                                       .cell_state = row_at(s.cell_state, b, bytes.wide),
                                       .carried = row_at(s.carried, b, bytes.wide),
                                       .cell_grad = row_at(s.cell_grad, b, bytes.wide),
                                       .gates = row_at(s.gates, b, bytes.own * bytes.gates),
                                       .product = row_at(s.product, b, bytes.own * bytes.gates)};
            if (has_ended(s, b))
                pass_on(s, row, bytes);
            else
                loop(row);
        }
    });
}

}  // namespace

namespace cpu_kernels {

void recurrent(In in, const kernels::Recurrent& at, Out out) {
    kernels::run_recurrent(in, at, out, RepeatedProduct(), pass);
}
void recurrent_grad(In in, const kernels::RecurrentGrad& at, Out out) {
    kernels::run_recurrent_grad(in, at, out, RepeatedProduct(), grad_pass);
}

constinit const KernelList recurrent_list = kernel_list<recurrent, recurrent_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
