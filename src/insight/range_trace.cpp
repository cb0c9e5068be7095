#include "insight/range_trace.h"

#include <algorithm>
#include <cmath>

#include "autograd/extra.h"
#include "core/tensor_impl.h"

namespace mezzo::insight {

namespace {

bool floats(const Tensor& x) { return x.defined() && is_floating(x.dtype()); }
const Node* node_of(const Tensor& x) { return tracked(x) ? x->grad_meta->node.get() : nullptr; }

}  // namespace

int TraceImpl::look_at(const Tensor& x, Noted about) {
    about.shape = x.shape();
    about.dtype = x.dtype();
    table.add(x);
    noted.push_back(std::move(about));
    return int(noted.size()) - 1;
}

// Returns the index in `noted` of an op's input. An input that no recorded op has made is recorded now: a
// parameter once, and again after it has been written to.
int TraceImpl::source(const AnyOp& op, int place, const Tensor& x) {
    if (const Node* const node = node_of(x)) {
        const auto known = results_.find(node->sequence);
        const std::size_t output = x->grad_meta->output;
        if (known != results_.end() && output < known->second.size()) return known->second[output];
    }
    const std::string name = places.parameter(x);
    if (name.empty()) return look_at(x, {.kind = Noted::Role::input, .place = place, .name = op.name()});
    const auto [entry, fresh] = parameters_.try_emplace(x.impl(), Parameter{-1, x.version()});
    Parameter& known = entry->second;
    if (fresh || known.version != x.version())
        known = {look_at(x, {.kind = Noted::Role::parameter, .place = place, .name = name}), x.version()};
    return known.index;
}

void TraceImpl::called(const AnyOp& op, In given, In results) {
    const int place = places.of_call(given);
    std::vector<int> from;
    if (std::any_of(results.begin(), results.end(), floats))
        for (const Tensor& x : given)
            if (floats(x)) from.push_back(source(op, place, x));
    std::vector<int> here;
    for (std::size_t i = 0; i < results.size(); ++i) {
        here.push_back(-1);
        if (!floats(results[i])) continue;
        here.back() = look_at(
            results[i],
            {.kind = Noted::Role::result, .place = place, .name = op.name(), .index = int(i), .from = from});
    }
    const Node* const node = results.empty() ? nullptr : node_of(results[0]);
    if (node == nullptr) return;
    places.note(*node, place);
    given_[node->sequence] = std::move(from);
    results_[node->sequence] = std::move(here);
}

void TraceImpl::viewed(const Tensor& given, const Tensor& view) {
    const Node* const node = node_of(view);
    const int place = places.of_call({&given, 1});
    const Node* const from = node_of(given);
    const auto known = from != nullptr ? results_.find(from->sequence) : results_.end();
    const std::size_t output = from != nullptr ? given->grad_meta->output : 0;
    const bool noted_before = known != results_.end() && output < known->second.size();
    const int source =
        noted_before ? known->second[output]
                     : look_at(view, {.kind = Noted::Role::input, .place = place, .name = node->op->name()});
    places.note(*node, place);
    given_[node->sequence] = {source};
    results_[node->sequence] = {source};
}

void TraceImpl::backward_begins(const Tensors& outputs) {
    for (const Tensor& y : outputs) {
        const Node* const node = node_of(y);
        const auto known = node != nullptr ? results_.find(node->sequence) : results_.end();
        if (known != results_.end()) losses.push_back(known->second[y->grad_meta->output]);
    }
}

void TraceImpl::visiting(const Node& node) {
    visited_ = node.sequence;
    visited_name_ = node.op->name();
    // An op that a gradient records belongs to the module whose gradient is being computed.
    if (const int place = places.of_node(node); place >= 0) visited_place_ = place;
}

void TraceImpl::note_gradient(const Node& node, std::string name, int i, const Tensor& value) {
    if (!floats(value)) return;
    const int own = places.of_node(node);
    Noted about{.kind = Noted::Role::gradient,
                .place = own >= 0 ? own : visited_place_,
                .name = std::move(name),
                .index = i};
    if (i >= 0 && std::size_t(i) < node.edges.size() && node.edges[std::size_t(i)].leaf.defined())
        about.parameter = places.parameter(node.edges[std::size_t(i)].leaf);
    for (const auto* const by_node : {&results_, &given_})
        if (const auto known = by_node->find(node.sequence); known != by_node->end())
            about.near.insert(about.near.end(), known->second.begin(), known->second.end());
    look_at(value, std::move(about));
}

void TraceImpl::gradient(const Node& node, int i, const Tensor& value) {
    note_gradient(node, node.op->name(), i, value);
}
void TraceImpl::fused_gradient(const Node& below, const Tensor& value) {
    note_gradient(below, visited_name_, -1, value);
}
void TraceImpl::sum(const Node& node, const Tensor& value) {
    note_gradient(node, std::string("gradients of ") + node.op->name(), -1, value);
}

void TraceImpl::clear() {
    table.clear();
    noted.clear();
    losses.clear();
    results_.clear();
    given_.clear();
    parameters_.clear();
}

bool TraceImpl::is_origin(int i, const std::vector<Range>& ranges) const {
    const Noted& one = noted[std::size_t(i)];
    if (ranges[std::size_t(i)].finite()) return false;
    if (one.kind == Noted::Role::gradient) return i == first_backward(ranges);
    return std::all_of(one.from.begin(), one.from.end(),
                       [&](int source) { return source < 0 || ranges[std::size_t(source)].finite(); });
}

int TraceImpl::earlier_result(int i, const std::vector<Range>& ranges) const {
    const Noted& input = noted[std::size_t(i)];
    const Range& wanted = ranges[std::size_t(i)];
    if (input.kind != Noted::Role::input || wanted.finite()) return -1;
    for (int j = i - 1; j >= 0; --j) {
        const Range& range = ranges[std::size_t(j)];
        if (noted[std::size_t(j)].kind == Noted::Role::result && noted[std::size_t(j)].dtype == input.dtype &&
            range.elements == wanted.elements && range.nans == wanted.nans && range.infs == wanted.infs &&
            range.max_abs == wanted.max_abs)
            return j;
    }
    return -1;
}

// Follows non-finite tensors back to where they began.
int TraceImpl::earliest_origin(const std::vector<int>& from, const std::vector<Range>& ranges) const {
    std::vector<char> seen(noted.size(), 0);
    std::vector<int> stack;
    const auto reach = [&](int i) {
        if (i < 0 || ranges[std::size_t(i)].finite() || std::exchange(seen[std::size_t(i)], 1) != 0) return;
        stack.push_back(i);
    };
    for (const int i : from) reach(i);
    int earliest = -1;
    while (!stack.empty()) {
        const int i = stack.back();
        stack.pop_back();
        const Noted& one = noted[std::size_t(i)];
        if (one.kind == Noted::Role::result && is_origin(i, ranges) && (earliest < 0 || i < earliest))
            earliest = i;
        for (const int source : one.from) reach(source);
        reach(earlier_result(i, ranges));
    }
    return earliest;
}

int TraceImpl::first_backward(const std::vector<Range>& ranges) const {
    for (std::size_t i = 0; i < noted.size(); ++i)
        if (noted[i].kind == Noted::Role::gradient && !ranges[i].finite()) return int(i);
    return -1;
}

int TraceImpl::first_forward(const std::vector<Range>& ranges) const {
    if (const int origin = earliest_origin(losses, ranges); origin >= 0) return origin;
    const int backward = first_backward(ranges);
    if (backward >= 0) return earliest_origin(noted[std::size_t(backward)].near, ranges);
    if (!losses.empty()) return -1;
    std::vector<int> all;  // no backward ran
    for (std::size_t i = 0; i < noted.size(); ++i) all.push_back(int(i));
    return earliest_origin(all, ranges);
}

OpRange TraceImpl::describe(int i, const std::vector<Range>& ranges) const {
    const Noted& one = noted[std::size_t(i)];
    return {.pass = one.kind == Noted::Role::gradient ? Pass::backward : Pass::forward,
            .module = places.path(one.place),
            .op = one.name,
            .index = one.index,
            .parameter = one.parameter,
            .shape = one.shape,
            .dtype = one.dtype,
            .range = ranges[std::size_t(i)],
            .origin = is_origin(i, ranges)};
}

RangeTrace::RangeTrace(const nn::Module& model) : impl_(new TraceImpl(model)) {}
RangeTrace::~RangeTrace() { delete impl_; }
void RangeTrace::clear() { impl_->clear(); }

std::vector<OpRange> RangeTrace::ops() const {
    const std::vector<Range> ranges = impl_->table.read();
    std::vector<OpRange> result;
    for (std::size_t i = 0; i < ranges.size(); ++i)
        if (impl_->noted[i].kind >= Noted::Role::result) result.push_back(impl_->describe(int(i), ranges));
    return result;
}

double RangeTrace::fitting_scale(double scale, double headroom, double limit) const {
    check(scale > 0 && std::isfinite(scale), ErrorKind::value, "RangeTrace.fitting_scale: scale is ", scale,
          "; it must be positive");
    check(headroom >= 1, ErrorKind::value, "RangeTrace.fitting_scale: headroom is ", headroom,
          "; it must be at least 1");
    const std::vector<Range> ranges = impl_->table.read();
    constexpr double none = HUGE_VAL;
    double fits = none;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const Noted& one = impl_->noted[i];
        if (one.kind != Noted::Role::gradient || !is_16bit(one.dtype)) continue;
        if (!ranges[i].finite()) fits = std::min(fits, scale / 2);
        if (ranges[i].max_abs != 0)
            fits = std::min(fits, dtype_info(one.dtype).max / headroom / ranges[i].max_abs * scale);
    }
    return fits == none ? 0 : std::min(std::exp2(std::floor(std::log2(fits))), limit);
}

}  // namespace mezzo::insight
