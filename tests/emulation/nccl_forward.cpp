// The shared object that stands in for libnccl.so.2: its functions are those of the test program that has
// opened it.
#include "cuda/nccl/nccl.h"

using mezzo::cuda::nccl::Communicator;
using mezzo::cuda::nccl::Config;
using mezzo::cuda::nccl::Functions;
using mezzo::cuda::nccl::UniqueId;

namespace {
const Functions* functions = nullptr;
}

#define EXPORTED __attribute__((visibility("default")))

extern "C" {
EXPORTED void mezzo_stand_in_functions(const Functions* table) { functions = table; }

EXPORTED int ncclGetVersion(int* version) { return functions->get_version(version); }
EXPORTED int ncclGetUniqueId(UniqueId* id) { return functions->get_unique_id(id); }
EXPORTED int ncclCommInitRankConfig(Communicator* made, int ranks, UniqueId id, int rank, Config* config) {
    return functions->init_rank(made, ranks, id, rank, config);
}
EXPORTED int ncclCommFinalize(Communicator c) { return functions->finalize(c); }
EXPORTED int ncclCommDestroy(Communicator c) { return functions->destroy(c); }
EXPORTED int ncclCommAbort(Communicator c) { return functions->abort(c); }
EXPORTED int ncclCommGetAsyncError(Communicator c, int* error) { return functions->async_error(c, error); }
EXPORTED const char* ncclGetErrorString(int result) { return functions->error_string(result); }
EXPORTED const char* ncclGetLastError(Communicator c) { return functions->last_error(c); }
EXPORTED int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int op, Communicator c,
                           void* stream) {
    return functions->all_reduce(from, to, count, type, op, c, stream);
}
EXPORTED int ncclAllGather(const void* from, void* to, std::size_t count, int type, Communicator c,
                           void* stream) {
    return functions->all_gather(from, to, count, type, c, stream);
}
EXPORTED int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, Communicator c,
                           void* stream) {
    return functions->broadcast(from, to, count, type, root, c, stream);
}
EXPORTED int ncclSend(const void* from, std::size_t count, int type, int peer, Communicator c, void* stream) {
    return functions->send(from, count, type, peer, c, stream);
}
EXPORTED int ncclRecv(void* to, std::size_t count, int type, int peer, Communicator c, void* stream) {
    return functions->receive(to, count, type, peer, c, stream);
}
EXPORTED int ncclGroupStart() { return functions->group_start(); }
EXPORTED int ncclGroupEnd() { return functions->group_end(); }
}
