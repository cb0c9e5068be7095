#include "io/onnx_file.h"

#include "io/elements.h"
#include "io/file.h"
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
    }
    return 0;  // UNDEFINED
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

// TensorProto, up to its elements.
std::string tensor_head(const OnnxTensor& tensor) {
    Message message;
    for (const std::int64_t n : tensor.value.shape()) message.varint(1, std::uint64_t(n));
    return message.varint(2, std::uint64_t(onnx_data_type(tensor.value.dtype())))
        .bytes(8, tensor.name)
        .announce(9, bytes_of(tensor.value))
        .text();
}

// The same as a field of the graph.
std::string initializer_head(const OnnxTensor& tensor) {
    const std::string head = tensor_head(tensor);
    return Message().announce(5, head.size() + bytes_of(tensor.value)).text() + head;
}

constexpr std::uint64_t most_bytes = 0x7fffffff;

}  // namespace

std::string onnx_head(const char* op, const OnnxGraph& graph) {
    Message body;
    for (const OnnxNode& node : graph.nodes) body.message(1, node_message(node));
    body.bytes(2, graph.name);
    for (const OnnxValue& input : graph.inputs) body.message(11, value_message(input));
    for (const OnnxValue& output : graph.outputs) body.message(12, value_message(output));
    std::uint64_t weights = 0;
    for (const OnnxTensor& tensor : graph.initializers)
        weights += initializer_head(tensor).size() + bytes_of(tensor.value);
    const std::uint64_t size = body.text().size() + weights;
    const std::string head = Message()
                                 .varint(1, 8)  // the version of the format that came with opset 17
                                 .bytes(2, "mezzo")
                                 .bytes(3, version())
                                 .message(8, Message().bytes(1, "").varint(2, onnx_opset))
                                 .announce(7, size)
                                 .text();
    check(head.size() + size <= most_bytes, ErrorKind::value, op, ": the model has ", size,
          " bytes, and an ONNX file at most 2^31 - 1; export parts of it, each to a file of its own");
    return head + body.text();
}

void save_onnx(const char* op, const std::string& path, const OnnxGraph& graph) {
    const NoGrad plain;
    const std::string head = onnx_head(op, graph);
    ReplacedFile file(op, path);
    file.write(head);
    for (const OnnxTensor& tensor : graph.initializers) {
        file.write(initializer_head(tensor));
        const Tensor value = tensor.value.detach().to(cpu_device).contiguous();
        const Elements elements = elements_of(value);
        file.write(elements.data, elements.bytes);
    }
    file.commit();
}

}  // namespace mezzo::io
