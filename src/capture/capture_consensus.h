// Capture consensus for captured steps with collective operations. Whether a call of the step runs it,
// captures it or replays it must be the same in all processes: a collective operation that is a part of a
// graph in one process and not in another hangs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/internal.h"
#include "mezzo/error.h"

namespace mezzo {

// Actions of a call of a captured step, from the weakest to the strongest.
enum class StepAction : std::uint8_t { eager, record, replay };

// Agrees with the other ranks whether a captured step runs eagerly, captures or replays.
class CaptureConsensus {
public:
    virtual ~CaptureConsensus() = default;
    // Returns the minimum of the actions that the processes can take, the same in all of them. All call it
    // before the same call of their captured steps. On return, collective operations that were under way have
    // ended, so that a capture depends on nothing before it.
    virtual StepAction agree(StepAction mine) = 0;
};
using ConsensusList = std::vector<std::shared_ptr<CaptureConsensus>>;

// A call of a captured step on this thread. It collects the groups whose collective operations the step uses.
class StepScope {
public:
    // capturing: join() throws for a new member, because it has not agreed to the capture.
    StepScope(ConsensusList& members, bool capturing)
        : members_(members), capturing_(capturing), outer_(current) {
        current = this;
    }
    ~StepScope() { current = outer_; }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

    // Called by a member before a collective operation. Does nothing outside of a captured step. Throws
    // Error(state) for a new member while capturing.
    static void join(const char* op, const std::shared_ptr<CaptureConsensus>& consensus) {
        if (current == nullptr) return;
        ConsensusList& known = current->members_;
        if (std::find(known.begin(), known.end(), consensus) != known.end()) return;
        check(!current->capturing_, ErrorKind::state, op,
              ": a captured step meets other processes that its warm-up runs did not meet; the step must do "
              "the same in every call");
        known.push_back(consensus);
    }

private:
    MEZZO_INTERNAL static constinit inline thread_local StepScope* current = nullptr;
    ConsensusList& members_;
    const bool capturing_;
    StepScope* const outer_;
};

}  // namespace mezzo
