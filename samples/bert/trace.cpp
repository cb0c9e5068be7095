#include "bert/trace.h"

namespace mz = mezzo;

namespace bert {

Trace::Trace(const std::string& folder, const mz::nn::Module& model) : folder_(folder) {
    if (on()) mz::io::save_safetensors(folder_ + "/weights.safetensors", model.state_dict());
}

void Trace::add(const Batch& batch) {
    if (!on()) return;
    const std::string prefix = std::to_string(count_++) + ".";
    batches_.push_back({prefix + "input_ids", batch.tokens.input_ids});
    batches_.push_back({prefix + "attention_mask", batch.tokens.attention_mask});
    batches_.push_back({prefix + "labels", batch.labels});
}

void Trace::finish() {
    if (!on()) return;
    mz::io::save_safetensors(folder_ + "/batches.safetensors", batches_);
    mz::io::save_safetensors(folder_ + "/losses.safetensors",
                             {{"losses", mz::Tensor::from(losses_, {std::int64_t(losses_.size())})}});
}

}  // namespace bert
