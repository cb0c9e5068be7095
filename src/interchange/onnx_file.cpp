#include "interchange/onnx_file.h"

#include <filesystem>

#include "io/elements.h"
#include "io/file.h"
#include "io/json.h"
#include "io/protobuf.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"
#include "mezzo/version.h"

namespace mezzo::io {

std::int64_t onnx_data_type(Dtype dtype) {
    switch (dtype) {
        case float32:
            return 1;
        case uint8:
            return 2;
        case int8:
            return 3;
        case int32:
            return 6;
        case int64:
            return 7;
        case boolean:
            return 9;
        case float16:
            return 10;
        case float64:
            return 11;
        case bfloat16:
            return 16;
        default:
            fail(ErrorKind::dtype, "export_onnx: opset ", int(onnx_opset), " has no ", dtype,
                 "; convert the tensor with to()");
    }
}

namespace {

struct AttributeFields {
    Message& message;
    void operator()(std::int64_t value) const { message.varint(3, std::uint64_t(value)).varint(20, 2); }
    void operator()(float value) const { message.number(2, value).varint(20, 1); }
    void operator()(const std::vector<std::int64_t>& values) const {
        for (const std::int64_t value : values) message.varint(8, std::uint64_t(value));
        message.varint(20, 7);
    }
    void operator()(const std::string& text) const { message.bytes(4, text).varint(20, 3); }
};

// NodeProto.
Message node_message(const OnnxNode& node) {
    Message message;
    for (const std::string& input : node.inputs) message.bytes(1, input);
    for (const std::string& output : node.outputs) message.bytes(2, output);
    message.bytes(3, node.name).bytes(4, node.type);
    for (const OnnxAttribute& one : node.attributes) {
        Message attribute = Message().bytes(1, one.name);
        std::visit(AttributeFields{attribute}, one.value);
        message.message(5, attribute);
    }
    return message;
}

// ValueInfoProto with TypeProto.Tensor.
Message value_message(const OnnxValue& value) {
    Message shape;
    for (const OnnxSize& one : value.shape)
        shape.message(1, one.name.empty() ? Message().varint(1, std::uint64_t(one.size))
                                          : Message().bytes(2, one.name));
    const Message tensor = Message().varint(1, std::uint64_t(onnx_data_type(value.dtype))).message(2, shape);
    return Message().bytes(1, value.name).message(2, Message().message(1, tensor));
}

std::uint64_t bytes_of(const Tensor& x) { return std::uint64_t(x.numel()) * size_of(x.dtype()); }

constexpr std::uint64_t most_bytes = 0x7fffffff;
constexpr std::uint64_t least_outside = 1024;
constexpr std::uint64_t page = 4096;  // readers may map the data file; the format asks for this alignment

std::int64_t offset_of(const OnnxLayout& layout, std::size_t i) {
    return layout.data_file.empty() ? -1 : layout.offsets[i];
}

// StringStringEntryProto.
Message entry(std::string_view key, std::string_view value) {
    return Message().bytes(1, key).bytes(2, value);
}

// TensorProto up to its elements; for a tensor in the data file it ends with their location.
std::string tensor_head(const OnnxTensor& tensor, const OnnxLayout& layout, std::int64_t offset) {
    Message message;
    for (const std::int64_t n : tensor.value.shape()) message.varint(1, std::uint64_t(n));
    message.varint(2, std::uint64_t(onnx_data_type(tensor.value.dtype()))).bytes(8, tensor.name);
    if (offset < 0) return message.announce(9, bytes_of(tensor.value)).text();
    return message.message(13, entry("location", layout.data_file))
        .message(13, entry("offset", std::to_string(offset)))
        .message(13, entry("length", std::to_string(bytes_of(tensor.value))))
        .varint(14, 1)  // EXTERNAL
        .text();
}

// The same, as a field of the graph.
std::string initializer_head(const OnnxGraph& graph, const OnnxLayout& layout, std::size_t i) {
    const OnnxTensor& tensor = graph.initializers[i];
    const std::int64_t offset = offset_of(layout, i);
    const std::string head = tensor_head(tensor, layout, offset);
    const std::uint64_t behind = offset < 0 ? bytes_of(tensor.value) : 0;
    return Message().announce(5, head.size() + behind).text() + head;
}

std::string graph_body(const OnnxGraph& graph) {
    Message body;
    for (const OnnxNode& node : graph.nodes) body.message(1, node_message(node));
    body.bytes(2, graph.name);
    for (const OnnxValue& input : graph.inputs) body.message(11, value_message(input));
    for (const OnnxValue& output : graph.outputs) body.message(12, value_message(output));
    return body.text();
}

// ModelProto up to the content of its graph, which has `size` bytes.
std::string model_head(std::uint64_t size) {
    return Message()
        .varint(1, 8)  // the version of the format that came with opset 17
        .bytes(2, "mezzo")
        .bytes(3, version())
        .message(8, Message().bytes(1, "").varint(2, onnx_opset))
        .announce(7, size)
        .text();
}

std::uint64_t graph_size(const std::string& body, const OnnxGraph& graph, const OnnxLayout& layout) {
    std::uint64_t size = body.size();
    for (std::size_t i = 0; i < graph.initializers.size(); ++i) {
        size += initializer_head(graph, layout, i).size();
        if (offset_of(layout, i) < 0) size += bytes_of(graph.initializers[i].value);
    }
    return size;
}

bool fits(std::uint64_t size) { return model_head(size).size() + size <= most_bytes; }

void write_elements(ReplacedFile& file, const Tensor& x) {
    const Tensor value = x.detach().to(cpu_device).contiguous();
    const Elements elements = elements_of(value);
    file.write(elements.data, elements.bytes);
}

void save_data(const char* op, const std::string& path, const OnnxGraph& graph, const OnnxLayout& layout) {
    ReplacedFile file(op, path);
    std::uint64_t written = 0;
    for (std::size_t i = 0; i < graph.initializers.size(); ++i) {
        if (layout.offsets[i] < 0) continue;
        const Tensor& value = graph.initializers[i].value;
        file.write(std::string(std::size_t(layout.offsets[i]) - written, '\0'));
        write_elements(file, value);
        written = std::uint64_t(layout.offsets[i]) + bytes_of(value);
    }
    file.commit();
}

}  // namespace

OnnxLayout onnx_layout(const OnnxGraph& graph, const std::string& path, bool external_data) {
    if (!external_data && fits(graph_size(graph_body(graph), graph, {}))) return {};
    OnnxLayout layout{.data_file = std::filesystem::path(path).filename().string() + ".data"};
    std::uint64_t end = 0;
    for (const OnnxTensor& tensor : graph.initializers) {
        const std::uint64_t bytes = bytes_of(tensor.value);
        layout.offsets.push_back(bytes < least_outside ? -1 : std::int64_t(end));
        if (bytes >= least_outside) end += (bytes + page - 1) / page * page;
    }
    return layout;
}

std::string onnx_head(const char* op, const OnnxGraph& graph, const OnnxLayout& layout) {
    const std::string body = graph_body(graph);
    const std::uint64_t size = graph_size(body, graph, layout);
    check(fits(size), ErrorKind::value, op, ": the model has ", size,
          " bytes, and an ONNX file at most 2^31 - 1; export parts of it, each to a file of its own");
    return model_head(size) + body;
}

void save_onnx(const char* op, const std::string& path, const OnnxGraph& graph, bool external_data) {
    const NoGrad plain;
    const OnnxLayout layout = onnx_layout(graph, path, external_data);
    check(first_invalid_utf8(layout.data_file) == layout.data_file.size(), ErrorKind::value, op,
          ": the name ", shown(layout.data_file),
          " of the file of weights is not valid UTF-8, which the model's file has to be");
    const std::string head = onnx_head(op, graph, layout);
    if (!layout.data_file.empty()) save_data(op, path + ".data", graph, layout);
    ReplacedFile file(op, path);
    file.write(head);
    for (std::size_t i = 0; i < graph.initializers.size(); ++i) {
        file.write(initializer_head(graph, layout, i));
        if (offset_of(layout, i) < 0) write_elements(file, graph.initializers[i].value);
    }
    file.commit();
}

}  // namespace mezzo::io
