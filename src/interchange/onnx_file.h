// Writes files of the ONNX format (onnx.proto of github.com/onnx/onnx), as far as mezzo needs it.
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

// An operator of the default domain. An empty input name is an omitted input.
struct OnnxNode {
    std::string type, name = {};
    std::vector<std::string> inputs = {}, outputs = {};
    std::vector<OnnxAttribute> attributes = {};
};

struct OnnxTensor {
    std::string name;
    Tensor value;
};

// A size, or the name of a size that is known only when the model runs.
struct OnnxSize {
    std::int64_t size = 0;
    std::string name = {};  // if not empty, `size` is not used
};
struct OnnxValue {
    std::string name;
    Dtype dtype = Dtype::float32;
    std::vector<OnnxSize> shape;
};

struct OnnxGraph {
    std::string name;
    std::vector<OnnxNode> nodes;  // in topological order
    std::vector<OnnxTensor> initializers;
    std::vector<OnnxValue> inputs, outputs;
};

inline constexpr int onnx_opset = 17;
// Returns the number of a dtype in the format (TensorProto.DataType).
std::int64_t onnx_data_type(Dtype dtype);

// Locations of the elements of initializers: in the model, or in a data file in the same folder
// (TensorProto.external_data).
struct OnnxLayout {
    std::string data_file = {};              // file name; empty: no data file
    std::vector<std::int64_t> offsets = {};  // in that file, for each initializer; -1: in the model
};
// Returns a layout with a data file, path + ".data", if external_data is set or the model is larger than the
// 2^31 - 1 bytes that protobuf allows. Initializers of less than 1024 bytes stay in the model, because
// programs read shapes before they run it.
OnnxLayout onnx_layout(const OnnxGraph& graph, const std::string& path, bool external_data);

// Returns the bytes before the elements of the first initializer: a message whose last field, the graph, has
// everything but its initializers. Throws Error(value) if the model would still be larger than 2^31 - 1
// bytes.
std::string onnx_head(const char* op, const OnnxGraph& graph, const OnnxLayout& layout = {});

// Replaces the file atomically, as save_safetensors() does; before it the data file, if there is one. Error
// messages begin with `op`.
void save_onnx(const char* op, const std::string& path, const OnnxGraph& graph, bool external_data = false);

}  // namespace mezzo::io
