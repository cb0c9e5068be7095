// The passes of recurrent layers: one thread per unit of each sequence.
#include "kernels/recurrent_loop.h"

#include "cuda/elementwise/elements.cuh"
#include "cuda/kernels.h"
#include "kernels/recurrent_cell.h"

namespace mezzo::cuda {
namespace {

using kernels::RecurrentGradStep;
using kernels::RecurrentStep;

constexpr unsigned recurrent_block = 128;

// Element i of an array that may be missing: zero, or nothing to store.
template <class T> __device__ Compute<T> load_or_zero(const void* p, std::int64_t i) {
    return p != nullptr ? convert<Compute<T>>(static_cast<const T*>(p)[i]) : Compute<T>(0);
}
template <class T> __device__ void store_if(void* p, std::int64_t i, Compute<T> value) {
    if (p != nullptr) static_cast<T*>(p)[i] = convert<T>(value);
}

// A unit of a sequence: where its elements lie in rows of one or several gates.
template <class Step> struct Unit {
    std::int64_t i, row, column, hidden;
    bool ended;
    __device__ Unit(const Step& s, std::int64_t item)
        : i(item),
          row(item / s.hidden),
          column(item % s.hidden),
          hidden(s.hidden),
          ended(s.lengths != nullptr && s.time >= s.lengths[row]) {}
    __device__ std::int64_t gate(int k, int gates) const { return (row * gates + k) * hidden + column; }
};

template <class T>
__device__ void finish(const RecurrentStep& s, const Unit<RecurrentStep>& u, Compute<T> h, Compute<T> c) {
    using C = Compute<T>;
    store_if<T>(s.new_state, u.i, h);
    store_if<C>(s.new_cell, u.i, c);
    store_if<C>(s.last_cell, u.i, c);
}

template <class T> __device__ void lstm_unit(const RecurrentStep& s, const Unit<RecurrentStep>& u) {
    using C = Compute<T>;
    C sum[4];
    for (int k = 0; k < 4; ++k)
        sum[k] = load_or_zero<T>(s.gates, u.gate(k, 4)) + load_or_zero<C>(s.product, u.gate(k, 4));
    const auto r = functors::lstm_step(sum[0], sum[1], sum[2], sum[3], load_or_zero<C>(s.cell_state, u.i));
    const C saved[] = {r.i, r.f, r.g, r.o};
    for (int k = 0; k < 4; ++k) store_if<T>(s.saved, u.gate(k, 4), saved[k]);
    finish<T>(s, u, r.h, r.c);
}

template <class T> __device__ void gru_unit(const RecurrentStep& s, const Unit<RecurrentStep>& u) {
    using C = Compute<T>;
    C x[3], p[3];
    for (int k = 0; k < 3; ++k) {
        x[k] = load_or_zero<T>(s.gates, u.gate(k, 3));
        p[k] = load_or_zero<C>(s.product, u.gate(k, 3)) + load_or_zero<T>(s.bias, k * u.hidden + u.column);
    }
    const auto r = functors::gru_step(x[0] + p[0], x[1] + p[1], x[2], p[2], load_or_zero<T>(s.state, u.i));
    const C saved[] = {r.r, r.z, r.n, std::is_same_v<T, float16_t> ? functors::within_float16(r.p) : r.p};
    for (int k = 0; k < 4; ++k) store_if<T>(s.saved, u.gate(k, 4), saved[k]);
    finish<T>(s, u, r.h, C(0));
}

template <class T> __device__ void ended_unit(const RecurrentStep& s, const Unit<RecurrentStep>& u) {
    using C = Compute<T>;
    if (s.saved != nullptr)
        for (int k = 0; k < 4; ++k) store_if<T>(s.saved, u.gate(k, 4), C(0));
    finish<T>(s, u, load_or_zero<T>(s.state, u.i), load_or_zero<C>(s.cell_state, u.i));
}

template <class T> __global__ void recurrent_kernel(RecurrentStep s) {
    using C = Compute<T>;
    for (std::int64_t i = first_item(); i < s.batch * s.hidden; i += item_step()) {
        const Unit<RecurrentStep> u(s, i);
        if (u.ended) {
            ended_unit<T>(s, u);
        } else if (s.cell == RecurrentCell::lstm) {
            lstm_unit<T>(s, u);
        } else if (s.cell == RecurrentCell::gru) {
            gru_unit<T>(s, u);
        } else {
            const C sum = load_or_zero<T>(s.gates, i) + load_or_zero<C>(s.product, i);
            const bool relu = s.cell == RecurrentCell::rnn_relu;
            finish<T>(s, u, relu ? functors::relu_of(sum) : functors::math::tanh(sum), C(0));
        }
    }
}

template <class T>
__device__ void lstm_grad_unit(const RecurrentGradStep& s, const Unit<RecurrentGradStep>& u, Compute<T> dh) {
    using C = Compute<T>;
    C saved[4];
    for (int k = 0; k < 4; ++k) saved[k] = load_or_zero<T>(s.saved, u.gate(k, 4));
    const auto r = functors::lstm_step_grad(dh, load_or_zero<C>(s.cell_grad, u.i), saved[0], saved[1],
                                            saved[2], saved[3], load_or_zero<C>(s.cell_state, u.i),
                                            load_or_zero<C>(s.new_cell, u.i));
    const C grads[] = {r.i, r.f, r.g, r.o};
    for (int k = 0; k < 4; ++k) store_if<T>(s.gates, u.gate(k, 4), grads[k]);
    store_if<C>(s.cell_grad, u.i, r.c);
    store_if<C>(s.carried, u.i, C(0));
}

template <class T>
__device__ void gru_grad_unit(const RecurrentGradStep& s, const Unit<RecurrentGradStep>& u, Compute<T> dh) {
    using C = Compute<T>;
    C saved[4];
    for (int k = 0; k < 4; ++k) saved[k] = load_or_zero<T>(s.saved, u.gate(k, 4));
    const auto r =
        functors::gru_step_grad(dh, saved[0], saved[1], saved[2], saved[3], load_or_zero<T>(s.state, u.i));
    const C gates[] = {r.r, r.z, r.n}, products[] = {r.r, r.z, r.p};
    for (int k = 0; k < 3; ++k) {
        store_if<T>(s.gates, u.gate(k, 3), gates[k]);
        store_if<T>(s.product, u.gate(k, 3), products[k]);
    }
    store_if<C>(s.carried, u.i, r.h);
}

template <class T>
__device__ void ended_grad_unit(const RecurrentGradStep& s, const Unit<RecurrentGradStep>& u, Compute<T> dh) {
    using C = Compute<T>;
    for (int k = 0; k < s.gate_count; ++k) {
        store_if<T>(s.gates, u.gate(k, s.gate_count), C(0));
        store_if<T>(s.product, u.gate(k, s.gate_count), C(0));
    }
    store_if<C>(s.carried, u.i, dh);
}

template <class T> __global__ void recurrent_grad_kernel(RecurrentGradStep s) {
    using C = Compute<T>;
    for (std::int64_t i = first_item(); i < s.batch * s.hidden; i += item_step()) {
        const Unit<RecurrentGradStep> u(s, i);
        const C dh = load_or_zero<T>(s.g, i) + load_or_zero<C>(s.carried_in, i);
        if (u.ended) {
            ended_grad_unit<T>(s, u, dh);
        } else if (s.cell == RecurrentCell::lstm) {
            lstm_grad_unit<T>(s, u, dh);
        } else if (s.cell == RecurrentCell::gru) {
            gru_grad_unit<T>(s, u, dh);
        } else {
            const C h = load_or_zero<T>(s.new_state, i);
            const bool relu = s.cell == RecurrentCell::rnn_relu;
            store_if<T>(s.gates, i, relu ? (h <= C(0) ? C(0) : dh) : dh * (C(1) - h * h));
            store_if<C>(s.carried, i, C(0));
        }
    }
}

void pass(const RecurrentStep& s) {
    visit_dtype<Dtypes::floating>(s.dtype, [&]<class T>(std::type_identity<T>) {
        launch(recurrent_kernel<T>, grid_for(s.batch * s.hidden, recurrent_block), recurrent_block, 0, s);
    });
}
void grad_pass(const RecurrentGradStep& s) {
    visit_dtype<Dtypes::floating>(s.dtype, [&]<class T>(std::type_identity<T>) {
        launch(recurrent_grad_kernel<T>, grid_for(s.batch * s.hidden, recurrent_block), recurrent_block, 0,
               s);
    });
}

void multiply(const Tensor& a, const Tensor& b, double beta, const Tensor& y) {
    const Tensor factors[] = {a, b};
    cuda_kernels::matmul(In(factors), {.beta = beta}, Out(&y, 1));
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

void recurrent(In in, const kernels::Recurrent& at, Out out) {
    cuda::use_device_of(out[0]);
    kernels::run_recurrent(in, at, out, cuda::multiply, cuda::pass);
}
void recurrent_grad(In in, const kernels::RecurrentGrad& at, Out out) {
    cuda::use_device_of(out[0]);
    kernels::run_recurrent_grad(in, at, out, cuda::multiply, cuda::grad_pass);
}

constinit const KernelList recurrent_list = kernel_list<recurrent, recurrent_grad>;

}  // namespace mezzo::cuda_kernels
