// Copies, conversions and fills.
#include "core/storage_codes.h"
#include "cuda/elementwise/elementwise.cuh"
#include "cuda/kernels.h"
#include "kernels/copy.h"

namespace mezzo::cuda {
namespace {

struct Identity {
    template <class C> __device__ C operator()(C x) const { return x; }
};
template <class C> struct Constant {
    C value;
    __device__ C operator()() const { return value; }
};

// Contiguous conversion between two of the training dtypes, 16 bytes of the wider one at a time.
template <class To, class From>
__global__ void convert_kernel(To* __restrict__ to, const From* __restrict__ from, std::int64_t n) {
    constexpr int width = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
    const std::int64_t vectors = n / width;
    for (std::int64_t i = first_item(); i < vectors; i += item_step()) {
        const auto x = reinterpret_cast<const Vec<From, width>*>(from)[i];
        Vec<To, width> y;
        for (int j = 0; j < width; ++j) y.v[j] = convert<To>(x.v[j]);
        reinterpret_cast<Vec<To, width>*>(to)[i] = y;
    }
    for (std::int64_t i = vectors * width + first_item(); i < n; i += item_step())
        to[i] = convert<To>(from[i]);
}

template <class To, class From> bool convert_flat(const OperandLayout<2>& l) {
    if (l.dtype[0] != dtype_of<To>() || l.dtype[1] != dtype_of<From>()) return false;
    const std::int64_t threads = (l.numel + 3) / 4;
    launch(convert_kernel<To, From>, grid_for(threads, elementwise_block), elementwise_block, 0,
           static_cast<To*>(l.data[0]), static_cast<const From*>(l.data[1]), l.numel);
    return true;
}

bool flat_operands(const OperandLayout<2>& l) {
    for (int k = 0; k < 2; ++k) {
        if (l.dims > 1 || (l.dims == 1 && l.strides[k][0] != 1)) return false;
        if (reinterpret_cast<std::uintptr_t>(l.data[k]) % 16 != 0) return false;
    }
    return true;
}

// From or to a dtype for storage only.
void convert_codes(const OperandLayout<2>& l) {
    const Dtype from = l.dtype[1];
    if (from == float64) return map_general<double, Dtypes::all>(l, Identity{});
    if (has_exponent(from)) return map_general<float, Dtypes::all>(l, Identity{});
    map_general<std::int64_t, Dtypes::all>(l, Identity{});
}

void copy(OperandLayout<2> l) {
    if (l.numel == 0) return;
    if (l.dtype[0] == l.dtype[1] && is_storage_only(l.dtype[0])) l.dtype[0] = l.dtype[1] = uint8;
    if (is_storage_only(l.dtype[0]) || is_storage_only(l.dtype[1])) return convert_codes(l);
    if (flat_operands(l)) {
        if (l.dtype[0] == l.dtype[1])
            return copy_on_device(l.data[0], l.data[1],
                                  static_cast<std::size_t>(l.numel) * size_of(l.dtype[0]));
        if (convert_flat<float16_t, float>(l) || convert_flat<bfloat16_t, float>(l) ||
            convert_flat<float, float16_t>(l) || convert_flat<float, bfloat16_t>(l))
            return;
    }
    with_compute_type(compute_kind({l.dtype[1]}), [&]<class C>(C) { map_general<C>(l, Identity{}); });
}

__global__ void arange_kernel(AnyArray<double> out, std::int64_t n) {
    for (std::int64_t i = first_item(); i < n; i += item_step()) out.store(i, static_cast<double>(i));
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void cast(In in, const kernels::Cast&, Out out) { copy(make_layout<2>({out[0], in[0]})); }

void copy_into(In in, const kernels::CopyInto&, Out out) { copy(make_layout<2>({out[0], in[0]})); }

void fill(In, const kernels::Fill& at, Out out) {
    OperandLayout<1> l = make_layout<1>({out[0]});
    const bool flat = l.dims == 0 || (l.dims == 1 && l.strides[0][0] == 1);
    const double real = at.value.to<double>();
    const bool positive_zero = real == 0 && 1 / real > 0;
    if (flat && positive_zero && l.numel > 0)
        return fill_zero(l.data[0], static_cast<std::size_t>(l.numel) * size_of(l.dtype[0]));
    if (is_storage_only(l.dtype[0])) {
        const std::int64_t code = code_of(at.value, l.dtype[0]);
        l.dtype[0] = uint8;
        return map_general<std::int64_t>(l, Constant<std::int64_t>{code});
    }
    switch (compute_kind({out[0].dtype()})) {
        case ComputeKind::float64:
            return map_general<double>(l, Constant<double>{real});
        case ComputeKind::integer:
            return map_general<std::int64_t>(
                l, Constant<std::int64_t>{at.value.is_integer() ? at.value.to<std::int64_t>()
                                                                : scalar_as<std::int64_t>(real)});
        case ComputeKind::float32:
            return map_general<float>(l, Constant<float>{at.value.to<float>()});
    }
}

// Each input is copied into its part of out.
void cat(In in, const kernels::Cat& at, Out out) {
    use_device_of(out[0]);
    const Strides& strides = out[0].strides();
    const int dim = static_cast<int>(at.dim);
    std::int64_t start = 0;
    for (const Tensor& x : in) {
        if (x.numel() == 0) continue;
        OperandLayout<2> l{};
        l.numel = x.numel();
        l.dtype[0] = out[0].dtype();
        l.dtype[1] = x.dtype();
        l.data[0] =
            static_cast<char*>(raw(out[0])) + start * strides[dim] * std::int64_t(size_of(l.dtype[0]));
        l.data[1] = raw(x);
        for (int d = 0; d < x.dim(); ++d) push_dim<2>(l, x.size(d), {strides[d], x.strides()[d]});
        copy(l);
        start += x.size(dim);
    }
}

void arange(In, const kernels::Arange&, Out out) {
    use_device_of(out[0]);
    const std::int64_t n = out[0].numel();
    launch(arange_kernel, grid_for(n, elementwise_block), elementwise_block, 0, any_of<double>(out[0]), n);
}

constinit const KernelList copy_list = kernel_list<cast, copy_into, fill, cat, arange>;

}  // namespace mezzo::cuda_kernels
