// The loops of recurrent_loops.h, one source for all instruction sets. The including file defines
// MEZZO_ISA_NAMESPACE and MEZZO_LANES. Everything has internal linkage or is in that namespace; vector.h says
// why.
#pragma once

#include <type_traits>

#include "cpu/elementwise/convert.h"
#include "cpu/isa/vector.h"
#include "cpu/recurrent/recurrent_loops.h"
#include "kernels/recurrent_cell.h"

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // loops over libm's double functions stay scalar
#define MEZZO_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define MEZZO_VECTOR_LOOP _Pragma("GCC ivdep")
#endif

namespace mezzo::cpu {
namespace {

// Rows are computed in blocks, whose 16-bit elements are converted on the way in and out.
constexpr std::int64_t block = 256;

template <class R> struct Zeros {
    alignas(64) R values[block] = {};
};

// size_of() would read a table that all instruction sets share.
MEZZO_INLINE std::int64_t bytes_of(Dtype dtype) { return dtype == float64 ? 8 : dtype == float32 ? 4 : 2; }

template <class P> MEZZO_INLINE P* part(P* base, Dtype dtype, std::int64_t elements) {
    using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
    return base == nullptr ? nullptr : static_cast<Byte*>(base) + elements * bytes_of(dtype);
}

// Elements to read, as R: as stored, converted, or zeros for a null pointer.
template <class R> class Elements {
public:
    explicit Elements(const void* base, Dtype dtype = dtype_of<R>()) : base_(base), dtype_(dtype) {}
    const R* read(std::int64_t begin, std::int64_t n, const Zeros<R>& zeros) {
        if (base_ == nullptr) return zeros.values;
        const void* const from = part(base_, dtype_, begin);
        if (dtype_ == dtype_of<R>()) return static_cast<const R*>(from);
        convert(from, dtype_, buffer_, dtype_of<R>(), n);
        return buffer_;
    }

private:
    const void* base_;
    Dtype dtype_;
    alignas(64) R buffer_[block];
};

// Elements to write, as R; a null pointer drops them.
template <class R> class Writer {
public:
    explicit Writer(void* base, Dtype dtype = dtype_of<R>()) : base_(base), dtype_(dtype) {}
    R* open(std::int64_t begin) {
        return base_ != nullptr && dtype_ == dtype_of<R>() ? static_cast<R*>(base_) + begin : buffer_;
    }
    void close(std::int64_t begin, std::int64_t n) {
        if (base_ != nullptr && dtype_ != dtype_of<R>())
            convert(buffer_, dtype_of<R>(), part(base_, dtype_, begin), dtype_, n);
    }

private:
    void* base_;
    Dtype dtype_;
    alignas(64) R buffer_[block];
};

// Calls body(begin, count) for the blocks of a row.
template <class F> MEZZO_INLINE void for_blocks(std::int64_t n, const F body) {
    for (std::int64_t begin = 0; begin < n; begin += block)
        body(begin, n - begin < block ? n - begin : block);
}

template <class R, bool relu> void rnn_row(const RecurrentRow& row) {
    const Zeros<R> zeros;
    Elements<R> gates(row.gates, row.dtype);
    Elements<R> product(row.product);
    Writer<R> new_state(row.new_state, row.dtype);
    for_blocks(
        row.n, [&](std::int64_t begin, std::int64_t n) __attribute__((always_inline)) {
            const R *const x = gates.read(begin, n, zeros), *const p = product.read(begin, n, zeros);
            R* const h = new_state.open(begin);
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) h[i] =
                relu ? functors::relu_of(x[i] + p[i]) : functors::math::tanh(x[i] + p[i]);
            new_state.close(begin, n);
        });
}

template <class R> void lstm_row(const RecurrentRow& row) {
    const Zeros<R> zeros;
    const auto gate = [&](int k) { return Elements<R>(part(row.gates, row.dtype, k * row.n), row.dtype); };
    const auto summand = [&](int k) { return Elements<R>(part(row.product, dtype_of<R>(), k * row.n)); };
    const auto keeper = [&](int k) { return Writer<R>(part(row.saved, row.dtype, k * row.n), row.dtype); };
    Elements<R> gates[4] = {gate(0), gate(1), gate(2), gate(3)};
    Elements<R> products[4] = {summand(0), summand(1), summand(2), summand(3)}, cell_state(row.cell_state);
    Writer<R> saved[4] = {keeper(0), keeper(1), keeper(2), keeper(3)}, new_state(row.new_state, row.dtype);
    Writer<R> new_cell(row.new_cell), last_cell(row.last_cell);
    for_blocks(
        row.n, [&](std::int64_t begin, std::int64_t n) __attribute__((always_inline)) {
            const R *x[4], *p[4], *const c = cell_state.read(begin, n, zeros);
            R *k[4], *const h = new_state.open(begin), *const after = new_cell.open(begin),
                            *const last = last_cell.open(begin);
            for (int j = 0; j < 4; ++j) {
                x[j] = gates[j].read(begin, n, zeros);
                p[j] = products[j].read(begin, n, zeros);
                k[j] = saved[j].open(begin);
            }
            const R *const x0 = x[0], *const x1 = x[1], *const x2 = x[2], *const x3 = x[3];
            const R *const p0 = p[0], *const p1 = p[1], *const p2 = p[2], *const p3 = p[3];
            R *const k0 = k[0], *const k1 = k[1], *const k2 = k[2], *const k3 = k[3];
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) {
                const auto s =
                    functors::lstm_step(x0[i] + p0[i], x1[i] + p1[i], x2[i] + p2[i], x3[i] + p3[i], c[i]);
                k0[i] = s.i;
                k1[i] = s.f;
                k2[i] = s.g;
                k3[i] = s.o;
                after[i] = s.c;
                last[i] = s.c;
                h[i] = s.h;
            }
            for (auto& one : saved) one.close(begin, n);
            new_state.close(begin, n);
        });
}

template <class R> void gru_row(const RecurrentRow& row) {
    const Zeros<R> zeros;
    const bool limited = row.dtype == float16;
    const auto gate = [&](const void* base, int k) {
        return Elements<R>(part(base, row.dtype, k * row.n), row.dtype);
    };
    const auto summand = [&](int k) { return Elements<R>(part(row.product, dtype_of<R>(), k * row.n)); };
    const auto keeper = [&](int k) { return Writer<R>(part(row.saved, row.dtype, k * row.n), row.dtype); };
    Elements<R> xr = gate(row.gates, 0), xz = gate(row.gates, 1), xn = gate(row.gates, 2);
    Elements<R> br = gate(row.bias, 0), bz = gate(row.bias, 1), bn = gate(row.bias, 2),
                state(row.state, row.dtype);
    Elements<R> pr = summand(0), pz = summand(1), pn = summand(2);
    Writer<R> kr = keeper(0), kz = keeper(1), kn = keeper(2), kp = keeper(3),
              new_state(row.new_state, row.dtype);
    for_blocks(
        row.n, [&](std::int64_t begin, std::int64_t n) __attribute__((always_inline)) {
            const auto of = [&](auto& from) __attribute__((always_inline)) {
                return from.read(begin, n, zeros);
            };
            const R *const x0 = of(xr), *const x1 = of(xz), *const x2 = of(xn);
            const R *const b0 = of(br), *const b1 = of(bz), *const b2 = of(bn);
            const R *const p0 = of(pr), *const p1 = of(pz), *const p2 = of(pn), *const before = of(state);
            R *const k0 = kr.open(begin), *const k1 = kz.open(begin), *const k2 = kn.open(begin),
                     *const k3 = kp.open(begin), *const h = new_state.open(begin);
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) {
                const auto s = functors::gru_step(x0[i] + (p0[i] + b0[i]), x1[i] + (p1[i] + b1[i]), x2[i],
                                                  p2[i] + b2[i], before[i]);
                k0[i] = s.r;
                k1[i] = s.z;
                k2[i] = s.n;
                k3[i] = limited ? functors::within_float16(s.p) : s.p;
                h[i] = s.h;
            }
            Writer<R>* const all[] = {&kr, &kz, &kn, &kp, &new_state};
            for (Writer<R>* one : all) one->close(begin, n);
        });
}

template <class R, bool relu> void rnn_grad_row(const RecurrentGradRow& row) {
    const Zeros<R> zeros;
    Elements<R> g(row.g, row.dtype), new_state(row.new_state, row.dtype);
    Elements<R> carried(row.carried_in);
    Writer<R> direct(row.carried);
    Writer<R> gates(row.gates, row.dtype);
    for_blocks(
        row.n, [&](std::int64_t begin, std::int64_t n) __attribute__((always_inline)) {
            const R *const from = g.read(begin, n, zeros), *const later = carried.read(begin, n, zeros),
                           *const h = new_state.read(begin, n, zeros);
            R *const d = gates.open(begin), *const rest = direct.open(begin);
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) {
                const R dh = from[i] + later[i];
                d[i] = relu ? (h[i] <= R(0) ? R(0) : dh) : dh * (R(1) - h[i] * h[i]);
                rest[i] = R(0);
            }
            gates.close(begin, n);
        });
}

template <class R> void lstm_grad_row(const RecurrentGradRow& row) {
    const Zeros<R> zeros;
    const auto gate = [&](int k) { return Elements<R>(part(row.saved, row.dtype, k * row.n), row.dtype); };
    const auto writer = [&](int k) { return Writer<R>(part(row.gates, row.dtype, k * row.n), row.dtype); };
    Elements<R> g(row.g, row.dtype), ki = gate(0), kf = gate(1), kg = gate(2), ko = gate(3);
    Elements<R> carried(row.carried_in), new_cell(row.new_cell), cell_state(row.cell_state);
    Writer<R> direct(row.carried), cell_grad(row.cell_grad);
    Writer<R> wi = writer(0), wf = writer(1), wg = writer(2), wo = writer(3);
    for_blocks(
        row.n, [&](std::int64_t begin, std::int64_t n) __attribute__((always_inline)) {
            const auto of = [&](auto& from) __attribute__((always_inline)) {
                return from.read(begin, n, zeros);
            };
            const R *const from = of(g), *const later = of(carried), *const before = of(cell_state),
                           *const after = of(new_cell);
            const R *const i0 = of(ki), *const f0 = of(kf), *const g0 = of(kg), *const o0 = of(ko);
            R *const di = wi.open(begin), *const df = wf.open(begin), *const dg = wg.open(begin),
                     *const d_o = wo.open(begin), *const rest = direct.open(begin),
                     *const dc = cell_grad.open(begin);
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) {
                const auto s = functors::lstm_step_grad(from[i] + later[i], dc[i], i0[i], f0[i], g0[i], o0[i],
                                                        before[i], after[i]);
                di[i] = s.i;
                df[i] = s.f;
                dg[i] = s.g;
                d_o[i] = s.o;
                dc[i] = s.c;
                rest[i] = R(0);
            }
            Writer<R>* const all[] = {&wi, &wf, &wg, &wo};
            for (Writer<R>* one : all) one->close(begin, n);
        });
}

template <class R> void gru_grad_row(const RecurrentGradRow& row) {
    const Zeros<R> zeros;
    const auto gate = [&](int k) { return Elements<R>(part(row.saved, row.dtype, k * row.n), row.dtype); };
    const auto writer = [&](void* base, int k) {
        return Writer<R>(part(base, row.dtype, k * row.n), row.dtype);
    };
    Elements<R> g(row.g, row.dtype), kr = gate(0), kz = gate(1), kn = gate(2), kp = gate(3),
                                     state(row.state, row.dtype);
    Elements<R> carried(row.carried_in);
    Writer<R> direct(row.carried);
    Writer<R> xr = writer(row.gates, 0), xz = writer(row.gates, 1), xn = writer(row.gates, 2);
    Writer<R> pr = writer(row.product, 0), pz = writer(row.product, 1), pn = writer(row.product, 2);
    for_blocks(
        row.n, [&](std::int64_t begin, std::int64_t n) __attribute__((always_inline)) {
            const auto of = [&](auto& from) __attribute__((always_inline)) {
                return from.read(begin, n, zeros);
            };
            const R *const from = of(g), *const later = of(carried), *const before = of(state);
            const R *const r0 = of(kr), *const z0 = of(kz), *const n0 = of(kn), *const p0 = of(kp);
            R *const dr = xr.open(begin), *const dz = xz.open(begin), *const dn = xn.open(begin);
            R *const qr = pr.open(begin), *const qz = pz.open(begin), *const qn = pn.open(begin),
                     *const rest = direct.open(begin);
            MEZZO_VECTOR_LOOP for (std::int64_t i = 0; i < n; ++i) {
                const auto s =
                    functors::gru_step_grad(from[i] + later[i], r0[i], z0[i], n0[i], p0[i], before[i]);
                dr[i] = s.r;
                dz[i] = s.z;
                dn[i] = s.n;
                qr[i] = s.r;
                qz[i] = s.z;
                qn[i] = s.p;
                rest[i] = s.h;
            }
            Writer<R>* const all[] = {&xr, &xz, &xn, &pr, &pz, &pn};
            for (Writer<R>* one : all) one->close(begin, n);
        });
}

template <class R> constexpr RecurrentLoopsOf recurrent_loops_of = {
    {rnn_row<R, false>, rnn_row<R, true>, lstm_row<R>, gru_row<R>},
    {rnn_grad_row<R, false>, rnn_grad_row<R, true>, lstm_grad_row<R>, gru_grad_row<R>}};

constexpr RecurrentLoops recurrent_loops = {recurrent_loops_of<float>,
#if MEZZO_ISA_IS(portable)
                                            recurrent_loops_of<double>
#else
                                            {}
#endif
};

}  // namespace
}  // namespace mezzo::cpu
