// Optimizers with parameter groups.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/autograd.h"
#include "mezzo/module.h"
#include "mezzo/optim_options.h"
#include "mezzo/schedule.h"

namespace mezzo::optim {

struct OptimizerImpl;  // src/optim/optimizer.h

// The base of all optimizers. Parameters are leaves that require grad, all on one device when step() is
// called; those without a gradient are left out of a step. step() queues its work and does not wait for the
// device. Every float32 parameter that Autocast reads in 16 bit gets its 16-bit copy written in the same
// pass.
class Optimizer {
public:
    virtual ~Optimizer();
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    // One update of every parameter that has a gradient.
    void step();
    // Drops all gradients; set_to_none = false sets them to zero in place, so that their memory stays.
    void zero_grad(bool set_to_none = true);

    [[nodiscard]] const char* type_name() const;  // "SGD", "Adam", …
    // All parameters, group by group.
    [[nodiscard]] Tensors parameters() const;
    // Steps applied, and steps that a GradScaler skipped; waits for the device when a scaler took part since
    // the last call.
    [[nodiscard]] std::int64_t applied_steps() const;
    [[nodiscard]] std::int64_t skipped_steps() const;

    [[nodiscard]] std::size_t group_count() const;
    [[nodiscard]] double lr(std::size_t group = 0) const;
    // Sets the learning rate of one group or of all; schedules scale this value from then on.
    void set_lr(double lr, std::size_t group);
    void set_lr(double lr);
    // Any option of a group by the name of its field, which is its name in state_dict(), too: "lr",
    // "weight_decay", "beta1", … Flags are 0 or 1. Throws for an unknown name, and for a value that the
    // constructor refuses.
    [[nodiscard]] double option(const std::string& name, std::size_t group = 0) const;
    void set_option(const std::string& name, double value, std::size_t group);

    // Keeps a float32 master of every 16-bit parameter from now on: step() updates the master and writes the
    // parameter from it.
    void use_master_weights();
    // The float32 masters of 16-bit parameters, and the other parameters themselves. A master shares the
    // parameter's gradient once it has been unscaled.
    [[nodiscard]] Tensors master_parameters() const;

    // Copies of everything that step() depends on besides the parameters: moments, step counts, masters,
    // options of every group.
    [[nodiscard]] StateDict state_dict() const;
    // Puts back a state_dict() of an optimizer of the same type, groups and shapes, masters included: an
    // optimizer without them has them from then on. Throws, with nothing changed, for any other: for options
    // that the constructor refuses, counts that are none, moments that are missing, names that are unknown.
    void load_state_dict(const StateDict& state);

    // Different for every optimizer made in this process.
    [[nodiscard]] std::uint64_t id() const;
    [[nodiscard]] OptimizerImpl& impl() const { return *impl_; }

protected:
    explicit Optimizer(OptimizerImpl* impl) : impl_(impl) {}

private:
    OptimizerImpl* impl_;
};

// For each optimizer of optim_options.h a class with its name, and a group: parameters that share options.
// Named parameters (from named_parameters()) are named in errors and overflow reports. The constructors throw
// Error(value) for options outside their range, and for parameters that are undefined, listed twice or no
// floating leaves.
#define MEZZO_OPTIMIZER_CLASS(name)                                                      \
    struct name##Group {                                                                 \
        Tensors params = {};                                                             \
        name##Options options = {};                                                      \
        StateDict named_params = {};                                                     \
    };                                                                                   \
    class name : public Optimizer {                                                      \
    public:                                                                              \
        explicit name(const Tensors& params, const name##Options& options = {});         \
        explicit name(const StateDict& named_params, const name##Options& options = {}); \
        explicit name(const std::vector<name##Group>& groups);                           \
    };
MEZZO_OPTIMIZERS(MEZZO_OPTIMIZER_CLASS)
#undef MEZZO_OPTIMIZER_CLASS

}  // namespace mezzo::optim
