// Inputs of a run: texts, tokenizer and the model's configuration, from files or made from the texts.
#pragma once

#include <string>
#include <vector>

#include "bert/batches.h"
#include "bert/options.h"
#include "bert/settings.h"

namespace bert {

struct Setup {
    mezzo::distributed::Group group;
    Corpora corpora;  // empty if there is nothing to train
    mezzo::data::WordPiece tokenizer;
    std::vector<std::string> vocabulary;  // of the tokenizer, to be saved with the model
    mezzo::nn::BertConfig config;
    std::vector<std::string> classes;
    std::string weights;                       // safetensors file, or empty
    std::vector<std::string> to_predict = {};  // the lines of --predict
    training::Settings settings = {};          // stored in checkpoints

    bool binary() const { return classes.size() == 2; }  // one logit instead of two
};

// Prepares a run. Rank 0 checks whether files can be written, since it writes them.
Setup make_setup(const Options& options, const mezzo::distributed::Group& group);

// Files that save_model() writes.
inline constexpr const char* model_files[] = {"model.safetensors", "config.json", "vocab.txt", "classes.txt"};

// Writes model.safetensors, config.json, vocab.txt and classes.txt, which --weights can load.
void save_model(const std::string& folder, const Setup& setup, const mezzo::nn::Module& model);

}  // namespace bert
