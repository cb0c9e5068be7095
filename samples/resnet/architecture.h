// Architecture of the network, from the options and from the metadata of a file of weights.
#pragma once

#include <mezzo/mezzo.h>

#include "resnet/images.h"
#include "resnet/options.h"

namespace resnet {

mezzo::nn::ResNetConfig config_of(const Options& options, const ImageFormat& format);

// Returns model, stem and shortcut as metadata for a file of weights.
mezzo::io::Metadata metadata_of(const std::string& model, const mezzo::nn::ResNetConfig& config);
// Sets options that were not given to the values in the metadata of --weights, or to the default. Throws
// std::runtime_error if an option was given and differs.
void take_stored(Options& options, const mezzo::io::Metadata& metadata);

}  // namespace resnet
