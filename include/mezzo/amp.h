// Mixed precision: Autocast, GradScaler, Fp8State, and presets in the style of NVIDIA Apex.
//
//   amp::Handle handle = amp::initialize(net, optimizer, {.opt_level = "O2"});
//   loss = cross_entropy(handle.forward(net, x), labels);
//   handle.scale_loss(loss, optimizer, [](const Tensor& scaled) { scaled.backward(); });
//   optimizer.step();
//   optimizer.zero_grad();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/autocast.h"
#include "mezzo/grad_scaler.h"
#include "mezzo/module.h"
#include "mezzo/optim.h"

#pragma GCC visibility push(default)

namespace mezzo::amp {

// The histories of a module's float8 layers with Recipe::delayed, for checkpoints:
//
//     amp::Fp8State fp8(net);
//     const training::Checkpoint checkpoint({.model = net, .optimizer = optimizer, .others = {{"fp8", fp8}}});
//
// It refers to the parameters that the module has now. A training that goes on without it begins with current
// scaling again.
class Fp8State {
public:
    explicit Fp8State(const nn::Module& module);
    // Copies: for the weight of each layer that has run PATH.input, PATH.weight and PATH.gradient, float32
    // [2 + history]. The numbers are the largest element of the running step, that of the last steps, and the
    // last steps one by one, newest first.
    [[nodiscard]] StateDict state_dict() const;
    // Layers without entries begin anew; a history of another length is cut or continued. Throws, with
    // nothing changed, Error(value) for entries that are unknown, undefined, there twice, or without those of
    // the other operands, and for numbers that are negative or, but for the running step's, not finite;
    // Error(dtype) or Error(shape) for another dtype or shape; and Error(state) inside a captured step.
    void load_state_dict(const StateDict& state);

private:
    StateDict parameters_;
};

// A property that a preset sets and the user may override.
enum class Choice : std::uint8_t { preset, no, yes };
enum class CastModel : std::uint8_t { preset, none, to_float32, to_float16, to_bfloat16 };
// A value of InitializeOptions::loss_scale: the scale adapts to the gradients, whatever the preset says.
inline constexpr double dynamic_loss_scale = -1;

struct InitializeOptions {
    // "O0" float32, "O1" autocast, "O2" 16-bit model with master weights, "O3" 16-bit model
    std::string opt_level = "O1";
    CastModel cast_model_type = CastModel::preset;
    Choice keep_batchnorm_fp32 = Choice::preset;
    Choice master_weights = Choice::preset;
    double loss_scale = 0;  // > 0 static; dynamic_loss_scale; 0: the preset's
    int num_losses = 1;
    double min_loss_scale = 0;
    double max_loss_scale = 16777216;  // 2^24
    std::int64_t growth_interval = 2000;
};

// The settings that initialize() chose. cast_model_type is never `preset`, and under O1 it is `none`.
struct Properties {
    std::string opt_level;
    CastModel cast_model_type = CastModel::none;
    bool autocast = false;
    bool keep_batchnorm_fp32 = false;
    bool master_weights = false;
    bool dynamic = false;
    double loss_scale = 1;  // the static one, or the first
};

// A model and its optimizers prepared by initialize(). The optimizers must outlive it.
class Handle {
public:
    [[nodiscard]] const Properties& properties() const { return properties_; }
    // The scaler of a loss. Throws Error(value) for a loss_id outside [0, num_losses), here and in
    // scale_loss().
    [[nodiscard]] GradScaler& scaler(int loss_id = 0);

    // Runs model(x) with the preset: under Autocast, or with x cast to the model's dtype. A floating result
    // is cast to float32, so that the loss is float32 at every level and its scaled gradient does not
    // overflow.
    template <class Model> Tensor forward(Model& model, const Tensor& x) const {
        const Tensor input = cast_input(x);
        const Autocast scope({.dtype = low_, .enabled = properties_.autocast});
        return cast_output(model(input));
    }
    [[nodiscard]] Tensor cast_input(const Tensor& x) const;
    [[nodiscard]] Tensor cast_output(const Tensor& y) const;

    // Calls backward(scaled loss), which must call the loss's backward(). Afterwards the gradients are
    // unscaled and added to earlier ones, and the scale is updated. On an overflow each optimizer skips its
    // next step() and clears its gradients. delay_unscale leaves the gradients scaled, for accumulation.
    // Waits for the device. Throws what backward and GradScaler::unscale_() throw, after restoring the
    // earlier gradients.
    using Body = autograd::Callback<void(const Tensor&)>;
    void scale_loss(const Tensor& loss, optim::Optimizer& optimizer, Body backward, int loss_id = 0,
                    bool delay_unscale = false);
    void scale_loss(const Tensor& loss, const std::vector<optim::Optimizer*>& optimizers, Body backward,
                    int loss_id = 0, bool delay_unscale = false);

    // The scale and growth tracker of every scaler.
    [[nodiscard]] StateDict state_dict() const;
    // Throws Error(value), with nothing changed, for another number of losses and values that a scaler
    // refuses.
    void load_state_dict(const StateDict& state);

private:
    friend Handle initialize(nn::Module& model, const std::vector<optim::Optimizer*>& optimizers,
                             const InitializeOptions& options);
    Properties properties_;
    Dtype low_ = float16;
    std::vector<GradScaler> scalers_;
    std::vector<std::uint64_t> scaled_;  // optimizers whose gradients delay_unscale left scaled
};

// Applies a preset to a float32 model and its optimizers (casts the model, gives the optimizers master
// weights) and makes the scalers. Throws Error(value) for an unknown level, overrides that the level refuses,
// a negative loss_scale other than dynamic_loss_scale, num_losses below 1 and a null optimizer; Error(dtype)
// for parameters that are not float32; Error(state) for an optimizer that was prepared before.
[[nodiscard]] Handle initialize(nn::Module& model, optim::Optimizer& optimizer,
                                const InitializeOptions& options = {});
[[nodiscard]] Handle initialize(nn::Module& model, const std::vector<optim::Optimizer*>& optimizers,
                                const InitializeOptions& options = {});

}  // namespace mezzo::amp

#pragma GCC visibility pop
