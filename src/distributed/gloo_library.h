// Opens the module that links Gloo. A program that is alone never does.
#pragma once

#include <memory>
#include <string>

#include "distributed/gloo_module.h"

namespace mezzo::distributed {

// The engine of a run, connected to all ranks. Error(backend) where the module cannot be opened or the ranks not connected.
std::unique_ptr<Collectives> connect_gloo(KeyValues& store, const GlooOptions& options);
// Why the module cannot be opened; "" where it can.
std::string gloo_absence();

}  // namespace mezzo::distributed
