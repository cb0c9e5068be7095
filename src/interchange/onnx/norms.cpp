// Mappings of normalisations and softmax.
#include "interchange/onnx/mapping.h"
#include "kernels/batch_norm.h"
#include "kernels/norm.h"
#include "kernels/softmax.h"

namespace mezzo::onnx {

namespace {

Value layer_norm_of(const Call& call, Value x, Value weight, Value bias, double eps) {
    return call.emit("LayerNormalization", {x, weight, bias},
                     {{"axis", std::int64_t(-1)}, {"epsilon", float(eps)}});
}
Value layer_norm(const Call& call) {
    return layer_norm_of(call, call.in[0], call.in[1], call.in[2], call.attributes<kernels::LayerNorm>().eps);
}
// Inputs weight, x, x_bias or none, residual, bias.
Value dropout_add_layer_norm(const Call& call) {
    const auto& at = call.attributes<kernels::DropoutAddLayerNorm>();
    if (at.dropout_p > 0) return none;
    Value x = call.in[1];
    if (call.in[2] != none) x = call.emit("Add", {x, call.in[2]});
    return layer_norm_of(call, call.emit("Add", {x, call.in[3]}), call.in[0], call.in[4], at.eps);
}

// Axes from an image [N, .., C] to ONNX's [N, C, ..].
Axes channels_second(int dims) {
    Axes axes{0, dims - 1};
    for (int d = 1; d + 1 < dims; ++d) axes.push_back(d);
    return axes;
}

// Inputs x [rows, C], weight, bias, residual or none, running mean, running variance. If the rows have been
// reshaped from an image, the operator is applied to the image, directly after the convolution that made it.
Value batch_norm(const Call& call) {
    const auto& at = call.attributes<kernels::BatchNorm>();
    if (at.batch_statistics) return none;
    Graph& g = call.graph;
    Value image = g.before_reshape(call.in[0]);
    if (g.shape(image).size() < 3 || g.shape(image).back() != call.shape().back()) image = call.in[0];
    const Shape shape = g.shape(image);
    const Axes axes = channels_second(shape.size());
    Value y = g.like("BatchNormalization",
                     {g.permuted(image, axes), call.in[1], call.in[2], call.in[4], call.in[5]},
                     {{"epsilon", float(at.eps)}});
    if (call.in[3] != none) y = g.like("Add", {y, g.permuted(g.reshaped(call.in[3], shape), axes)});
    if (at.relu) y = g.like("Relu", {y});
    return g.reshaped(g.permuted(y, inverse(axes)), call.shape());
}

Value softmax(const Call& call) {
    return call.emit("Softmax", {call.in[0]}, {{"axis", call.attributes<kernels::Softmax>().dim}});
}
Value log_softmax(const Call& call) {
    return call.emit("LogSoftmax", {call.in[0]}, {{"axis", call.attributes<kernels::LogSoftmax>().dim}});
}

constexpr MappingOf mappings[] = {
    {"layer_norm", layer_norm},   {"dropout_add_layer_norm", dropout_add_layer_norm},
    {"batch_norm", batch_norm},   {"softmax", softmax},
    {"log_softmax", log_softmax},
};

}  // namespace

std::span<const MappingOf> norm_mappings() { return mappings; }

}  // namespace mezzo::onnx
