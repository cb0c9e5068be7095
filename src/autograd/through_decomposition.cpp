
#include "autograd/extra.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo {

Tensors through_decomposition(const Node& node, const Tensors& g, bool create_graph) {
    Tensors x, wanted;
    std::vector<int> index;
    Tensors y;
    {
        EnableGrad record_decomposition;
        for (int i = 0; i < int(node.edges.size()); ++i) {
            Tensor value = node.in(i);
            if (value.defined() && node.needs(i)) {
                if (create_graph) {
                    value = reattach(value, edge_of(value), value.dtype());
                } else {
                    value = alias(value);
                    value->grads().requires_grad = true;
                }
                wanted.push_back(value);
                index.push_back(i);
            } else if (value.defined()) {
                value = alias(value);
            }
            x.push_back(value);
        }
        y = decomposed(*node.op, x, node.attributes.value());
    }
    Tensors outputs, root_gradients;
    for (std::size_t j = 0; j < y.size() && j < g.size(); ++j)
        if (g[j].defined() && tracked(y[j])) {
            outputs.push_back(y[j]);
            root_gradients.push_back(g[j].dtype() == y[j].dtype() ? g[j] : cast(g[j], y[j].dtype()));
        }
    const Tensors gradients = autograd::grad(outputs, wanted,
                                             {.grad_outputs = root_gradients,
                                              .retain_graph = create_graph,
                                              .create_graph = create_graph,
                                              .allow_unused = true});
    Tensors result(node.edges.size());
    for (std::size_t k = 0; k < index.size(); ++k) result[std::size_t(index[k])] = gradients[k];
    return result;
}

}  // namespace mezzo
