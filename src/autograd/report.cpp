// The autocast report, why a product is not in float8, and how the options of a scope are printed.
#include "autograd/report.h"

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/autocast_state.h"
#include "mezzo/autocast.h"

namespace mezzo {

namespace {

struct Report {
    bool on = false;
    std::vector<amp::AutocastReportLine> lines;
};

Report& report() {
    thread_local Report of_thread;
    return of_thread;
}

const char* policy_name(CastPolicy cast) {
    switch (cast) {
        case CastPolicy::low:
            return "low";
        case CastPolicy::fp32:
            return "fp32";
        case CastPolicy::fp32_out:
            return "fp32_out";
        case CastPolicy::promote:
            return "promote";
        case CastPolicy::banned:
            return "banned";
        case CastPolicy::keep:
            break;
    }
    return "keep";
}

const char* why_not_size(const amp::Fp8& fp8, std::int64_t size) {
    const bool blocks = fp8.granularity == Granularity::block32;
    if (size < fp8.least_size) return "a size is below least_size";
    if (size % (blocks ? 32 : 16) == 0) return nullptr;
    return blocks ? "a size is no multiple of 32" : "a size is no multiple of 16";
}

}  // namespace

const char* why_not_fp8(const amp::Fp8& fp8, const Tensor& x, const Tensor& weight) {
    if (!autocast_takes(x) || !autocast_takes(weight)) return "an operand is float64 or on another device";
    if (!allows_fp8(weight)) return "set_fp8(false)";
    const std::int64_t in = x.size(-1);
    for (const std::int64_t size : {in, weight.size(0), in == 0 ? 0 : x.numel() / in})
        if (const char* const reason = why_not_size(fp8, size)) return reason;
    return nullptr;
}

namespace {

// Why an op of 16-bit operands is not in float8, or "".
const char* fp8_reason(const OpTraits& traits, In inputs, Dtype computed) {
    if (traits.cast != CastPolicy::low || !is_16bit(computed)) return "";
    const amp::Fp8* const fp8 = scope_fp8(inputs[0].device());
    if (fp8 == nullptr) return "";
    if (!traits.fp8) return "the op has no float8 form";
    for (std::size_t i = 1; i < inputs.size(); ++i)
        if (inputs[i].defined() && inputs[i].dim() == 2)
            if (const char* const reason = why_not_fp8(*fp8, inputs[0], inputs[i])) return reason;
    return "";
}

}  // namespace

void report_call(const OpTraits& traits, In inputs, Dtype computed, Dtype result, const CastWork& work) {
    Report& own = report();
    if (!own.on) return;
    const std::string_view reason = fp8_reason(traits, inputs, computed);
    amp::AutocastReportLine* line = nullptr;
    for (auto& l : own.lines)
        if (l.op == traits.name && l.computed == computed && l.result == result && l.reason == reason)
            line = &l;
    if (!line) {
        own.lines.push_back(
            {traits.name, policy_name(traits.cast), computed, result, 0, 0, 0, std::string(reason)});
        line = &own.lines.back();
    }
    ++line->calls;
    line->casts += work.tensors;
    line->cast_bytes += work.bytes;
}

namespace amp {

void collect_autocast_report(bool on) { report().on = on; }
std::vector<AutocastReportLine> autocast_report() { return report().lines; }
void clear_autocast_report() { report().lines.clear(); }

std::ostream& operator<<(std::ostream& out, const AutocastOptions& options) {
    const char* const device = options.device ? name(*options.device) : "all";
    constexpr const char* granularities[] = {"tensor", "row", "block32"};
    std::string fp8;
    if (options.fp8) {
        fp8 = fmt::format(", fp8={}", granularities[int(options.fp8->granularity)]);
        if (options.fp8->recipe == Recipe::delayed) fp8 += " delayed";
    }
    return out << fmt::format("AutocastOptions(device={}, dtype={}, enabled={}, cache={}{})", device,
                              name(options.dtype), options.enabled, options.cache, fp8);
}

}  // namespace amp
}  // namespace mezzo
