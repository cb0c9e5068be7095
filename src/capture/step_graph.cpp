#include "capture/step_graph.h"

#include <exception>

#include "core/gradient/gradient_hook.h"
#include "core/random_offset.h"
#include "core/tensor_impl.h"

namespace mezzo {

// Arguments of one launch, which the host copies into device memory before it.
struct StepGraph::Arguments {
    static constexpr std::size_t capacity = 254;
    RandomState random;
    double numbers[capacity] = {};
};

StepGraph::StepGraph(Device device, MemoryPlan plan)
    : device_(device), backend_(backend_of("captured step", device)), plan_(std::move(plan)) {
    arguments_ = allocate_storage(sizeof(Arguments), device_);
    if (plan_.bytes != 0) arena_ = allocate_storage(plan_.bytes, device_);
}

StepGraph::~StepGraph() {
    if (graph_ != nullptr) backend_.destroy_graph(device_.index, graph_);
}

void StepGraph::capture(const std::function<void()>& step) {
    start_ = random_state();
    std::exception_ptr error;
    {
        ArenaMemory memory(device_, plan_, arena_, held_);
        backend_.begin_capture(device_.index);
        thread_state.recorder = this;
        try {
            PendingHooks pending;
            step();
            pending.apply();
        } catch (...) {
            error = std::current_exception();
        }
        thread_state.recorder = nullptr;
        try {
            graph_ = backend_.end_capture(device_.index);
        } catch (...) {  // usually a consequence of the first error
            if (error == nullptr) throw;
        }
    }
    if (error == nullptr) gradients_.finish();
    drawn_ = random_state().offset - start_.offset;
    if (graph_ != nullptr) launch(start_);
    if (error != nullptr) std::rethrow_exception(error);
}

bool StepGraph::fits() const {
    if (!gradients_.fit()) return false;
    for (const auto& condition : conditions_)
        if (!condition()) return false;
    return true;
}

void StepGraph::replay() {
    gradients_.begin_replay();
    launch(reserve_random(drawn_));
    gradients_.restore();
    for (const auto& action : actions_) action();
    gradients_.restore_scale_state();
}

// The copy and the graph are on one stream, so a run's arguments arrive after the previous run has ended.
void StepGraph::launch(RandomState start) {
    Arguments arguments{.random = start};
    for (std::size_t i = 0; i < numbers_.size(); ++i) arguments.numbers[i] = numbers_[i]();
    const std::size_t bytes = offsetof(Arguments, numbers) + numbers_.size() * sizeof(double);
    backend_.copy_in(device_.index, arguments_->data, &arguments, bytes);
    backend_.launch_graph(device_.index, graph_);
    for (const auto& action : launched_) action();
}

const double* StepGraph::number(std::function<double()> value) {
    check(numbers_.size() < Arguments::capacity, ErrorKind::state, "captured step: more than ",
          Arguments::capacity, " learning rates; capture fewer optimizer steps at once");
    numbers_.push_back(std::move(value));
    return static_cast<const Arguments*>(arguments_->data)->numbers + (numbers_.size() - 1);
}

Tensor StepGraph::number_tensor(std::function<double()> value) {
    const std::size_t offset = offsetof(Arguments, numbers) + numbers_.size() * sizeof(double);
    static_cast<void>(number(std::move(value)));
    return make_tensor(part_of(arguments_, offset, sizeof(double)), {}, {}, 0, float64);
}

const RandomState* StepGraph::random() const {
    return &static_cast<const Arguments*>(arguments_->data)->random;
}

bool StepGraph::owns(const Tensor& x) const {
    if (!arena_) return false;
    const Storage* storage = x->storage.get();
    // The parts of a block have it for their arena.
    while (static_cast<const Block*>(storage)->part)
        storage = static_cast<const Block*>(storage)->arena.get();
    return static_cast<const Block*>(storage)->arena == arena_;
}

void StepGraph::check_random_state(RandomState state) const {
    check(state.seed == start_.seed && state.offset >= start_.offset, ErrorKind::state,
          "set_random_state: a captured step cannot start a random stream of its own; call manual_seed() "
          "before the step");
}

}  // namespace mezzo
