// DetectAnomaly: stops at the first op that produces a NaN.
#include <algorithm>

#include <fmt/format.h>

#include "autograd/op_observer.h"
#include "core/tensor_impl.h"
#include "insight/ranges.h"
#include "nn/module_paths.h"

namespace mezzo::insight {

struct DetectAnomaly::Impl final : OpObserver {
    explicit Impl(const AnomalyOptions& given) : options(given), places(given.model) {}

    void called(const AnyOp& op, In given, In results) override {
        const int place = places.of_call(given);
        if (!results.empty() && tracked(results[0]) && results[0]->grad_meta->node)
            places.note(*results[0]->grad_meta->node, place);
        if (!options.forward) return;
        const auto bad = [](const Tensor& x) { return range_of_floats(x).nans != 0; };
        const auto infinite = [](const Tensor& x) { return range_of_floats(x).infs != 0; };
        const auto source = std::find_if(given.begin(), given.end(), bad);
        if (source == given.end()) {
            // Infinities that the inputs have, such as those of a mask, may stay.
            const bool infinities = options.infinities && std::none_of(given.begin(), given.end(), infinite);
            for (const Tensor& y : results) stop_if_bad("its result", op.name(), place, y, infinities);
        } else if (std::any_of(results.begin(), results.end(), bad)) {
            // A NaN in an input is an error only if a result has one, too: ops such as masked_fill remove
            // NaN.
            const std::string name = places.parameter(*source);
            stop_if_bad(fmt::format("before it, its {}", name.empty()
                                                             ? fmt::format("input {}", source - given.begin())
                                                             : "parameter " + name),
                        op.name(), place, *source, false);
        }
    }
    void viewed(const Tensor& given, const Tensor& view) override {
        places.note(*view->grad_meta->node, places.of_call({&given, 1}));
    }
    void visiting(const Node& node) override {
        visited_name = node.op->name();
        if (const int place = places.of_node(node); place >= 0) visited_place = place;
    }
    void gradient(const Node& node, int i, const Tensor& value) override {
        const Tensor& leaf = node.edges[std::size_t(i)].leaf;
        const std::string name = leaf.defined() ? places.parameter(leaf) : std::string();
        const std::string what = name.empty() ? fmt::format("input {}", i) : name;
        stop_if_bad("the gradient of " + what, node.op->name(), visited_place, value);
    }
    void fused_gradient(const Node& below, const Tensor& value) override {
        stop_if_bad(fmt::format("a gradient inside of {}", below.op->name()), visited_name, visited_place,
                    value);
    }
    void sum(const Node& node, const Tensor& value) override {
        const int place = places.of_node(node);
        stop_if_bad("the sum of the gradients of its result", node.op->name(),
                    place < 0 ? visited_place : place, value);
    }

    static Range range_of_floats(const Tensor& x) {
        return x.defined() && is_floating(x.dtype()) ? range_of(x) : Range{};
    }
    void stop_if_bad(const std::string& what, const std::string& op, int place, const Tensor& x) const {
        stop_if_bad(what, op, place, x, options.infinities);
    }
    void stop_if_bad(const std::string& what, const std::string& op, int place, const Tensor& x,
                     bool infinities) const {
        const Range range = range_of_floats(x);
        const std::string& path = places.path(place);
        check(range.nans == 0 && (!infinities || range.infs == 0), ErrorKind::value, "detect_anomaly: ", op,
              path.empty() ? "" : " in ", path, ": ", what, ", ", x.dtype(), " ", x.shape(), ", has ",
              range.infs, " inf and ", range.nans, " NaN among ", range.elements, " elements");
    }

    AnomalyOptions options;
    nn::Places places;
    std::string visited_name;
    int visited_place = 0;
};

DetectAnomaly::DetectAnomaly(const AnomalyOptions& options) : impl_(new Impl(options)) {}
DetectAnomaly::~DetectAnomaly() { delete impl_; }

}  // namespace mezzo::insight
