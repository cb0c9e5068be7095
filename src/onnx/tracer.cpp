#include "onnx/tracer.h"

#include <exception>

#include "autograd/extra.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::onnx {

namespace {

// The order of a parameter's dimensions in files (Module::as_saved()), from the strides of that view.
Axes saved_order(const Tensor& in_memory, const Tensor& saved) {
    Axes axes;
    bool used[max_dims] = {};
    for (int d = 0; d < saved.dim(); ++d)
        for (int from = 0; from < in_memory.dim(); ++from)
            if (!used[from] && in_memory.size(from) == saved.size(d) &&
                in_memory.strides()[from] == saved.strides()[d]) {
                used[from] = true;
                axes.push_back(from);
                break;
            }
    return axes;
}

bool same_elements(const Tensor& a, const Tensor& b) {
    return a->storage == b->storage && a->offset == b->offset && a.shape() == b.shape() &&
           a.strides() == b.strides() && a.dtype() == b.dtype();
}

}  // namespace

// Watches the ops of a decomposition for the tracer, which nobody tells of them.
class Tracer::Inside final : public OpObserver {
public:
    explicit Inside(Tracer& tracer) : tracer_(tracer) {}
    void called(const Row&, In, In) override {}
    void viewed(const Tensor&, const Tensor&) override {}
    void backward_begins(const Tensors&) override {}
    void visiting(const Node&) override {}
    void gradient(const Node&, int, const Tensor&) override {}
    void inner_gradient(const Node&, const Tensor&) override {}
    void sum(const Node&, const Tensor&) override {}
    void computed(const Row& row, In given, const void* at, In results) override {
        tracer_.computed(row, given, at, results);
    }
    void wrote(const Tensor& x) override { tracer_.wrote(x); }

private:
    Tracer& tracer_;
};

Tracer::Tracer(nn::Module& model, const Tensors& inputs) : places_(&model) {
    for (const Tensor& x : inputs) remember(x, graph_.input(x.shape(), x.dtype()));
    list_weights(model);
}

void Tracer::list_weights(nn::Module& model) {
    const Observers::Unwatched unwatched;
    const StateDict saved = model.state_dict();
    std::unordered_map<std::string, Tensor> by_name(saved.begin(), saved.end());
    for (const StateDict& all : {model.named_parameters(), model.named_buffers()})
        for (const auto& [name, x] : all) {
            if (x.numel() == 0 || find(x) != nullptr) continue;
            const Axes axes = saved_order(x, by_name.at(name));
            const bool known = axes.size() == x.dim();
            const Value value = graph_.weight(name, known ? by_name.at(name) : x);
            remember(x, known ? graph_.permuted(value, inverse(axes)) : value);
        }
}

const Tracer::Known* Tracer::find(const Tensor& x) const {
    const auto entry = known_.find(x->storage.get());
    if (entry == known_.end()) return nullptr;
    for (const Known& one : entry->second)
        if (same_elements(one.tensor, x)) return &one;
    return nullptr;
}

void Tracer::remember(const Tensor& x, Value value, const std::string& missing) {
    if (!x.defined() || x.numel() == 0 || find(x) != nullptr) return;
    known_[x->storage.get()].push_back({x.detach(), value, missing, x->storage->version});
}

std::string Tracer::place() const {
    return graph_.module().empty() ? "the model itself" : "module " + graph_.module();
}

Value Tracer::value_of(const Tensor& x) {
    check(x.numel() > 0, ErrorKind::value, "export_onnx: a tensor ", x.shape(), " without elements, in ",
          place());
    const Known* const known = find(x);
    const bool written = known != nullptr && known->version != x->storage->version;
    check(!written && written_.count(x->storage.get()) == 0, ErrorKind::value, "export_onnx: ", place(),
          " reads a tensor ", x.shape(), " that has been written in place; use ops that return a new tensor");
    if (known != nullptr) {
        check(known->value != none, ErrorKind::value, "export_onnx: ", known->missing);
        return known->value;
    }
    check(known_.count(x->storage.get()) == 0, ErrorKind::value, "export_onnx: ", place(), " reads a part ",
          x.shape(), " of a tensor that no recorded op has cut out");
    check(!x->storage->foreign, ErrorKind::value, "export_onnx: ", place(), " reads a tensor ", x.shape(),
          " that another thread has made during the export; run the ops of the model on one thread");
    const Value value = graph_.constant(x);
    remember(x, value);
    return value;
}

void Tracer::computed(const Row& row, In given, const void* at, In results) {
    if (results.empty() || !results[0].defined() || results[0].numel() == 0) return;
    const std::string outer = graph_.module();
    graph_.enter(places_.path(places_.of_call(given)));
    const std::string refusal = std::string(row.name) + " in " + place() + " has no form in ONNX";
    Value value = none;
    std::string why = refusal;
    // An op that cannot be written matters only where something reads its result.
    try {
        value = converted(row, given, at, results);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::value) throw;
        why = error.what();
        if (const std::string prefix = "export_onnx: "; why.starts_with(prefix)) why.erase(0, prefix.size());
    }
    remember(results[0], value, why);
    for (const Tensor& other : results.subspan(1)) remember(other, none, refusal + " for a second result");
    graph_.enter(outer);
}

Value Tracer::converted(const Row& row, In given, const void* at, In results) {
    const Mapping map = mapping_of(row.name);
    if (map != nullptr) {
        Values in;
        for (const Tensor& x : given) {
            in.push_back(x.defined() ? value_of(x) : none);
            if (x.defined() && row.integers_to_real && !is_floating(x.dtype()))
                in.back() = graph_.converted(in.back(), real_dtype(given));
        }
        const Value value = map({graph_, row, at, in, results[0]});
        if (value != none) return value;
    }
    return row.decomposition != nullptr ? decomposed(row, given, at, results[0]) : none;
}

Value Tracer::decomposed(const Row& row, In given, const void* at, const Tensor& result) {
    const Inside inside(*this);
    Tensors values(given.begin(), given.end());
    for (Tensor& x : values)
        if (x.defined() && row.integers_to_real && !is_floating(x.dtype())) x = cast(x, real_dtype(given));
    const Tensor y = mezzo::decomposed(row, values, at)[0];
    return graph_.reshaped(graph_.converted(value_of(y), result.dtype()), result.shape());
}

void Tracer::wrote(const Tensor& x) {
    written_.insert(x->storage.get());
    kept_.push_back(x.detach());
}

}  // namespace mezzo::onnx
