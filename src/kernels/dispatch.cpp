#include "kernels/dispatch.h"

#include <algorithm>

#include "core/backend.h"
#include "core/step_recorder.h"
#include "core/storage_codes.h"
#include "core/tensor_impl.h"
#include "kernels/registry.h"
#include "mezzo/error.h"

namespace mezzo {

namespace {

// A tensor's copy in host memory, with the same strides; a tensor of the CPU itself. All memory between the
// first and the last element is copied, so that elements that a view skips keep their values when the copy is
// written back.
class HostCopy {
public:
    explicit HostCopy(const Tensor& x) : original_(x) {
        if (!x.defined()) return;
        if (x.device().type() == DeviceType::cpu) {
            host = x;
            return;
        }
        refuse_in_capture("a kernel of the CPU", x.device(), "copy to the host");
        std::int64_t last = 0;
        for (int d = 0; d < x.dim(); ++d) last += std::max<std::int64_t>(0, x.size(d) - 1) * x.strides()[d];
        const std::int64_t span = x.numel() > 0 ? last + 1 : 0;
        bytes_ = std::size_t(span) * size_of(x.dtype());
        const Tensor memory = empty({span}, {.dtype = x.dtype()});
        host = make_tensor(memory->storage, x.shape(), x.strides(), 0, x.dtype());
        if (bytes_ > 0) backend_of("copy", x.device()).copy_out(x.device().index, raw(host), raw(x), bytes_);
    }
    void write_back() const {
        if (bytes_ == 0) return;
        const Device device = original_.device();
        backend_of("copy", device).copy_in(device.index, raw(original_), raw(host), bytes_);
        backend_of("copy", device).synchronize(device.index);
    }
    Tensor host;

private:
    Tensor original_;
    std::size_t bytes_ = 0;
};

}  // namespace

void KernelCache::missing(In, const void*, Out) {}

AnyKernel* KernelCache::look_up(DeviceType type) const {
    AnyKernel* kernel = find_kernel(*id_, type);
    if (kernel == nullptr) kernel = missing;
    found_[int(type)].store(kernel, std::memory_order_relaxed);
    return kernel;
}

void check_all_compute(const char* op, In tensors) {
    for (const Tensor& x : tensors)
        if (x.defined()) check_computes(op, x.dtype());
}

void run_on_cpu(const char* op, const KernelCache& kernels, In in, const void* at, Out out) {
    AnyKernel* kernel = kernels.on(DeviceType::cpu);
    check(kernel != nullptr, ErrorKind::backend, op, ": no kernel ", kernels.name(), " for ", out[0].device(),
          " or the CPU in this build");
    Tensors host_in, host_out;
    std::vector<HostCopy> results;
    for (const Tensor& x : in) host_in.push_back(HostCopy(x).host);
    for (const Tensor& y : out) host_out.push_back(results.emplace_back(y).host);
    kernel(host_in, at, host_out);
    for (const HostCopy& result : results) result.write_back();
}

}  // namespace mezzo
