// An optimizer whose state is divided among several processes, as the optimizer sees it: src/distributed/sharding.h has the
// other half.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "kernels/step.h"
#include "mezzo/tensor.h"

namespace mezzo::optim {

struct OptimizerImpl;
struct GradientList;

// Consecutive elements of a parameter.
struct Part {
    std::int64_t begin = 0, count = 0;
};

// A tensor with the elements of a parameter, of which this process has the right values in its part only.
struct Incomplete {
    std::size_t slot;
    Tensor tensor;  // contiguous
};

// The other processes. Calls are collective: all processes make the same ones in the same order.
class Sharing {
public:
    virtual ~Sharing() = default;
    // An update of the parameters with these indices is coming. Throws on all processes unless all are about to do the same, and none has an `error` that
    // it cannot do it; no parameter has changed then. With an error, which it throws, the indices are not known.
    virtual void begin_update(const OptimizerImpl& optimizer, const std::vector<std::size_t>& indices,
                              const std::exception_ptr& error) = 0;
    // An update that has begun fails on this process with the exception that is being handled: the others must not go on without it.
    virtual void give_up() noexcept = 0;
    // Gets the elements outside of this process's parts from the others.
    virtual void complete(const std::vector<Incomplete>& tensors) = 0;
    // Returns if this succeeds on all processes with the same digest. Throws `error` if there is one, otherwise
    // an error that says what the others have. where: "Adam.load_state_dict".
    virtual void agree_to_load(const std::string& where, const std::exception_ptr& error,
                               std::uint64_t digest) = 0;
};

// The references of a plan, narrowed to this process's parts. They write no copies for autocast.
std::vector<ParamRef> own_parts(const OptimizerImpl& optimizer, const GradientList& plan);
// After the update of the own parts: brings the others', and the copies for autocast up to date.
void complete_update(const OptimizerImpl& optimizer, const GradientList& plan);

}  // namespace mezzo::optim
