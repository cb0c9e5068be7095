// gpu_trace.h by CUPTI's activity records. The library is opened when a trace starts, not linked: a toolkit
// without CUPTI can still build and run everything else.
#include "tools/gpu_trace.h"

#include <stdexcept>

#if defined(MEZZO_HAVE_CUDA) && !defined(MEZZO_NO_CUPTI) && __has_include(<cupti.h>)
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

namespace {

struct Functions {
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
    decltype(&cuptiActivityEnable) enable;
    decltype(&cuptiActivityFlushAll) flush;
    decltype(&cuptiActivityGetNextRecord) next_record;
    decltype(&cuptiActivityGetNumDroppedRecords) dropped;
    decltype(&cuptiGetResultString) text;
};
Functions cupti;

struct Trace {
    std::mutex mutex;  // CUPTI hands buffers back on a thread of its own
    std::vector<DeviceWork> work;
    std::size_t lost = 0;
};
Trace& trace() {
    static Trace* const t = new Trace;  // leaked: CUPTI may hand back buffers while the process ends
    return *t;
}

constexpr std::size_t buffer_bytes = 4 << 20;
constexpr std::size_t alignment = 8;  // of records in a buffer

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("gpu trace: " + what); }

void ok(CUptiResult result, const char* call) {
    if (result == CUPTI_SUCCESS) return;
    const char* reason = nullptr;
    cupti.text(result, &reason);
    fail(std::string(call) + " failed with " + (reason != nullptr ? reason : "an unknown error") + " (" +
         std::to_string(int(result)) + ")");
}

// The file or folder in MEZZO_CUPTI first, then what the loader finds.
void* open_library() {
    std::vector<std::string> names;
    if (const char* path = std::getenv("MEZZO_CUPTI"))
        names = {path, path + std::string("/libcupti.so.13"), path + std::string("/libcupti.so.12")};
    for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) names.push_back(name);
    std::string reason;
    for (const std::string& name : names) {
        if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
        if (const char* text = dlerror()) reason += std::string("; ") + text;
    }
    fail("CUPTI cannot be opened" + reason + "; put its file into MEZZO_CUPTI");
}

template <class F> void find(void* library, const char* name, F& function) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) fail(std::string("the CUPTI found has no ") + name);
    function = reinterpret_cast<F>(symbol);
}

std::string readable(const char* symbol) {
    if (symbol == nullptr) return "unnamed kernel";
    int status = 0;
    char* const name = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
    const std::string result = name != nullptr ? name : symbol;
    std::free(name);
    return result;
}

std::string copy_name(unsigned kind) {
    switch (kind) {
        case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
            return "copy to the device";
        case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
            return "copy to the host";
        default:
            return "copy";
    }
}

// Reads each kind of record in an old layout, to which newer versions of CUPTI append fields.
void add(const CUpti_Activity& record) {
    Trace& t = trace();
    if (record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record.kind == CUPTI_ACTIVITY_KIND_KERNEL) {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel9&>(record);
        t.work.push_back({readable(kernel.name), kernel.start, kernel.end});
    } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy5&>(record);
        t.work.push_back({copy_name(copy.copyKind), copy.start, copy.end});
    } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        t.work.push_back({"fill", fill.start, fill.end});
    }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(alignment, buffer_bytes));
    *size = *buffer != nullptr ? buffer_bytes : 0;
    *most = 0;  // as many records as fit
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                          std::size_t filled) {
    Trace& t = trace();
    const std::lock_guard lock(t.mutex);
    CUpti_Activity* record = nullptr;
    while (cupti.next_record(buffer, filled, &record) == CUPTI_SUCCESS) add(*record);
    std::size_t lost = 0;
    if (cupti.dropped(context, stream, &lost) == CUPTI_SUCCESS) t.lost += lost;
    std::free(buffer);
}

}  // namespace

void start_gpu_trace() {
    void* const library = open_library();
    find(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks);
    find(library, "cuptiActivityEnable", cupti.enable);
    find(library, "cuptiActivityFlushAll", cupti.flush);
    find(library, "cuptiActivityGetNextRecord", cupti.next_record);
    find(library, "cuptiActivityGetNumDroppedRecords", cupti.dropped);
    find(library, "cuptiGetResultString", cupti.text);
    ok(cupti.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
    // Not CUPTI_ACTIVITY_KIND_GRAPH_TRACE, which would make one record of a whole graph.
    for (const CUpti_ActivityKind kind :
         {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
        ok(cupti.enable(kind), "cuptiActivityEnable");
}

std::vector<DeviceWork> take_gpu_trace() {
    ok(cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
    Trace& t = trace();
    const std::lock_guard lock(t.mutex);
    if (t.lost > 0) fail("CUPTI has lost " + std::to_string(t.lost) + " records");
    std::vector<DeviceWork> result;
    result.swap(t.work);
    std::stable_sort(result.begin(), result.end(),
                     [](const DeviceWork& a, const DeviceWork& b) { return a.begin < b.begin; });
    return result;
}

#else

void start_gpu_trace() {
    throw std::runtime_error(
        "gpu trace: built without CUDA, or with a toolkit whose CUPTI (cupti.h) is missing or unknown");
}
std::vector<DeviceWork> take_gpu_trace() { return {}; }

#endif
