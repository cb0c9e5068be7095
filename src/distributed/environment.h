// Reads the environment variables that launchers set: rank, number of ranks, address of the store.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "distributed/collectives.h"

namespace mezzo::distributed {

struct Launch {
    RankInfo place;
    std::string host;               // of the store
    int first_port = 0, ports = 1;  // the store listens at one of these
    bool launcher_holds_store = false;
    std::string run;  // distinguishes runs at the same address; may be empty
};

// Returns a variable's value, or null.
using Variables = std::function<const char*(const char*)>;

// Reads the first complete set of variables: torchrun's and mezzo-run's, Open MPI's, MPICH's, Slurm's.
// Returns nothing if no set has a variable. Throws Error(state), with the names, if sets lack variables, and
// for several ranks without an address; Error(value) for values out of range.
std::optional<Launch> read_environment(const Variables& variables);

// Returns a variable that is a whole number from 1 to `high`, or 0 if it is not set or empty. Throws
// Error(value), in the name of `op`, for any other value.
int number_or_0(const char* op, const Variables& variables, const char* name, int high);

// Returns the first host of a Slurm node list: node003 for "node[003-007,12],gpu1". Without brackets and
// commas it is the text itself.
std::string first_host(const std::string& list);

}  // namespace mezzo::distributed
