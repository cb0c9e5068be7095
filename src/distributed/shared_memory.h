// Collective operations of ranks on one machine, through memory that all of them map: no byte goes through a socket.
#pragma once

#include <memory>

#include "distributed/gloo_module.h"

namespace mezzo::distributed {

// All ranks call this together, each with its engine. Where all of them can map one memory, the result is an engine that uses it,
// and `engine` for no more than abort(); where one cannot, or MEZZO_SHARED_MEMORY is "off" in one of them, it is `engine`. Ranks in
// network namespaces of their own count as machines of their own. `timeout` in seconds.
std::unique_ptr<Collectives> over_shared_memory(KeyValues& store, std::unique_ptr<Collectives> engine,
                                                const Place& place, double timeout);

}  // namespace mezzo::distributed
