// Mappings of views, copies, look-ups and reductions.
#include "interchange/onnx/mapping.h"
#include "kernels/copy.h"
#include "kernels/index.h"
#include "kernels/moments.h"
#include "kernels/pad.h"
#include "kernels/reduce.h"
#include "kernels/scan.h"
#include "kernels/sort.h"
#include "ops/view_attributes.h"

namespace mezzo::onnx {

namespace {

Value same(const Call& call) { return call.in[0]; }
Value cast(const Call& call) {
    return elementwise(call.graph, call.in[0],
                       [&](Value x) { return call.graph.converted(x, call.dtype()); });
}
Value reshape(const Call& call) { return call.graph.reshaped(call.in[0], call.shape()); }
Value permute(const Call& call) { return call.graph.permuted(call.in[0], call.attributes<Permute>().axes); }
Value expand(const Call& call) { return call.graph.expanded(call.in[0], call.shape()); }
Value slice(const Call& call) {
    const auto& at = call.attributes<SliceAt>();
    return call.graph.sliced(call.in[0], at.dim, at.start, at.step, call.shape()[at.dim]);
}
Value select(const Call& call) {
    const auto& at = call.attributes<SliceAt>();
    const Value index = call.graph.constant(Tensor::from<std::int64_t>({at.start}, {}));
    return call.emit("Gather", {call.in[0], index}, {{"axis", std::int64_t(at.dim)}});
}

Value cat(const Call& call) {
    return call.emit("Concat", call.in, {{"axis", call.attributes<kernels::Cat>().dim}});
}
Value embedding(const Call& call) { return call.emit("Gather", call.in, {{"axis", std::int64_t(0)}}); }
Value index_select(const Call& call) {
    return call.emit("Gather", call.in, {{"axis", call.attributes<kernels::IndexSelect>().dim}});
}
Value gather(const Call& call) {
    return call.emit("GatherElements", call.in, {{"axis", call.attributes<kernels::Gather>().dim}});
}

// Without a tensor to add to, which only gradients omit, there is no mapping.
Value scatter_add(const Call& call) {
    const std::int64_t dim = call.attributes<kernels::ScatterAdd>().dim;
    if (call.in.size() < 3 || call.in[2] == none) return none;
    return call.emit("ScatterElements", {call.in[2], call.in[1], call.in[0]},
                     {{"axis", dim}, {"reduction", std::string("add")}});
}

// Returns the positions of the first k elements in sorted order, for equal elements the earlier first: the
// second result of TopK.
Value positions(const Call& call, std::int64_t dim, std::int64_t k, bool largest) {
    Graph& g = call.graph;
    const Dtype dtype = g.dtype(call.in[0]);
    const Value x = dtype == boolean || dtype == uint8 ? g.converted(call.in[0], int32) : call.in[0];
    const Value y =
        call.emit("TopK", {x, g.integers({k})}, {{"axis", dim}, {"largest", std::int64_t(largest)}});
    g.at(y).output = 1;
    return y;
}
Value argsort(const Call& call) {
    const auto& at = call.attributes<kernels::ArgSort>();
    return positions(call, at.dim, call.shape()[int(at.dim)], at.descending);
}
Value topk(const Call& call) {
    const auto& at = call.attributes<kernels::TopK>();
    return positions(call, at.dim, at.k, at.largest);
}

Value pad(const Call& call) {
    const auto& at = call.attributes<kernels::Pad>();
    Graph& g = call.graph;
    const auto before = g.permutation(call.in[0]);
    const Value x = before ? before->of : call.in[0];
    const Shape &from = g.shape(call.in[0]), order = before ? inverse(before->axes) : Shape();
    Ints pads;
    Shape result = g.shape(x);
    for (const bool behind : {false, true})
        for (int d = 0; d < result.size(); ++d) {
            const int own = before ? int(order[d]) : d;
            pads.push_back(behind ? at.sizes[own] - at.before[own] - from[own] : at.before[own]);
            result[d] = at.sizes[own];
        }
    const Value y = g.node("Pad", {x, g.integers(pads), call.number(at.value)}, result, call.dtype());
    return before ? g.permuted(y, before->axes) : y;
}

Ints axes_of(const Axes& axes) { return ints_of(axes); }

Attributes reduction(const Call& call, Value x, const Axes& axes, bool as_input) {
    const std::int64_t kept = call.shape().size() == call.graph.shape(x).size();
    if (as_input) return {{"keepdims", kept}};
    return {{"axes", axes_of(axes)}, {"keepdims", kept}};
}
template <class A, const char* type> Value reduce(const Call& call) {
    const Axes& axes = call.attributes<A>().axes;
    const Value x = call.graph.converted(call.in[0], call.dtype());
    if (axes.empty()) return call.graph.reshaped(x, call.shape());
    return call.emit(type, {x}, reduction(call, x, axes, false));
}
constexpr char mean_type[] = "ReduceMean", max_type[] = "ReduceMax", min_type[] = "ReduceMin",
               norm_type[] = "ReduceL2", prod_type[] = "ReduceProd", argmax_type[] = "ArgMax",
               argmin_type[] = "ArgMin";

Value norm(const Call& call) {  // of a single number: its absolute value
    if (!call.attributes<kernels::Norm>().axes.empty()) return reduce<kernels::Norm, norm_type>(call);
    return call.emit("Abs", {call.graph.converted(call.in[0], call.dtype())});
}

Value sum(const Call& call) {  // since opset 13 the axes of this reduction are an input
    const Axes& axes = call.attributes<kernels::Sum>().axes;
    const Value x = call.graph.converted(call.in[0], call.dtype());
    if (axes.empty()) return call.graph.reshaped(x, call.shape());
    return call.emit("ReduceSum", {x, call.graph.integers(axes_of(axes))}, reduction(call, x, axes, true));
}

template <class A, const char* type> Value extreme_index(const Call& call) {
    const std::int64_t dim = call.attributes<A>().dim;
    const std::int64_t kept = call.shape().size() == call.graph.shape(call.in[0]).size();
    // The operators do not accept booleans.
    const Value x =
        call.graph.dtype(call.in[0]) == boolean ? call.graph.converted(call.in[0], uint8) : call.in[0];
    return call.emit(type, {x}, {{"axis", dim}, {"keepdims", kept}});
}

Value cumsum(const Call& call) {
    const auto& at = call.attributes<kernels::CumSum>();
    const Value axis = call.graph.constant(Tensor::from<std::int64_t>({at.dim}, {}));
    const Value x = call.graph.converted(call.in[0], call.dtype());
    return call.emit("CumSum", {x, axis}, {{"reverse", std::int64_t(at.reverse)}});
}

constexpr MappingOf mappings[] = {
    {"copy", same},
    {"to_device", same},
    {"cast", cast},
    {"reshape", reshape},
    {"permute", permute},
    {"expand", expand},
    {"slice", slice},
    {"select", select},
    {"cat", cat},
    {"embedding", embedding},
    {"index_select", index_select},
    {"gather", gather},
    {"scatter_add", scatter_add},
    {"argsort", argsort},
    {"topk", topk},
    {"pad", pad},
    {"sum", sum},
    {"mean", reduce<kernels::Mean, mean_type>},
    {"max", reduce<kernels::Max, max_type>},
    {"min", reduce<kernels::Min, min_type>},
    {"norm", norm},
    {"prod", reduce<kernels::Prod, prod_type>},
    {"argmax", extreme_index<kernels::ArgMax, argmax_type>},
    {"argmin", extreme_index<kernels::ArgMin, argmin_type>},
    {"cumsum", cumsum},
};

}  // namespace

std::span<const MappingOf> shape_mappings() { return mappings; }

}  // namespace mezzo::onnx
