// Gates and their gradients, in one pass over memory: a sigmoid(b) and silu(a) b.
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "kernels/functors.h"
#include "kernels/pointwise.h"

namespace mezzo::cuda {
namespace {

// One kernel serves both gates: the flag is read when it runs.
struct Gate {
    bool swish;
    static constexpr int results = 1, inputs = 2;
    template <class C> __device__ void operator()(const C (&x)[2], C (&y)[1]) const {
        y[0] = swish ? functors::swiglu{}(x[0], x[1]) : functors::glu{}(x[0], x[1]);
    }
};
struct GateGrad {
    bool swish;
    static constexpr int results = 2, inputs = 3;
    template <class C> __device__ void operator()(const C (&x)[3], C (&y)[2]) const {
        if (swish)
            functors::swiglu{}.gradient(x[0], x[1], x[2], y[0], y[1]);
        else
            functors::glu{}.gradient(x[0], x[1], x[2], y[0], y[1]);
    }
};

// Results come first.
template <class F> using GateLayout = OperandLayout<F::results + F::inputs>;

// Any strides and dtypes, computed in C.
template <class C, class F> __global__ void gate_elements(GateLayout<F> l, F f) {
    for (std::int64_t i = first_item(); i < l.numel; i += item_step()) {
        std::int64_t offset[F::results + F::inputs];
        locate(l, i, offset);
        C x[F::inputs], y[F::results];
        for (int k = 0; k < F::inputs; ++k) {
            const int from = F::results + k;
            x[k] = load_as<C>(l.data[from], l.dtype[from], offset[from]);
        }
        f(x, y);
        for (int k = 0; k < F::results; ++k) store_as(l.data[k], l.dtype[k], offset[k], y[k]);
    }
}

// Vectors of 16 bytes, which no dimension cuts.
template <class T, class F> __global__ void gate_vectors(GateLayout<F> l, F f) {
    constexpr int width = 16 / sizeof(T), operands = F::results + F::inputs;
    using V = Vec<T, width>;
    for (std::int64_t i = first_item(); i < l.numel / width; i += item_step()) {
        std::int64_t offset[operands];
        locate(l, i * width, offset);
        V v[operands];
        for (int k = F::results; k < operands; ++k)
            v[k] = *reinterpret_cast<const V*>(static_cast<const T*>(l.data[k]) + offset[k]);
        for (int j = 0; j < width; ++j) {
            Compute<T> x[F::inputs], y[F::results];
            for (int k = 0; k < F::inputs; ++k) x[k] = convert<Compute<T>>(v[F::results + k].v[j]);
            f(x, y);
            for (int k = 0; k < F::results; ++k) v[k].v[j] = convert<T>(y[k]);
        }
        for (int k = 0; k < F::results; ++k)
            *reinterpret_cast<V*>(static_cast<T*>(l.data[k]) + offset[k]) = v[k];
    }
}

// Whether all operands have dtype T, and every vector of the last dimension starts at a 16-byte boundary in
// each of them.
template <class T, int N> bool in_vectors(const OperandLayout<N>& l) {
    constexpr std::int64_t width = 16 / sizeof(T);
    if (l.dims == 0 || l.sizes[l.dims - 1] % width != 0) return false;
    for (int k = 0; k < N; ++k) {
        if (l.dtype[k] != dtype_of<T>() || reinterpret_cast<std::uintptr_t>(l.data[k]) % 16 != 0)
            return false;
        if (l.strides[k][l.dims - 1] != 1) return false;
        for (int d = 0; d + 1 < l.dims; ++d)
            if (l.strides[k][d] % width != 0) return false;
    }
    return true;
}

template <class T, class F> bool run_vectors(const GateLayout<F>& l, const F& f) {
    if (!in_vectors<T>(l)) return false;
    launch(gate_vectors<T, F>, grid_for(l.numel * std::int64_t(sizeof(T)) / 16, elementwise_block),
           elementwise_block, 0, l, f);
    return true;
}

template <class F> void run_gate(const GateLayout<F>& l, ComputeKind kind, const F& f) {
    if (kind == ComputeKind::float64)
        return launch(gate_elements<double, F>, grid_for(l.numel, elementwise_block), elementwise_block, 0, l,
                      f);
    if (run_vectors<float>(l, f) || run_vectors<float16_t>(l, f) || run_vectors<bfloat16_t>(l, f)) return;
    launch(gate_elements<float, F>, grid_for(l.numel, elementwise_block), elementwise_block, 0, l, f);
}

void gate(bool swish, In in, int dim, Out out) {
    const kernels::GateOperands x(in, 0, dim);
    run_gate(make_layout<3>({out[0], x.a, x.b}), compute_kind({out[0].dtype(), x.a.dtype(), x.b.dtype()}),
             Gate{swish});
}

void gate_grad(bool swish, In in, int dim, Out out) {
    const kernels::GateOperands x(in, 1, dim), dx(out, 0, dim);
    run_gate(make_layout<5>({dx.a, dx.b, in[0], x.a, x.b}),
             compute_kind({dx.a.dtype(), in[0].dtype(), x.a.dtype(), x.b.dtype()}), GateGrad{swish});
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void glu(In in, const kernels::Glu& at, Out out) { gate(false, in, at.dim, out); }
void swiglu(In in, const kernels::SwiGlu& at, Out out) { gate(true, in, at.dim, out); }
void glu_grad(In in, const kernels::GluGrad& at, Out out) { gate_grad(false, in, at.dim, out); }
void swiglu_grad(In in, const kernels::SwiGluGrad& at, Out out) { gate_grad(true, in, at.dim, out); }

constinit const KernelList gate_list = kernel_list<glu, swiglu, glu_grad, swiglu_grad>;

}  // namespace mezzo::cuda_kernels
