// What the environment says about the run that this process belongs to.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "distributed/place.h"

namespace mezzo::distributed {

struct Launch {
    Place place;
    std::string host;               // of the store
    int first_port = 0, ports = 1;  // it is at one of these
    bool launcher_holds_store = false;
    std::string run;  // what distinguishes the run from others at the same address; may be empty
};

// A variable's value, or null.
using Variables = std::function<const char*(const char*)>;

// The first set of variables that is complete: torchrun's and mezzo-run's, Open MPI's, MPICH's, Slurm's. None if there is no variable
// of any set. Error(state) for sets that lack variables, with their names, and for several ranks without an address;
// Error(value) for values that are not what they should be.
std::optional<Launch> read_environment(const Variables& variables);

// A variable that is a whole number from 1 to `high`; 0 where it is not set, or empty. Error(value) of `op` for anything else.
int number_or_0(const char* op, const Variables& variables, const char* name, int high);

// "node[003-007,12],gpu1" names node003 first. The text itself if it has no brackets or commas.
std::string first_host(const std::string& list);

}  // namespace mezzo::distributed
