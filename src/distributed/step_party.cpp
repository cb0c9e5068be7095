#include "distributed/step_party.h"

#include "distributed/agreement.h"
#include "distributed/group_impl.h"

namespace mezzo::distributed {
namespace {

class GroupParty final : public StepParty {
public:
    explicit GroupParty(const Group& group) : group_(group) {}
    StepAction agree(StepAction mine) override { return agree_on_step(mine, group_.impl()); }

private:
    const Group group_;
};

}  // namespace

std::shared_ptr<StepParty> step_party(const Group& group) {
    std::weak_ptr<StepParty>& known = group.impl().party();
    std::shared_ptr<StepParty> party = known.lock();
    if (party == nullptr) known = party = std::make_shared<GroupParty>(group);
    return party;
}

}  // namespace mezzo::distributed
