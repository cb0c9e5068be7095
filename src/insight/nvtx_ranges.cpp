// Emits modules, ops and gradients as NVTX ranges.
#include <string>
#include <vector>

#include "autograd/op_observer.h"
#include "core/tensor_impl.h"
#include "core/thread_state.h"
#include "insight/nvtx_calls.h"
#include "mezzo/error.h"
#include "mezzo/insight/nvtx.h"
#include "nn/module_paths.h"

namespace mezzo::insight {

namespace {

// Allocated at the beginning, because the callbacks must not throw.
constexpr std::size_t most_depth = 1024;

}  // namespace

struct NvtxRanges final : OpObserver {
    explicit NvtxRanges(const EmitNvtxOptions& options)
        : places_(options.model), shapes_(options.record_shapes) {
        open_.reserve(most_depth);
    }
    ~NvtxRanges() override {
        while (!open_.empty()) end();
    }

    void called(const AnyOp&, In, In results) override {
        const Node* const node =
            !results.empty() && tracked(results[0]) ? results[0]->grad_meta->node.get() : nullptr;
        if (node != nullptr) places_.note(*node, ended_place_);
    }
    void viewed(const Tensor& given, const Tensor& view) override {
        places_.note(*view->grad_meta->node, places_.of_call({&given, 1}));
    }

    void module_begins(const nn::Module& module) noexcept override {
        begin(RangeKind::module, [&] {
            const int place = places_.of_call({});
            const std::string& path = places_.path(place);
            const bool unnamed = path.empty() || place == innermost();
            nvtx_push(unnamed ? module.type_name() : path.c_str());
            return Open{RangeKind::module, place, 1};
        });
    }
    void module_ends() noexcept override { end(); }

    // An op that another op runs belongs to the outer op's module. An op that a gradient runs belongs to the
    // module of its node, unless it is recomputed forward of a checkpoint.
    void op_begins(const AnyOp& op, In given) noexcept override {
        begin(RangeKind::op, [&] {
            const RangeKind outer = open_.empty() ? RangeKind::range : open_.back().kind;
            const bool part =
                outer == RangeKind::op || (outer == RangeKind::backward && !thread_state.recomputing);
            return push(RangeKind::op, part ? innermost() : places_.of_call(given),
                        shapes_ ? op.name() + sizes(given) : std::string(op.name()));
        });
    }
    void op_ends(const AnyOp&, In, In) noexcept override { ended_place_ = end(); }
    void node_begins(const Node& node) noexcept override {
        begin(RangeKind::backward, [&] {
            const int own = places_.of_node(node);
            return push(RangeKind::backward, own >= 0 ? own : innermost(),
                        std::string(node.op->name()) + " backward");
        });
    }
    void node_ends() noexcept override { end(); }
    void range_begins(std::string_view name) noexcept override {
        begin(RangeKind::range, [&] {
            nvtx_push(std::string(name).c_str());
            return Open{RangeKind::range, innermost(), 1};
        });
    }
    void range_ends() noexcept override { end(); }

private:
    enum class RangeKind : std::uint8_t { module, op, backward, range };
    struct Open {
        RangeKind kind;
        int place;
        int pushed;  // ranges: the event's own, and perhaps its module's around it
    };

    int innermost() const { return open_.empty() ? 0 : open_.back().place; }

    // Begins the range of the module, unless the event is in it already, and the event's own range.
    Open push(RangeKind kind, int place, const std::string& name) {
        const bool other = place != innermost() && !places_.path(place).empty();
        if (other) nvtx_push(places_.path(place).c_str());
        nvtx_push(name.c_str());
        return {kind, place, other ? 2 : 1};
    }

    // Without memory for its name an event gets no range, but still an entry in open_.
    template <class F> void begin(RangeKind kind, const F& pushes) noexcept {
        if (open_.size() == most_depth) {
            ++deeper_;
            return;
        }
        Open open{kind, innermost(), 0};
        try {
            open = pushes();
        } catch (const std::exception&) {
        }
        open_.push_back(open);
    }

    // Ends the innermost event and returns its module.
    int end() noexcept {
        if (deeper_ > 0) {
            --deeper_;
            return 0;
        }
        if (open_.empty()) return 0;  // it began before the scope
        const Open last = open_.back();
        open_.pop_back();
        for (int i = 0; i < last.pushed; ++i) nvtx_pop();
        return last.place;
    }

    // ", sizes = [[32, 64], [64, 64]]".
    static std::string sizes(In given) {
        std::string text;
        for (const Tensor& x : given)
            text += (text.empty() ? "" : ", ") + (x.defined() ? mezzo::detail::text_of(x.shape()) : "[]");
        return ", sizes = [" + text + "]";
    }

    nn::Places places_;
    const bool shapes_;
    std::vector<Open> open_;
    std::int64_t deeper_ = 0;
    int ended_place_ = 0;
};

EmitNvtx::EmitNvtx(const EmitNvtxOptions& options) {
    if (!options.enabled) return;
    check(nvtx_available(), ErrorKind::backend,
          "EmitNvtx: this build has no NVTX; build mezzo where its header nvtx3/nvToolsExt.h is, which comes "
          "with the CUDA "
          "Toolkit");
    ranges_ = new NvtxRanges(options);
}
EmitNvtx::~EmitNvtx() { delete ranges_; }

}  // namespace mezzo::insight
