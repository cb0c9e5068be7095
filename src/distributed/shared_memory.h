// Collective operations for ranks on one machine, through memory that all of them map instead of sockets.
#pragma once

#include <memory>

#include "distributed/gloo_module.h"

namespace mezzo::distributed {

// All ranks call this together, each with its engine. Returns an engine on shared memory if all ranks can map
// it; it uses `engine` only for abort(). Otherwise, or if MEZZO_SHARED_MEMORY is "off" on one of them,
// returns `engine`. Ranks in different network namespaces count as different machines. `timeout` is in
// seconds.
std::unique_ptr<Collectives> over_shared_memory(KeyValues& store, std::unique_ptr<Collectives> engine,
                                                const RankInfo& place, double timeout);

}  // namespace mezzo::distributed
