// Optimizers with parameter groups, those of mezzo/optimizers.def. Others are in mezzo/optim_in_ops.h and
// mezzo/lbfgs.h.
//
//   optim::AdamW optimizer(net.parameters(), {.lr = 1e-3, .weight_decay = 0.01});
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/module.h"
#include "mezzo/optim_options.h"
#include "mezzo/schedule.h"

#pragma GCC visibility push(default)

namespace mezzo::optim {

struct OptimizerImpl;  // src/optim/optimizer.h

// Storage of the float32 masters of 16-bit parameters.
enum class MasterWeights : std::uint8_t {
    whole,  // 4 bytes of an element, and the parameter's 2
    // 2 bytes, and the parameter's 2: a bfloat16 parameter is the upper half of its master, rounded to
    // nearest, ties away from zero, and the lower half is stored. Training has the bits of float32 masters,
    // except where ties are rounded. Not for float16 parameters.
    split,
};

// Base class of all optimizers. Parameters are floating leaves, all on one device when step() is called;
// parameters without a gradient are skipped. step() queues its work and does not wait for the device. It also
// writes the 16-bit copies of float32 parameters that Autocast reads in 16 bit.
class Optimizer {
public:
    virtual ~Optimizer();
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    // Updates every parameter that has a gradient. Throws, with no parameter changed, Error(device) when
    // parameters and gradients are on several devices, Error(value) for a parameter that is not contiguous,
    // Error(state) for a gradient in which scaled parts were added to unscaled ones (see GradScaler), and
    // Error(memory).
    void step();
    // Runs loss.backward(), and updates each parameter as soon as its gradient is complete, which is then
    // released: there are never the gradients of all parameters at once. Parameters have the bits of
    // backward() and step(). Counts one step. A checkpointed segment may reach any parameter, so gradients
    // stay until the last segment has run. A parameter is updated after the last node that has saved it; but
    // a hook, or a user-defined gradient that reads a parameter without having it in Context::saved, may read
    // the updated one. Accumulation, clipping and a GradScaler need all gradients before the first update,
    // and do not go with it. Throws, with no parameter changed, Error(state) if a parameter has a gradient
    // already, for a scaled loss, parameters of any DataParallel in the graph, sharded optimizers, and inside
    // of a captured step or another backward pass, Error(value) for a CustomOptimizer, LBFGS and the
    // optimizers of mezzo/optim_in_ops.h, and the errors of step() about devices, contiguity and masters. If
    // it throws later, some parameters are updated and others are not; so it does for parameters of a
    // DataParallel that only a checkpointed segment reaches.
    void step_in_backward(const Tensor& loss);
    // Clears all gradients; set_to_none = false writes zeros to them, and so keeps their memory.
    void zero_grad(bool set_to_none = true);

    [[nodiscard]] const char* type_name() const;  // "SGD", "Adam", …
    // Type and options, as a module is printed: SGD(lr=0.1, momentum=0.9, …). Several groups have a line
    // each.
    [[nodiscard]] std::string to_string() const;
    // All parameters, group by group.
    [[nodiscard]] Tensors parameters() const;
    // Steps applied, and steps skipped because of an overflow. Both wait for the device when a GradScaler
    // took part in a step since the last call.
    [[nodiscard]] std::int64_t applied_steps() const;
    [[nodiscard]] std::int64_t skipped_steps() const;

    [[nodiscard]] std::size_t group_count() const;
    [[nodiscard]] double lr(std::size_t group = 0) const;  // Error(value) for a group that does not exist
    // Sets the learning rate of one group or of all; schedules scale this value from then on. Throws
    // Error(value) for a rate that is negative, infinite or NaN and for a group that does not exist, and
    // Error(state) inside a captured step.
    void set_lr(double lr, std::size_t group);
    void set_lr(double lr);
    // Any option of a group by the name of its field, which is its name in state_dict(), too: "lr",
    // "weight_decay", "beta1", … Flags are 0 or 1. Throws Error(value) for an unknown name, a group that does
    // not exist and a value out of the option's range; setting throws Error(state) inside a captured step.
    [[nodiscard]] double option(const std::string& name, std::size_t group = 0) const;
    void set_option(const std::string& name, double value, std::size_t group);

    // Makes a float32 master weight for every 16-bit parameter: step() updates the master weight and writes
    // the parameter from it. If a program writes to a parameter, the changed elements become those of the
    // master, or, if it is split, all elements do. A move to another device is no write; a conversion to
    // another dtype and back is one, and so is Module::load_state_dict(): load the optimizer's state, too. A
    // call with the other storage converts the masters; a sharded optimizer splits at its next step. Throws
    // Error(dtype) for split masters of float16 parameters, and Error(value) for split masters of a
    // CustomOptimizer, LBFGS and the optimizers of mezzo/optim_in_ops.h.
    void use_master_weights(MasterWeights storage = MasterWeights::whole);
    // The float32 master weights of 16-bit parameters, and the other parameters themselves. A master weight
    // shares the gradient of its parameter if that is float32, as after GradScaler::unscale_(); otherwise it
    // has none. Throws Error(state) for split masters, which state_dict() has as float32.
    [[nodiscard]] Tensors master_parameters() const;

    // Copies of the state of step() besides the parameters: moments, step counts, master weights, options of
    // every group.
    [[nodiscard]] StateDict state_dict() const { return saved_state(); }
    // Restores a state_dict() of an optimizer of the same type, groups and shapes, master weights included:
    // an optimizer without master weights has float32 ones afterwards. Masters and moments are converted to
    // this optimizer's storage of them. Throws with nothing changed: Error(value) for another type or other
    // groups, options out of their range, counts that are no whole numbers, and entries that are undefined,
    // missing, unknown or there twice; Error(shape) for an entry of another shape; Error(dtype) for state
    // that is not floating, and for the master of a parameter that is not 16 bit.
    void load_state_dict(const StateDict& state) { restore_state(state); }

    // Number of this optimizer, unique in the process.
    [[nodiscard]] std::uint64_t id() const;
    [[nodiscard]] OptimizerImpl& impl() const { return *impl_; }

protected:
    explicit Optimizer(OptimizerImpl* impl) : impl_(impl) {}
    // state_dict() and load_state_dict(), for a derived class that has more state.
    [[nodiscard]] virtual StateDict saved_state() const;
    virtual void restore_state(const StateDict& state);

private:
    OptimizerImpl* impl_;
};

std::ostream& operator<<(std::ostream& out, const Optimizer& optimizer);  // optimizer.to_string()

// Defines the class of an optimizer, and a group: parameters that share options. Named parameters (from
// named_parameters()) are named in errors and overflow reports. The constructors throw Error(value) for
// options out of their range, for parameters that are undefined, listed twice or no floating leaves, and when
// there is no parameter at all.
#define MEZZO_OPTIMIZER_CLASS(name, base, ...)                                                               \
    struct name##Group {                                                                                     \
        Tensors params = {};                                                                                 \
        name##Options options = {};                                                                          \
        StateDict named_params = {};                                                                         \
    };                                                                                                       \
    class name : public base {                                                                               \
    public:                                                                                                  \
        explicit name(const Tensors& params, const name##Options& options = {});                             \
        explicit name(const StateDict& named_params, const name##Options& options = {});                     \
        explicit name(const std::vector<name##Group>& groups);                                               \
        explicit name(std::initializer_list<name##Group> groups) : name(std::vector<name##Group>(groups)) {} \
        explicit name(const name##Group& one_group) = delete; /* name({{.params = …}}) */                  \
        __VA_ARGS__                                                                                          \
    };

#define MEZZO_OPTIMIZER(name) MEZZO_OPTIMIZER_CLASS(name, Optimizer)
#include "mezzo/optimizers.def"

}  // namespace mezzo::optim

#pragma GCC visibility pop
