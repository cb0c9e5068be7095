#include "autograd/root_gradient.h"

#include <map>
#include <mutex>
#include <tuple>

#include "core/backend.h"
#include "core/memory/memory_hook.h"
#include "core/step_recorder.h"
#include "core/tensor_impl.h"
#include "mezzo/ops.h"

namespace mezzo {
namespace {

// Allocates from the backend, outside of memory statistics and limits, for tensors that are never freed.
class RootMemory final : public MemoryHook {
public:
    explicit RootMemory(Device device) : MemoryHook(device) {}
    Block* allocate(std::size_t bytes) override {
        const std::size_t size = block_size(bytes);
        void* const memory = backend_of("backward", device_).allocate(device_.index, size);
        check(memory != nullptr, ErrorKind::memory, "backward: ", device_, " has no ", size, " bytes left");
        auto* block = new Block;
        block->address = static_cast<char*>(memory);
        block->size = size;
        return block;
    }
    bool keeps(Block*) noexcept override { return false; }
};

// The storage of a reusable root gradient of 1. It is handed out only while it has no other reference, so
// that two backward passes never share it, also not through a gradient that it was passed on as.
class ReusableOne {
public:
    // Null while it has other references, or if the device has no memory for it.
    Ref<Storage> take(Device device, Dtype dtype) {
        if (!storage_) make(device);
        if (!storage_ || storage_->refs.load(std::memory_order_acquire) != 1) return {};
        if (storage_->version.load() != written_) {
            written_ = never;
            make_tensor(storage_, {}, {}, 0, dtype).fill_(1);
            written_ = storage_->version.load();
        }
        return storage_;
    }

private:
    void make(Device device) {
        const RootMemory memory(device);
        try {
            storage_ = allocate_storage(sizeof(double), device);
        } catch (const Error& e) {
            if (e.kind() != ErrorKind::memory) throw;
            return;
        }
        detail::live_storages.fetch_sub(1, std::memory_order_relaxed);  // it is no tensor's
    }

    static constexpr std::uint64_t never = ~std::uint64_t(0);
    Ref<Storage> storage_;
    std::uint64_t written_ = never;  // the version in which it is one
};

Ref<Storage> reusable_one(Device device, Dtype dtype) {
    static auto& mutex = *new std::mutex;
    static auto& ones =
        *new std::map<std::tuple<DeviceType, int, Dtype>, ReusableOne>;  // the device may be gone first
    const std::lock_guard lock(mutex);
    return ones[{device.type(), device.index, dtype}].take(device, dtype);
}

Tensor implied_gradient(const Tensor& output) {
    const Device device = output.device();
    // Writing on the CPU costs nothing. Under a MemoryHook and in a capture a new tensor is made.
    const bool keeps = device.type() != DeviceType::cpu && MemoryHook::of(device) == nullptr &&
                       thread_state.recorder == nullptr;
    if (keeps)
        if (const Ref<Storage> one = reusable_one(device, output.dtype()))
            return make_tensor(one, output.shape(), contiguous_strides(output.shape()), 0, output.dtype());
    return ones_like(output);
}

}  // namespace

Tensor root_gradient(const char* op, const Tensor& output, const Tensors& grad_outputs, std::size_t i) {
    check(output.defined() && tracked(output), ErrorKind::state, op, ": output ", i,
          " does not require grad; it has no recorded history");
    if (i < grad_outputs.size() && grad_outputs[i].defined()) {
        const Tensor& given = grad_outputs[i];
        check(given.shape() == output.shape(), ErrorKind::shape, op, ": the gradient has shape ",
              given.shape(), ", the output ", output.shape());
        check(given.device() == output.device(), ErrorKind::device, op, ": the gradient is on ",
              given.device(), ", the output on ", output.device());
        return given.dtype() == output.dtype() ? given : cast(given, output.dtype());
    }
    check(output.numel() == 1, ErrorKind::shape, op, ": the output has shape ", output.shape(),
          "; only a one-element output has an implied gradient, pass one");
    return implied_gradient(output);
}

}  // namespace mezzo
