// Declarations of NCCL. The library is opened at run time, and its header is not needed: the ABI is that of C
// and stable since NCCL 2.14, and tests/distributed/nccl_abi.cpp compares these lines with the header where
// there is one.
#pragma once

#include <cstddef>
#include <string>

#include "core/device_collectives.h"

namespace mezzo::cuda::nccl {

using Communicator = void*;  // ncclComm_t

struct UniqueId {
    char bytes[128];
};

// The fields of ncclConfig_t in NCCL 2.14. The library reads no more than `size` bytes, and uses the defaults
// of later fields for a config that states this version.
struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;
};

inline constexpr int oldest_version = 21400;  // the first whose communicators need not block

enum Result : int { success = 0, invalid_usage = 5, in_progress = 7 };
enum Type : int { type_uint8 = 1, type_int64 = 4, type_float32 = 7, type_float64 = 8 };
enum Reduction : int { reduce_sum = 0, reduce_max = 2, reduce_min = 3, reduce_average = 4 };

struct Functions {
    int (*get_version)(int* version);
    int (*get_unique_id)(UniqueId* id);
    int (*init_rank)(Communicator* made, int ranks, UniqueId id, int rank, Config* config);
    int (*finalize)(Communicator);
    int (*destroy)(Communicator);
    int (*abort)(Communicator);
    int (*async_error)(Communicator, int* error);
    const char* (*error_string)(int result);
    const char* (*last_error)(Communicator);
    int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int op, Communicator,
                      void* stream);
    int (*all_gather)(const void* from, void* to, std::size_t count, int type, Communicator, void* stream);
    int (*broadcast)(const void* from, void* to, std::size_t count, int type, int root, Communicator,
                     void* stream);
    int (*send)(const void* from, std::size_t count, int type, int peer, Communicator, void* stream);
    int (*receive)(void* to, std::size_t count, int type, int peer, Communicator, void* stream);
    int (*group_start)();
    int (*group_end)();
};

// The library's functions. The first call opens MEZZO_NCCL or libnccl.so.2. Throws Error(backend) with the
// reasons if that fails, in every call.
const Functions& functions();

// "2.28.9" of 22809.
std::string version_text(int version);

// The backend's interface for groups of processes.
extern const DeviceCollectivesLibrary library;

}  // namespace mezzo::cuda::nccl
