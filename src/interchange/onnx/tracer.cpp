#include "interchange/onnx/tracer.h"

#include "autograd/extra.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::onnx {

namespace {

// Returns the order of a parameter's dimensions in files (Module::as_saved()), from the strides of that view.
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

// Returns the name by which a program calls an op: an operator with a number has op traits of its own.
std::string called_name(const AnyOp& op) {
    std::string name = op.name();
    if (const std::string_view end = "_scalar"; name.ends_with(end)) {
        name.resize(name.size() - end.size());
        if (name == "rsub" || name == "rdiv") name.erase(0, 1);
    }
    return name;
}

// Returns null if no family has the op.
Mapping mapping_of(std::string_view op) {
    for (const std::span<const MappingOf> family :
         {elementwise_mappings(), shape_mappings(), product_mappings(), norm_mappings(), image_mappings()})
        for (const MappingOf& one : family)
            if (one.op == op) return one.map;
    return nullptr;
}

// Runs f. Returns the message of its Error(value) without the name of the export, or "". An op that cannot be
// exported is an error only if its result is read.
template <class F> std::string refusal_of(const F& f) {
    try {
        f();
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::value) throw;
        std::string text = error.what();
        if (const std::string prefix = "export_onnx: "; text.starts_with(prefix))
            text.erase(0, prefix.size());
        return text;
    }
    return {};
}

}  // namespace

// Observes the ops of a decomposition, which the tracer is not notified of.
class Tracer::Inside final : public OpObserver {
public:
    explicit Inside(Tracer& tracer) : tracer_(tracer) {}
    void computed(const AnyOp& op, In given, const void* at, In results) override {
        tracer_.computed(op, given, at, results);
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

// Records the value of a tensor. An outer op may set a value where an op inside of it could not.
void Tracer::remember(const Tensor& x, Value value, const std::string& missing) {
    if (!x.defined() || x.numel() == 0) return;
    const Known known{x.detach(), value, missing, x->storage->version};
    std::vector<Known>& all = known_[x->storage.get()];
    for (Known& one : all)
        if (same_elements(one.tensor, x)) {
            if (one.value == none) one = known;
            return;
        }
    all.push_back(known);
}

std::string Tracer::place() const {
    return graph_.module().empty() ? "the model itself" : "module " + graph_.module();
}

// Returns the beginning of an error about a tensor that is read: by an op, or as a result of the model.
std::string Tracer::reader() const {
    return "export_onnx: " + (graph_.op().empty() ? "" : graph_.op() + ": ") + place() + " reads ";
}

Value Tracer::value_of(const Tensor& x) {
    check(x.numel() > 0, ErrorKind::value, reader(), "a tensor ", x.shape(),
          " without elements; leave it out");
    const Known* const known = find(x);
    const bool written = known != nullptr && known->version != x->storage->version;
    check(!written && written_.count(x->storage.get()) == 0, ErrorKind::value, reader(), "a tensor ",
          x.shape(), " that has been written in place; use ops that return a new tensor");
    if (known != nullptr) {
        check(known->value != none, ErrorKind::value, "export_onnx: ", known->missing);
        return known->value;
    }
    check(known_.count(x->storage.get()) == 0, ErrorKind::value, reader(), "a part ", x.shape(),
          " of a tensor that no recorded op has cut out; cut it with slice() or select()");
    check(!x->storage->foreign, ErrorKind::value, reader(), "a tensor ", x.shape(),
          " that another thread has made during the export; run the ops of the model on one thread");
    const Value value = graph_.constant(x);
    remember(x, value);
    return value;
}

std::string Tracer::no_form(const AnyOp& op, const Shape& result) const {
    const std::string part = called_name(op), shape = detail::text_of(result);
    return graph_.op() + ": " + (part == graph_.op() ? "its result " : part + ", of which it is made, ") +
           shape + " in " + place() + " has no form in ONNX opset " + std::to_string(io::onnx_opset) +
           "; use other ops, or compute it outside of the model";
}

void Tracer::computed(const AnyOp& op, In given, const void* at, In results) {
    if (results.empty() || !results[0].defined() || results[0].numel() == 0) return;
    const std::string module = graph_.module(), called = graph_.op();
    const char* const composite = thread_state.composite_op;
    graph_.enter(places_.path(places_.of_call(given)), !called.empty()        ? called
                                                       : composite != nullptr ? composite
                                                                              : called_name(op));
    Value first = none;
    Tensors parts;
    const std::string why = refusal_of([&] {
        first = mapped(op, given, at, results[0]);
        if (first == none && op.has_decomposition()) parts = decomposed(op, given, at);
    });
    for (std::size_t i = 0; i < results.size(); ++i) {
        const Tensor& y = results[i];
        if (!y.defined() || y.numel() == 0) continue;
        Value value = i == 0 ? first : none;
        std::string missing = why;
        if (i < parts.size() && parts[i].defined() && parts[i].numel() == y.numel())
            missing = refusal_of(
                [&] { value = graph_.reshaped(graph_.converted(value_of(parts[i]), y.dtype()), y.shape()); });
        if (value == none && missing.empty()) missing = no_form(op, y.shape());
        remember(y, value, missing);
    }
    graph_.enter(module, called);
}

// Returns the op's first result, or `none` if there is no operator for it.
Value Tracer::mapped(const AnyOp& op, In given, const void* at, const Tensor& result) {
    const Mapping map = mapping_of(op.name());
    if (map == nullptr) return none;
    Values in;
    for (const Tensor& x : given) {
        in.push_back(x.defined() ? value_of(x) : none);
        if (x.defined() && op.traits().integers_to_real && !is_floating(x.dtype()))
            in.back() = graph_.converted(in.back(), real_dtype(given));
    }
    return map({graph_, op, at, in, result});
}

// Runs the op's decomposition and returns its results.
Tensors Tracer::decomposed(const AnyOp& op, In given, const void* at) {
    const Inside inside(*this);
    Tensors values(given.begin(), given.end());
    for (Tensor& x : values)
        if (x.defined() && op.traits().integers_to_real && !is_floating(x.dtype()))
            x = cast(x, real_dtype(given));
    return mezzo::decomposed(op, values, at);
}

void Tracer::wrote(const Tensor& x) {
    written_.insert(x->storage.get());
    kept_.push_back(x.detach());
}

}  // namespace mezzo::onnx
