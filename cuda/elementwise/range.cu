// Counts inf, NaN and zero in a tensor, and finds its largest finite magnitude.
#include "cuda/elementwise/elements.cuh"
#include "cuda/kernels.h"
#include "kernels/range.h"

namespace mezzo::cuda {
namespace {

struct Found {
    double largest = 0;                      // of the finite magnitudes
    unsigned infs = 0, nans = 0, zeros = 0;  // of one thread: far fewer than 2^32

    template <class C> __device__ void add(C x) {
        const C magnitude = x < C(0) ? -x : x;
        if (magnitude == C(0))
            ++zeros;
        else if (x != x)
            ++nans;
        else if (magnitude - magnitude != C(0))
            ++infs;
        else if (static_cast<double>(magnitude) > largest)
            largest = static_cast<double>(magnitude);
    }
};

// The order of doubles that are not negative is that of their bits. Counts are whole numbers, whose sum does
// not depend on the order in which blocks add them.
template <class T> __global__ void range_kernel(const T* x, std::int64_t n, double* out) {
    Found found;
    for (std::int64_t i = first_item(); i < n; i += item_step()) found.add(convert<Compute<T>>(x[i]));
    const double largest = block_reduce(found.largest, 0.0, Max());
    const double infs = block_reduce(static_cast<double>(found.infs), 0.0, Sum());
    const double nans = block_reduce(static_cast<double>(found.nans), 0.0, Sum());
    const double zeros = block_reduce(static_cast<double>(found.zeros), 0.0, Sum());
    if (threadIdx.x != 0) return;
    unsigned long long bits = 0;
    std::memcpy(&bits, &largest, sizeof bits);
    atomicMax(reinterpret_cast<unsigned long long*>(out), bits);
    if (infs != 0) atomicAdd(out + 1, infs);
    if (nans != 0) atomicAdd(out + 2, nans);
    if (zeros != 0) atomicAdd(out + 3, zeros);
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace cuda;

void range_statistics(In in, const kernels::RangeStatistics&, Out out) {
    const Tensor& x = in[0];
    use_device_of(x);
    visit_dtype<Dtypes::floating>(x.dtype(), [&]<class T>(std::type_identity<T>) {
        launch(range_kernel<T>, grid_for(x.numel()), 256, 0, static_cast<const T*>(raw(x)), x.numel(),
               static_cast<double*>(raw(out[0])));
    });
}

constinit const KernelList range_list = kernel_list<range_statistics>;

}  // namespace mezzo::cuda_kernels
