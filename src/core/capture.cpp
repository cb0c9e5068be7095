#include "core/capture.h"

#include <atomic>
#include <exception>

#include "core/random.h"
#include "core/scale_parts.h"
#include "core/tensor_impl.h"

namespace mezzo {

namespace {

const void* address(const Tensor& x) { return x.defined() ? raw(x) : nullptr; }

std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

// What the host hands to a run, in device memory.
struct StepGraph::Arguments {
    static constexpr std::size_t capacity = 254;
    RandomState random;
    double numbers[capacity] = {};
};

StepGraph::StepGraph(Device device, MemoryPlan plan, bool branches)
    : id_(next_id()),
      device_(device),
      backend_(backend_of("captured step", device)),
      plan_(std::move(plan)),
      branches_(branches) {
    arguments_ = allocate_storage(sizeof(Arguments), device_);
    if (plan_.bytes != 0) arena_ = allocate_storage(plan_.bytes, device_);
}

StepGraph::~StepGraph() {
    if (graph_ != nullptr) backend_.destroy_graph(device_.index, graph_);
}

void StepGraph::record(const std::function<void()>& step) {
    start_ = random_state();
    std::exception_ptr error;
    {
        ArenaMemory memory(device_, plan_, arena_, held_, branches_);
        backend_.begin_capture(device_.index);
        current = this;
        try {
            step();
        } catch (...) {
            error = std::current_exception();
        }
        current = nullptr;
        forks_ = memory.forks();
        try {
            graph_ = backend_.end_capture(device_.index);
        } catch (...) {  // as a rule a consequence of the first error
            if (error == nullptr) throw;
        }
    }
    restore_gradients();
    require_gradients();
    follow_scale_parts();
    drawn_ = random_state().offset - start_.offset;
    if (graph_ != nullptr) launch(start_);
    if (error != nullptr) std::rethrow_exception(error);
}

bool StepGraph::fits() const {
    for (const auto& condition : conditions_)
        if (!condition()) return false;
    return true;
}

void StepGraph::replay() {
    launch(reserve_random(drawn_));
    for (const auto& action : actions_) action();
}

// On one stream: a run's arguments arrive when the run before it has ended.
void StepGraph::launch(RandomState start) {
    Arguments arguments{.random = start};
    for (std::size_t i = 0; i < numbers_.size(); ++i) arguments.numbers[i] = numbers_[i]();
    const std::size_t bytes = offsetof(Arguments, numbers) + numbers_.size() * sizeof(double);
    backend_.copy_in(device_.index, arguments_->data, &arguments, bytes);
    backend_.launch_graph(device_.index, graph_);
}

const double* StepGraph::number(std::function<double()> value) {
    check(numbers_.size() < Arguments::capacity, ErrorKind::state, "captured step: more than ",
          Arguments::capacity, " learning rates; capture fewer optimizer steps at once");
    numbers_.push_back(std::move(value));
    return static_cast<const Arguments*>(arguments_->data)->numbers + (numbers_.size() - 1);
}

const RandomState* StepGraph::random() const {
    return &static_cast<const Arguments*>(arguments_->data)->random;
}

// Only the first meeting counts: what the step finds later it has made itself.
void StepGraph::gradient_used(const Tensor& leaf) {
    if (owns(leaf) || !own_gradients_.insert(leaf.impl()).second) return;
    const GradMeta* const meta = leaf->grad_meta;
    meetings_.push_back({leaf.impl(), meta != nullptr ? address(meta->grad) : nullptr});
}

void StepGraph::leaf_gone(TensorImpl* leaf) noexcept {
    own_gradients_.erase(leaf);
    scale_parts_.erase(leaf);
    std::erase_if(meetings_, [leaf](const FirstMeeting& meeting) { return meeting.leaf == leaf; });
}

// A replay writes gradients where the recording had them, whatever the leaves hold by then: those of another
// graph, say. Before all other actions, which may look at them.
void StepGraph::restore_gradients() {
    std::vector<std::pair<Tensor, Tensor>> left;
    for (TensorImpl* const leaf : own_gradients_)
        if (leaf->grad_meta != nullptr && leaf->grad_meta->grad.defined() && owns(leaf->grad_meta->grad))
            left.emplace_back(Tensor(leaf), alias(leaf->grad_meta->grad));
    if (left.empty()) return;
    actions_.insert(actions_.begin(), [left = std::move(left)] {
        for (const auto& [leaf, gradient] : left) {
            const GradMeta& meta = leaf->grads();
            if (address(meta.grad) != raw(gradient)) leaf.set_grad(alias(gradient));
        }
    });
}

void StepGraph::require_gradients() {
    for (const FirstMeeting& meeting : meetings_)
        require([leaf = Tensor(meeting.leaf), expected = meeting.gradient] {
            return address(leaf.grad()) == expected;  // a gradient that waits for its factor gets it here
        });
    meetings_.clear();
    own_gradients_.clear();
}

void StepGraph::note_scale_parts(TensorImpl& leaf, bool known, std::uint8_t parts) {
    if (owns(Tensor(&leaf))) return;
    ScaleParts& noted = scale_parts_[&leaf];
    noted.parts = known ? parts : noted.parts | parts;
    noted.known = noted.known || known;
}

void StepGraph::require_not_scale_parts(TensorImpl& leaf, std::uint8_t parts) {
    const auto found = scale_parts_.find(&leaf);
    const ScaleParts noted = found != scale_parts_.end() ? found->second : ScaleParts{};
    if (noted.known) return;
    require([leaf = Tensor(&leaf), added = noted.parts, parts] {
        return ((scale_parts(*leaf.impl()) | added) & parts) != parts;
    });
}

// After all other actions: those that put gradients back forget their parts.
void StepGraph::follow_scale_parts() {
    std::vector<std::pair<Tensor, ScaleParts>> noted;
    for (const auto& [leaf, parts] : scale_parts_)
        if (leaf->grad_meta != nullptr && (parts.known || parts.parts != 0))
            noted.emplace_back(Tensor(leaf), parts);
    scale_parts_.clear();
    if (noted.empty()) return;
    after_replay([noted = std::move(noted)] {
        for (const auto& [leaf, parts] : noted) note_replayed(*leaf.impl(), parts.known, parts.parts);
    });
}

bool StepGraph::owns(const Tensor& x) const {
    return arena_ && static_cast<const Block*>(x->storage.get())->arena == arena_;
}

void StepGraph::check_random_state(RandomState state) const {
    check(state.seed == start_.seed && state.offset >= start_.offset, ErrorKind::state,
          "set_random_state: a captured step cannot start a random stream of its own; call manual_seed() "
          "before the "
          "step");
}

void refuse_in_capture(const char* op, const char* what) {
    check(StepGraph::recording() == nullptr, ErrorKind::state, op, ": a captured step cannot ", what,
          "; do it before or after the call, or run this step without a capture");
}

void refuse_in_capture(const char* op, Device device, const char* what) {
    if (const StepGraph* graph = StepGraph::recording(); graph != nullptr && graph->device() == device)
        refuse_in_capture(op, what);
}

}  // namespace mezzo
