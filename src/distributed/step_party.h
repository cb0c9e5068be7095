// A group as one of those who decide together what a call of a captured step does.
#pragma once

#include <memory>

#include "core/step_party.h"
#include "mezzo/distributed.h"

namespace mezzo::distributed {

// The same for all handles of the group, for as long as somebody holds it.
std::shared_ptr<StepParty> step_party(const Group& group);

}  // namespace mezzo::distributed
