// The functions of CUPTI, which is opened when a profile with device times first begins: most programs need none.
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/cupti.h"
#include "mezzo/error.h"

namespace mezzo::cuda::cupti {
namespace {

std::vector<std::string> usual_names() { return {"libcupti.so.13", "libcupti.so.12"}; }

// A file, or a folder with one.
std::vector<std::string> names_in(const std::string& asked_for) {
    std::vector<std::string> names{asked_for};
    for (const std::string& name : usual_names()) names.push_back(asked_for + "/" + name);
    return names;
}

void* open_library() {
    const char* const asked_for = std::getenv("MEZZO_CUPTI");
    const bool named = asked_for != nullptr && *asked_for != 0;
    check(!named || std::string(asked_for) != "off", ErrorKind::backend,
          "CUPTI: it is switched off by MEZZO_CUPTI=off");
    std::string reasons;
    for (const std::string& name : named ? names_in(asked_for) : usual_names()) {
        if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return library;
        const char* const text = dlerror();
        reasons += (reasons.empty() ? "" : "; ") + std::string(text != nullptr ? text : "no reason given");
    }
    fail(ErrorKind::backend, "CUPTI cannot be opened: ", reasons,
         "; set MEZZO_CUPTI to the path of libcupti.so.13 or libcupti.so.12");
}

template <class F> void find(void* library, const char* name, F& function) {
    void* const symbol = dlsym(library, name);
    check(symbol != nullptr, ErrorKind::backend, "CUPTI: the library found has no ", name,
          "; mezzo needs that of CUDA 12 or newer");
    function = reinterpret_cast<F>(symbol);
}

Functions find_all(void* library) {
    Functions f{};
    find(library, "cuptiActivityRegisterCallbacks", f.register_callbacks);
    find(library, "cuptiActivityEnable", f.enable);
    find(library, "cuptiActivityDisable", f.disable);
    find(library, "cuptiActivityFlushAll", f.flush);
    find(library, "cuptiActivityGetNextRecord", f.next_record);
    find(library, "cuptiActivityGetNumDroppedRecords", f.dropped);
    find(library, "cuptiGetTimestamp", f.timestamp);
    find(library, "cuptiActivityPushExternalCorrelationId", f.push);
    find(library, "cuptiActivityPopExternalCorrelationId", f.pop);
    find(library, "cuptiGetResultString", f.result_text);
    return f;
}

}  // namespace

// An exception leaves the table unmade, so that the next call tries again and gives the reason again; as in nccl_library.cpp.
const Functions& functions() {
    static std::mutex mutex;
    static std::optional<Functions> table;
    const std::lock_guard lock(mutex);
    if (!table) table = find_all(open_library());
    return *table;
}

}  // namespace mezzo::cuda::cupti
