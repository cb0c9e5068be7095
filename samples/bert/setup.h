// Options and input files of bert_classifier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <mezzo/autocast.h>
#include <mezzo/device.h>
#include <mezzo/io.h>
#include <mezzo/models/bert.h>
#include <mezzo/models/bert_config.h>
#include <mezzo/text/tokenizer.h>

#include "bert/texts.h"

namespace bert {

struct Options {
    std::string data;                 // folder of TweetEval files; empty: package descriptions
    std::int64_t limit = 0;           // largest number of training texts; 0: all
    std::string weights;              // safetensors file, or its folder; empty: random weights
    std::string vocab, model_config;  // files; empty: those with the weights, or made for the texts
    std::int64_t layers = 2, hidden = 128, heads = 2, intermediate = 0;  // without a configuration file
    std::int64_t vocab_size = 8000;                                      // of a learned vocabulary
    std::int64_t max_length = 128;                                       // tokens of a text
    double dropout = 0.1;
    bool pooler = true;

    std::string precision = "fp32", states = "fp32";
    std::int64_t epochs = 3, max_steps = 0, pretrain_epochs = 0;
    std::int64_t batch = 16, accumulate = 1;
    double lr = 0;  // 0: 2e-5 with weights, 5e-4 without
    double pretrain_lr = 1e-3, weight_decay = 0.01, warmup = 0.1, clip = 1;
    std::uint64_t seed = 1;
    bool shard = false;  // of the optimizer's state, among the ranks
    mezzo::Device device;
    bool device_given = false;
    int threads = 0;  // 0: the processors divided by the ranks that run on them

    std::string checkpoints, save, predict, tensorboard;
    std::int64_t checkpoint_every = 0, log_every = 50;
    bool resume = false;
};

// Parses the command line and the file of --config. Returns -1 to continue, or the exit code of a program
// that has printed help or an error.
int parse_options(int argc, char** argv, Options& options);

// Names of the two trainings, and of their folders in --checkpoints and --tensorboard.
inline constexpr const char *pretraining = "pre-training", *finetuning = "fine-tuning";

// Makes the folders for results, so that a folder that cannot be used is an error before the training.
void make_folders(const Options& options);

// Inputs of a run.
struct Inputs {
    Corpora corpora = {};  // empty if nothing is trained
    std::vector<std::string> classes = {};
    mezzo::data::WordPiece tokenizer;
    mezzo::nn::BertConfig config = {};
    mezzo::StateDict weights = {};             // of --weights
    std::vector<std::string> to_predict = {};  // the lines of --predict
};

// Reads or makes the inputs of a run; errors name the option or the file.
Inputs read_inputs(const Options& options);

// Returns the settings that must be the same when a training is resumed: options, sizes of the model, digests
// of texts, classes, vocabulary and weights.
mezzo::io::Metadata settings_of(const Options& options, const Inputs& inputs);

// Writes model.safetensors, config.json, vocab.txt and classes.txt, which --weights can load.
void save_model(const std::string& folder, const Inputs& inputs, const mezzo::nn::Module& model);

}  // namespace bert
