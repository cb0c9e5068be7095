// SGD, Adam and AdamW: their options, checked and turned into the arguments of the step kernels.
#include <cmath>

#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

void require(bool condition, const std::string& where, const char* option, double value, const char* rule) {
    check(condition, ErrorKind::value, where, ": ", option, " is ", value, "; it must be ", rule);
}

StepArgs checked(const char* type, const StepArgs& args) {
    check_args(type, args);
    return args;
}

StepArgs args_of(const char* type, const SGDOptions& options) {
    return checked(type, {.algorithm = Algorithm::sgd,
                          .lr = options.lr,
                          .weight_decay = options.weight_decay,
                          .momentum = options.momentum,
                          .dampening = options.dampening,
                          .nesterov = options.nesterov,
                          .maximize = options.maximize});
}

template <class Options> StepArgs adam_args(const char* type, Algorithm algorithm, const Options& options) {
    return checked(type, {.algorithm = algorithm,
                          .lr = options.lr,
                          .weight_decay = options.weight_decay,
                          .beta1 = options.beta1,
                          .beta2 = options.beta2,
                          .eps = options.eps,
                          .maximize = options.maximize});
}

StepArgs args_of(const char* type, const AdamOptions& options) {
    return adam_args(type, Algorithm::adam, options);
}
StepArgs args_of(const char* type, const AdamWOptions& options) {
    return adam_args(type, Algorithm::adamw, options);
}

// Owns the new optimizer until its base class does, so that a refused option does not leak it.
struct Making {
    explicit Making(const char* type) : optimizer(make_optimizer(type)) {}
    ~Making() { delete optimizer; }
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;
    OptimizerImpl* done() {
        OptimizerImpl* result = optimizer;
        optimizer = nullptr;
        return result;
    }
    OptimizerImpl* optimizer;
};

template <class Options>
OptimizerImpl* make(const char* type, const Tensors& params, const StateDict& named, const Options& options) {
    Making making(type);
    add_group(*making.optimizer, params, named, args_of(type, options));
    check(!making.optimizer->slots.empty(), ErrorKind::value, type, ": the list of parameters is empty");
    return making.done();
}

template <class Group> OptimizerImpl* make(const char* type, const std::vector<Group>& groups) {
    Making making(type);
    for (const Group& group : groups)
        add_group(*making.optimizer, group.params, group.named_params, args_of(type, group.options));
    check(!making.optimizer->slots.empty(), ErrorKind::value, type, ": the ", groups.size(),
          " groups hold no parameter");
    return making.done();
}

}  // namespace

void check_rate(const std::string& where, double lr) {
    require(std::isfinite(lr) && lr >= 0, where, "lr", lr, "finite and >= 0");
}

void check_args(const std::string& where, const StepArgs& args) {
    check_rate(where, args.lr);
    require(std::isfinite(args.weight_decay) && args.weight_decay >= 0, where, "weight_decay",
            args.weight_decay, "finite and >= 0");
    require(std::isfinite(args.momentum) && args.momentum >= 0, where, "momentum", args.momentum,
            "finite and >= 0");
    require(std::isfinite(args.dampening), where, "dampening", args.dampening, "finite");
    check(!args.nesterov || (args.momentum > 0 && args.dampening == 0), ErrorKind::value, where,
          ": nesterov needs momentum > 0 and dampening 0, they are ", args.momentum, " and ", args.dampening);
    require(args.beta1 >= 0 && args.beta1 < 1, where, "beta1", args.beta1, "in [0, 1)");
    require(args.beta2 >= 0 && args.beta2 < 1, where, "beta2", args.beta2, "in [0, 1)");
    require(std::isfinite(args.eps) && args.eps >= 0, where, "eps", args.eps, "finite and >= 0");
}

SGD::SGD(const Tensors& params, const SGDOptions& options) : Optimizer(make("SGD", params, {}, options)) {}
SGD::SGD(const StateDict& named, const SGDOptions& options) : Optimizer(make("SGD", {}, named, options)) {}
SGD::SGD(const std::vector<SGDGroup>& groups) : Optimizer(make("SGD", groups)) {}

Adam::Adam(const Tensors& params, const AdamOptions& options)
    : Optimizer(make("Adam", params, {}, options)) {}
Adam::Adam(const StateDict& named, const AdamOptions& options)
    : Optimizer(make("Adam", {}, named, options)) {}
Adam::Adam(const std::vector<AdamGroup>& groups) : Optimizer(make("Adam", groups)) {}

AdamW::AdamW(const Tensors& params, const AdamWOptions& options)
    : Optimizer(make("AdamW", params, {}, options)) {}
AdamW::AdamW(const StateDict& named, const AdamWOptions& options)
    : Optimizer(make("AdamW", {}, named, options)) {}
AdamW::AdamW(const std::vector<AdamWGroup>& groups) : Optimizer(make("AdamW", groups)) {}

}  // namespace mezzo::optim
