#include "cuda/runtime/devices.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "core/system/log_line.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

// Whether a call succeeded. Clears the runtime's last error, so that the next launch does not report a
// failure.
bool succeeded(cudaError_t status) {
    if (status != cudaSuccess) cudaGetLastError();
    return status == cudaSuccess;
}

// Compute capabilities, times ten: of the oldest GPU that this build supports, and of its newest PTX. The
// kernels for every GPU of at least that capability are compiled from this PTX.
#ifdef MEZZO_OLDEST_GPU
constexpr int oldest_gpu = MEZZO_OLDEST_GPU, newest_ptx = MEZZO_NEWEST_PTX;
#else
constexpr int oldest_gpu = 80, newest_ptx = 80;
#endif

std::string version_text(int capability) {
    return std::to_string(capability / 10) + '.' + std::to_string(capability % 10);
}

// "12.4" for 12040.
std::string cuda_version_text(int version) {
    return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

struct FoundDevices {
    std::vector<int> ordinals;      // CUDA's numbers of the devices that kernels run on
    std::vector<int> capabilities;  // of each one's kernels
    std::vector<int> own;           // of the devices themselves
    bool all = true;                // the numbers are 0, 1, ...
    std::string absence;            // why there are none, or why some are left out
};

std::string reason_of(cudaError_t status) {
    std::string text =
        std::string("the driver says ") + cudaGetErrorName(status) + ": " + cudaGetErrorString(status);
    int driver = 0, runtime = 0;
    if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        text += driver == 0 ? "; no NVIDIA driver is installed"
                            : "; it supports CUDA " + cuda_version_text(driver) +
                                  ", and this build uses CUDA " + cuda_version_text(runtime);
    return text;
}

FoundDevices find_devices() {
    FoundDevices found;
    int count = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&count); !succeeded(status)) {
        found.absence = reason_of(status);
        return found;
    }
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        int major = 0, minor = 0;
        const bool known =
            succeeded(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal)) &&
            succeeded(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
        const int capability = 10 * major + minor;
        if (known && capability >= oldest_gpu) {
            found.ordinals.push_back(ordinal);
            found.own.push_back(capability);
            found.capabilities.push_back(capability < newest_ptx ? oldest_gpu : newest_ptx);
            continue;
        }
        found.all = false;
        cudaDeviceProp properties{};
        const bool named = succeeded(cudaGetDeviceProperties(&properties, ordinal));
        found.absence += (found.absence.empty() ? "" : "; ") + std::string("GPU ") + std::to_string(ordinal) +
                         " (" + (named ? properties.name : "unknown") + ") has compute capability " +
                         version_text(capability) + ", and this build has kernels for " +
                         version_text(oldest_gpu) + " and newer";
    }
    return found;
}

const FoundDevices& found_devices() {
    static const auto& found = *new FoundDevices(find_devices());  // its text is given out
    static std::atomic<bool> logged = false;
    if (!found.all && !logged.exchange(true)) log_line("cuda: " + found.absence);
    return found;
}

int of_device(const std::vector<int>& all, int device) {
    check(device >= 0 && device < int(all.size()), ErrorKind::backend, "cuda: no device ", device);
    return all[std::size_t(device)];
}

}  // namespace

int device_count() { return int(found_devices().ordinals.size()); }

const char* device_absence() { return found_devices().absence.c_str(); }

int kernel_capability(int device) { return of_device(found_devices().capabilities, device); }
int compute_capability(int device) { return of_device(found_devices().own, device); }

int ordinal_of(int device) {
    const FoundDevices& found = found_devices();
    if (found.all || device < 0 || device >= int(found.ordinals.size())) return device;
    return found.ordinals[std::size_t(device)];
}

int index_of(int ordinal) {
    const FoundDevices& found = found_devices();
    if (found.all) return ordinal;
    const auto at = std::find(found.ordinals.begin(), found.ordinals.end(), ordinal);
    return at != found.ordinals.end() ? int(at - found.ordinals.begin()) : -1;
}

}  // namespace mezzo::cuda
