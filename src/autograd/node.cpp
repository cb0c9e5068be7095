// Nodes of the graph: saving and reading of tensors, and freeing of long chains without recursion.
#include <cassert>
#include <utility>

#include "autograd/extra.h"
#include "core/gradient/leaf_state.h"
#include "core/gradient/scale_state.h"
#include "core/memory/free_list.h"
#include "core/thread_state.h"

namespace mezzo {

namespace {

std::atomic<std::uint64_t> next_sequence{1};

// The identity node of reattach(). The engine converts the gradient to the edge's dtype.
const Op<NoAttributes> reattach_op{{.name = "reattach", .saves = save_none},
                                   [](const Node&, const Tensors& g) -> Tensors { return {g[0]}; }};

const AnyOp* op_list = nullptr;

}  // namespace

AnyOp::AnyOp(const OpTraits& traits, const AttributesType& attributes, const KernelId& kernel)
    : traits_(traits), attributes_(&attributes), kernels_(kernel), next_(op_list) {
    op_list = this;
}
const AnyOp* AnyOp::first() { return op_list; }

Node::Node() = default;
Node::~Node() { delete extra; }

namespace {

// Freed nodes keep the memory of their lists.
using FreeNodes = FreeList<Node, &Node::next_disposed>;

// Drops all references that a node holds.
void clear(Node& node) noexcept {
    node.attributes.set({});
    node.edges.clear();
    node.inputs.clear();
    node.outputs.clear();
    node.saved_inputs.clear();
    node.saved_outputs.clear();
    node.versions.clear();
    delete std::exchange(node.extra, nullptr);
}

void free_node(Node* node) noexcept {
    constexpr std::size_t most_edges = 16;  // joining a thousand tensors must not leave that much memory
    clear(*node);
    detail::live_nodes.fetch_sub(1, std::memory_order_relaxed);
    if (node->edges.capacity() > most_edges)
        delete node;
    else
        FreeNodes::put(node);
}

}  // namespace

Ref<Node> new_node() {
    Node* const node = FreeNodes::take();
    node->refs.store(0, std::memory_order_relaxed);
    node->consumers.store(0, std::memory_order_relaxed);
    node->sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
    node->released = false;
    node->scales = 0;
    detail::live_nodes.fetch_add(1, std::memory_order_relaxed);
    return Ref<Node>(node);
}

// Freeing a node frees the nodes that it points to. While a node is being freed, they are put into a list, so
// that the depth of the recursion does not grow with the length of the chain. The list is linked through the
// nodes and needs no memory: a graph may be freed because memory has run out.
void dispose(Node* node) noexcept {
    thread_local bool freeing = false;
    thread_local Node* waiting = nullptr;
    node->next_disposed = std::exchange(waiting, node);
    if (std::exchange(freeing, true)) return;
    while (waiting != nullptr) free_node(std::exchange(waiting, waiting->next_disposed));
    freeing = false;
}

void mark_scaled(const Tensor& output, ScaleState parts) {
    if (tracked(output) && output->grad_meta->node) output->grad_meta->node->scales = parts;
}

void Node::note_versions() {
    versions.clear();
    versions.reserve(saved_inputs.size() + saved_outputs.size());
    for (const Tensor& x : saved_inputs) versions.push_back(x.defined() ? x.version() : 0);
    for (const Tensor& y : saved_outputs) versions.push_back(y.defined() ? y.version() : 0);
}

void Node::require_kept(bool input, int i) const {
    check(!released, ErrorKind::state, op->name(),
          ": backward has already freed this part of the graph; pass retain_graph = true to the first "
          "backward");
    const Tensors& kept = input ? saved_inputs : saved_outputs;
    assert(std::size_t(i) < kept.size() && kept[std::size_t(i)].defined() &&
           "the op's `saves` do not name what its gradient reads");
    const std::size_t at_index = input ? std::size_t(i) : saved_inputs.size() + std::size_t(i);
    check(kept[std::size_t(i)].version() == versions[at_index], ErrorKind::state, op->name(), ": its ",
          input ? "input " : "result ", i,
          " was changed in place after the forward pass, and the gradient needs the old value; change a "
          "clone()");
}

Tensor Node::in(int i) const {
    const Tensor& kept = saved_inputs.empty() ? Tensor() : saved_inputs[std::size_t(i)];
    if (!kept.defined() && !released) return kept;  // an optional input that was not given
    require_kept(true, i);
    const Edge& edge = edges[std::size_t(i)];
    if (!grad_enabled() || !edge.needed() || tracked(kept)) return kept;
    return reattach(kept, edge, inputs[std::size_t(i)].dtype);  // autocast converted it
}

Tensor Node::out(int i) const {
    require_kept(false, i);
    Tensor y = alias(saved_outputs[std::size_t(i)]);
    if (grad_enabled()) {
        GradMeta& meta = y->grads();
        meta.requires_grad = true;
        meta.node = Ref<Node>(const_cast<Node*>(this));
        meta.output = std::uint32_t(i);
    }
    return y;
}

void Node::connect(Edge edge, const TensorMeta& input) {
    if (edge.node) edge.node->consumers.fetch_add(1, std::memory_order_relaxed);
    edges.push_back(std::move(edge));
    inputs.push_back(input);
}

Tensor reattach(const Tensor& value, const Edge& edge, Dtype edge_dtype) {
    const Tensor y = alias(value);
    const Ref<Node> node = record(reattach_op, {}, {}, Out(&y, 1));
    node->connect(edge, {value.shape(), edge_dtype, value.device()});
    return y;
}

GradMeta::GradMeta(TensorImpl& tensor) : gradient(tensor) {}
GradMeta::~GradMeta() {
    if (free_hooks) free_hooks(hooks);
}

bool grad_enabled() { return thread_state.record_history; }
InferenceMode::InferenceMode() : previous_(std::exchange(thread_state.pack_weights, true)) {}
InferenceMode::~InferenceMode() { thread_state.pack_weights = previous_; }
NoGrad::NoGrad() : previous_(std::exchange(thread_state.record_history, false)) {}
NoGrad::~NoGrad() { thread_state.record_history = previous_; }
EnableGrad::EnableGrad() : previous_(std::exchange(thread_state.record_history, true)) {}
EnableGrad::~EnableGrad() { thread_state.record_history = previous_; }

}  // namespace mezzo
