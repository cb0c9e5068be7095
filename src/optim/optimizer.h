// Implementation of Optimizer: its data, and the parts of a step that GradScaler and the amp presets also
// use.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/gradient/scale_state.h"
#include "core/internal.h"
#include "mezzo/optim.h"
#include "optim/optimizer_type.h"
#include "optim/shard_sync.h"
#include "optim/update.h"

namespace mezzo::optim {

// One parameter and its state. Tensors are made at the first step and follow the parameter's device.
struct MEZZO_INTERNAL Slot {
    Tensor param;
    std::size_t group = 0;
    std::string name;  // "" when made from unnamed parameters
    // float32, of a 16-bit parameter with master weights. A split master has one from load_state_dict() to
    // the next step only.
    Tensor master;
    Tensor low16;                      // of a split master: uint8 [elements, 2], the lower halves
    std::uint64_t master_version = 0;  // of the parameter, when it last equalled the rounded master
    std::vector<Tensor> state;         // in the order of OptimizerType::state; uint8 ones are Block8s
    std::optional<LocalShard> part;    // local shard of state and master; none: not sharded

    Shape kept_shape() const;  // shape of master and most state: the parameter's, or [part->count]
    Tensor kept_part(const Tensor& whole) const;  // the shard of a tensor with the parameter's elements
    // The same of a tensor [rows, bytes], of which each row stands for so many elements.
    Tensor kept_rows(const Tensor& whole, std::int64_t elements) const;
    Tensor kept_state(const Tensor& whole) const;  // the same of a state in any format
};

struct Group {
    std::size_t first = 0, count = 0;  // of its slots
    std::vector<double> options;       // in the order of OptimizerType::options
    double initial_lr = 0;             // what schedules scale

    double& lr() { return options.front(); }
    double lr() const { return options.front(); }
};

class CustomOptimizer;

// State of the Apex presets (amp/presets.cpp) in an optimizer.
struct PresetState {
    bool initialized = false;      // by amp::initialize
    bool skips_next_step = false;  // amp::Handle::scale_loss has seen an overflow
};

// Data of an Optimizer. Captured steps that update it also hold a reference, because they may be replayed
// after the Optimizer is destroyed.
struct MEZZO_INTERNAL OptimizerImpl {
    std::atomic<std::uint32_t> refs{0};
    std::shared_ptr<const OptimizerType> kind;
    const char* type = "";            // the kind's
    CustomOptimizer* user = nullptr;  // an optimizer written in ops, which runs instead of a kernel
    std::uint64_t id = 0;
    std::vector<Slot> slots;
    std::vector<Group> groups;
    // float32 [slots, OptimizerType::numbers]: number of updates applied to each parameter, and the
    // optimizer's own numbers.
    Tensor steps;
    Tensor state;                           // StepState as float32 [16]
    std::vector<std::uint64_t> schedulers;  // that have stepped, the active one last
    std::optional<MasterWeights> masters;   // none: no master weights
    PresetState preset;
    bool updating = false;          // a user's update() runs
    bool counts_on_device = false;  // a conditional step ran since the counts below were read
    std::int64_t applied = 0, skipped = 0;
    std::unique_ptr<ShardedState> sharing;  // set by distributed::shard(); every slot then has a part

    Device device() const;
    Tensors params() const;
    StepState* step_state() { return static_cast<StepState*>(raw(state)); }
    // "encoder.weight (parameter 3)", or "parameter 3".
    std::string describe(std::size_t slot) const;
};
inline void dispose(OptimizerImpl* optimizer) noexcept { delete optimizer; }

std::unique_ptr<OptimizerImpl> make_optimizer(const std::shared_ptr<const OptimizerType>& kind);
void add_group(OptimizerImpl& optimizer, const Tensors& params, const StateDict& named,
               const std::vector<double>& options);
// A group's options as the kernels take them.
StepArgs step_args(const OptimizerImpl& optimizer, const Group& group);

// A field of a struct of options, with the bounds of its values.
struct OptionField {
    enum class Type : std::uint8_t { real, flag, integer, enumerator };
    const char* name;
    std::size_t offset;
    Type type = Type::real;
    double low = 0, high = std::numeric_limits<double>::infinity();
    bool below_high = false;  // the value is in [0, 1)
};
// Description of an optimizer in ops of the library, as CustomType. The first option is lr.
struct OptimizerTable {
    const char* type;
    std::span<const OptionField> options;
    std::span<const char* const> state;
    Shape (*state_shape)(const std::string& state, const Shape& parameter) = nullptr;
};
// Makes an optimizer of a table. `options` are structs that the table's fields describe.
class TableOptimizer {
public:
    explicit TableOptimizer(const OptimizerTable& table);
    void add(const Tensors& params, const void* options, const StateDict& named);
    OptimizerImpl* release();  // Error(value) if there is no parameter

private:
    const OptimizerTable& table_;
    std::unique_ptr<OptimizerImpl> optimizer_;
};

// Makes steps and state on the device of the parameters, or moves them there.
void prepare_state(OptimizerImpl& optimizer);
// Bit k: state k takes part in the group's updates.
unsigned used_state(const OptimizerImpl& optimizer, const Group& group);
Dtype state_dtype(const Slot& slot);  // of wide state
// The shape of the slot's state k if it is wide.
Shape state_shape(const OptimizerImpl& optimizer, const Slot& slot, std::size_t k);
// The storage of state with the group's options.
StateStorage state_storage(const OptimizerImpl& optimizer, const Group& group);
// The layout of a state in memory.
struct StateLayout {
    StateFormat format;
    Shape shape;
    Dtype dtype;
};
StateLayout state_layout(const OptimizerImpl& optimizer, const StateStorage& storage, const Slot& slot,
                         std::size_t k);
// The slot's state k in another layout. Between blocks and floating dtypes it is converted in host memory,
// rounded to nearest.
Tensor converted_state(const OptimizerImpl& optimizer, const Slot& slot, const Tensor& state,
                       const StateLayout& layout, std::size_t k);
// The shape in which state_dict() has a state of blocks.
Shape blocks_shape(std::int64_t numel);
// Makes the masters, state and 16-bit copies that an update of the list will write to, where they are
// missing, and completes the list with pointers to them.
void prepare_update(OptimizerImpl& optimizer, GradientList& list, bool conditional);
// Makes the 16-bit copies that are missing, for updates of single parameters: those of merged weights lie
// behind each other only if they are made together.
void make_missing_copies16(OptimizerImpl& optimizer);
// Arguments of the update kernels: the parameters with gradients, and their state. Allocates all memory that
// the update kernel needs: whatever can throw does so here, before gradients and parameters change.
// conditional: the update is skipped if StepState says found_inf.
GradientList plan_update(OptimizerImpl& optimizer, bool conditional, PendingFactors scaling);
// Throws Error(state), "op: …; advice", if has_parts() (core/gradient/scale_state.h) is true of a gradient of the
// optimizer.
void refuse_scale_state(const char* op, const OptimizerImpl& optimizer, ScaleState parts, const char* advice);
// Updates every parameter that has a gradient with gradient * scale, unless `conditional` and StepState says
// found_inf, and counts. If no parameter has a gradient, does nothing and returns false.
bool run_update(OptimizerImpl& optimizer, const GradientList& plan, bool conditional,
                const GradientFactor& scale);
// Bookkeeping of the host after an update: new versions of parameters and state, and the count of steps.
void note_update(OptimizerImpl& optimizer, const std::vector<std::size_t>& indices, bool conditional);
// For an update in a captured step: has the kernels read the learning rates from the device.
void put_rates_on_device(OptimizerImpl& optimizer, std::vector<StepArgs>& groups);
// For an update in a captured step: calls note_update() after each replay, and has the step captured again
// when options other than the learning rate, or the tensors that the update writes, have changed.
void follow_replays(OptimizerImpl& optimizer, const GradientList& plan, bool conditional);
// Whether the slot's parameter has a master.
bool has_master(const OptimizerImpl& optimizer, const Slot& slot);
// Whether it is split. It is no tensor then, but the parameter and slot.low16 together.
bool has_split_master(const OptimizerImpl& optimizer, const Slot& slot);
// Throws Error(dtype) if a parameter cannot have the optimizer's masters.
void check_masters(const OptimizerImpl& optimizer);
// Makes the masters that these parameters lack on a device. Throws Error(dtype) if one cannot be split.
void make_masters(OptimizerImpl& optimizer, const std::vector<std::size_t>& indices, Device device);
// Updates a master with what was written to its parameter since they last agreed, and stores it as the
// optimizer's masters are to be stored.
void refresh_master(const OptimizerImpl& optimizer, Slot& slot);
// The master of a slot with has_master(), as float32, of the slot's shape.
Tensor master_of(const Slot& slot);
// Notifies the states of the parameters (core/gradient/leaf_state.h) that a step has run or was skipped.
void end_step(OptimizerImpl& optimizer);
// Brings applied and skipped up to date; waits for the device if it has to.
void read_counts(OptimizerImpl& optimizer);

// Calls the optimizer's update() for every parameter of the list with gradient * scale. Stores the results,
// unless `conditional` and StepState says found_inf, and counts the step. Does not wait for the device.
void run_user_update(OptimizerImpl& optimizer, const GradientList& plan, bool conditional,
                     const GradientFactor& scale);

// Throws Error(state) while the update() of this optimizer runs. `call` names the member function.
void refuse_in_update(const char* call, const OptimizerImpl& optimizer);

}  // namespace mezzo::optim
