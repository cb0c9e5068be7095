// group_norm and its gradient: a block per group of a sample, which reads its elements twice, the second time
// from the cache.
#include "cuda/kernels.h"
#include "cuda/norm/norm.cuh"
#include "cuda/reduce/reduce.cuh"
#include "kernels/batch_norm.h"

namespace mezzo::cuda {
namespace {

// The groups of images [samples, pixels, channels].
struct Groups {
    std::int64_t samples, pixels, channels, groups;

    explicit Groups(const Tensor& x, std::int64_t count)
        : samples(x.shape()[0]), pixels(x.shape()[1]), channels(x.shape()[2]), groups(count) {}
    __host__ __device__ std::int64_t width() const { return channels / groups; }
    __host__ __device__ std::int64_t count() const { return samples * groups; }
    __host__ __device__ std::int64_t values() const { return pixels * width(); }  // of a group
    // Channel, and index in the images, of element e of group i.
    __device__ std::int64_t channel(std::int64_t i, std::int64_t e) const {
        return i % groups * width() + e % width();
    }
    __device__ std::int64_t place(std::int64_t i, std::int64_t e) const {
        return (i / groups * pixels + e / width()) * channels + channel(i, e);
    }
    // The group of an element of the images.
    __device__ std::int64_t group_of(std::int64_t place) const {
        return place / (pixels * channels) * groups + place % channels / width();
    }
};

// The sums of first(e) and second(e) over the elements of a group, in every thread of the block.
template <class C, class Terms> __device__ TwoSums<C> group_sums(std::int64_t n, const Terms& terms) {
    BlockedSum<C> first, second;
    for (std::int64_t e = threadIdx.x; e < n; e += blockDim.x) {
        const TwoSums<C> t = terms(e);
        first.add(t.first);
        second.add(t.second);
    }
    return block_reduce(TwoSums<C>{first.get(), second.get()}, TwoSums<C>{0, 0}, AddTwo());
}

template <class C> struct Statistics {
    AnyArray<C> mean, rstd;  // null: not wanted
};

template <class C> __global__ void group_norm_kernel(AnyArray<C> x, AnyArray<C> y, AnyArray<C> weight,
                                                     AnyArray<C> bias, Statistics<C> results, Groups groups,
                                                     C eps) {
    for (std::int64_t i = blockIdx.x; i < groups.count(); i += gridDim.x) {
        const std::int64_t n = groups.values();
        const C pivot = n > 0 ? x.load(groups.place(i, 0)) : C(0);
        const auto from_pivot = [&](std::int64_t e) { return x.load(groups.place(i, e)) - pivot; };
        const C distance = group_sums<C>(n,
                                         [&](std::int64_t e) {
                                             return TwoSums<C>{from_pivot(e), 0};
                                         })
                               .first /
                           static_cast<C>(n);
        // Squares about the mean itself: about a pivot that is far from the others they would cancel.
        const C variance = group_sums<C>(n,
                                         [&](std::int64_t e) {
                                             const C d = from_pivot(e) - distance;
                                             return TwoSums<C>{d * d, 0};
                                         })
                               .first /
                           static_cast<C>(n);
        const C rstd = C(1) / std::sqrt(variance + eps);
        for (std::int64_t e = threadIdx.x; e < n; e += blockDim.x) {
            const std::int64_t at = groups.place(i, e), c = groups.channel(i, e);
            y.store(at, (x.load(at) - pivot - distance) * rstd * weight.load(c) + bias.load(c));
        }
        if (threadIdx.x != 0 || results.mean.p == nullptr) continue;
        results.mean.store(i, pivot + distance);
        results.rstd.store(i, rstd);
    }
}

// With h = (x - mean) rstd and c = g weight: dx = rstd (c - mean(c) - h mean(c h)).
template <class C> __global__ void group_norm_grad_kernel(AnyArray<C> g, AnyArray<C> x, AnyArray<C> dx,
                                                          AnyArray<C> weight, Statistics<C> of,
                                                          Groups groups) {
    for (std::int64_t i = blockIdx.x; i < groups.count(); i += gridDim.x) {
        const C mean = of.mean.load(i), rstd = of.rstd.load(i);
        const auto h = [&](std::int64_t at) { return (x.load(at) - mean) * rstd; };
        const TwoSums<C> sums = group_sums<C>(groups.values(), [&](std::int64_t e) {
            const std::int64_t at = groups.place(i, e);
            const C c = g.load(at) * weight.load(groups.channel(i, e));
            return TwoSums<C>{c, c * h(at)};
        });
        const C n = static_cast<C>(groups.values()), offset = sums.first / n, along = sums.second / n;
        for (std::int64_t e = threadIdx.x; e < groups.values(); e += blockDim.x) {
            const std::int64_t at = groups.place(i, e);
            dx.store(at, rstd * (g.load(at) * weight.load(groups.channel(i, e)) - offset - h(at) * along));
        }
    }
}

// Terms of the weight's gradient for a column sum.
template <class C> struct LoadGroupTerm {
    AnyArray<C> g, x;
    Statistics<C> of;
    Groups groups;
    __device__ C operator()(std::int64_t place, std::int64_t) const {
        const std::int64_t i = groups.group_of(place);
        return g.load(place) * ((x.load(place) - of.mean.load(i)) * of.rstd.load(i));
    }
};

template <class C> void group_norm(In in, const kernels::GroupNorm& at, Out out) {
    const Groups groups(in[0], at.groups);
    Statistics<C> results{{nullptr, float32}, {nullptr, float32}};
    if (out.size() > 1) results = {any_of<C>(out[1]), any_of<C>(out[2])};
    launch(group_norm_kernel<C>, grid_for(groups.count(), 1), rows_block, 0, any_of<C>(in[0]),
           any_of<C>(out[0]), any_of<C>(in[1]), any_of<C>(in[2]), results, groups, static_cast<C>(at.eps));
}

template <class C> void group_norm_grad(In in, const kernels::GroupNormGrad& at, Out out) {
    const Groups groups(in[1], at.groups);
    const AnyArray<C> g = any_of<C>(in[0]), x = any_of<C>(in[1]);
    const Statistics<C> of{any_of<C>(in[3]), any_of<C>(in[4])};
    if (in[1].numel() != 0)
        launch(group_norm_grad_kernel<C>, grid_for(groups.count(), 1), rows_block, 0, g, x, any_of<C>(out[0]),
               any_of<C>(in[2]), of, groups);
    const ReduceShape columns = reduce_shape(in[1].shape(), Axes{0, 1});
    reduce(LoadGroupTerm<C>{g, x, of, groups}, SumOp<C>{1}, columns, out[1]);
    reduce(LoadElement<AnyArray<C>>{g}, SumOp<C>{1}, columns, out[2]);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void group_norm(In in, const kernels::GroupNorm& at, Out out) {
    use_device_of(out[0]);
    if (in[0].shape()[2] == 0) return;
    with_real({in[0].dtype(), out[0].dtype()}, [&]<class C>(C) { cuda::group_norm<C>(in, at, out); });
}
void group_norm_grad(In in, const kernels::GroupNormGrad& at, Out out) {
    use_device_of(out[0]);
    if (in[1].shape()[2] == 0) return;
    with_real({in[1].dtype(), out[0].dtype()}, [&]<class C>(C) { cuda::group_norm_grad<C>(in, at, out); });
}

constinit const KernelList group_norm_list = kernel_list<group_norm, group_norm_grad>;

}  // namespace mezzo::cuda_kernels
