// Opens the module that links Gloo. A single process never opens it.
#pragma once

#include <memory>
#include <string>

#include "distributed/gloo_module.h"

namespace mezzo::distributed {

// Returns the engine of a run, connected to all ranks. Throws Error(backend) if the module cannot be opened
// or the ranks cannot be connected.
std::unique_ptr<Collectives> connect_gloo(KeyValues& store, const GlooOptions& options);
// Returns why the module cannot be opened; "" if it can.
std::string gloo_absence();

}  // namespace mezzo::distributed
