#include "resnet/precision.h"

#include "program.h"

namespace mz = mezzo;

namespace resnet {

namespace {

mz::amp::InitializeOptions preset_options(const Options& o) {
    mz::amp::InitializeOptions options{.opt_level = o.opt_level};
    if (!o.keep_batchnorm.empty())
        options.keep_batchnorm_fp32 = o.keep_batchnorm == "yes" ? mz::amp::Choice::yes : mz::amp::Choice::no;
    if (o.loss_scale == "dynamic") {
        options.loss_scale = mz::amp::dynamic_loss_scale;
    } else {
        program::parse_number(std::string_view(o.loss_scale), options.loss_scale);
    }
    return options;
}

}  // namespace

Precision::Precision(const Options& o, mz::nn::ResNet& model, mz::optim::Optimizer& optimizer)
    : autocast_{.dtype = o.precision == "bf16" ? mz::bfloat16 : mz::float16,
                .enabled = o.precision != "fp32"},
      optimizer_(optimizer) {
    if (o.opt_level.empty()) {
        // Only float16 has such a small range that its gradients need scaling.
        scaler_.emplace(mz::amp::GradScalerOptions{.enabled = o.precision == "fp16"});
    } else {
        preset_ = mz::amp::initialize(model, optimizer, preset_options(o));
    }
}

mz::Tensor Precision::forward(const mz::nn::ResNet& model, const mz::Tensor& images) const {
    if (preset_) return preset_->forward(model, images);
    const mz::amp::Autocast scope(autocast_);
    return model(images).to(mz::float32);
}

void Precision::step(const mz::Tensor& loss) {
    if (preset_) {
        preset_->scale_loss(loss, optimizer_, [](const mz::Tensor& scaled_loss) { scaled_loss.backward(); });
        optimizer_.step();
    } else {
        scaler_->scale(loss).backward();
        scaler_->step(optimizer_);
        scaler_->update();
    }
    optimizer_.zero_grad();
}

bool Precision::scaled() const {
    return preset_ ? preset_->properties().opt_level != "O0" : scaler_->is_enabled();
}

double Precision::scale() { return preset_ ? preset_->scaler().get_scale() : scaler_->get_scale(); }

mz::StateDict Precision::state_dict() const {
    return preset_ ? preset_->state_dict() : scaler_->state_dict();
}

void Precision::load_state_dict(const mz::StateDict& state) {
    if (preset_) {
        preset_->load_state_dict(state);
    } else {
        scaler_->load_state_dict(state);
    }
}

}  // namespace resnet
