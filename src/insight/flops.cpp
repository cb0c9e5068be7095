#include "insight/flops.h"

#include <algorithm>
#include <string_view>

namespace mezzo::insight {

namespace {

// The shapes that the formulas read. A missing shape is empty.
struct Shapes {
    Shape in[3], out;
};

double count(const Shape& shape) {
    double product = 1;
    for (const std::int64_t n : shape) product *= double(n);
    return product;
}
// Returns size i, counted from the end if i is negative; 0 if there is none.
double size(const Shape& shape, int i) {
    const int at = i < 0 ? i + shape.size() : i;
    return at >= 0 && at < shape.size() ? double(shape[at]) : 0;
}
// Returns the products per result of a convolution with this weight [out, ...].
double taps(const Shape& weight) {
    double product = weight.empty() ? 0 : 1;
    for (int i = 1; i < weight.size(); ++i) product *= double(weight[i]);
    return product;
}

struct Formula {
    std::string_view op;
    double (*flops)(const Shapes&);
};

double by_last(const Shapes& s) { return 2 * count(s.out) * size(s.in[0], -1); }
double by_first(const Shapes& s) { return 2 * count(s.out) * size(s.in[0], 0); }
double conv(const Shapes& s) { return 2 * count(s.out) * taps(s.in[1]); }
double conv_input(const Shapes& s) { return 2 * count(s.in[0]) * taps(s.in[1]); }
double conv_weight(const Shapes& s) { return 2 * count(s.in[0]) * taps(s.out); }
// q [batch, query, heads, dim], k [batch, key, heads, dim]: products for the scores and for the weighted sums
// of values.
double attention(const Shapes& s) { return 4 * count(s.in[0]) * size(s.in[1], 1); }
double packed_attention(const Shapes& s) { return 4 * count(s.in[0]) / 3 * size(s.in[0], 1); }
// Ops of attention gradients read g first, then the same inputs; five products instead of two.
double attention_grad(const Shapes& s) { return 10 * count(s.in[1]) * size(s.in[2], 1); }
double packed_attention_grad(const Shapes& s) { return 10 * count(s.in[1]) / 3 * size(s.in[1], 1); }

constexpr Formula formulas[] = {
    {"linear", by_last},
    {"linear_relu", by_last},
    {"linear_gelu", by_last},
    {"merged_linear", by_last},
    {"matmul", by_last},
    {"linear_input_grad", by_last},
    {"quantized_linear", by_last},
    {"linear_weight_grad", by_first},
    {"conv2d", conv},
    {"conv2d_add_relu", conv},
    {"conv_transpose2d", conv_input},
    {"conv2d_input_grad", conv_input},
    {"conv2d_weight_grad", conv_weight},
    {"scaled_dot_product_attention", attention},
    {"packed_attention", packed_attention},
    {"scaled_dot_product_attention_grad", attention_grad},
    {"packed_attention_grad", packed_attention_grad},
};

const Formula* formula_of(std::string_view op) {
    const Formula* const found =
        std::find_if(std::begin(formulas), std::end(formulas), [&](const Formula& f) { return f.op == op; });
    return found == std::end(formulas) ? nullptr : found;
}

}  // namespace

double flops_of(const AnyOp& op, In given, In results) noexcept {
    const Formula* const formula = formula_of(op.name());
    if (formula == nullptr || results.empty() || !results[0].defined()) return 0;
    Shapes shapes;
    shapes.out = results[0].shape();
    for (std::size_t i = 0; i < std::min(given.size(), std::size(shapes.in)); ++i)
        if (given[i].defined()) shapes.in[i] = given[i].shape();
    return formula->flops(shapes);
}

double backward_flops_of(const Node& node) noexcept {
    const Formula* const formula = formula_of(node.op->name());
    if (formula == nullptr || node.outputs.empty()) return 0;
    Shapes shapes;
    shapes.out = node.outputs[0].shape;
    for (std::size_t i = 0; i < std::min(node.inputs.size(), std::size(shapes.in)); ++i)
        shapes.in[i] = node.inputs[i].shape;
    const double forward = formula->flops(shapes);
    if (formula->flops == attention || formula->flops == packed_attention) return 2.5 * forward;
    // The operands are the first two inputs; for a merged linear the second input stands for all weights.
    double products = 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(node.edges.size(), 2); ++i)
        products += node.edges[i].needed() ? 1 : 0;
    return products * forward;
}

}  // namespace mezzo::insight
