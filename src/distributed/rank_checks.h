// Consistency checks between ranks: names, values and layouts must be equal before the ranks rely on them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capture/capture_consensus.h"
#include "core/gradient/gradient_hook.h"
#include "distributed/bucket_layout.h"
#include "distributed/call_record.h"
#include "distributed/group_impl.h"
#include "mezzo/distributed/group.h"
#include "mezzo/error.h"
#include "mezzo/module.h"

namespace mezzo::distributed {

// Describes lines that must be the same on all ranks, and the error if they differ: "op: line on rank 0 and
// other line on rank 2; hint".
struct CommonLines {
    Call call;
    const char* op;
    const char* hint;
    ErrorKind kind = ErrorKind::value;
};
// Throws an error that names the first line that differs, on all ranks, unless all ranks have the same lines.
void require_same_lines(const CommonLines& what, const std::vector<std::string>& lines, GroupImpl& group);

// Returns rank 0's order of the leaves. Throws Error(state) on all ranks unless all ranks list the same
// leaves; `names` are those of all leaves. `on_device` says whether this rank's leaves are on the device of
// its device engine; afterwards, whether the leaves of all ranks are.
std::vector<OrderedLeaf> common_order(const std::vector<OrderedLeaf>& own,
                                      const std::vector<std::string>& names, bool& on_device,
                                      GroupImpl& group);

// The parts of a bucket whose leaves have LeafState that is reduced, and a digest of them; 0: none.
std::vector<bool> parts_with_state(const BucketLayout& layout, const Tensors& leaves);
std::uint64_t digest_of(const std::vector<bool>& parts);
// Compares the digests in the records of all ranks.
ReducedStates reduced_states(const std::vector<Record>& all);

// Returns the least StepAction of all ranks: what every rank can do in this call of a captured step.
StepAction agree_on_step(StepAction mine, GroupImpl& group);

// Returns the group's object for the consensus of a captured step, which calls agree_on_step(). All handles
// of the group get the same object while any reference to it exists.
std::shared_ptr<CaptureConsensus> consensus_of(const Group& group);

// Checks that the tensors have the same bits on all ranks, as distributed::require_same().
void require_same_values(const StateDict& tensors, GroupImpl& group);

// Broadcasts rank 0's values of the tensors. Shapes and dtypes are the same on all ranks.
void broadcast_values(const StateDict& tensors, GroupImpl& group);

}  // namespace mezzo::distributed
