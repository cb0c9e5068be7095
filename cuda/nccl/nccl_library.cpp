// Opens NCCL when a group of several ranks first exchanges memory of CUDA devices, because it has 200 MB and
// more.
#include <cstdlib>
#include <string>

#include "core/system/shared_library.h"
#include "cuda/nccl/nccl.h"

namespace mezzo::cuda::nccl {
namespace {

constexpr const char* usual_name = "libnccl.so.2";

SharedLibrary open_library() {
    const char* const asked_for = std::getenv("MEZZO_NCCL");
    const bool named = asked_for != nullptr && *asked_for != 0;
    return {"NCCL",
            {named ? asked_for : usual_name},
            std::string("set MEZZO_NCCL to the path of ") + usual_name +
                ", or to \"off\" to exchange through host memory",
            "mezzo needs version 2.14 or newer"};
}

Functions find_all() {
    const SharedLibrary library = open_library();
    Functions f{};
    library.find("ncclGetVersion", f.get_version);
    library.find("ncclGetUniqueId", f.get_unique_id);
    library.find("ncclCommInitRankConfig", f.init_rank);
    library.find("ncclCommFinalize", f.finalize);
    library.find("ncclCommDestroy", f.destroy);
    library.find("ncclCommAbort", f.abort);
    library.find("ncclCommGetAsyncError", f.async_error);
    library.find("ncclGetErrorString", f.error_string);
    library.find("ncclGetLastError", f.last_error);
    library.find("ncclAllReduce", f.all_reduce);
    library.find("ncclAllGather", f.all_gather);
    library.find("ncclBroadcast", f.broadcast);
    library.find("ncclSend", f.send);
    library.find("ncclRecv", f.receive);
    library.find("ncclGroupStart", f.group_start);
    library.find("ncclGroupEnd", f.group_end);
    return f;
}

}  // namespace

const Functions& functions() { return made_once(find_all); }

std::string version_text(int version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
}

}  // namespace mezzo::cuda::nccl
