// The command line of bert_classifier.
#pragma once

#include <cstdint>
#include <string>

#include <mezzo/mezzo.h>

namespace bert {

struct Options {
    std::string data;  // folder of TweetEval files; empty: package descriptions
    // safetensors file or its folder, which may also have config.json and vocab.txt
    std::string weights;
    std::string vocab, model_config;
    std::string precision = "fp32";
    mezzo::Device device;
    // otherwise the device is the rank's
    bool device_given = false;
    int threads = 0;  // of the CPU; 0: as many as the rank has processors
    std::int64_t layers = 2, hidden = 128, heads = 2, intermediate = 0;  // without a config; 0: 4 * hidden
    double dropout = 0.1;
    bool pooler = true;
    std::int64_t vocab_size = 8000;  // of a vocabulary learned from the texts
    std::int64_t max_length = 128;
    bool pad_to_max = false, bucket = true;
    std::int64_t batch = 16, accumulate = 1, epochs = 3, pretrain_epochs = 0;
    std::int64_t max_steps = 0;  // of fine-tuning; 0: all epochs
    double lr = 0;               // 0: 2e-5 with weights, 5e-4 for a model from scratch
    double pretrain_lr = 1e-3, weight_decay = 0.01, warmup = 0.1, clip = 1.0;
    std::uint64_t seed = 1;
    std::int64_t limit = 0;  // limit of the training texts; 0: all
    std::string checkpoint;
    std::int64_t checkpoint_every = 0;  // steps; 0: after every epoch only
    bool resume = false;
    bool shard = false;  // shards the optimizer's state among the ranks
    std::string save, predict, trace, profile;
    std::int64_t log_every = 50;
    bool progress = false;

    bool mixed() const { return precision != "fp32"; }
    mezzo::Dtype low() const { return precision == "bf16" ? mezzo::bfloat16 : mezzo::float16; }
    mezzo::amp::AutocastOptions autocast() const { return {.dtype = low(), .enabled = mixed()}; }
};

// Returns -1 to continue, or the exit code of a program that has printed help or an error.
int parse_options(int argc, char** argv, Options& options);

}  // namespace bert
