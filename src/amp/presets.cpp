// The presets O0 … O3 of NVIDIA Apex's amp, and its scale_loss form.
#include <algorithm>

#include "core/enumerators.h"
#include "mezzo/amp.h"
#include "mezzo/ops.h"
#include "nn/replace.h"
#include "optim/optimizer.h"

namespace mezzo::amp {

namespace {

Properties preset_of(const std::string& level) {
    if (level == "O0") return {.opt_level = level, .cast_model_type = CastModel::to_float32};
    if (level == "O1") return {.opt_level = level, .autocast = true, .dynamic = true};
    if (level == "O2")
        return {.opt_level = level,
                .cast_model_type = CastModel::to_float16,
                .keep_batchnorm_fp32 = true,
                .master_weights = true,
                .dynamic = true};
    if (level == "O3") return {.opt_level = level, .cast_model_type = CastModel::to_float16};
    fail(ErrorKind::value, "amp::initialize: opt_level is \"", level, "\"; it must be O0, O1, O2 or O3");
}

void refuse_under_autocast(const InitializeOptions& options) {
    const CastModel cast = options.cast_model_type;
    check_enumerator("amp::initialize", "cast_model_type", cast, CastModel::to_bfloat16);
    check_enumerator("amp::initialize", "keep_batchnorm_fp32", options.keep_batchnorm_fp32, Choice::yes);
    check_enumerator("amp::initialize", "master_weights", options.master_weights, Choice::yes);
    check(cast == CastModel::preset || cast == CastModel::none || cast == CastModel::to_float32,
          ErrorKind::value,
          "amp::initialize: O1 keeps the model in float32, cast_model_type may not be overridden; use O2 or "
          "O3");
    check(options.keep_batchnorm_fp32 == Choice::preset, ErrorKind::value,
          "amp::initialize: O1 keeps the whole model in float32, keep_batchnorm_fp32 may not be overridden");
    check(options.master_weights == Choice::preset, ErrorKind::value,
          "amp::initialize: under O1 the parameters are the float32 masters, master_weights may not be "
          "overridden");
}

Properties resolve(const InitializeOptions& options) {
    Properties result = preset_of(options.opt_level);
    if (result.autocast) {
        refuse_under_autocast(options);
    } else {
        if (options.cast_model_type != CastModel::preset) result.cast_model_type = options.cast_model_type;
        if (options.keep_batchnorm_fp32 != Choice::preset)
            result.keep_batchnorm_fp32 = options.keep_batchnorm_fp32 == Choice::yes;
        if (options.master_weights != Choice::preset)
            result.master_weights = options.master_weights == Choice::yes;
    }
    check(options.loss_scale >= 0 || options.loss_scale == dynamic_loss_scale, ErrorKind::value,
          "amp::initialize: loss_scale is ", options.loss_scale,
          "; it must be positive, or dynamic_loss_scale");
    if (options.loss_scale > 0) {
        result.dynamic = false;
        result.loss_scale = options.loss_scale;
    } else if (options.loss_scale == dynamic_loss_scale) {
        result.dynamic = true;
    }
    if (result.dynamic) result.loss_scale = std::min(65536.0, options.max_loss_scale);
    return result;
}

Dtype dtype_of(CastModel cast) {
    if (cast == CastModel::to_float16) return float16;
    return cast == CastModel::to_bfloat16 ? bfloat16 : float32;
}

// Converts the floating fields of a module and its children, except those of normalisation layers if they
// stay float32.
class Caster : public nn::FieldVisitor {
public:
    Caster(Dtype dtype, bool keep_normalization) : dtype_(dtype), keep_(keep_normalization) {}
    void parameter(const std::string&, nn::Parameter& p) override { convert(p); }
    void buffer(const std::string&, nn::Buffer& b) override { convert(b); }
    void module(const std::string&, nn::Module& child) override {
        if (!keep_ || !child.is_normalization()) child.visit_fields(*this);
    }

private:
    void convert(const Tensor& tensor) const {
        if (!tensor.defined() || !is_floating(tensor.dtype())) return;
        NoGrad plain;
        nn::replace_elements(tensor, tensor.to(dtype_));
    }
    Dtype dtype_;
    bool keep_;
};

void check_inputs(const nn::Module& model, const std::vector<optim::Optimizer*>& optimizers, CastModel cast) {
    for (const auto& [name, parameter] : model.named_parameters())
        check(parameter.dtype() == float32, ErrorKind::dtype, "amp::initialize: ", name, " is ",
              parameter.dtype(), "; pass the model in float32, the preset converts it");
    for (const optim::Optimizer* optimizer : optimizers) {
        check(optimizer != nullptr, ErrorKind::value, "amp::initialize: an optimizer is null");
        check(!optimizer->impl().preset.initialized, ErrorKind::state, "amp::initialize: this ",
              optimizer->type_name(), " has been initialized before; do it once");
        check(cast != CastModel::to_float16 || optimizer->impl().masters != optim::MasterWeights::split,
              ErrorKind::dtype, "amp::initialize: the preset makes float16 parameters, and this ",
              optimizer->type_name(),
              " has split masters, which need bfloat16; cast to bfloat16, or use MasterWeights::whole");
    }
}

}  // namespace

Handle initialize(nn::Module& model, const std::vector<optim::Optimizer*>& optimizers,
                  const InitializeOptions& options) {
    Handle handle;
    handle.properties_ = resolve(options);
    check(options.num_losses >= 1, ErrorKind::value, "amp::initialize: num_losses is ", options.num_losses);
    const Properties& p = handle.properties_;
    check_inputs(model, optimizers, p.cast_model_type);
    for (int i = 0; i < options.num_losses; ++i)
        handle.scalers_.emplace_back(GradScalerOptions{.init_scale = p.loss_scale,
                                                       .growth_interval = options.growth_interval,
                                                       .dynamic = p.dynamic,
                                                       .min_scale = options.min_loss_scale,
                                                       .max_scale = options.max_loss_scale,
                                                       .allow_no_gradients = true});
    if (p.cast_model_type == CastModel::to_bfloat16) handle.low_ = bfloat16;
    if (p.cast_model_type != CastModel::none) {
        Caster caster(dtype_of(p.cast_model_type), p.keep_batchnorm_fp32);
        nn::keep_side_by_side(model.parameters(), [&] { model.visit_fields(caster); });
    }
    for (optim::Optimizer* optimizer : optimizers) {
        if (p.master_weights)
            optimizer->use_master_weights(optimizer->impl().masters.value_or(optim::MasterWeights::whole));
        optimizer->impl().preset.initialized = true;
    }
    return handle;
}

Handle initialize(nn::Module& model, optim::Optimizer& optimizer, const InitializeOptions& options) {
    return initialize(model, std::vector<optim::Optimizer*>{&optimizer}, options);
}

GradScaler& Handle::scaler(int loss_id) {
    check(loss_id >= 0 && std::size_t(loss_id) < scalers_.size(), ErrorKind::value, "amp: no loss ", loss_id,
          ", there are ", scalers_.size(), "; see InitializeOptions::num_losses");
    return scalers_[std::size_t(loss_id)];
}

Tensor Handle::cast_input(const Tensor& x) const {
    const CastModel cast = properties_.cast_model_type;
    return cast != CastModel::none && is_floating(x.dtype()) ? x.to(dtype_of(cast)) : x;
}

Tensor Handle::cast_output(const Tensor& y) const {
    const bool converted = properties_.autocast || properties_.cast_model_type != CastModel::none;
    return converted && is_floating(y.dtype()) ? y.to(float32) : y;
}

namespace {

// Sets the gradients from before a backward aside, and restores them if the backward throws.
class Stash {
public:
    explicit Stash(optim::Optimizer& optimizer) : params_(optimizer.parameters()) {
        for (const Tensor& param : params_) gradients_.push_back(param->grads().gradient.take());
    }
    Stash(Stash&& other) noexcept = default;
    ~Stash() {
        for (std::size_t i = 0; i < gradients_.size(); ++i) put_back(i);
    }
    // After the backward: adds the gradients set aside to the new ones.
    void add_to_gradients() {
        NoGrad plain;
        for (std::size_t i = 0; i < gradients_.size(); ++i) {
            if (!gradients_[i].value.defined()) continue;
            const Tensor fresh = params_[i].grad();
            if (fresh.defined()) {
                fresh.add_(gradients_[i].value);
            } else {
                put_back(i);
            }
        }
        gradients_.clear();
    }

private:
    void put_back(std::size_t i) const { params_[i]->grad_meta->gradient.put(gradients_[i]); }
    Tensors params_;
    std::vector<Gradient> gradients_;
};

}  // namespace

void Handle::scale_loss(const Tensor& loss, const std::vector<optim::Optimizer*>& optimizers, Body backward,
                        int loss_id, bool delay_unscale) {
    GradScaler& loss_scaler = scaler(loss_id);
    const Tensor wide = is_16bit(loss.dtype()) ? loss.to(float32) : loss;
    if (!properties_.master_weights && !properties_.dynamic && properties_.loss_scale == 1) {
        backward(wide);
        return;
    }
    const auto is_scaled = [&](const optim::Optimizer* optimizer) {
        return std::find(scaled_.begin(), scaled_.end(), optimizer->id()) != scaled_.end();
    };
    if (delay_unscale) {
        backward(loss_scaler.scale(wide));
        for (const optim::Optimizer* optimizer : optimizers)
            if (!is_scaled(optimizer)) scaled_.push_back(optimizer->id());
        return;
    }
    std::vector<Stash> stashes;
    for (optim::Optimizer* optimizer : optimizers)
        if (!is_scaled(optimizer)) stashes.emplace_back(*optimizer);
    backward(loss_scaler.scale(wide));
    for (optim::Optimizer* optimizer : optimizers) {
        loss_scaler.unscale_(*optimizer);
        std::erase(scaled_, optimizer->id());
    }
    for (Stash& stash : stashes) stash.add_to_gradients();
    const bool overflow = loss_scaler.found_inf();
    loss_scaler.update();
    for (optim::Optimizer* optimizer : optimizers)
        if (overflow) optimizer->impl().preset.skips_next_step = true;
}

void Handle::scale_loss(const Tensor& loss, optim::Optimizer& optimizer, Body backward, int loss_id,
                        bool delay_unscale) {
    scale_loss(loss, std::vector<optim::Optimizer*>{&optimizer}, std::move(backward), loss_id, delay_unscale);
}

StateDict Handle::state_dict() const {
    StateDict state;
    for (std::size_t i = 0; i < scalers_.size(); ++i) {
        const std::string prefix = "loss_scaler" + std::to_string(i) + ".";
        state.emplace_back(prefix + "loss_scale", scalar(scalers_[i].get_scale(), {.dtype = float64}));
        state.emplace_back(prefix + "unskipped",
                           scalar(double(scalers_[i].get_growth_tracker()), {.dtype = float64}));
    }
    return state;
}

void Handle::load_state_dict(const StateDict& state) {
    check(state.size() == 2 * scalers_.size(), ErrorKind::value, "amp.load_state_dict: ", state.size(),
          " entries for ", scalers_.size(), " losses; each has two");
    const auto entry = [&](const std::string& name) {
        const auto at =
            std::find_if(state.begin(), state.end(), [&](const auto& named) { return named.first == name; });
        check(at != state.end() && at->second.defined(), ErrorKind::value, "amp.load_state_dict: ", name,
              " is missing");
        return at->second;
    };
    std::vector<StateDict> loaded;
    for (std::size_t i = 0; i < scalers_.size(); ++i) {
        loaded.push_back(scalers_[i].state_dict());
        const std::string prefix = "loss_scaler" + std::to_string(i) + ".";
        for (auto& [name, value] : loaded.back()) {
            if (name == "scale") value = entry(prefix + "loss_scale");
            if (name == "_growth_tracker") value = entry(prefix + "unskipped");
        }
        GradScaler(scalers_[i].options()).load_state_dict(loaded[i]);  // throws before any has changed
    }
    for (std::size_t i = 0; i < scalers_.size(); ++i) scalers_[i].load_state_dict(loaded[i]);
}

}  // namespace mezzo::amp
