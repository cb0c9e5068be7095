// Steps in which several processes take part. Whether a call of a captured step runs the step, captures it or replays it must then be the same in all
// processes: an operation between them that is a part of a graph in one and not in another hangs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "mezzo/error.h"

namespace mezzo {

// What a call of a captured step does, the least that a process can do first.
enum class StepAction : std::uint8_t { eager, record, replay };

// Who speaks for the other processes.
class StepParty {
public:
    virtual ~StepParty() = default;
    // The least of what the processes can do, the same in all of them. All call it before the same call of their captured steps. What is under way
    // between them has been awaited, so that a capture depends on nothing before it.
    virtual StepAction agree(StepAction mine) = 0;
};
using StepParties = std::vector<std::shared_ptr<StepParty>>;

// A call of a captured step on this thread, which learns whom the step meets.
class StepScope {
public:
    // `capturing`: whom the step meets only now has not agreed to a capture.
    StepScope(StepParties& parties, bool capturing)
        : parties_(parties), capturing_(capturing), outer_(current) {
        current = this;
    }
    ~StepScope() { current = outer_; }
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

    // Called by a party when its processes exchange something. Does nothing outside of a captured step.
    static void meet(const char* op, const std::shared_ptr<StepParty>& party) {
        if (current == nullptr) return;
        StepParties& known = current->parties_;
        if (std::find(known.begin(), known.end(), party) != known.end()) return;
        check(!current->capturing_, ErrorKind::state, op,
              ": a captured step meets other processes that its warm-up runs did not meet; the step must do "
              "the "
              "same in every call");
        known.push_back(party);
    }

private:
    static constinit inline thread_local StepScope* current = nullptr;
    StepParties& parties_;
    const bool capturing_;
    StepScope* const outer_;
};

}  // namespace mezzo
