// Element-wise functions of three tensors, in one pass.
#include "kernels/pointwise.h"
#include "cpu/kernels.h"
#include "cpu/operand.h"

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

template <class F> void map_real(In in, Out out, const F& f) {
    Dtype dtype = out[0]->dtype;
    for (const Tensor& x : in) dtype = promote(dtype, x->dtype);
    with_real(dtype, [&]<class T>(T) { map<T>(in, out[0], f); });
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

constexpr KernelEntry entries[] = {kernel_entry<addcmul>(), kernel_entry<addcdiv>(), kernel_entry<lerp>(),
                                   kernel_entry<lerp_scalar>()};
constinit const KernelList pointwise_list = entries;

}  // namespace cpu_kernels
}  // namespace mezzo
