// Streams, events, captures and graphs.
#include <chrono>
#include <utility>

#include "tests/ptx/runtime.h"

namespace mezzo::ptx {
namespace {

using Clock = std::chrono::steady_clock;

struct Event {
    Clock::time_point time{};
    Graph* captured = nullptr;
};

Stream* stream_of(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }
Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

Graph* capture_of(cudaStream_t stream) { return stream == nullptr ? nullptr : stream_of(stream)->captured; }

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
    const std::lock_guard lock(runtime_mutex());
    if (Graph* const graph = capture_of(stream))
        graph->work.push_back(std::move(work));
    else
        work();
}

}  // namespace mezzo::ptx

using namespace mezzo::ptx;

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = reinterpret_cast<cudaStream_t>(new Stream);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    const std::lock_guard lock(runtime_mutex());
    if (capture_of(stream) != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
    return returned(take_device_error());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const std::lock_guard lock(runtime_mutex());
    const bool same = event_of(event)->captured == capture_of(stream);
    return returned(same ? cudaSuccess : cudaErrorStreamCaptureIsolation);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    const std::lock_guard lock(runtime_mutex());
    if (capture_of(stream) != nullptr) return returned(cudaErrorIllegalState);
    stream_of(stream)->captured = new Graph;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    const std::lock_guard lock(runtime_mutex());
    Graph* const made = capture_of(stream);
    if (made == nullptr) return returned(cudaErrorIllegalState);
    stream_of(stream)->captured = nullptr;
    *graph = reinterpret_cast<cudaGraph_t>(made);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    const std::lock_guard lock(runtime_mutex());
    *status = capture_of(stream) != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    thread_local cudaStreamCaptureMode own = cudaStreamCaptureModeGlobal;
    std::swap(own, *mode);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
    *made = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    const std::lock_guard lock(runtime_mutex());
    if (capture_of(stream) != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
    for (const auto& work : reinterpret_cast<Graph*>(graph)->work) work();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    *event = reinterpret_cast<cudaEvent_t>(new Event);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event_of(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const std::lock_guard lock(runtime_mutex());
    *event_of(event) = {Clock::now(), capture_of(stream)};
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return returned(event_of(event)->captured != nullptr ? cudaErrorCapturedEvent : cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = std::chrono::duration<float, std::milli>(event_of(to)->time - event_of(from)->time).count();
    return cudaSuccess;
}

}  // extern "C"
