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
    std::variant<std::int64_t, float, std::vector<std::int64_t>> value;
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

// What comes before the elements of the first initializer: a message whose last field, the graph, is complete but for its
// initializers. Throws Error(value) where the file would be larger than the 2^31 - 1 bytes that protobuf allows.
std::string onnx_head(const char* op, const OnnxGraph& graph);

// Replaces the file in one step, as save_safetensors() does. Error texts begin with `op`.
void save_onnx(const char* op, const std::string& path, const OnnxGraph& graph);

}  // namespace mezzo::io
