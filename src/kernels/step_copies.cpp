#include "kernels/step_copies.h"

#include <iterator>
#include <memory>
#include <vector>

#include "kernels/narrow_state.h"

namespace mezzo {

namespace {

constinit thread_local Device current_device;

const StepKernels& cpu() { return *step_kernels(DeviceType::cpu); }

// Host copies of blocks of device memory. finish() copies the written ones back.
class Copies {
public:
    Copies() : index_(current_device.index), backend_(backend_of("optimizer step", current_device)) {}

    template <class T> T* read(T* device, std::size_t bytes) { return copy(device, bytes, false); }
    template <class T> T* write(T* device, std::size_t bytes) { return copy(device, bytes, true); }
    void finish() {
        for (const Block& block : blocks_)
            if (block.write) backend_.copy_in(index_, block.device, block.host.get(), block.bytes);
    }

    std::size_t size() const { return blocks_.size(); }

private:
    struct Block {
        void* device;
        std::unique_ptr<std::byte[]> host;  // aligned for any number
        std::size_t bytes;
        bool write;
    };
    template <class T> T* copy(T* device, std::size_t bytes, bool write) {
        if (device == nullptr || bytes == 0) return device;
        void* const memory = const_cast<void*>(static_cast<const void*>(device));
        blocks_.push_back({memory, std::make_unique<std::byte[]>(bytes), bytes, write});
        void* const host = blocks_.back().host.get();
        backend_.copy_out(index_, host, memory, bytes);
        return static_cast<T*>(host);
    }
    int index_;
    const Backend& backend_;
    std::vector<Block> blocks_;
};

std::size_t bytes_of(std::int64_t numel, Dtype dtype) { return std::size_t(numel) * size_of(dtype); }

std::size_t state_bytes(const ParamRef& p, int k) {
    switch (p.format[k]) {
        case StateFormat::wide:
            return bytes_of(p.numel, p.dtype == float64 ? float64 : float32);
        case StateFormat::bf16:
            return bytes_of(p.numel, bfloat16);
        default:
            return std::size_t(block8_count(p.numel)) * sizeof(Block8);
    }
}

std::vector<ParamRef> gradients(Copies& copies, std::span<const ParamRef> params, bool write) {
    std::vector<ParamRef> result(params.begin(), params.end());
    for (ParamRef& p : result) {
        const std::size_t bytes = bytes_of(p.numel, p.grad_dtype);
        p.grad = write ? copies.write(p.grad, bytes) : copies.read(p.grad, bytes);
    }
    return result;
}

GradientFactor factor_of(Copies& copies, GradientFactor factor) {
    factor.state = copies.read(factor.state, sizeof(StepState));
    return factor;
}

std::size_t number_bytes(OptimizerId optimizer) {
    constexpr std::size_t counts[] = {
#define MEZZO_OPTIMIZER(name) std::size(functors::name##Row::counted),
#include "mezzo/optimizers.def"
    };
    return counts[int(optimizer)] * sizeof(float);
}

void statistics(std::span<const ParamRef> params, const StepKernels::Statistics& wanted) {
    Copies copies;
    StepKernels::Statistics host = wanted;
    host.state = copies.write(wanted.state, sizeof(StepState));
    host.norm = copies.write(wanted.norm, sizeof(float));
    host.scaler = copies.write(wanted.scaler, sizeof(ScalerState));
    cpu().statistics(gradients(copies, params, false), host);
    copies.finish();
}

void update(std::span<const ParamRef> params, std::span<const StepArgs> groups, const GradientFactor& factor,
            const float* found_inf, StepState* counts) {
    Copies copies;
    std::vector<StepArgs> host_groups(groups.begin(), groups.end());
    for (StepArgs& args : host_groups) {
        if (args.lr_on_device == nullptr) continue;
        args.options[0] = *copies.read(args.lr_on_device, sizeof(double));
        args.lr_on_device = nullptr;
    }
    std::vector<ParamRef> refs = gradients(copies, params, false);
    for (ParamRef& p : refs) {
        p.param = copies.write(p.param, bytes_of(p.numel, p.dtype));
        for (int k = 0; k < max_optimizer_state; ++k)
            p.state[k] = copies.write(p.state[k], state_bytes(p, k));
        p.low16 = copies.write(p.low16, std::size_t(p.numel) * 2);
        p.copy16 = copies.write(p.copy16, bytes_of(p.numel, p.copy16_dtype));
        p.step = copies.write(p.step, number_bytes(groups[p.group].optimizer));
    }
    const GradientFactor host_factor = factor_of(copies, factor);
    const float* const host_found_inf = copies.read(found_inf, sizeof(float));
    cpu().update(refs, host_groups, host_factor, host_found_inf, copies.write(counts, sizeof(StepState)));
    copies.finish();
}

void scale_gradients(std::span<const ParamRef> params, const GradientFactor& factor) {
    Copies copies;
    const std::vector<ParamRef> refs = gradients(copies, params, true);
    cpu().scale_gradients(refs, factor_of(copies, factor));
    copies.finish();
}

void clip_by_value(std::span<const ParamRef> params, double limit) {
    Copies copies;
    cpu().clip_by_value(gradients(copies, params, true), limit);
    copies.finish();
}

void flag_nonfinite(std::span<const ParamRef> params, float* flags) {
    Copies copies;
    const std::vector<ParamRef> refs = gradients(copies, params, false);
    cpu().flag_nonfinite(refs, copies.write(flags, params.size() * sizeof(float)));
    copies.finish();
}

void update_scale(ScalerState* scaler, const StepKernels::ScalerArgs& args) {
    Copies copies;
    cpu().update_scale(copies.write(scaler, sizeof(ScalerState)), args);
    copies.finish();
}

constexpr StepKernels kernels = {.statistics = statistics,
                                 .update = update,
                                 .scale_gradients = scale_gradients,
                                 .clip_by_value = clip_by_value,
                                 .flag_nonfinite = flag_nonfinite,
                                 .update_scale = update_scale};

}  // namespace

const StepKernels& copied_step_kernels(Device device) {
    current_device = device;
    return kernels;
}

}  // namespace mezzo
