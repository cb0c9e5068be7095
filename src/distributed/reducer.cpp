#include "distributed/reducer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "autograd/autocast_state.h"
#include "core/memory/flat_view.h"
#include "core/memory/memory_hook.h"
#include "core/step_recorder.h"
#include "distributed/rank_checks.h"
#include "mezzo/autograd.h"

namespace mezzo::distributed {

namespace {

// Turns off gradient recording and autocast while gradients are read and written.
struct Plain {
    NoGrad no_history;
    NoAutocast no_conversions;
};

// Agrees with the other ranks' reducers whether a captured step runs eagerly, captures or replays.
class ReducerConsensus final : public CaptureConsensus {
public:
    explicit ReducerConsensus(Reducer& reducer) : reducer_(&reducer) {}
    StepAction agree(StepAction mine) override { return reducer_->agree_on_step(mine); }

private:
    const Ref<Reducer> reducer_;
};

// Returns the sizes of the buckets. The default suits large models: one bucket of that size would hold all
// gradients of a small model, and could not be reduced before backward ends.
BucketSizes sizes_of(const DataParallelOptions& options, const std::vector<LeafKind>& leaves, int ranks) {
    std::int64_t all = 0;
    for (const LeafKind& leaf : leaves)
        if (leaf.trained) all += leaf.numel * std::int64_t(size_of(leaf.dtype));
    std::int64_t most = options.bucket_bytes;
    if (most == DataParallelOptions().bucket_bytes)
        most = std::min(most, std::max(options.first_bucket_bytes, all / 8));
    return {options.first_bucket_bytes, most, ranks};
}

}  // namespace

Reducer::Reducer(const StateDict& parameters, const Group& group, const DataParallelOptions& options)
    : group_(group), options_(options), where_(parameters.size()), arrivals_(parameters.size()) {
    for (const auto& [name, parameter] : parameters) {
        check(!parameter->grads().gradient.find<Reducer>().hook, ErrorKind::value, "DataParallel: parameter ",
              name, " belongs to another DataParallel already");
        names_.push_back(name);
        leaves_.push_back(parameter);
    }
}

void Reducer::attach() {
    number_ = group_.impl().last();
    try {
        for (std::uint32_t place = 0; place < leaves_.size(); ++place)
            slot(place).link({Ref<GradientHook>(this), place});
    } catch (...) {  // no memory for a link
        detach(false);
        throw;
    }
}

void Reducer::detach(bool wait) noexcept {
    const Ref<GradientHook> self(this);
    try {
        if (wait) collect_all();
        // the gradients are dropped, and later calls of the group throw
    } catch (...) {
    }
    lose_all();
    ++layouts_;  // invalidates graphs that reduce these gradients
    for (std::uint32_t place = 0; place < leaves_.size(); ++place) slot(place).unlink(this);
}

std::vector<LeafKind> Reducer::kinds() const {
    std::vector<LeafKind> result;
    for (const Tensor& leaf : leaves_)
        result.push_back({leaf.numel(), leaf.dtype(), leaf.device(), leaf.requires_grad()});
    return result;
}

void Reducer::require_unbroken() const {
    if (!cause_.empty()) fail(ErrorKind::backend, cause_);
}

// Lays out the buckets. Collective; the layout is the same on all ranks.
void Reducer::make_layout(const std::vector<std::uint32_t>& order) {
    forget_layout();
    std::vector<OrderedLeaf> trained;
    Tensor before;
    for (const std::uint32_t place : order) {
        const Tensor& leaf = leaves_[place];
        if (!leaf.requires_grad()) continue;
        trained.push_back({place, directly_behind(before, leaf)});
        before = leaf;
    }
    bool on_device = !trained.empty() && suits_device_engine();
    trained = common_order(trained, names_, on_device, group_.impl());
    kinds_ = kinds();
    for (const BucketLayout& layout : lay_out(trained, kinds_, sizes_of(options_, kinds_, group_.size()))) {
        for (std::size_t part = 0; part < layout.parts.size(); ++part)
            where_[layout.parts[part].place] = {int(shipments_.size()), part};
        shipments_.push_back({.bucket = std::make_unique<Bucket>(layout, leaves_)});
    }
    if (on_device) connect_device_engine();
}

// Whether this rank's buckets could be sent from device memory.
bool Reducer::suits_device_engine() const {
    const DeviceEngine& devices = group_.impl().devices();
    for (const Tensor& leaf : leaves_) {
        if (!leaf.requires_grad() || devices.suits(leaf.device())) continue;
        devices.note_elsewhere(leaf.device());
        return false;
    }
    return true;
}

// Connects the ranks' device engines, and allocates their memory. Collective.
void Reducer::connect_device_engine() {
    GroupImpl& group = group_.impl();
    group.run([&](Collectives& host) {
        agree(host, group, {.call = Call::layout});
        engine_ = group.devices().connect(host);
    });
    if (engine_ == nullptr) return;
    const OutsideStep memory;
    for (Shipment& shipment : shipments_) {
        const BucketLayout& layout = shipment.bucket->layout();
        shipment.passage = group.devices().make_passage();
        const std::int64_t bytes = mean_scratch(layout.elements, layout.dtype, how());
        shipment.scratch = empty({bytes}, {.dtype = uint8, .device = layout.device});
    }
}

void Reducer::forget_layout() {
    engine_ = nullptr;
    ++layouts_;
    shipments_.clear();
    where_.assign(leaves_.size(), {});
}

std::vector<std::vector<std::string>> Reducer::names_by_bucket() const {
    std::vector<std::vector<std::string>> result;
    for (const Shipment& shipment : shipments_) {
        std::vector<std::string>& names = result.emplace_back();
        for (const BucketLayout::Entry& part : shipment.bucket->layout().parts)
            names.push_back(names_[part.place]);
    }
    return result;
}

void Reducer::settle(std::uint32_t place) {
    if (where_[place].bucket >= 0) collect(shipments_[std::size_t(where_[place].bucket)]);
}

void Reducer::complete(std::uint32_t place) {
    require_unbroken();
    check(phase_ == Phase::idle || has_left(place), ErrorKind::state, "DataParallel: parameter ",
          names_[place],
          " is updated or clipped while backward is running, before its gradient is reduced; do that after "
          "backward");
    if (pending_ && phase_ == Phase::idle) reduce();
    settle(place);
}

bool Reducer::has_left(std::uint32_t place) const {
    const int bucket = where_[place].bucket;
    return phase_ == Phase::reducing && bucket >= 0 && std::size_t(bucket) < departed_;
}

void Reducer::adding(std::uint32_t place) {
    check(
        !has_left(place), ErrorKind::state, "DataParallel: parameter ", names_[place],
        " gets a gradient after its bucket has left: this backward brings it later than the one before; set "
        "overlap = false in DataParallelOptions");
    settle(place);
    if (phase_ == Phase::idle)
        pending_ = true;  // by a backward inside another
    else
        arrivals_.delivered(place);
}

Tensor Reducer::bucket_view(std::uint32_t place) {
    const Where& where = where_[place];
    if (!options_.gradients_in_buckets || where.bucket < 0) return {};
    const Tensor& leaf = leaves_[place];
    const LeafKind& kind = kinds_[place];
    if (kind.dtype != leaf.dtype() || !(kind.device == leaf.device())) return {};
    return shipments_[std::size_t(where.bucket)].bucket->view(where.part);
}

bool Reducer::is_bucket_view(std::uint32_t place, const Tensor& gradient) const {
    const Where& where = where_[place];
    return where.bucket >= 0 && shipments_[std::size_t(where.bucket)].bucket->is_view(where.part, gradient);
}

ReducedStates Reducer::reduced_states(std::uint32_t place) {
    settle(place);
    const auto [bucket, part] = where_[place];
    if (bucket < 0) return ReducedStates::none;
    const Shipment& own = shipments_[std::size_t(bucket)];
    // If all ranks have the same states, they have those of this one.
    return *own.states == ReducedStates::same && !own.with_state[part] ? ReducedStates::none : *own.states;
}

void Reducer::begin(const BackwardPlan& plan) {
    require_capturable();
    require_unbroken();
    check(!plan.create_graph, ErrorKind::state, "DataParallel: backward with create_graph reaches ",
          plan.order.empty() ? "a checkpointed segment" : "parameter " + names_[plan.order[0]],
          "; gradients with a history cannot be reduced, use autograd::grad() for the inner derivative");
    collect_all();
    std::shared_ptr<CaptureConsensus> consensus = consensus_.lock();
    if (consensus == nullptr) consensus_ = consensus = std::make_shared<ReducerConsensus>(*this);
    StepScope::join("DataParallel", consensus);
    arrivals_.begin(plan);
    overlap_ = options_.overlap && plan.alone;
    departed_ = 0;
    if (!layout_fits()) forget_layout();
    phase_ = local_scopes_ > 0 ? Phase::local : Phase::reducing;
    if (phase_ == Phase::local) {
        pending_ = true;
        return;
    }
    compare_parameters();
    if (!arrivals_.opaque()) refuse_unused();
    late_layout_ = shipments_.empty() && arrivals_.opaque();
    if (shipments_.empty() && !late_layout_) make_layout(arrivals_.order());
    for (Shipment& shipment : shipments_) shipment.missing = shipment.bucket->layout().parts.size();
    arrived(arrivals_.unreached());
}

// Compares the parameters of all ranks every check_interval reductions. Not in a capture, where the host
// cannot read values.
void Reducer::compare_parameters() {
    if (thread_state.recorder != nullptr || options_.check_interval == 0) return;
    if (++reductions_ % options_.check_interval != 0) return;
    StateDict parameters;
    for (std::size_t place = 0; place < leaves_.size(); ++place)
        parameters.emplace_back(names_[place], leaves_[place]);
    require_same_values(parameters, group_.impl());
}

// A captured step reduces gradients in the layout of an earlier step.
void Reducer::require_capturable() const {
    if (thread_state.recorder == nullptr) return;
    check(engine_ != nullptr && layout_fits(), ErrorKind::state,
          "DataParallel: a captured step reduces gradients by NCCL only, in the buckets of an earlier step; "
          "Group::engine() says what they travel by");
}

// Makes the graph valid only while layout and engine are unchanged, and keeps the memory that it uses alive.
// Other ranks replay when this one does, and wait for it.
void Reducer::note_capture() {
    StepRecorder& graph = *thread_state.recorder;
    Tensors memory;
    for (const Shipment& shipment : shipments_) {
        memory.push_back(shipment.bucket->memory());
        memory.push_back(shipment.bucket->own_flags());
        memory.push_back(shipment.scratch);
    }
    graph.require([self = Ref<Reducer>(this), engine = engine_, made = layouts_, memory] {
        return self->layouts_ == made && engine->alive();
    });
    graph.after_launch([engine = engine_] { engine->watch_compute(); });
}

StepAction Reducer::agree_on_step(StepAction mine) {
    require_unbroken();
    collect_all();
    return distributed::agree_on_step(mine, group_.impl());
}

// Throws, with Unused::fail, if a parameter is not reached: by the edges of a backward without opaque nodes,
// or by the whole backward if it has opaque nodes.
void Reducer::refuse_unused() const {
    refuse_unless([this](std::uint32_t place) { return arrivals_.was_reached(place); });
}

void Reducer::refuse_unless(const std::function<bool(std::uint32_t place)>& used) const {
    if (options_.unused != Unused::fail) return;
    for (std::uint32_t place = 0; place < leaves_.size(); ++place)
        check(!leaves_[place].requires_grad() || used(place), ErrorKind::state,
              "DataParallel: the loss does not depend on parameter ", names_[place],
              "; Unused::zero in DataParallelOptions counts its gradient as 0");
}

void Reducer::finished(std::uint32_t place) { arrived(arrivals_.finished(place)); }
void Reducer::opaque_finished(std::size_t number) { arrived(arrivals_.opaque_finished(number)); }

// Buckets are reduced in the same order on all ranks, even if a later one is ready first.
void Reducer::arrived(const std::vector<std::uint32_t>& places) {
    if (phase_ != Phase::reducing || late_layout_ || !overlap_) return;
    for (const std::uint32_t place : places)
        if (where_[place].bucket >= 0) --shipments_[std::size_t(where_[place].bucket)].missing;
    while (departed_ < shipments_.size() && shipments_[departed_].missing == 0) depart_next();
}

void Reducer::depart_next() {
    const Plain scope;
    Shipment& shipment = shipments_[departed_++];
    Tensors gradients;
    for (const BucketLayout::Entry& part : shipment.bucket->layout().parts)
        gradients.push_back(slot(part.place).unsettled());
    shipment.values = shipment.bucket->pack(gradients, engine_ != nullptr);
    if (shipment.passage != nullptr) shipment.passage->ready();
    if (thread_state.recorder == nullptr) {
        shipment.with_state = parts_with_state(shipment.bucket->layout(), leaves_);
        shipment.ticket = group_.impl().submit(mean_of(departed_ - 1));
        return;
    }
    group_.impl().issue([&] {
        shipment.passage->begin();
        mean_(*engine_, shipment.values, how(), shipment.scratch);
        shipment.passage->end();
    });
    shipment.in_graph = true;
}

// Work for the communication thread. Other ranks wait for this one in it, so every error must reach them.
GroupImpl::Work Reducer::mean_of(std::size_t bucket) const {
    const Shipment& shipment = shipments_[bucket];
    const Record record{.call = Call::bucket,
                        .dtype = shipment.values.dtype(),
                        .op = ReduceOp::mean,
                        .root = std::int32_t(bucket),
                        .elements = shipment.values.numel(),
                        .shape = number_,
                        .states = digest_of(shipment.with_state)};
    return
        [record, values = shipment.values, passage = shipment.passage, scratch = shipment.scratch,
         states = shipment.states, engine = engine_, how = how(), group = &group_.impl()](Collectives& host) {
            try {
                *states = distributed::reduced_states(agree(host, *group, record));
                if (engine == nullptr) return mean_(host, values, how);
                group->on_device([&] {
                    passage->begin();
                    mean_(*engine, values, how, scratch);
                    passage->end();
                });
            } catch (const std::exception& error) {
                group->give_up(error.what());
                throw;
            }
        };
}

void Reducer::end() {
    if (phase_ == Phase::reducing) {
        if (arrivals_.opaque()) refuse_unused();
        if (late_layout_) make_layout(arrivals_.order());
        depart_all();
        if (thread_state.recorder != nullptr) {
            collect_all();  // work that has forked off the graph joins it
            note_capture();
        }
    }
    arrivals_.end();
    finish();
}

void Reducer::depart_all() {
    while (departed_ < shipments_.size()) depart_next();
    pending_ = false;
    for (Shipment& shipment : shipments_)
        if (held(shipment)) collect(shipment);
}

void Reducer::finish() {
    phase_ = Phase::idle;
    late_layout_ = false;
}

// Whether a caller holds the tensor of a gradient, which it reads without waiting: its reduction must be
// complete when backward returns.
bool Reducer::held(const Shipment& shipment) const {
    for (const BucketLayout::Entry& part : shipment.bucket->layout().parts)
        if (slot(part.place).shared()) return true;
    return false;
}

void Reducer::reduce() {
    require_capturable();
    require_unbroken();
    check(phase_ == Phase::idle, ErrorKind::state,
          "DataParallel.reduce: backward is running; call it afterwards");
    collect_all();
    phase_ = Phase::reducing;
    departed_ = 0;
    try {
        compare_parameters();
        refuse_unless([this](std::uint32_t place) { return slot(place).defined(); });
        if (!layout_fits()) make_layout(arrivals_.order());
        depart_all();
        if (thread_state.recorder != nullptr) {
            collect_all();
            note_capture();
        }
    } catch (const std::exception& error) {
        abandon(error.what());
        throw;
    }
    finish();
}

void Reducer::give_up(std::string_view words) noexcept {
    try {
        if (cause_.empty())
            cause_ =
                words.empty() ? "an exception ended its backward before all gradients were reduced" : words;
        group_.impl().give_up(cause_);
    } catch (...) {  // without memory for the message, other ranks wait until their timeout
    }
}

// Other ranks wait for buckets that will not come. If this rank went on, they would get the buckets of its
// next backward instead.
void Reducer::abandon(std::string_view words) noexcept {
    if (phase_ == Phase::reducing) {
        give_up(words);
        lose_all();
    }
    finish();
}

void Reducer::collect(Shipment& shipment) {
    if (!shipment.under_way()) return;
    try {
        if (shipment.ticket != 0) group_.impl().wait(shipment.ticket);
        if (shipment.passage != nullptr) shipment.passage->receive();
    } catch (const std::exception& error) {
        cause_ = error.what();
        lose_all();
        throw;
    }
    shipment.ticket = 0;
    shipment.in_graph = false;
    unpack(shipment);
}

void Reducer::collect_all() {
    for (Shipment& shipment : shipments_) collect(shipment);
}

// A gradient that only other ranks have becomes their mean, in the scale state of this rank's other
// gradients.
void Reducer::unpack(Shipment& shipment) {
    const Plain scope;
    const std::vector<BucketLayout::Entry>& parts = shipment.bucket->layout().parts;
    shipment.bucket->take_back(std::exchange(shipment.values, Tensor()));
    bool all = true;
    ScaleState scale_state = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        GradientSlot& own = slot(parts[i].place);
        all = all && own.defined();
        if (!own.defined()) continue;
        shipment.bucket->unpack(i, own.unsettled());
        scale_state = sum_of_parts(scale_state, own.scale_state());
    }
    if (all) return;
    const std::vector<bool> present = shipment.bucket->present();
    for (std::size_t i = 0; i < parts.size(); ++i) {
        GradientSlot& own = slot(parts[i].place);
        if (!own.defined() && present[i])
            own.put({shipment.bucket->unpack(i, {}), scale_state & ~ScaleState(two_scales)});
    }
}

// Keeps memory alive that aborted device operations may use for a moment longer.
void Reducer::keep_memory() noexcept {
    if (engine_ == nullptr) return;
    try {
        for (const Shipment& shipment : shipments_) {
            if (!shipment.under_way()) continue;
            group_.impl().devices().keep({shipment.bucket->memory(), shipment.scratch});
        }
    } catch (const std::bad_alloc&) {  // no memory: the buckets own it until the layout changes
    }
}

// Drops the gradients whose reduction is in progress: their values may be partial sums.
void Reducer::lose_all() noexcept {
    keep_memory();
    for (Shipment& shipment : shipments_) {
        if (!shipment.under_way()) continue;
        shipment.ticket = 0;
        shipment.in_graph = false;
        shipment.values = Tensor();
        for (const BucketLayout::Entry& part : shipment.bucket->layout().parts) slot(part.place).drop();
    }
}

}  // namespace mezzo::distributed
