// tools/gpu_trace.h and cuda/runtime/cupti.h over a stand-in for CUPTI, whose records have the layout of
// CUPTI's own header: gpu_trace_test path/to/libfake_cupti.so
#include <cupti.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/runtime/cupti.h"
#include "kernels/registry.h"
#include "tests/insight/fake_cupti.h"
#include "tools/gpu_trace.h"

namespace {

int failures = 0;

void check(bool condition, const char* text) {
    if (condition) return;
    ++failures;
    std::printf("FAILED: %s\n", text);
}

// Error message of a call, or "nothing".
template <class F> std::string error_of(const F& call) {
    try {
        call();
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "";
}

std::vector<mezzo::DeviceWork> traced(FakeCupti& fake, const std::vector<FakeRecord>& records) {
    fake.records = records.data();
    fake.count = records.size();
    return take_gpu_trace();
}

void test_records(FakeCupti& fake) {
    const std::vector<FakeRecord> records{
        {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "_ZN5mezzo4cuda4waitEi", 0, 300, 400},
        {CUPTI_ACTIVITY_KIND_MEMCPY, nullptr, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, 100, 110},
        {CUPTI_ACTIVITY_KIND_MEMSET, nullptr, 0, 120, 125},
        {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "sm90_xmma_gemm", 0, 130, 290},
        {CUPTI_ACTIVITY_KIND_MEMCPY, nullptr, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, 410, 420},
        {CUPTI_ACTIVITY_KIND_MEMCPY, nullptr, CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, 430, 440},
        {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, nullptr, 0, 450, 460},
    };
    std::vector<std::string> names;
    std::int64_t last = 0;
    for (const mezzo::DeviceWork& w : traced(fake, records)) {
        names.push_back(w.name);
        check(w.begin >= last && w.end > w.begin, "work in the order of time");
        last = w.begin;
    }
    const std::vector<std::string> expected{
        "copy to the device", "fill", "sm90_xmma_gemm", "mezzo::cuda::wait(int)",
        "copy to the host",   "copy", "unnamed kernel"};
    check(names == expected, "names of the work");
    check(take_gpu_trace().empty(), "work is taken once");
}

// Registers a backend that can only be traced, if there is none of CUDA devices.
void register_watched() {
    static const mezzo::Backend memory{};
    static const mezzo::BackendParts parts{.memory = &memory, .trace = &mezzo::cuda::cupti::library};
    if (mezzo::backend_parts(mezzo::DeviceType::cuda) == nullptr)
        mezzo::register_backend(mezzo::DeviceType::cuda, parts);
}

}  // namespace

int main(int, char** argv) {
    if (mezzo::backend_parts(mezzo::DeviceType::cuda) == nullptr)
        check(error_of(start_gpu_trace) == "gpu trace: built without CUDA", "there is nothing to trace");
    register_watched();
    setenv("MEZZO_CUPTI", argv[1], 1);
    void* const library = dlopen(argv[1], RTLD_NOW);
    if (library == nullptr) return std::printf("FAILED: %s\n", dlerror()), 1;
    FakeCupti& fake = *reinterpret_cast<decltype(&fake_cupti)>(dlsym(library, "fake_cupti"))();
    fake.refused = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    check(error_of(start_gpu_trace)
                  .find("cuptiActivityEnable failed with CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)") !=
              std::string::npos,
          "a refusal has its reason");
    fake.refused = 0;
    start_gpu_trace();
    check(!fake.graphs_as_a_whole, "the kernels of a graph are seen one by one");
    for (const std::size_t room : {1, 2, 100}) {
        fake.records_per_buffer = room;
        test_records(fake);
    }
    fake.dropped = 3;
    const std::string lost = error_of([&] {
        traced(fake, {{CUPTI_ACTIVITY_KIND_MEMSET, nullptr, 0, 1, 2}});
    });
    check(lost == "gpu trace: CUPTI has lost 3 records", "lost records are an error");
    std::printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
