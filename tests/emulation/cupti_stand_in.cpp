#include "tests/emulation/cupti_stand_in.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <vector>

#include "cuda/runtime/cupti.h"

using namespace mezzo::cuda::cupti;

namespace {

constexpr std::size_t slot = 128;  // of each record, as large as the largest
static_assert(sizeof(Kernel) <= slot && sizeof(Memcpy) <= slot && sizeof(Memset) <= slot);
struct Record {
    alignas(record_alignment) std::uint8_t bytes[slot] = {};
};

CuptiStandIn state;
std::set<int> enabled;
std::vector<Record> records;
thread_local std::vector<std::uint64_t> inside;
std::uint32_t calls = 0;
GiveBuffer give;
TakeBuffer take;

std::uint64_t now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count() + state.ahead);
}

template <class T> void keep(const T& record) {
    Record& one = records.emplace_back();
    std::memcpy(one.bytes, &record, sizeof record);
}

template <class T> T timed(int kind, std::uint64_t nanoseconds) {
    T record{};
    record.kind = kind;
    record.start = now();
    record.end = record.start + nanoseconds;
    record.device = 0;
    record.stream = 7;
    record.correlation = calls;
    return record;
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED CuptiStandIn* mezzo_stand_in_state() {
    state.enabled = enabled.size();
    state.inside = inside.size();
    return &state;
}

// The work comes before the record of its call: CUPTI promises no order between them.
EXPORTED void mezzo_stand_in_work(int kind, const char* name, int copy_kind, std::uint64_t nanoseconds) {
    ++calls;
    if (enabled.count(kind) != 0) {
        if (kind == kind_memcpy) {
            auto copy = timed<Memcpy>(kind, nanoseconds);
            copy.copy_kind = std::uint8_t(copy_kind);
            keep(copy);
        } else if (kind == kind_memset) {
            keep(timed<Memset>(kind, nanoseconds));
        } else {
            auto kernel = timed<Kernel>(kind, nanoseconds);
            kernel.name = name;
            keep(kernel);
        }
    }
    const bool of_calls = enabled.count(kind_runtime) != 0 || enabled.count(kind_driver) != 0;
    if (!of_calls) return;
    if (enabled.count(kind_external_correlation) != 0 && !inside.empty())
        keep(ExternalCorrelation{kind_external_correlation, external_custom0, inside.back(), calls});
    keep(Activity{kind_runtime});
}

EXPORTED int cuptiActivityRegisterCallbacks(GiveBuffer a, TakeBuffer b) {
    give = a;
    take = b;
    return success;
}
EXPORTED int cuptiActivityEnable(int kind) {
    if (state.refused == 0) enabled.insert(kind);
    return state.refused;
}
EXPORTED int cuptiActivityDisable(int kind) {
    enabled.erase(kind);
    return success;
}
EXPORTED int cuptiActivityFlushAll(std::uint32_t) {
    std::size_t at = 0;
    while (at < records.size() || state.dropped > 0) {
        std::uint8_t* buffer = nullptr;
        std::size_t size = 0, most = 0;
        give(&buffer, &size, &most);
        const std::size_t count = std::min({records.size() - at, state.records_per_buffer, size / slot});
        for (std::size_t i = 0; i < count; ++i) std::memcpy(buffer + i * slot, records[at + i].bytes, slot);
        at += count;
        take(nullptr, 0, buffer, size, count * slot);
    }
    records.clear();
    return success;
}
EXPORTED int cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t filled, Activity** record) {
    std::uint8_t* const next = *record == nullptr ? buffer : reinterpret_cast<std::uint8_t*>(*record) + slot;
    if (next >= buffer + filled) return 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED
    *record = reinterpret_cast<Activity*>(next);
    return success;
}
EXPORTED int cuptiActivityGetNumDroppedRecords(void*, std::uint32_t, std::size_t* count) {
    *count = state.dropped;
    state.dropped = 0;
    return success;
}
EXPORTED int cuptiGetTimestamp(std::uint64_t* nanoseconds) {
    *nanoseconds = now();
    return success;
}
EXPORTED int cuptiActivityPushExternalCorrelationId(int, std::uint64_t id) {
    inside.push_back(id);
    return success;
}
EXPORTED int cuptiActivityPopExternalCorrelationId(int, std::uint64_t* last) {
    if (inside.empty()) return 39;  // CUPTI_ERROR_QUEUE_EMPTY
    *last = inside.back();
    inside.pop_back();
    return success;
}
EXPORTED int cuptiGetResultString(int, const char** text) {
    *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
    return success;
}
}
