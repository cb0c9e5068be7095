// Element-wise functions of several tensors, in one pass.
#include "kernels/pointwise.h"
#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"

namespace mezzo {
namespace {

using namespace cpu;

// y = f(a, b, c) of elements as T.
template <class T, class F> void map(In in, const Tensor& out, const F& f) {
    const Source a(in[0], out->shape, dtype_of<T>()), b(in[1], out->shape, dtype_of<T>()),
        c(in[in.size() - 1], out->shape, dtype_of<T>());
    const Sink y(out, dtype_of<T>());
    for_chunks(out->numel, [&](std::int64_t begin, std::int64_t n) {
        Chunk buffer_a, buffer_b, buffer_c, buffer_y;
        const T* const from_a = a.template read_as<T>(begin, n, buffer_a);
        const T* const from_b = b.template read_as<T>(begin, n, buffer_b);
        const T* const from_c = in.size() > 2 ? c.template read_as<T>(begin, n, buffer_c) : from_b;
        T* const to = y.template open_as<T>(begin, buffer_y);
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(from_a[i], from_b[i], from_c[i]);
        y.finish(begin, n, buffer_y);
    });
}

// Calls f(T()) with the type to compute in.
template <class F> void with_common(In in, Out out, const F& f) {
    Dtype dtype = out[0]->dtype;
    for (const Tensor& x : in) dtype = promote(dtype, x->dtype);
    with_real(dtype, f);
}

template <class F> void map_real(In in, Out out, const F& f) {
    with_common(in, out, [&]<class T>(T) { map<T>(in, out[0], f); });
}

void gate(GateOp op, In in, int dim, Out out) {
    with_common(in, out, [&]<class T>(T) {
        const kernels::GateOperands x(in, 0, dim);
        const Shape& shape = out[0]->shape;
        const Source a(x.a, shape, dtype_of<T>()), b(x.b, shape, dtype_of<T>());
        const Sink y(out[0], dtype_of<T>());
        const auto loop = real_loops<T>().gate[int(op)];
        for_chunks(out[0]->numel, [&](std::int64_t begin, std::int64_t n) {
            Chunk buffer_a, buffer_b;
            const T* const from_a = a.template read_as<T>(begin, n, buffer_a);
            const T* const from_b = b.template read_as<T>(begin, n, buffer_b);
            loop(y.template open_as<T>(begin, buffer_a), from_a, from_b, n);
            y.finish(begin, n, buffer_a);
        });
    });
}

void gate_grad(GateOp op, In in, int dim, Out out) {
    with_common(in, out, [&]<class T>(T) {
        const kernels::GateOperands x(in, 1, dim), dx(out, 0, dim);
        const Shape& shape = in[0]->shape;
        const Source g(in[0], shape, dtype_of<T>()), a(x.a, shape, dtype_of<T>()),
            b(x.b, shape, dtype_of<T>());
        const Sink da(dx.a, dtype_of<T>()), db(dx.b, dtype_of<T>());
        const auto loop = real_loops<T>().gate_grad[int(op)];
        for_chunks(in[0]->numel, [&](std::int64_t begin, std::int64_t n) {
            Chunk buffer_g, buffer_a, buffer_b;
            const T* const from_g = g.template read_as<T>(begin, n, buffer_g);
            const T* const from_a = a.template read_as<T>(begin, n, buffer_a);
            const T* const from_b = b.template read_as<T>(begin, n, buffer_b);
            loop(da.template open_as<T>(begin, buffer_a), db.template open_as<T>(begin, buffer_b), from_g,
                 from_a, from_b, n);
            da.finish(begin, n, buffer_a);
            db.finish(begin, n, buffer_b);
        });
    });
}

}  // namespace

namespace cpu_kernels {

void addcmul(In in, const kernels::AddCMul& at, Out out) {
    map_real(in, out, [value = at.value]<class T>(T x, T a, T b) { return x + T(value) * (a * b); });
}
void addcdiv(In in, const kernels::AddCDiv& at, Out out) {
    map_real(in, out, [value = at.value]<class T>(T x, T a, T b) { return x + T(value) * (a / b); });
}
void lerp(In in, const kernels::Lerp&, Out out) {
    map_real(in, out, []<class T>(T a, T b, T w) {
        return w > T(-0.5) && w < T(0.5) ? a + w * (b - a) : b - (T(1) - w) * (b - a);
    });
}
void lerp_scalar(In in, const kernels::LerpScalar& at, Out out) {
    const double weight = at.weight;
    if (weight > -0.5 && weight < 0.5)
        map_real(in, out, [weight]<class T>(T a, T b, T) { return a + T(weight) * (b - a); });
    else
        map_real(in, out, [rest = 1 - weight]<class T>(T a, T b, T) { return b - T(rest) * (b - a); });
}

void glu(In in, const kernels::Glu& at, Out out) { gate(GateOp::glu, in, at.dim, out); }
void swiglu(In in, const kernels::SwiGlu& at, Out out) { gate(GateOp::swiglu, in, at.dim, out); }
void glu_grad(In in, const kernels::GluGrad& at, Out out) { gate_grad(GateOp::glu, in, at.dim, out); }
void swiglu_grad(In in, const kernels::SwiGluGrad& at, Out out) {
    gate_grad(GateOp::swiglu, in, at.dim, out);
}

constinit const KernelList pointwise_list =
    kernel_list<addcmul, addcdiv, lerp, lerp_scalar, glu, swiglu, glu_grad, swiglu_grad>;

}  // namespace cpu_kernels
}  // namespace mezzo
