// The command line of gpt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <mezzo/mezzo.h>

namespace gpt {

struct Options {
    std::vector<std::string> texts;  // files; none: licences of this machine
    std::string tokenizer;           // a tokenizer.json
    std::int64_t bpe = 0;            // size of a vocabulary to learn; 0 and no tokenizer: bytes
    std::string model;               // folder of a model to generate with, without training
    std::string architecture = "gpt", precision = "fp32";
    std::int64_t layers = 4, width = 128, heads = 4, context = 128;
    double dropout = 0.1;
    std::int64_t steps = 500, batch = 16, report_every = 50, checkpoint_every = 100;
    double lr = 1e-3, weight_decay = 0.1;
    std::string checkpoint, out, profile;
    bool resume = false, device_given = false;
    std::string prompt = "This License ";
    mezzo::nn::GenerateOptions generate = {.max_new_tokens = 200, .sampling = {.temperature = 0.8}};
    std::uint64_t seed = 1;
    mezzo::Device device;
    int threads = 0;  // 0: as many as there are processors
};

// Returns -1 to continue, or the exit code.
int parse_options(int argc, char** argv, Options& options);

}  // namespace gpt
