// Traces the work of CUDA devices through CUPTI's activity records. The record of a piece of work has the
// correlation number of the CUDA API call that queued it; another record maps this number to the external id
// inside which the thread made the call.
#include "cuda/runtime/cupti.h"

#include <cxxabi.h>

#include <cstdlib>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "mezzo/error.h"

namespace mezzo::cuda::cupti {
namespace {

constexpr std::size_t buffer_bytes = std::size_t(4) << 20;

// CUPTI writes correlation records only if it also records API calls. CUPTI_ACTIVITY_KIND_GRAPH_TRACE is left
// out: it would make one record of a whole graph.
constexpr int kinds[] = {kind_external_correlation, kind_runtime, kind_driver,
                         kind_concurrent_kernel,    kind_memcpy,  kind_memset};

struct Piece {
    DeviceWork work;
    std::uint32_t correlation;
};

struct Recorder {
    std::mutex mutex;  // CUPTI hands buffers back on a thread of its own
    const Functions* f = nullptr;
    bool running = false, registered = false;
    std::vector<Piece> pieces;
    std::unordered_map<std::uint32_t, std::uint64_t> ids;  // by correlation
    std::uint64_t lost = 0;
};
Recorder& recorder() {
    static Recorder* const one = new Recorder;  // leaked: CUPTI may hand back buffers while the process ends
    return *one;
}

void ok(const Functions& f, int result, const char* call) {
    if (result == success) return;
    const char* reason = nullptr;
    f.result_text(result, &reason);
    fail(ErrorKind::backend, "CUPTI: ", call, " failed with ",
         reason != nullptr ? reason : "an unknown error", " (", result, ")");
}

std::string readable(const std::string& symbol) {
    int status = 0;
    char* const name = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
    std::string result = name != nullptr ? name : symbol;
    std::free(name);
    return result;
}

const char* copy_name(int kind) {
    return kind == copy_to_device ? "copy to the device" : kind == copy_to_host ? "copy to the host" : "copy";
}

template <class Record> void add_piece(Recorder& r, const Record& from, std::string name) {
    if (from.end == 0) return;  // it was cut off by a flush
    r.pieces.push_back({{.name = std::move(name),
                         .device = int(from.device),
                         .stream = int(from.stream),
                         .begin = std::int64_t(from.start),
                         .end = std::int64_t(from.end)},
                        from.correlation});
}

void add(Recorder& r, const Activity* record) {
    switch (record->kind) {
        case kind_kernel:
        case kind_concurrent_kernel: {
            const auto& kernel = *reinterpret_cast<const Kernel*>(record);
            add_piece(r, kernel, kernel.name != nullptr ? kernel.name : "unnamed kernel");
            break;
        }
        case kind_memcpy: {
            const auto& copy = *reinterpret_cast<const Memcpy*>(record);
            add_piece(r, copy, copy_name(copy.copy_kind));
            break;
        }
        case kind_memset:
            add_piece(r, *reinterpret_cast<const Memset*>(record), "fill");
            break;
        case kind_external_correlation: {
            const auto& of_call = *reinterpret_cast<const ExternalCorrelation*>(record);
            if (of_call.external_kind == external_custom0) r.ids[of_call.correlation] = of_call.external_id;
            break;
        }
        default:
            break;
    }
}

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(record_alignment, buffer_bytes));
    *size = *buffer != nullptr ? buffer_bytes : 0;
    *most_records = 0;  // as many as fit
}

// Exceptions must not reach CUPTI: without memory the rest of the buffer is counted as lost.
void take_buffer(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t, std::size_t filled) {
    Recorder& r = recorder();
    const std::lock_guard lock(r.mutex);
    Activity* record = nullptr;
    while (r.f->next_record(buffer, filled, &record) == success) {
        try {
            if (r.running) add(r, record);
        } catch (const std::bad_alloc&) {
            ++r.lost;
        }
    }
    std::size_t dropped = 0;
    if (r.f->dropped(context, stream, &dropped) == success) r.lost += dropped;
    std::free(buffer);
}

void forget(Recorder& r) {
    const std::lock_guard lock(r.mutex);
    r.pieces.clear();
    r.ids.clear();
    r.lost = 0;
}

void stop() noexcept {
    Recorder& r = recorder();
    for (const int kind : kinds) r.f->disable(kind);
    r.f->flush(flush_forced);
    {
        const std::lock_guard lock(r.mutex);
        r.running = false;
    }
    forget(r);
}

// Marks the recorder as running. Throws Error(state) if another trace runs: there is one recorder per
// process.
void reserve(Recorder& r, const Functions& f) {
    const std::lock_guard lock(r.mutex);
    check(!r.running, ErrorKind::state, "CUPTI: another trace of the devices' work runs; end it first");
    r.f = &f;
    r.running = true;
}

void start() {
    const Functions& f = functions();
    Recorder& r = recorder();
    reserve(r, f);
    try {
        if (!r.registered)
            ok(f, f.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
        r.registered = true;
        for (const int kind : kinds) ok(f, f.enable(kind), "cuptiActivityEnable");
    } catch (...) {
        stop();
        throw;
    }
}

void enter(std::uint64_t id) noexcept { recorder().f->push(external_custom0, id); }
void leave() noexcept {
    std::uint64_t last = 0;
    recorder().f->pop(external_custom0, &last);
}

std::int64_t now() {
    const Functions& f = functions();
    std::uint64_t nanoseconds = 0;
    ok(f, f.timestamp(&nanoseconds), "cuptiGetTimestamp");
    return std::int64_t(nanoseconds);
}

std::uint64_t take(std::vector<DeviceWork>& work) {
    Recorder& r = recorder();
    ok(*r.f, r.f->flush(flush_forced), "cuptiActivityFlushAll");
    std::vector<Piece> pieces;
    std::unordered_map<std::uint32_t, std::uint64_t> ids;
    std::uint64_t lost = 0;
    {
        const std::lock_guard lock(r.mutex);
        pieces.swap(r.pieces);
        ids.swap(r.ids);
        lost = std::exchange(r.lost, 0);
    }
    work.reserve(work.size() + pieces.size());
    for (Piece& piece : pieces) {
        const auto known = ids.find(piece.correlation);
        if (known != ids.end()) piece.work.id = known->second;
        piece.work.name = readable(piece.work.name);
        work.push_back(std::move(piece.work));
    }
    return lost;
}

}  // namespace

const DeviceTraceLibrary library{
    .start = start, .stop = stop, .enter = enter, .leave = leave, .now = now, .take = take};

}  // namespace mezzo::cuda::cupti
