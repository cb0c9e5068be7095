// Implementation of call(), which runs every op.
#include <algorithm>
#include <cassert>
#include <utility>

#include "autograd/extra.h"
#include "autograd/op_observer.h"
#include "autograd/report.h"
#include "core/free_list.h"
#include "core/grad_meta.h"
#include "mezzo/ops.h"

namespace mezzo {

namespace {

Device common_device(const Row& row, const Tensors& values) {
    const Tensor* first = nullptr;
    for (const Tensor& x : values) {
        if (!x.defined()) continue;
        if (!first) first = &x;
        check(x.device() == first->device(), ErrorKind::device, row.name, ": inputs are on ", first->device(),
              " and ", x.device(), "; move one with to()");
    }
    return first ? first->device() : cpu_device;
}

void require_one_dtype(const Row& row, const Tensors& values) {
    const Tensor* first = nullptr;
    for (const Tensor& x : values) {
        if (!x.defined() || !is_floating(x.dtype())) continue;
        if (!first) first = &x;
        check(x.dtype() == first->dtype(), ErrorKind::dtype, row.name, ": inputs are ", first->dtype(),
              " and ", x.dtype(),
              "; convert one with to(), or open an Autocast scope (which leaves float64 alone)");
    }
}

// Converts the values to what the kernel accepts: floating and contiguous inputs where it needs them, and one
// floating dtype unless it takes several.
void prepare(const Row& row, Tensors& values) {
    if (row.integers_to_real || !row.strided) {
        NoGrad plain;
        for (Tensor& x : values) {
            if (!x.defined()) continue;
            if (row.integers_to_real && !is_floating(x.dtype())) x = cast(x, real_dtype(values));
            if (!row.strided && !x.is_contiguous()) x = x.contiguous();
        }
    }
    if (!row.mixed) require_one_dtype(row, values);
}

Dtype result_dtype(const Row& row, const Tensors& values, std::optional<Dtype> asked) {
    if (row.result == Result::flags) return boolean;
    if (row.result == Result::indices) return int64;
    if (asked) return *asked;
    assert(row.result != Result::asked && "the op's result has the dtype that call() is given");
    Dtype dtype = values[0].dtype();
    if (row.result == Result::promoted)
        for (const Tensor& x : values)
            if (x.defined()) dtype = promote(dtype, x.dtype());
    return row.integers_to_real && !is_floating(dtype) ? float32 : dtype;
}

// The dtype of result i; `first` is the dtype of the first result.
Dtype own_dtype(const Row& row, std::size_t i, Dtype first) {
    if (row.bits != 0 && i == row.bits) return uint8;
    return row.statistics != 0 && i >= row.statistics && first != float64 ? float32 : first;
}

// Whether a kernel shall also write its first result in 16 bit (Row::copy16). It does inside an Autocast
// scope, where otherwise each matrix product that reads the result would convert it.
bool copies_result(const Row& row, Dtype dtype, Device device) {
    const AutocastState& state = autocast_state();
    return row.copy16 && dtype == float32 && state.cache && state.enabled[int(device.type())];
}

// Removes the 16-bit copy, which is the last result, from the list and attaches it to the first result.
void keep_copy(Tensors& results) {
    Copy16& copy16 = results[0]->grads().copy16;
    copy16.value = std::move(results.back());
    copy16.version = results[0].version();
    results.pop_back();
}

bool any_tracked(In given) {
    for (const Tensor& x : given)
        if (tracked(x)) return true;
    return false;
}

// Runs the decomposition instead of a kernel. Autocast has been applied already, without history, so the
// values that it converted get their history here.
Tensors run_decomposition(const Row& row, In given, Tensors& values, const void* at,
                          std::optional<Dtype> asked) {
    NoAutocast plain;
    for (std::size_t i = 0; i < values.size(); ++i)
        if (tracked(given[i]) && values[i].impl() != given[i].impl() && grad_enabled())
            values[i] = reattach(values[i], edge_of(given[i]), given[i].dtype());
    const Dtype dtype = result_dtype(row, values, asked);
    Tensors results = decomposed(row, values, at);
    for (std::size_t i = 0; i < results.size(); ++i) results[i] = cast(results[i], own_dtype(row, i, dtype));
    return results;
}

// Saves the values and results that the gradient reads. Moves from `values` if all of them are saved.
void save_for_gradient(Node& node, const Row& row, Tensors& values, Out results) {
    if (row.save & save_inputs) {
        node.saved_inputs.swap(values);
    } else {
        for (const auto& [bit, i] : {std::pair(save_first, 0u), std::pair(save_second, 1u)}) {
            if (!(row.save & bit)) continue;
            node.saved_inputs.resize(std::max<std::size_t>(node.saved_inputs.size(), i + 1));
            node.saved_inputs[i] = std::move(values[i]);
        }
    }
    if (row.save & (save_outputs | save_statistics)) {
        node.saved_outputs.reserve(results.size());
        for (const Tensor& y : results) node.saved_outputs.push_back(alias(y));
    }
    if (!(row.save & save_outputs) && !node.saved_outputs.empty()) node.saved_outputs[0] = Tensor();
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

bool& prefer_decomposition() {
    thread_local bool on = false;
    return on;
}

Tensors decomposed(const Row& row, const Tensors& values, const void* at) {
    Tensors wide;
    wide.reserve(values.size());
    for (const Tensor& x : values) wide.push_back(x.defined() && is_16bit(x.dtype()) ? cast(x, float32) : x);
    return row.decomposition(wide, at);
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

Ref<Node> record(const Row& row, In given, const AttributesRef& at, Out results) {
    Ref<Node> node = new_node();
    node->row = &row;
    node->at.set(at);
    node->edges.reserve(given.size());
    node->inputs.reserve(given.size());
    node->outputs.reserve(results.size());
    for (const Tensor& x : given)
        node->connect(edge_of(x), x.defined() ? Meta{x.shape(), x.dtype(), x.device()} : Meta{});
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
bool run_op(Tensors& results, const Op& op, In given, const AttributesRef& at, std::span<const Shape> shapes,
            std::optional<Dtype> asked) {
    const Row& row = op.row();
    assert(at.type == row.attributes && "an op is called with attributes of its own struct");
    Workspace workspace;
    Tensors& values = workspace.list;
    values.assign(given.begin(), given.end());
    const bool autocast = autocast_open();
    CastWork work;
    if (autocast) work = autocast_inputs(row, values, asked);
    const Device device = common_device(row, values);
    AnyKernel* const kernel = op.kernel(device.type());
    if (row.decomposition && (!kernel || prefer_decomposition())) {
        results = run_decomposition(row, given, values, at.value, asked);
        return false;
    }
    prepare(row, values);
    const Dtype dtype = result_dtype(row, values, asked);
    if (autocast) report_call(row, values, dtype, work);
    const bool copies = autocast && kernel && copies_result(row, dtype, device);
    for (const Shape& shape : shapes)
        results.push_back(empty(shape, {.dtype = own_dtype(row, results.size(), dtype), .device = device}));
    if (copies)
        results.push_back(
            empty(shapes[0], {.dtype = autocast_state().dtype[int(device.type())], .device = device}));
    if (kernel)
        kernel(values, at.value, results);
    else
        run_on_cpu(row.name, op.kernels(), values, at.value, results);
    if (copies) keep_copy(results);
    if (row.differentiable && grad_enabled() && any_tracked(given) && is_floating(dtype))
        save_for_gradient(*record(row, given, at, results), row, values, results);
    return true;
}

// A function of its own, because its local objects for the observers would cost call_into() registers and a
// stack frame in every call.
[[gnu::noinline]] void run_watched(Tensors& results, const Op& op, In given, const AttributesRef& at,
                                   std::span<const Shape> shapes, std::optional<Dtype> asked) {
    const auto run = [&] {
        const WatchedOp scope(op.row(), given, results);
        return run_op(results, op, given, at, shapes, asked);
    };
    if (run()) tell_called(op.row(), given, at.value, results);
}

void call_into(Tensors& results, const Op& op, In given, const AttributesRef& at,
               std::span<const Shape> shapes, std::optional<Dtype> asked) {
    if (Observers::first == nullptr) [[likely]]
        run_op(results, op, given, at, shapes, asked);
    else
        run_watched(results, op, given, at, shapes, asked);
}

}  // namespace

Tensors call(const Op& op, In given, const AttributesRef& at, std::span<const Shape> shapes,
             std::optional<Dtype> asked) {
    Tensors results;
    results.reserve(shapes.size() + 1);  // and perhaps a copy in 16 bit, for a moment
    call_into(results, op, given, at, shapes, asked);
    return results;
}

Tensor call_one(const Op& op, In given, const AttributesRef& at, const Shape& shape,
                std::optional<Dtype> dtype) {
    Workspace results;
    call_into(results.list, op, given, at, std::span<const Shape>(&shape, 1), dtype);
    return std::move(results.list[0]);
}

Tensor record_view(const Op& op, const Tensor& given, const AttributesRef& at, Tensor view) {
    const Row& row = op.row();
    Observers::notify([&](OpObserver& one) { one.computed(row, In(&given, 1), at.value, In(&view, 1)); });
    if (!grad_enabled() || !tracked(given) || !is_floating(view.dtype())) return view;
    Workspace values;
    if (row.save != save_none) values.list.push_back(given);
    const Out results(&view, 1);
    save_for_gradient(*record(row, In(&given, 1), at, results), row, values.list, results);
    Observers::notify([&](OpObserver& one) { one.viewed(given, view); });
    return view;
}

}  // namespace mezzo
