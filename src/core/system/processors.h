// The processors that this process may run on: its CPU affinity and the quotas of its control groups.
#pragma once

#include <string>

#include "core/internal.h"

namespace mezzo {

inline constexpr int unlimited_processors = 1 << 20;

// Number of these processors, at least 1. If the system does not report the set (only Linux does), all of the
// machine's.
MEZZO_INTERNAL int available_processors();

// Processors that the control groups in the file `groups` leave to the process, rounded up: cpu.max of
// version 2 below `root`, cpu.cfs_quota_us of version 1 below root/cpu. unlimited_processors without a quota.
int quota_processors(const std::string& groups = "/proc/self/cgroup",
                     const std::string& root = "/sys/fs/cgroup");

// Bit mask of the CPU affinity in hexadecimal: one character for four of them from number 0 on, without zeros
// at the end. Empty if the system does not report the set.
MEZZO_INTERNAL std::string processor_set();

}  // namespace mezzo
