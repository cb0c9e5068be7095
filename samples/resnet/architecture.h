// Which network: as the options say, and as a file of weights says that was saved with it.
#pragma once

#include <mezzo/mezzo.h>

#include "resnet/images.h"
#include "resnet/options.h"

namespace resnet {

mezzo::nn::ResNetConfig config_of(const Options& options, const ImageFormat& format);

// Model, stem and shortcut for the metadata of a file of weights.
mezzo::io::Metadata metadata_of(const std::string& model, const mezzo::nn::ResNetConfig& config);
// Options that were not given become what the metadata of --weights say, or the default. Throws
// std::runtime_error for one that was given and differs.
void take_stored(Options& options, const mezzo::io::Metadata& metadata);

}  // namespace resnet
