// The images that resnet trains on and is tested with.
#pragma once

#include <string>
#include <vector>

#include <mezzo/mezzo.h>

#include "resnet/options.h"

namespace resnet {

// What a network must know of its images. It is saved with the weights.
struct ImageFormat {
    std::vector<std::string> classes;
    std::int64_t size = 32;            // height and width
    std::int64_t channels = 3;         // 1: grey
    std::vector<double> mean, stddev;  // per channel, of values in [0, 1]
};

struct Images {
    std::string name;  // for people
    ImageFormat format;
    std::string digest;  // of what the training reads
    std::int64_t train_count = 0, test_count = 0;
    mezzo::data::DataLoader train, test;
};
// CIFAR-10, a folder of images or Fashion-MNIST, as --data says; each rank gets its part of every batch. Throws
// std::exception.
Images load_images(const Options& options, const mezzo::data::Shard& shard);

// float32 [1, size, size, channels] of an image file, as the network reads it.
mezzo::Tensor read_one(const std::string& file, const ImageFormat& format);

// The format in the metadata of a file of weights, and back. An empty list of classes: there is none.
mezzo::io::Metadata metadata_of(const ImageFormat& format);
ImageFormat format_of(const mezzo::io::Metadata& metadata);

}  // namespace resnet
