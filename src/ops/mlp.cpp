// mlp: linear layers one after the other as one op, so that a gradient may pass the activation between two of
// them in the matrix product that makes it.
#include "core/branch.h"
#include "mezzo/cuda.h"
#include "ops/kernel_for.h"
#include "ops/products.h"

namespace mezzo {

namespace {

const Kernels linear_kernel{"linear", MEZZO_KERNELS(linear)};

bool is_gelu(Activation a) { return a == Activation::gelu || a == Activation::gelu_tanh; }

// Where an mlp's inputs and results are. Results: y, the relu masks of the hidden layers, the hidden values,
// and for gelu the values before each activation. Only y where nothing is recorded.
struct Layout {
    int layers;
    Activation activation;
    bool activate_last;

    Layout(std::size_t inputs, const Attrs& at)
        : layers(int(inputs - 1) / 2), activation(at.activation), activate_last(at.index != 0) {}
    static constexpr int masks = 1;
    static int weight(int layer) { return 1 + 2 * layer; }
    static int bias(int layer) { return 2 + 2 * layer; }
    // Of layers but the last.
    static int hidden(int layer) { return 2 + layer; }
    int before(int layer) const { return 1 + layers + layer; }
    bool is_last(int layer) const { return layer == layers - 1; }
    Activation activation_of(int layer) const {
        return is_last(layer) && !activate_last ? Activation::none : activation;
    }
};

// Bytes of a layer's mask; a multiple of the alignment that device memory has, too.
std::int64_t mask_size(std::int64_t rows, std::int64_t columns) {
    return (relu_mask_bytes(rows, columns) + 255) / 256 * 256;
}

// A hidden layer's part of the masks, undefined where there are none.
Tensor mask_of(const Tensor& masks, std::int64_t rows, In in, int layer) {
    if (!masks.defined() || masks.numel() == 0) return {};
    std::int64_t begin = 0;
    for (int i = 0; i < layer; ++i) begin += mask_size(rows, in[std::size_t(Layout::weight(i))].size(0));
    const std::int64_t size = mask_size(rows, in[std::size_t(Layout::weight(layer))].size(0));
    return make_tensor(masks->storage, {size}, {1}, masks->offset + begin, uint8);
}

// The kernel of every device: its linear kernel, layer by layer.
void mlp_kernel(In in, const Attrs& at, Out out) {
    const Layout layout(in.size(), at);
    const bool keeps = out.size() > 1;
    const std::int64_t rows = in[0].size(0);
    Tensor x = in[0];
    for (int i = 0; i < layout.layers; ++i) {
        const Tensor& weight = in[std::size_t(Layout::weight(i))];
        Tensor y = out[0];
        if (!layout.is_last(i))
            y = keeps ? out[std::size_t(Layout::hidden(i))]
                      : empty({rows, weight.size(0)}, {.dtype = x.dtype(), .device = x.device()});
        const Activation activation = layout.activation_of(i);
        Tensor kept;
        if (keeps && is_gelu(activation)) kept = out[std::size_t(layout.before(i))];
        if (keeps && !layout.is_last(i) && activation == Activation::relu)
            kept = mask_of(out[Layout::masks], rows, in, i);
        const Tensor given[] = {x, weight, in[std::size_t(Layout::bias(i))]}, results[] = {y, kept};
        linear_kernel.of[int(x.device().type())](In(given), {.activation = activation},
                                                 Out(results, kept.defined() ? 2 : 1));
        x = y;
    }
}

Tensors mlp_decomposition(In in, const Attrs& at) {
    const Layout layout(in.size(), at);
    Tensor x = in[0];
    for (int i = 0; i < layout.layers; ++i) {
        const Tensor& bias = in[std::size_t(Layout::bias(i))];
        x = matmul(x, in[std::size_t(Layout::weight(i))].t());
        if (bias.defined()) x = x + bias;
        x = activated(x, layout.activation_of(i));
    }
    return {x};
}

// The gradient before the activation of the layer below a linear one, and its column sums if at.index is not
// 0. The mask says what kept says, too.
const Op linear_input_grad_op{
    {.name = "linear_input_grad",
     .statistics = 1,
     .kernel = MEZZO_KERNELS(linear_input_grad),
     .decomposition = [](In in, const Attrs& at) -> Tensors {
         const Tensor before = through_activation(at.activation, matmul(in[0], in[1]), in[2]);
         if (at.index == 0) return {before};
         return {before, column_sum(before, before.dtype() == float64 ? float64 : float32)};
     }}};

// A gradient before an activation; undefined if there is none. sums: of its columns, where they came with it.
struct Before {
    Tensor g, sums = {};
};

// One backward pass through the layers, the last first.
class Backward {
public:
    Backward(const Node& call, const Tensors& gradients)
        : c(call), gs(gradients), layout(call.inputs.size(), call.at) {}

    Tensors run() const {
        Tensors result(c.inputs.size());
        Before before = last();
        for (int i = layout.layers - 1; i >= 0; --i) {
            const bool goes_on = needed_below(i);
            Before next;
            Branch side(c.inputs[0].device, before.g.defined() && goes_on && side_by_side(i));
            if (goes_on && i > 0)
                next = below(i, before);
            else if (goes_on && before.g.defined())
                result[0] = product_grad(c, 0, before.g, c.in(Layout::weight(0)));
            side.enter();
            if (before.g.defined()) add_parameters(i, before, result);
            side.join();
            if (!goes_on) break;
            before = next;
        }
        return result;
    }

private:
    bool needed_below(int layer) const {
        for (int i = 0; i < Layout::weight(layer); ++i)
            if (c.needs(i)) return true;
        return false;
    }
    // Whether a layer's parameters may get their gradients beside what goes on below it. Of two leaves both
    // may be added to a grad() in place, and it may be the same one.
    bool side_by_side(int layer) const {
        const bool wanted = c.needs(Layout::weight(layer)) || needs_bias(layer);
        return wanted && (layer > 0 || !c.edges[0].leaf.defined());
    }
    bool needs_bias(int layer) const { return c.needs(Layout::bias(layer)); }

    // What the gradient of a layer's activation reads.
    Tensor kept(int layer) const {
        if (is_gelu(layout.activation)) return c.out(layout.before(layer));
        return c.out(layout.is_last(layer) ? 0 : Layout::hidden(layer));
    }
    // The gradient that a later backward sent to a result of this one.
    Tensor extra(int result) const {
        return std::size_t(result) < gs.size() ? gs[std::size_t(result)] : Tensor();
    }

    Before last() const {
        const int layer = layout.layers - 1;
        const Activation activation = layout.activation_of(layer);
        if (activation == Activation::none) return {gs[0].defined() ? gemm_ready(gs[0]) : Tensor()};
        Before result;
        if (gs[0].defined() && needs_bias(layer)) {
            const Tensors both = activation_grad(activation, gs[0], kept(layer));
            result = {both[0], both[1]};
        } else if (gs[0].defined()) {
            result.g = through_activation(activation, gs[0], kept(layer));
        }
        if (is_gelu(activation)) add(result, extra(layout.before(layer)));
        return result;
    }

    // The gradient before the activation of the layer below `layer`.
    Before below(int layer, const Before& above) const {
        const int to = layer - 1;
        Before result = above.g.defined() ? through(layer, above.g) : Before();
        if (const Tensor g = extra(Layout::hidden(to)); g.defined())
            add(result, layout.activation == Activation::none
                            ? g
                            : through_activation(layout.activation, g, kept(to)));
        if (is_gelu(layout.activation)) add(result, extra(layout.before(to)));
        return result;
    }

    Before through(int layer, const Tensor& g) const {
        const int to = layer - 1;
        const Tensor weight = c.in(Layout::weight(layer));
        if (layout.activation == Activation::none) return {matmul(g, weight)};
        const bool sums = needs_bias(to);
        const std::int64_t columns = weight.size(1);
        const Shape shapes[] = {{g.size(0), columns}, {columns}};
        const Tensor given[] = {g, weight, kept(to),
                                mask_of(c.saved_outputs[Layout::masks], g.size(0), c.saved_inputs, to)};
        const Tensors r = call(linear_input_grad_op, given, {.index = sums, .activation = layout.activation},
                               std::span<const Shape>(shapes, sums ? 2 : 1));
        return {r[0], sums ? r[1] : Tensor()};
    }

    static void add(Before& sum, const Tensor& g) {
        if (!g.defined()) return;
        sum = {sum.g.defined() ? sum.g + g : g};
    }

    void add_parameters(int layer, const Before& before, Tensors& result) const {
        const int weight = Layout::weight(layer), bias = Layout::bias(layer);
        if (c.needs(weight)) {
            const Tensor input = layer == 0 ? c.in(0) : c.out(Layout::hidden(layer - 1));
            result[std::size_t(weight)] = product_grad(c, weight, before.g.t(), input);
        }
        if (!c.needs(bias)) return;
        const Dtype wanted = c.grad_dtype(bias);
        const Dtype dtype = is_16bit(before.g.dtype()) ? float32 : before.g.dtype();
        const Tensor sums = before.sums.defined() ? before.sums : column_sum(before.g, dtype);
        result[std::size_t(bias)] = is_16bit(wanted) ? cast(sums, wanted) : sums;
    }

    const Node& c;
    const Tensors& gs;
    const Layout layout;
};

const Op mlp_op{{.name = "mlp",
                 .cast = Cast::low,
                 .save = save_inputs | save_outputs,
                 .bits = Layout::masks,
                 .kernel = {mlp_kernel, mlp_kernel},
                 .vjp = [](const Node& c, const Tensors& gs) { return Backward(c, gs).run(); },
                 .decomposition = mlp_decomposition}};

void check_mlp(const Tensor& x, const Tensors& weights, const Tensors& biases) {
    check(!weights.empty(), ErrorKind::value, "mlp: no weights; it needs one per layer");
    check(biases.empty() || biases.size() == weights.size(), ErrorKind::value, "mlp: ", biases.size(),
          " biases for ", weights.size(), " weights; give one per layer, undefined where there is none");
    check_factors("mlp", x, weights[0]);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        check_factors("mlp", weights[i], weights[0]);
        check_parameters("mlp", weights[i], biases.empty() ? Tensor() : biases[i]);
        if (i > 0)
            check(weights[i].size(1) == weights[i - 1].size(0), ErrorKind::shape, "mlp: weight ", i, " is ",
                  weights[i].shape(), ", but the layer before it has ", weights[i - 1].size(0), " outputs");
    }
    check(x.dim() > 0 && x.size(-1) == weights[0].size(1), ErrorKind::shape, "mlp: input ", x.shape(),
          " does not fit weight ", weights[0].shape(),
          "; the input's last size must be the first weight's second");
}

// Of everything the gradient reads.
std::vector<Shape> result_shapes(std::int64_t rows, const Tensors& weights, const Layout& layout,
                                 bool masks) {
    const auto columns = [&](int layer) { return weights[std::size_t(layer)].size(0); };
    std::vector<Shape> shapes{{rows, weights.back().size(0)}};
    std::int64_t bytes = 0;
    for (int i = 0; masks && i + 1 < layout.layers; ++i) bytes += mask_size(rows, columns(i));
    shapes.push_back({bytes});
    for (int i = 0; i + 1 < layout.layers; ++i) shapes.push_back({rows, columns(i)});
    for (int i = 0; i < layout.layers; ++i)
        if (is_gelu(layout.activation_of(i))) shapes.push_back({rows, columns(i)});
    return shapes;
}

}  // namespace

Tensor mlp(const Tensor& x, const Tensors& weights, const Tensors& biases, const MlpOptions& options) {
    check_mlp(x, weights, biases);
    const std::int64_t in = weights[0].size(1);
    std::int64_t rows = 1;
    for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
    Tensors given{x.dim() == 2 ? x : x.reshape({rows, in})};
    bool recorded = recording(x);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        given.push_back(weights[i]);
        given.push_back(biases.empty() ? Tensor() : biases[i]);
        recorded = recorded || recording(given[given.size() - 2], given.back());
    }
    const Attrs at{.index = options.activate_last, .activation = kernel_activation(options.activation)};
    const bool masks = at.activation == Activation::relu && x.device().type() == DeviceType::cuda &&
                       cuda::gemm_options().relu_masks;
    const std::vector<Shape> shapes = result_shapes(rows, weights, Layout(given.size(), at), masks);
    const Tensor y =
        call(mlp_op, given, at, std::span<const Shape>(shapes.data(), recorded ? shapes.size() : 1))[0];
    if (x.dim() == 2) return y;
    Shape shape = x.shape();
    shape.back() = weights.back().size(0);
    return y.reshape(shape);
}

}  // namespace mezzo
