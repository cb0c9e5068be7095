// What the ranks compare before they rely on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/step_party.h"
#include "distributed/agree.h"
#include "distributed/bucket_layout.h"
#include "distributed/group_impl.h"
#include "mezzo/distributed.h"
#include "mezzo/error.h"
#include "mezzo/module.h"

namespace mezzo::distributed {

// What is to be the same on all ranks, and the error where it is not: "op: line on rank 0 and other line on rank 2; hint".
struct CommonLines {
    Call call;
    const char* op;
    const char* hint;
    ErrorKind kind = ErrorKind::value;
};
// Throws on all ranks with the first line that differs, unless all ranks have the same lines.
void require_same_lines(const CommonLines& what, const std::vector<std::string>& lines, GroupImpl& group);

// Returns rank 0's order. Throws Error(state) on all ranks unless all list the same leaves; names are those of all leaves. on_device: whether this rank's
// leaves are on the device of its device engine; afterwards, whether those of all ranks are.
std::vector<OrderedLeaf> common_order(const std::vector<OrderedLeaf>& own,
                                      const std::vector<std::string>& names, bool& on_device,
                                      GroupImpl& group);

// What all ranks can do in this call of a captured step.
StepAction agree_on_step(StepAction mine, GroupImpl& group);

// Returns the group's party, which calls agree_on_step(). All handles of the group get the same object while
// somebody holds it.
std::shared_ptr<StepParty> step_party(const Group& group);

// As distributed::require_same().
void require_same_values(const StateDict& tensors, GroupImpl& group);

// Gives all ranks the values that the tensors have on rank 0. Shapes and dtypes are the same on all ranks.
void broadcast_values(const StateDict& tensors, GroupImpl& group);

}  // namespace mezzo::distributed
