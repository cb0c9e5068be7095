// Implementation of call(), which runs every op.
#include <algorithm>
#include <cassert>
#include <utility>

#include "autograd/extra.h"
#include "autograd/op_observer.h"
#include "autograd/report.h"
#include "core/memory/free_list.h"
#include "core/storage_codes.h"
#include "core/thread_state.h"
#include "mezzo/ops.h"

namespace mezzo {

namespace {

// The device of all inputs. Throws Error(dtype) if the op computes and an input's dtype is for storage only.
Device common_device(const OpTraits& traits, const Tensors& values) {
    const Tensor* first = nullptr;
    for (const Tensor& x : values) {
        if (!x.defined()) continue;
        if (!traits.any_dtype) check_computes(traits.name, x.dtype());
        if (!first) first = &x;
        check(x.device() == first->device(), ErrorKind::device, traits.name, ": inputs are on ",
              first->device(), " and ", x.device(), "; move one with to()");
    }
    return first ? first->device() : cpu_device;
}

void require_one_dtype(const OpTraits& traits, const Tensors& values) {
    const Tensor* first = nullptr;
    for (const Tensor& x : values) {
        if (!x.defined() || !is_floating(x.dtype())) continue;
        if (!first) first = &x;
        check(x.dtype() == first->dtype(), ErrorKind::dtype, traits.name, ": inputs are ", first->dtype(),
              " and ", x.dtype(),
              "; convert one with to(), or open an Autocast scope (which leaves float64 alone)");
    }
}

// Converts the values to what the kernel accepts: floating and contiguous inputs where it needs them, and one
// floating dtype unless it takes several.
void prepare(const OpTraits& traits, Tensors& values) {
    if (traits.integers_to_real || !traits.strided) {
        NoGrad plain;
        for (Tensor& x : values) {
            if (!x.defined()) continue;
            if (traits.integers_to_real && !is_floating(x.dtype())) x = cast(x, real_dtype(values));
            if (!traits.strided && !x.is_contiguous()) x = x.contiguous();
        }
    }
    if (!traits.mixed) require_one_dtype(traits, values);
}

Dtype result_dtype(const OpTraits& traits, const Tensors& values, std::optional<Dtype> requested) {
    if (traits.result == ResultDtype::flags) return boolean;
    if (traits.result == ResultDtype::indices) return int64;
    if (requested) return *requested;
    assert(traits.result != ResultDtype::requested && "the op's result has the dtype that call() is given");
    Dtype dtype = values[0].dtype();
    if (traits.result == ResultDtype::promoted)
        for (const Tensor& x : values)
            if (x.defined()) dtype = promote(dtype, x.dtype());
    return traits.integers_to_real && !is_floating(dtype) ? float32 : dtype;
}

// The dtype of result i; `first` is the dtype of the first result.
Dtype own_dtype(const OpTraits& traits, std::size_t i, Dtype first) {
    if (traits.bits_result != 0 && i == traits.bits_result) return uint8;
    return traits.first_float32_result != 0 && i >= traits.first_float32_result && first != float64 ? float32
                                                                                                    : first;
}

// Whether a kernel shall also write its first result in 16 bit (OpTraits::writes_copy16). It does inside an
// Autocast scope, where otherwise each matrix product that reads the result would convert it.
bool copies_result(const OpTraits& traits, Dtype dtype, Device device) {
    const AutocastState& state = thread_state.autocast;
    return traits.writes_copy16 && dtype == float32 && state.cache && state.enabled[int(device.type())];
}

// Removes the 16-bit copy, which is the last result, from the list and attaches it to the first result.
void keep_copy(Tensors& results) {
    Copy16& copy16 = results[0]->grads().copy16;
    copy16.value = std::move(results.back());
    copy16.version = results[0].version();
    results.pop_back();
}

bool any_tracked(In inputs) {
    for (const Tensor& x : inputs)
        if (tracked(x)) return true;
    return false;
}

// The dtype in which a decomposition computes with inputs of a dtype.
Dtype computed_in(Dtype dtype) { return is_16bit(dtype) ? float32 : dtype; }

// y, or a copy of it if y uses the memory of a value. Writes to an op's result must not reach its inputs.
Tensor apart_from(const Tensor& y, const Tensors& values) {
    for (const Tensor& x : values)
        if (x.defined() && x.impl()->storage == y.impl()->storage) return y.clone();
    return y;
}

// Runs the decomposition instead of a kernel. Autocast has been applied already, without history, so the
// values that it converted get their history here.
Tensors run_decomposition(const AnyOp& op, In inputs, Tensors& values, const void* attributes,
                          std::optional<Dtype> requested) {
    NoAutocast plain;
    for (std::size_t i = 0; i < values.size(); ++i)
        if (tracked(inputs[i]) && values[i].impl() != inputs[i].impl() && grad_enabled())
            values[i] = reattach(values[i], edge_of(inputs[i]), inputs[i].dtype());
    const Dtype dtype = result_dtype(op.traits(), values, requested);
    Tensors results = decomposed(op, values, attributes);
    for (std::size_t i = 0; i < results.size(); ++i)
        results[i] = apart_from(cast(results[i], own_dtype(op.traits(), i, dtype)), values);
    return results;
}

// Saves the values and results that the gradient reads. Moves from `values` if all of them are saved.
void save_for_gradient(Node& node, const OpTraits& traits, Tensors& values, Out results) {
    if (traits.saves & save_inputs) {
        node.saved_inputs.swap(values);
    } else {
        for (const auto& [bit, i] : {std::pair(save_first, 0u), std::pair(save_second, 1u)}) {
            if (!(traits.saves & bit)) continue;
            node.saved_inputs.resize(std::max<std::size_t>(node.saved_inputs.size(), i + 1));
            node.saved_inputs[i] = std::move(values[i]);
        }
    }
    if (traits.saves & (save_outputs | save_statistics)) {
        node.saved_outputs.reserve(results.size());
        for (const Tensor& y : results) node.saved_outputs.push_back(alias(y));
    }
    if (!(traits.saves & save_outputs) && !node.saved_outputs.empty()) node.saved_outputs[0] = Tensor();
    node.note_versions();
}

// Workspace of a running call: a list of tensors that reuses the memory of earlier calls of the thread.
class Workspace {
    static constexpr int nested_calls = 16;
    static constexpr std::size_t most_tensors = 64;
    struct Reusable {
        Tensors list;
        Reusable* next = nullptr;
    };
    using Free = FreeList<Reusable, &Reusable::next, nested_calls>;
    Reusable* const own_ = Free::take();

public:
    Workspace() = default;
    ~Workspace() {
        list.clear();
        if (list.capacity() > most_tensors)
            delete own_;
        else
            Free::put(own_);
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    Tensors& list = own_->list;
};

}  // namespace

Tensors decomposed(const AnyOp& op, const Tensors& values, const void* attributes) {
    Tensors wide;
    wide.reserve(values.size());
    for (const Tensor& x : values) wide.push_back(x.defined() && is_16bit(x.dtype()) ? cast(x, float32) : x);
    return op.decompose(wide, attributes);
}

Dtype real_dtype(In values) {
    for (const Tensor& x : values)
        if (x.defined() && x.dtype() == float64) return float64;
    return float32;
}

Edge edge_of(const Tensor& x) {
    Edge edge;
    if (!tracked(x)) return edge;
    GradMeta& meta = *x->grad_meta;
    if (meta.node) {
        edge.node = meta.node;
        edge.output = meta.output;
    } else {
        edge.leaf = x;
    }
    return edge;
}

Ref<Node> record(const AnyOp& op, In inputs, const AttributesRef& attributes, Out results) {
    Ref<Node> node = new_node();
    node->op = &op;
    node->attributes.set(attributes);
    node->edges.reserve(inputs.size());
    node->inputs.reserve(inputs.size());
    node->outputs.reserve(results.size());
    for (const Tensor& x : inputs)
        node->connect(edge_of(x), x.defined() ? TensorMeta{x.shape(), x.dtype(), x.device()} : TensorMeta{});
    for (std::size_t i = 0; i < results.size(); ++i) {
        node->outputs.push_back({results[i].shape(), results[i].dtype(), results[i].device()});
        if (!is_floating(results[i].dtype())) continue;  // such as labels that a checkpoint passes on
        GradMeta& meta = result_grads(*results[i].impl());
        meta.requires_grad = true;
        meta.node = node;
        meta.output = std::uint32_t(i);
    }
    return node;
}

namespace {

// Runs an op and appends its results to an empty list. Returns false if the ops of its decomposition have run
// instead.
bool run_op(Tensors& results, const AnyOp& op, In inputs, const AttributesRef& attributes,
            std::span<const Shape> shapes, std::optional<Dtype> requested) {
    const OpTraits& traits = op.traits();
    assert(attributes.type == &op.attributes() && "an op is called with attributes of its own struct");
    Workspace workspace;
    Tensors& values = workspace.list;
    values.assign(inputs.begin(), inputs.end());
    const bool autocast = thread_state.autocast.open();
    CastWork work;
    if (autocast) work = autocast_inputs(traits, values, requested);
    const Device device = common_device(traits, values);
    if (requested && !traits.any_dtype) check_computes(traits.name, *requested);
    AnyKernel* const kernel = op.kernel(device.type());
    if (op.has_decomposition() && (!kernel || thread_state.prefer_decomposition)) {
        if (autocast && !values.empty())
            report_call(traits, inputs, computed_in(values[0].dtype()),
                        result_dtype(traits, values, requested), work);
        results = run_decomposition(op, inputs, values, attributes.value, requested);
        return false;
    }
    prepare(traits, values);
    const Dtype dtype = result_dtype(traits, values, requested);
    if (autocast && !values.empty()) report_call(traits, inputs, values[0].dtype(), dtype, work);
    const bool copies = autocast && kernel && copies_result(traits, dtype, device);
    for (const Shape& shape : shapes)
        results.push_back(
            empty(shape, {.dtype = own_dtype(traits, results.size(), dtype), .device = device}));
    if (copies)
        results.push_back(
            empty(shapes[0], {.dtype = thread_state.autocast.dtype[int(device.type())], .device = device}));
    if (kernel)
        kernel(values, attributes.value, results);
    else
        run_on_cpu(traits.name, op.kernels(), values, attributes.value, results);
    if (copies) keep_copy(results);
    if (traits.differentiable && grad_enabled() && any_tracked(inputs) && is_floating(dtype))
        save_for_gradient(*record(op, inputs, attributes, results), traits, values, results);
    return true;
}

// A function of its own, because its local objects for the observers would cost call_into() registers and a
// stack frame in every call.
[[gnu::noinline]] void run_watched(Tensors& results, const AnyOp& op, In inputs,
                                   const AttributesRef& attributes, std::span<const Shape> shapes,
                                   std::optional<Dtype> requested) {
    const auto run = [&] {
        const WatchedOp scope(op, inputs, results);
        return run_op(results, op, inputs, attributes, shapes, requested);
    };
    if (run()) tell_called(op, inputs, attributes.value, results);
}

void call_into(Tensors& results, const AnyOp& op, In inputs, const AttributesRef& attributes,
               std::span<const Shape> shapes, std::optional<Dtype> requested) {
    if (thread_state.observers == nullptr) [[likely]]
        run_op(results, op, inputs, attributes, shapes, requested);
    else
        run_watched(results, op, inputs, attributes, shapes, requested);
}

}  // namespace

Tensors call(const AnyOp& op, In inputs, const AttributesRef& attributes, std::span<const Shape> shapes,
             std::optional<Dtype> requested) {
    Tensors results;
    results.reserve(shapes.size() + 1);  // and perhaps a copy in 16 bit, for a moment
    call_into(results, op, inputs, attributes, shapes, requested);
    return results;
}

Tensor call_one(const AnyOp& op, In inputs, const AttributesRef& attributes, const Shape& shape,
                std::optional<Dtype> dtype) {
    Workspace results;
    call_into(results.list, op, inputs, attributes, std::span<const Shape>(&shape, 1), dtype);
    return std::move(results.list[0]);
}

Tensor record_view(const AnyOp& op, const Tensor& input, const AttributesRef& attributes, Tensor view) {
    const OpTraits& traits = op.traits();
    Observers::notify(
        [&](OpObserver& one) { one.computed(op, In(&input, 1), attributes.value, In(&view, 1)); });
    if (!grad_enabled() || !tracked(input) || !is_floating(view.dtype())) return view;
    Workspace values;
    if (traits.saves != save_none) values.list.push_back(input);
    const Out results(&view, 1);
    save_for_gradient(*record(op, In(&input, 1), attributes, results), traits, values.list, results);
    Observers::notify([&](OpObserver& one) { one.viewed(input, view); });
    return view;
}

}  // namespace mezzo
