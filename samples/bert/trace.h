// Records a run so that tools/torch_finetune.py can repeat it in PyTorch: settings, initial weights, every
// batch, every loss.
#pragma once

#include <string>
#include <vector>

#include "bert/setup.h"

namespace bert {

class Trace {
public:
    // Writes weights.safetensors, config.json, settings.json and validation.safetensors at once. With an
    // empty folder nothing is written.
    Trace(const Options& options, const Setup& setup, const Samples& validation,
          const mezzo::nn::Module& model);
    bool on() const { return !folder_.empty(); }
    void add(const Batch& batch);
    void add(double loss) {
        if (on()) losses_.push_back(loss);
    }
    // Writes batches.safetensors ("0.input_ids", "0.attention_mask", "0.labels", "1.…", in the order of
    // training) and losses.safetensors.
    void finish();

private:
    std::string folder_;
    mezzo::StateDict batches_;
    std::vector<double> losses_;
};

}  // namespace bert
