// An optimizer's update inside a captured step: the learning rates that are computed before each replay, the
// conditions of a replay, and the bookkeeping of the host after it.
#include "core/step_recorder.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

void* address(const Tensor& x) { return x.defined() ? raw(x) : nullptr; }

// The addresses that an update reads and writes, apart from the gradient's.
struct Places {
    void *param = nullptr, *master = nullptr, *low16 = nullptr, *copy16 = nullptr;
    std::vector<void*> state;
    friend bool operator==(const Places&, const Places&) = default;
};

Places places_of(const OptimizerImpl& optimizer, const Slot& slot) {
    Places places;
    places.param = raw(slot.param);
    for (const Tensor& state : slot.state) places.state.push_back(address(state));
    places.master = address(slot.master);
    places.low16 = address(slot.low16);
    if (!has_master(optimizer, slot) && slot.param->grad_meta != nullptr)
        places.copy16 = address(slot.param->grad_meta->copy16.value);
    return places;
}

// Whether the master or 16-bit copy that an update writes with the parameter agrees with the parameter now,
// and the copy has no other reference.
bool copies_current(const OptimizerImpl& optimizer, const Slot& slot) {
    if (has_master(optimizer, slot)) return slot.master_version == slot.param.version();
    if (slot.param->grad_meta == nullptr || !slot.param->grad_meta->copy16.value.defined()) return true;
    const Copy16& copy16 = slot.param->grad_meta->copy16;
    return copy16.version == slot.param.version() && copy16.value->refs.load() == 1 &&
           copy16.value->storage->refs.load() == 1;
}

// The optimizer's addresses and options on which a captured update depends. fits(): they are unchanged.
class CapturedUpdate {
public:
    CapturedUpdate(OptimizerImpl& optimizer, const GradientList& plan)
        : optimizer_(Ref<OptimizerImpl>(&optimizer)),
          indices_(plan.indices),
          state_(raw(optimizer.state)),
          steps_(raw(optimizer.steps)) {
        for (const std::size_t index : indices_)
            places_.push_back(places_of(optimizer, optimizer.slots[index]));
        for (const Group& group : optimizer.groups) options_.push_back(without_rate(group));
    }
    bool fits() const {
        if (address(optimizer_->state) != state_ || address(optimizer_->steps) != steps_) return false;
        for (std::size_t g = 0; g < options_.size(); ++g)
            if (without_rate(optimizer_->groups[g]) != options_[g]) return false;
        for (std::size_t i = 0; i < indices_.size(); ++i) {
            const Slot& slot = optimizer_->slots[indices_[i]];
            if (!(places_of(*optimizer_, slot) == places_[i]) || !copies_current(*optimizer_, slot))
                return false;
        }
        return !optimizer_->preset.skips_next_step;
    }

private:
    static std::vector<double> without_rate(const Group& group) {
        std::vector<double> options = group.options;
        options.front() = 0;
        return options;
    }
    Ref<OptimizerImpl> optimizer_;
    std::vector<std::size_t> indices_;
    std::vector<Places> places_;
    std::vector<std::vector<double>> options_;
    void *state_, *steps_;
};

}  // namespace

void put_rates_on_device(OptimizerImpl& optimizer, std::vector<StepArgs>& groups) {
    for (std::size_t g = 0; g < groups.size(); ++g)
        groups[g].lr_on_device = thread_state.recorder->number(
            [own = Ref<OptimizerImpl>(&optimizer), g] { return own->groups[g].lr(); });
}

void follow_replays(OptimizerImpl& optimizer, const GradientList& plan, bool conditional) {
    StepRecorder* const graph = thread_state.recorder;
    graph->require([update = CapturedUpdate(optimizer, plan)] { return update.fits(); });
    graph->after_replay([own = Ref<OptimizerImpl>(&optimizer), conditional, indices = plan.indices] {
        note_update(*own, indices, conditional);
    });
}

}  // namespace mezzo::optim
