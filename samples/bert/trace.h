// What tools/torch_bert.py needs to repeat a run in PyTorch: initial weights, every batch, every loss.
#pragma once

#include <string>
#include <vector>

#include "bert/batches.h"

namespace bert {

class Trace {
public:
    // An empty folder: nothing is written. Otherwise the weights are, at once.
    Trace(const std::string& folder, const mezzo::nn::Module& model);
    bool on() const { return !folder_.empty(); }
    void add(const Batch& batch);
    void add(double loss) {
        if (on()) losses_.push_back(loss);
    }
    // Writes batches.safetensors ("0.input_ids", "0.attention_mask", "0.labels", "1.…") and
    // losses.safetensors.
    void finish();

private:
    std::string folder_;
    mezzo::StateDict batches_;
    std::int64_t count_ = 0;
    std::vector<double> losses_;
};

}  // namespace bert
