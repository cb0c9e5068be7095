#include "tests/cuda/fake_cudart.h"

#include <cstdio>
#include <utility>

namespace mezzo::fake_cudart {

State& state() {
    static State all;
    return all;
}

namespace {

cudaError_t answer(const char* call) {
    const auto planned = state().answers.find(call);
    if (planned == state().answers.end()) return cudaSuccess;
    return state().last_error = planned->second;
}

// For calls that return a handle or an address.
template <class T> cudaError_t give(const char* call, T* made) {
    static char somewhere[64];
    *made = reinterpret_cast<T>(somewhere);
    return answer(call);
}

}  // namespace
}  // namespace mezzo::fake_cudart

using mezzo::fake_cudart::answer;
using mezzo::fake_cudart::give;
using mezzo::fake_cudart::state;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(state().last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver" : "cudaErrorOther";
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorInsufficientDriver ? "driver too old" : "other";
}
cudaError_t cudaGetDeviceCount(int* count) {
    *count = int(state().capabilities.size());
    return answer("cudaGetDeviceCount");
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 12040;
    return answer("cudaDriverGetVersion");
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return answer("cudaRuntimeGetVersion");
}
cudaError_t cudaSetDevice(int device) {
    const cudaError_t status = answer("cudaSetDevice");
    if (status == cudaSuccess) state().device = device;
    return status;
}
cudaError_t cudaGetDevice(int* device) {
    *device = state().device;
    return answer("cudaGetDevice");
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "model %d", device);
    return answer("cudaGetDeviceProperties");
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    const auto planned = state().attributes.find(attribute);
    const int capability = state().capabilities.at(std::size_t(device));
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? capability / 10
             : attribute == cudaDevAttrComputeCapabilityMinor ? capability % 10
             : planned != state().attributes.end()            ? planned->second
                                                              : 1;
    return answer("cudaDeviceGetAttribute");
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
    return answer("cudaFuncSetAttribute");
}
cudaError_t cudaMalloc(void** memory, std::size_t) { return give("cudaMalloc", memory); }
cudaError_t cudaFree(void*) { return answer("cudaFree"); }
cudaError_t cudaMallocHost(void** memory, std::size_t) { return give("cudaMallocHost", memory); }
cudaError_t cudaFreeHost(void*) { return answer("cudaFreeHost"); }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
    return answer("cudaMemcpyAsync");
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return answer("cudaMemsetAsync"); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    return give("cudaStreamCreateWithFlags", stream);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = *greatest = 0;
    return answer("cudaDeviceGetStreamPriorityRange");
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    return give("cudaStreamCreateWithPriority", stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return answer("cudaStreamSynchronize"); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return answer("cudaStreamWaitEvent"); }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    return answer("cudaStreamBeginCapture");
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
    return give("cudaStreamEndCapture", graph);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return answer("cudaStreamIsCapturing");
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
    return answer("cudaThreadExchangeStreamCaptureMode");
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
    return give("cudaGraphInstantiate", executable);
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return answer("cudaGraphDestroy"); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return answer("cudaGraphLaunch"); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return answer("cudaGraphExecDestroy"); }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return give("cudaEventCreate", event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return give("cudaEventCreateWithFlags", event);
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return answer("cudaEventDestroy"); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return answer("cudaEventRecord"); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return answer("cudaEventSynchronize"); }
cudaError_t cudaEventQuery(cudaEvent_t) { return answer("cudaEventQuery"); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 0;
    return answer("cudaEventElapsedTime");
}
}
