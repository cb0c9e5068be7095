// Declarations of CUPTI's activity records. The library is opened at run time, and its header is not needed:
// records are read by their first fields, to which newer versions only append, and
// tests/insight/cupti_abi.cpp compares these lines with the header where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device_trace.h"

namespace mezzo::cuda::cupti {

enum Result : int { success = 0 };
enum ActivityKind : int {
    kind_memcpy = 1,
    kind_memset = 2,
    kind_kernel = 3,
    kind_driver = 4,
    kind_runtime = 5,
    kind_concurrent_kernel = 10,
    kind_external_correlation = 39,
};
enum ExternalKind : int { external_custom0 = 3 };
enum CopyKind : std::uint8_t { copy_to_device = 1, copy_to_host = 2 };
enum FlushFlag : std::uint32_t { flush_forced = 1 };

inline constexpr std::size_t record_alignment = 8;

struct Activity {
    int kind;
};

// CUpti_ActivityKernel4 to CUpti_ActivityKernel10 begin like this.
struct Kernel {
    int kind;
    std::uint32_t settings[3];
    std::uint64_t start, end, completed;
    std::uint32_t device, context, stream;
    std::int32_t grid[3], block[3], shared_memory[2];
    std::uint32_t local_memory[2];
    std::uint32_t correlation;
    std::int64_t grid_id;
    const char* name;
};

// CUpti_ActivityMemcpy to CUpti_ActivityMemcpy6.
struct Memcpy {
    int kind;
    std::uint8_t copy_kind, from_kind, to_kind, flags;
    std::uint64_t bytes, start, end;
    std::uint32_t device, context, stream, correlation;
};

// CUpti_ActivityMemset to CUpti_ActivityMemset4.
struct Memset {
    int kind;
    std::uint32_t value;
    std::uint64_t bytes, start, end;
    std::uint32_t device, context, stream, correlation;
};

// CUpti_ActivityExternalCorrelation: a CUDA API call with this correlation was made inside an external id.
struct ExternalCorrelation {
    int kind;
    int external_kind;
    std::uint64_t external_id;
    std::uint32_t correlation;
};

using GiveBuffer = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records);
using TakeBuffer = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                            std::size_t filled);

struct Functions {
    int (*register_callbacks)(GiveBuffer, TakeBuffer);
    int (*enable)(int kind);
    int (*disable)(int kind);
    int (*flush)(std::uint32_t flags);
    int (*next_record)(std::uint8_t* buffer, std::size_t filled, Activity** record);
    int (*dropped)(void* context, std::uint32_t stream, std::size_t* count);
    int (*timestamp)(std::uint64_t* nanoseconds);
    int (*push)(int external_kind, std::uint64_t id);
    int (*pop)(int external_kind, std::uint64_t* last);
    int (*result_text)(int result, const char** text);
};

// The library's functions. The first call opens the file that MEZZO_CUPTI names, or the library in the folder
// that it names, or else libcupti.so.13 or .12. Throws Error(backend) with the reasons if that fails, in
// every call, and always with MEZZO_CUPTI=off.
const Functions& functions();

// The backend's interface for profilers.
extern const DeviceTraceLibrary library;

}  // namespace mezzo::cuda::cupti
