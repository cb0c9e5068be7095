#include "autograd/engine.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "autograd/extra.h"
#include "autograd/op_observer.h"
#include "core/backend.h"
#include "core/memory/memory_hook.h"
#include "core/scoped_value.h"
#include "core/step_recorder.h"
#include "mezzo/ops.h"

namespace mezzo {

namespace {

// Allocates from the backend, outside of memory statistics and limits, for tensors that are never freed.
class RootMemory final : public MemoryHook {
public:
    explicit RootMemory(Device device) : MemoryHook(device) {}
    Block* allocate(std::size_t bytes) override {
        const std::size_t size = block_size(bytes);
        void* const memory = backend_of("backward", device_).allocate(device_.index, size);
        check(memory != nullptr, ErrorKind::memory, "backward: ", device_, " has no ", size, " bytes left");
        auto* block = new Block;
        block->address = static_cast<char*>(memory);
        block->size = size;
        return block;
    }
    bool keeps(Block*) noexcept override { return false; }
};

// The storage of a reusable root gradient of 1. It is handed out only while it has no other reference, so
// that two backward passes never share it, also not through a gradient that it was passed on as.
class ReusableOne {
public:
    // Null while it has other references, or if the device has no memory for it.
    Ref<Storage> take(Device device, Dtype dtype) {
        if (!storage_) make(device);
        if (!storage_ || storage_->refs.load(std::memory_order_acquire) != 1) return {};
        if (storage_->version.load() != written_) {
            written_ = never;
            make_tensor(storage_, {}, {}, 0, dtype).fill_(1);
            written_ = storage_->version.load();
        }
        return storage_;
    }

private:
    void make(Device device) {
        const RootMemory memory(device);
        try {
            storage_ = allocate_storage(sizeof(double), device);
        } catch (const Error& e) {
            if (e.kind() != ErrorKind::memory) throw;
            return;
        }
        detail::live_storages.fetch_sub(1, std::memory_order_relaxed);  // it is no tensor's
    }

    static constexpr std::uint64_t never = ~std::uint64_t(0);
    Ref<Storage> storage_;
    std::uint64_t written_ = never;  // the version in which it is one
};

Ref<Storage> reusable_one(Device device, Dtype dtype) {
    static auto& mutex = *new std::mutex;
    static auto& ones =
        *new std::map<std::tuple<DeviceType, int, Dtype>, ReusableOne>;  // the device may be gone first
    const std::lock_guard lock(mutex);
    return ones[{device.type(), device.index, dtype}].take(device, dtype);
}

Tensor implied_gradient(const Tensor& output) {
    const Device device = output.device();
    // Writing on the CPU costs nothing. Under a MemoryHook and in a capture a new tensor is made.
    const bool keeps = device.type() != DeviceType::cpu && MemoryHook::of(device) == nullptr &&
                       thread_state.recorder == nullptr;
    if (keeps)
        if (const Ref<Storage> one = reusable_one(device, output.dtype()))
            return make_tensor(one, output.shape(), contiguous_strides(output.shape()), 0, output.dtype());
    return ones_like(output);
}

// The root gradient of output i: grad_outputs[i] in the output's dtype, or, if it is missing or undefined,
// a 1 for an output of one element. Throws if the output has no history, or the given gradient does not
// fit. The 1 launches nothing if that of an earlier backward pass is unchanged and has no other reference.
// `op` begins the messages of errors.
Tensor root_gradient(const char* op, const Tensor& output, const Tensors& grad_outputs, std::size_t i) {
    check(output.defined() && tracked(output), ErrorKind::state, op, ": output ", i,
          " does not require grad; it has no recorded history: was it made from inputs that require none, "
          "under NoGrad, or as a gradient without create_graph?");
    if (i < grad_outputs.size() && grad_outputs[i].defined()) {
        const Tensor& given = grad_outputs[i];
        check(given.shape() == output.shape(), ErrorKind::shape, op, ": the gradient has shape ",
              given.shape(), ", the output ", output.shape());
        check(given.device() == output.device(), ErrorKind::device, op, ": the gradient is on ",
              given.device(), ", the output on ", output.device());
        return given.dtype() == output.dtype() ? given : cast(given, output.dtype());
    }
    check(output.numel() == 1, ErrorKind::shape, op, ": the output has shape ", output.shape(),
          "; only a one-element output has an implied gradient, pass one");
    return implied_gradient(output);
}

// The gradient of input i in the input's shape and dtype. Broadcasting and autocast's conversions are undone
// here, once.
Tensor reduce_to_input(const Node& node, int i, Tensor gradient) {
    const TensorMeta& input = node.inputs[std::size_t(i)];
    if (!(gradient.shape() == input.shape)) gradient = sum_to(gradient, input.shape);
    if (gradient.dtype() != input.dtype) gradient = cast(gradient, input.dtype);
    check(gradient.device() == input.device, ErrorKind::device, node.op->name(), ": the gradient of input ",
          i, " is on ", gradient.device(), ", the input on ", input.device);
    return gradient;
}

void release(Node& node) {
    node.released = true;
    node.saved_inputs.clear();
    node.saved_outputs.clear();
    if (node.extra && node.extra->function) node.extra->function->release();
}

}  // namespace

std::uint64_t ReadyQueue::newest() const {
    if (!recent_.empty()) return recent_.back().node->sequence;
    return older_.empty() ? 0 : older_.rbegin()->first;
}

std::vector<ReadyQueue::Entry>::iterator ReadyQueue::position(std::uint64_t sequence) {
    return std::lower_bound(recent_.begin(), recent_.end(), sequence,
                            [](const Entry& e, std::uint64_t s) { return e.node->sequence < s; });
}

ReadyQueue::Entry* ReadyQueue::find(const Node& node) {
    if (is_older(node.sequence)) {
        const auto found = older_.find(node.sequence);
        return found != older_.end() ? &found->second : nullptr;
    }
    const auto at = position(node.sequence);
    return at != recent_.end() && at->node.get() == &node ? &*at : nullptr;
}

ReadyQueue::Entry& ReadyQueue::operator[](const Ref<Node>& node) {
    if (Entry* const found = find(*node)) return *found;
    Entry entry{.node = node};
    if (!spare_.empty()) {
        entry.gradients = std::move(spare_.back());
        spare_.pop_back();
    }
    entry.gradients.resize(node->outputs.size() + node->op->traits().fused_gradients);
    if (recent_.size() == most_recent && !is_older(node->sequence)) {
        older_.emplace_hint(older_.end(), recent_.front().node->sequence, std::move(recent_.front()));
        recent_.erase(recent_.begin());
    }
    if (is_older(node->sequence)) return older_.emplace(node->sequence, std::move(entry)).first->second;
    return *recent_.insert(position(node->sequence), std::move(entry));
}

ReadyQueue::Entry ReadyQueue::take_newest() {
    assert(!empty());
    if (recent_.empty()) return std::move(older_.extract(std::prev(older_.end())).mapped());
    Entry entry = std::move(recent_.back());
    recent_.pop_back();
    return entry;
}

void ReadyQueue::recycle(Tensors&& gradients) {
    assert(gradients.empty());
    if (!empty()) spare_.push_back(std::move(gradients));  // otherwise the pass is over
}

// A pass inside of another one begins with the scale state of the node that the other one visits.
Engine::Engine(GradTargets* targets, bool create_graph, bool retain_graph, Engine* parent)
    : targets_(targets),
      create_graph_(create_graph),
      retain_graph_(retain_graph),
      parent_(parent),
      scaled_(thread_state.engine != nullptr ? thread_state.engine->scaled_ : 0) {}

void Engine::run(const Tensors& outputs, const Tensors& grad_outputs) {
    try {
        propagate(outputs, grad_outputs);
    } catch (const std::exception& error) {
        if (listener_) listener_->failed(error.what());
        throw;
    }
}

void Engine::propagate(const Tensors& outputs, const Tensors& grad_outputs) {
    MakeBackwardListener* const make = targets_ || thread_state.engine != nullptr
                                           ? nullptr
                                           : make_backward_listener.load(std::memory_order_relaxed);
    const ScopedValue<Engine*> running(thread_state.engine, this);
    const NoAutocast plain;
    if (targets_ && !parent_) targets_->find_paths(outputs);
    const auto go = [&] {
        if (!listener_ && make != nullptr) listener_ = make(outputs, create_graph_);
        if (listener_) notify_begin(outputs, grad_outputs);
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            Tensor gradient = root_gradient(op(), outputs[i], grad_outputs, i);
            send(edge_of(outputs[i]), std::move(gradient));
        }
        Observers::notify([&](OpObserver& one) { one.backward_begins(outputs); });
        while (!queue_.empty()) visit_newest();
        deliver_hooked();
        if (targets_ && !parent_) targets_->run_leaf_hooks();
        if (listener_) listener_->end();
    };
    if (create_graph_) {
        EnableGrad scope_recording;
        go();
    } else {
        NoGrad scope_plain;
        go();
    }
}

// Errors of the root gradients are thrown before the listener is notified: those on other machines might wait
// for the end of this backward pass.
void Engine::notify_begin(const Tensors& outputs, const Tensors& grad_outputs) {
    for (std::size_t i = 0; i < outputs.size(); ++i)
        static_cast<void>(root_gradient(op(), outputs[i], grad_outputs, i));
    listener_->begin();
}

void Engine::visit_newest() {
    ReadyQueue::Entry entry = queue_.take_newest();
    scaled_ = entry.scaled;
    if (listener_) listener_->visiting(*entry.node);
    visit(*entry.node, entry.gradients);
    if (listener_) listener_->visited(queue_.newest());
    entry.gradients.clear();
    entry.node = {};
    queue_.recycle(std::move(entry.gradients));
}

void Engine::visit(Node& node, Tensors& gradients) {
    if (node.extra && !node.extra->hooks.empty())
        for (std::size_t j = 0; j < gradients.size(); ++j)
            if (gradients[j].defined())
                gradients[j] = run_hooks(node.extra->hooks, std::uint32_t(j), gradients[j]);
    if (targets_) {
        targets_->collect(node, gradients);
        if (!parent_ && !targets_->leads_to_target(node)) return;
    }
    check(!node.released, ErrorKind::state, node.op->name(),
          ": backward has already freed this part of the graph; pass retain_graph = true to the first "
          "backward");
    if (node.scales != 0) add_scale(node.scales);
    Observers::notify([&](OpObserver& one) { one.visiting(node); });
    const WatchedNode scope(node);
    Tensors result = gradients_of_inputs(node, gradients);
    gradients.clear();
    if (thread_state.observers != nullptr) tell_accumulated(node, result);
    for (int i = 0; i < int(result.size()); ++i) {
        Tensor& gradient = result[std::size_t(i)];
        if (!gradient.defined() || !needs(node, i)) continue;
        gradient = reduce_to_input(node, i, std::move(gradient));
        Observers::notify([&](OpObserver& one) { one.gradient(node, i, gradient); });
        send(node.edges[std::size_t(i)], std::move(gradient));
    }
    if (!retain_graph_) release(node);
}

Tensors Engine::gradients_of_inputs(const Node& node, const Tensors& gradients) const {
    Tensors result;
    if (node.extra && node.extra->function) {
        result = node.extra->function->backward(node, gradients);
    } else {
        result = node.op->has_vjp() ? node.op->vjp(node, gradients)
                                    : through_decomposition(node, gradients, create_graph_);
    }
    check(result.size() <= node.edges.size(), ErrorKind::state, node.op->name(), ": its gradient has ",
          result.size(), " results for ", node.edges.size(), " inputs");
    return result;
}

void Engine::add_scale(ScaleState parts) {
    scaled_ = sum_of_parts(scaled_, parts);
    if (parent_) parent_->add_scale(parts);
}

void Engine::send(const Edge& edge, Tensor gradient) {
    if (edge.leaf.defined())
        deliver(edge.leaf, std::move(gradient), scaled_);
    else
        send(edge.node, edge.output, std::move(gradient));
}

// Adds a gradient to the node's gradient `index`: of a result, or, after the results, of a value inside the
// op (LinearInner).
void Engine::send(const Ref<Node>& node, std::size_t index, Tensor gradient) {
    ReadyQueue::Entry& entry = queue_[node];
    entry.scaled = sum_of_parts(entry.scaled, scaled_);
    Tensor& sum = entry.gradients[index];
    const bool is_sum = sum.defined();
    add(sum, std::move(gradient));
    if (is_sum) Observers::notify([&](OpObserver& one) { one.sum(*node, sum); });
}

}  // namespace mezzo
