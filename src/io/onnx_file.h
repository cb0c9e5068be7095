// Files of the ONNX format (onnx.proto of github.com/onnx/onnx), as far as mezzo writes them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "mezzo/tensor.h"

namespace mezzo::io {

struct OnnxAttribute {
    std::string name;
    std::variant<std::int64_t, float, std::vector<std::int64_t>, std::string> value;
    friend bool operator==(const OnnxAttribute&, const OnnxAttribute&) = default;
};

// An operator of the default domain. An empty input is one that is left out.
struct OnnxNode {
    std::string type, name = {};
    std::vector<std::string> inputs = {}, outputs = {};
    std::vector<OnnxAttribute> attributes = {};
};

struct OnnxTensor {
    std::string name;
    Tensor value;
};

// A size, or the name of one that is known only when the model runs.
struct OnnxSize {
    std::int64_t size = 0;
    std::string name = {};  // if not empty: `size` means nothing
};
struct OnnxValue {
    std::string name;
    Dtype dtype = Dtype::float32;
    std::vector<OnnxSize> shape;
};

struct OnnxGraph {
    std::string name;
    std::vector<OnnxNode> nodes;  // each after those whose results it reads
    std::vector<OnnxTensor> initializers;
    std::vector<OnnxValue> inputs, outputs;
};

inline constexpr int onnx_opset = 17;
// The number that the format has for a dtype (TensorProto.DataType).
std::int64_t onnx_data_type(Dtype dtype);

// Where the elements of initializers are: within the model, or in a file beside it (TensorProto.external_data).
struct OnnxLayout {
    std::string data_file = {};              // its name; empty: there is none
    std::vector<std::int64_t> offsets = {};  // in that file, for each initializer; -1: within the model
};
// With a data file, path + ".data", if the model shall have one or is larger than the 2^31 - 1 bytes that protobuf allows. Initializers of
// less than 1024 bytes stay within the model: programs read shapes before they run it.
OnnxLayout onnx_layout(const OnnxGraph& graph, const std::string& path, bool external_data);

// What comes before the elements of the first initializer: a message whose last field, the graph, is complete but for its
// initializers. Throws Error(value) where the file would still be larger than 2^31 - 1 bytes.
std::string onnx_head(const char* op, const OnnxGraph& graph, const OnnxLayout& layout = {});

// Replaces the file in one step, as save_safetensors() does; before it the data file, if there is one. Error texts begin with `op`.
void save_onnx(const char* op, const std::string& path, const OnnxGraph& graph, bool external_data = false);

}  // namespace mezzo::io
