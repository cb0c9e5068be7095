// Makes an OverflowReport from a RangeTrace, and formats it.
#include <algorithm>

#include <fmt/format.h>

#include "insight/range_trace.h"

namespace mezzo::insight {

namespace {

std::string text_of(const Range& range) {
    return fmt::format("{} inf and {} NaN of {} elements, the largest other {:.4g}", range.infs, range.nans,
                       range.elements, range.max_abs);
}

std::string text_of(const OpRange& one) {
    const std::string place = one.module.empty() ? "outside of modules" : "in " + one.module;
    std::string what = one.pass == Pass::forward ? "result" : "gradient";
    if (!one.parameter.empty())
        what += " of " + one.parameter;
    else if (one.pass == Pass::backward && one.index >= 0)
        what += fmt::format(" of input {}", one.index);
    return fmt::format("{} {}: {} {} {}: {}", one.op, place, what, name(one.dtype),
                       mezzo::detail::text_of(one.shape), text_of(one.range));
}

}  // namespace

std::string OverflowReport::to_string() const {
    std::string text = step >= 0 ? fmt::format("step {}: ", step) : std::string();
    if (!found()) return text + "everything stayed in range\n";
    text += fmt::format("{} gradient{} left the range\n", gradients.size(), gradients.size() == 1 ? "" : "s");
    for (const std::string& bad : bad_inputs) text += "  not finite before: " + bad + "\n";
    if (forward) text += "  first in forward:  " + text_of(*forward) + "\n";
    if (backward) text += "  first in backward: " + text_of(*backward) + "\n";
    for (const GradientRange& one : gradients)
        text += fmt::format("  gradient of {}: {}\n", one.name, text_of(one.range));
    return text;
}

OverflowReport RangeTrace::report(std::int64_t step) const {
    const TraceImpl& trace = *impl_;
    const std::vector<Range> ranges = trace.table.read();
    OverflowReport result{.step = step};
    const int forward = trace.first_forward(ranges), backward = trace.first_backward(ranges);
    if (forward >= 0) result.forward = trace.describe(forward, ranges);
    if (backward >= 0) result.backward = trace.describe(backward, ranges);
    result.gradients = overflowed_of(trace.parameters);
    if (!result.forward && !result.backward && result.gradients.empty()) return result;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const Noted& one = trace.noted[i];
        if (one.kind >= Noted::Role::result || ranges[i].finite()) continue;
        if (trace.earlier_result(int(i), ranges) >= 0) continue;  // it was finite before the step
        const std::string& path = trace.places.path(one.place);
        std::string bad = one.kind == Noted::Role::parameter
                              ? "parameter " + one.name
                              : "an input of " + one.name + (path.empty() ? "" : " in " + path);
        if (std::find(result.bad_inputs.begin(), result.bad_inputs.end(), bad) == result.bad_inputs.end())
            result.bad_inputs.push_back(std::move(bad));
    }
    return result;
}

}  // namespace mezzo::insight
