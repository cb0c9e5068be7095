// Loads trained models whose architecture is described by their files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "mezzo/io.h"
#include "mezzo/module.h"

namespace mezzo::python {

// A model in eval mode.
class Model {
public:
    virtual ~Model() = default;
    // `mask` and `types` are undefined unless the model reads texts.
    virtual Tensor run(const Tensor& x, const Tensor& mask, const Tensor& types) const = 0;
    virtual nn::Module& module() = 0;
};

// Loads a model with the weights of a safetensors file. The model is a BERT classifier if there is a
// config.json (`config`, or the one in the file's folder), a ResNet if the metadata name one, as
// samples/resnet writes it, and otherwise an MLP with the names of a Sequential, with `activation` (relu,
// gelu, tanh or silu) between its layers. `path` may be a folder with a model.safetensors. Throws the errors
// of the readers of these files, and Error(value) for other files.
std::unique_ptr<Model> load_model(const std::filesystem::path& path, const std::filesystem::path& config,
                                  const std::string& activation);

}  // namespace mezzo::python
