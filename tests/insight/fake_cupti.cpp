#include "tests/insight/fake_cupti.h"

#include <cupti.h>

#include <algorithm>
#include <cstring>

namespace {

FakeCupti state;
CUpti_BuffersCallbackRequestFunc request;
CUpti_BuffersCallbackCompleteFunc complete;

// Records of all kinds take as many bytes as the largest.
constexpr std::size_t slot = 256;
static_assert(sizeof(CUpti_ActivityKernel9) <= slot && sizeof(CUpti_ActivityMemcpy5) <= slot);

template <class Record> Record& record_at(std::uint8_t* place, int kind) {
    std::memset(place, 0, slot);
    auto& record = *reinterpret_cast<Record*>(place);
    record.kind = CUpti_ActivityKind(kind);
    return record;
}

void write(std::uint8_t* place, const FakeRecord& from) {
    if (from.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        auto& copy = record_at<CUpti_ActivityMemcpy5>(place, from.kind);
        copy.copyKind = std::uint8_t(from.copy_kind);
        copy.start = from.begin, copy.end = from.end;
    } else if (from.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        auto& fill = record_at<CUpti_ActivityMemset4>(place, from.kind);
        fill.start = from.begin, fill.end = from.end;
    } else {
        auto& kernel = record_at<CUpti_ActivityKernel9>(place, from.kind);
        kernel.name = from.name;
        kernel.start = from.begin, kernel.end = from.end;
    }
}

}  // namespace

extern "C" {

FakeCupti* fake_cupti() { return &state; }

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc a,
                                                    CUpti_BuffersCallbackCompleteFunc b) {
    request = a, complete = b;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
    state.graphs_as_a_whole |= kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
    return CUptiResult(state.refused);
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind) { return CUPTI_SUCCESS; }
CUptiResult CUPTIAPI cuptiGetTimestamp(std::uint64_t* nanoseconds) {
    *nanoseconds = 0;
    return CUPTI_SUCCESS;
}
CUptiResult CUPTIAPI cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t) {
    return CUPTI_SUCCESS;
}
CUptiResult CUPTIAPI cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t*) {
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(std::uint32_t) {
    while (state.count > 0) {
        std::uint8_t* buffer = nullptr;
        std::size_t size = 0, most = 0;
        request(&buffer, &size, &most);
        const std::size_t now = std::min({state.count, state.records_per_buffer, size / slot});
        for (std::size_t i = 0; i < now; ++i) write(buffer + i * slot, state.records[i]);
        state.records += now, state.count -= now;
        complete(nullptr, 0, buffer, size, now * slot);
    }
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid,
                                                CUpti_Activity** record) {
    std::uint8_t* const next = *record == nullptr ? buffer : reinterpret_cast<std::uint8_t*>(*record) + slot;
    if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = reinterpret_cast<CUpti_Activity*>(next);
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
    *dropped = state.dropped;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult, const char** text) {
    *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
    return CUPTI_SUCCESS;
}
}
