// Training and test images of resnet.
#pragma once

#include <string>
#include <vector>

#include "mezzo/data/images.h"
#include "mezzo/data/loader.h"
#include "mezzo/mezzo.h"
#include "resnet/options.h"

namespace resnet {

// Format of the images that a network expects. It is saved with the weights.
struct ImageFormat {
    std::vector<std::string> classes;
    std::int64_t size = 32;            // height and width
    std::int64_t channels = 3;         // 1: grey
    std::vector<double> mean, stddev;  // per channel, of values in [0, 1]
};

struct Images {
    std::string name;  // for messages
    ImageFormat format;
    std::string description;  // number and digest of the training data: part of the checkpoint
    std::int64_t train_count = 0, test_count = 0;
    mezzo::data::DataLoader train, test;
};
// Loads CIFAR-10, a folder of images or Fashion-MNIST, according to --data; each rank gets its part of every
// batch. Throws std::exception.
Images load_images(const Options& options, const mezzo::data::Shard& shard);

// Returns an image file as float32 [1, size, size, channels], the network's input.
mezzo::Tensor read_one(const std::string& file, const ImageFormat& format);

// Both convert between the format and the metadata of a file of weights. An empty list of classes means that
// there is none.
mezzo::io::Metadata metadata_of(const ImageFormat& format);
ImageFormat format_of(const mezzo::io::Metadata& metadata);

}  // namespace resnet
