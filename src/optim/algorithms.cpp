// Constructors of the optimizers of kernels/optimizers.h, and their options as text.
#include <ostream>

#include "kernels/functor_step.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

template <class Options> std::vector<double> values_of(const Kind& kind, const Options& options) {
    const StepArgs args = functors::step_args(options);
    return {args.options, args.options + kind.options.size()};
}

template <class Options>
OptimizerImpl* make(OptimizerId id, const Tensors& params, const StateDict& named, const Options& options) {
    std::unique_ptr<OptimizerImpl> optimizer = make_optimizer(kind_of(id));
    add_group(*optimizer, params, named, values_of(*optimizer->kind, options));
    check(!optimizer->slots.empty(), ErrorKind::value, optimizer->type, ": the list of parameters is empty");
    return optimizer.release();
}

template <class Group> OptimizerImpl* make(OptimizerId id, const std::vector<Group>& groups) {
    std::unique_ptr<OptimizerImpl> optimizer = make_optimizer(kind_of(id));
    for (const Group& group : groups)
        add_group(*optimizer, group.params, group.named_params, values_of(*optimizer->kind, group.options));
    check(!optimizer->slots.empty(), ErrorKind::value, optimizer->type, ": the ", groups.size(),
          " groups hold no parameter");
    return optimizer.release();
}

}  // namespace

#define MEZZO_OPTIMIZER(name)                                                                          \
    name::name(const Tensors& params, const name##Options& options)                                    \
        : Optimizer(make(OptimizerId::name, params, {}, options)) {}                                   \
    name::name(const StateDict& named_params, const name##Options& options)                            \
        : Optimizer(make(OptimizerId::name, {}, named_params, options)) {}                             \
    name::name(const std::vector<name##Group>& groups) : Optimizer(make(OptimizerId::name, groups)) {} \
    std::ostream& operator<<(std::ostream& out, const name##Options& options) {                        \
        const std::shared_ptr<const Kind> kind = kind_of(OptimizerId::name);                           \
        return out << #name "Options(" << text_of(*kind, values_of(*kind, options)) << ')';            \
    }
MEZZO_OPTIMIZERS(MEZZO_OPTIMIZER)
#undef MEZZO_OPTIMIZER

}  // namespace mezzo::optim
