// The functions of NCCL. The library is opened when a group of several ranks first exchanges memory of CUDA devices: it has 200 MB and more.
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/nccl.h"
#include "mezzo/error.h"

namespace mezzo::cuda::nccl {
namespace {

constexpr const char* usual_name = "libnccl.so.2";

const char* reason_of_failure() {
    const char* const text = dlerror();
    return text != nullptr ? text : "no reason given";
}

void* open_library() {
    const char* const asked_for = std::getenv("MEZZO_NCCL");
    const bool named = asked_for != nullptr && *asked_for != 0;
    void* const library = dlopen(named ? asked_for : usual_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr)
        fail(ErrorKind::backend, "NCCL cannot be opened: ", reason_of_failure(),
             "; set MEZZO_NCCL to the path of ", usual_name,
             ", or to \"off\" to exchange through host memory");
    return library;
}

template <class F> void find(void* library, const char* name, F& function) {
    void* const symbol = dlsym(library, name);
    check(symbol != nullptr, ErrorKind::backend, "NCCL: the library found has no ", name,
          "; mezzo needs version 2.14 or newer");
    function = reinterpret_cast<F>(symbol);
}

Functions find_all(void* library) {
    Functions f{};
    find(library, "ncclGetVersion", f.get_version);
    find(library, "ncclGetUniqueId", f.get_unique_id);
    find(library, "ncclCommInitRankConfig", f.init_rank);
    find(library, "ncclCommFinalize", f.finalize);
    find(library, "ncclCommDestroy", f.destroy);
    find(library, "ncclCommAbort", f.abort);
    find(library, "ncclCommGetAsyncError", f.async_error);
    find(library, "ncclGetErrorString", f.error_string);
    find(library, "ncclGetLastError", f.last_error);
    find(library, "ncclAllReduce", f.all_reduce);
    find(library, "ncclAllGather", f.all_gather);
    find(library, "ncclBroadcast", f.broadcast);
    find(library, "ncclSend", f.send);
    find(library, "ncclRecv", f.receive);
    find(library, "ncclGroupStart", f.group_start);
    find(library, "ncclGroupEnd", f.group_end);
    return f;
}

}  // namespace

// An exception leaves the table unmade, so that the next call tries again and gives the reason again. Not by the constructor of a static
// variable: a thread that waits for one which throws is never woken under ThreadSanitizer.
const Functions& functions() {
    static std::mutex mutex;
    static std::optional<Functions> table;
    const std::lock_guard lock(mutex);
    if (!table) table = find_all(open_library());
    return *table;
}

std::string version_text(int version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
}

}  // namespace mezzo::cuda::nccl
