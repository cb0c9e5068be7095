#include "interchange/onnx/graph.h"

#include <cstring>
#include <utility>

#include "autograd/op_observer.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::onnx {

Ints ints_of(const Shape& shape) { return Ints(shape.begin(), shape.end()); }

Axes inverse(const Axes& axes) {
    Axes result = axes;
    for (int d = 0; d < axes.size(); ++d) result[int(axes[d])] = d;
    return result;
}

Value Graph::add(Entry entry) {
    entry.module = module_;
    entry.op = op_;
    entries_.push_back(std::move(entry));
    return size() - 1;
}

Value Graph::input(const Shape& shape, Dtype dtype) { return add({ValueKind::input, shape, dtype}); }

Value Graph::weight(const std::string& name, const Tensor& value) {
    Entry entry{ValueKind::weight, value.shape(), value.dtype(), name};
    entry.tensor = value;
    return add(std::move(entry));
}

namespace {

bool uniform(const Tensor& x) {
    const std::size_t one = size_of(x.dtype()), all = one * std::size_t(x.numel());
    const char* const bytes = static_cast<const char*>(raw(x));
    return std::memcmp(bytes, bytes + one, all - one) == 0;
}

}  // namespace

// Stores equal elements as one element that is expanded, as such a tensor often has the size of the batch.
Value Graph::constant(const Tensor& value) {
    const Observers::Unwatched unwatched;
    const NoGrad plain;
    Tensor copy = value.detach().to(cpu_device).clone();
    const bool repeated = copy.dim() > 1 && uniform(copy);
    if (repeated) copy = copy.reshape({copy.numel()}).slice(0, 0, 1).reshape({}).clone();
    Entry entry{ValueKind::constant, copy.shape(), copy.dtype()};
    entry.tensor = copy;
    const Value one = add(std::move(entry));
    return repeated ? expanded(one, value.shape()) : one;
}

Value Graph::integers(const Ints& numbers) {
    Entry entry{ValueKind::integers, {std::int64_t(numbers.size())}, int64};
    entry.numbers = numbers;
    return add(std::move(entry));
}

Value Graph::number(double value, Dtype dtype) { return constant(scalar(value, {.dtype = dtype})); }

Value Graph::node(const char* type, const Values& inputs, const Shape& shape, Dtype dtype,
                  const Attributes& attributes) {
    Entry entry{ValueKind::node, shape, dtype, type};
    entry.inputs = inputs;
    entry.attributes = attributes;
    return add(std::move(entry));
}

Value Graph::like(const char* type, const Values& inputs, const Attributes& attributes) {
    return node(type, inputs, shape(inputs[0]), dtype(inputs[0]), attributes);
}

std::optional<Graph::Permuted> Graph::permutation(Value x) const {
    const Entry& entry = (*this)[x];
    if (entry.kind != ValueKind::node || entry.name != "Transpose") return std::nullopt;
    const auto& axes = std::get<Ints>(entry.attributes[0].value);
    return Permuted{entry.inputs[0], Axes(axes.data(), int(axes.size()))};
}

Value Graph::before_reshape(Value x) const {
    const Entry& entry = (*this)[x];
    return entry.kind == ValueKind::node && entry.name == "Reshape" ? entry.inputs[0] : x;
}

Value Graph::permuted(Value x, const Axes& axes) {
    Value from = x;
    Axes all = axes;
    if (const auto before = permutation(x)) {
        from = before->of;
        for (int d = 0; d < axes.size(); ++d) all[d] = before->axes[int(axes[d])];
    }
    bool same = true;
    Shape result = all;
    for (int d = 0; d < all.size(); ++d) {
        same = same && all[d] == d;
        result[d] = shape(from)[int(all[d])];
    }
    return same ? from : node("Transpose", {from}, result, dtype(from), {{"perm", ints_of(all)}});
}

Value Graph::reshaped(Value x, const Shape& wanted) {
    const Value from = before_reshape(x);
    if (shape(from) == wanted) return from;
    return node("Reshape", {from, integers(ints_of(wanted))}, wanted, dtype(x));
}

Value Graph::expanded(Value x, const Shape& wanted) {
    if (shape(x) == wanted) return x;
    return node("Expand", {x, integers(ints_of(wanted))}, wanted, dtype(x));
}

Value Graph::converted(Value x, Dtype wanted) {
    if (dtype(x) == wanted) return x;
    return node("Cast", {x}, shape(x), wanted, {{"to", io::onnx_data_type(wanted)}});
}

Value Graph::sliced(Value x, int dim, std::int64_t start, std::int64_t step, std::int64_t count) {
    if (const auto before = permutation(x))
        return permuted(sliced(before->of, int(before->axes[dim]), start, step, count), before->axes);
    Shape result = shape(x);
    result[dim] = count;
    const std::int64_t end = start + (count - 1) * step + 1;
    return node("Slice", {x, integers({start}), integers({end}), integers({dim}), integers({step})}, result,
                dtype(x));
}

}  // namespace mezzo::onnx
