// The second stage: training the classifier, and using it.
#pragma once

#include "bert/metrics.h"
#include "bert/setup.h"

namespace bert {

using Classifier = mezzo::nn::BertForSequenceClassification;

// Trains on the training texts and prints macro-F1 and accuracy on the validation texts after every epoch.
// Returns false if a signal has ended it.
[[nodiscard]] bool finetune(const Options& options, const Setup& setup, const Samples& train,
                            const Samples& validation, Classifier& model);

// The predicted class of a sample and its probability; predict() returns them for all samples, in order.
struct Prediction {
    std::int64_t label = 0;
    double probability = 0;
};
std::vector<Prediction> predict(const Options& options, const Setup& setup, const Samples& samples,
                                Classifier& model);

// Prints class, probability and text of each line of --predict.
void predict_file(const Options& options, const Setup& setup, Classifier& model);

}  // namespace bert
