// Devices, their memory statistics, threads and the seed of random numbers.
//
//   const Device device = best_device();  // CUDA if there is one, else the CPU
//   manual_seed(1);
//   net.to(device);
//   y = net(x.to(device));
//   const std::size_t peak = memory_stats(device).max_allocated;
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>

#include "mezzo/cpp20.h"
#include "mezzo/fast_path.h"

#pragma GCC visibility push(default)

namespace mezzo {

// Type of a device. custom: a backend that the program has registered (src/kernels/registry.h).
enum class DeviceType : std::uint8_t { cpu, cuda, custom };
inline constexpr int device_type_count = 3;

namespace detail {
[[noreturn]] void bad_device_index(int index);  // throws Error(value)
constexpr std::int16_t device_index(int index) {
    if (index != static_cast<std::int16_t>(index)) bad_device_index(index);
    return static_cast<std::int16_t>(index);
}
}  // namespace detail

struct Device {
    DeviceType type_ = DeviceType::cpu;
    std::int16_t index = 0;

    constexpr Device() = default;
    // Throws Error(value) for an index of more than 16 bits. Does not check whether the device exists.
    constexpr Device(DeviceType type, int device_index = 0)
        : type_(type), index(detail::device_index(device_index)) {}
    [[nodiscard]] constexpr DeviceType type() const { return type_; }
    friend constexpr bool operator==(const Device& a, const Device& b) {
        return a.type_ == b.type_ && a.index == b.index;
    }
};

inline constexpr Device cpu_device{DeviceType::cpu};         // `cpu` is the namespace of its kernels
[[nodiscard]] const char* name(DeviceType type);             // "cpu", "cuda", "custom"
std::ostream& operator<<(std::ostream& out, Device device);  // cpu, cuda, cuda:1

// Number of usable CUDA devices; 0 without a driver, a GPU, or in a build without CUDA.
[[nodiscard]] int cuda_device_count();
// CUDA device 0 if there is one, else the CPU.
[[nodiscard]] Device best_device();
// Parses "cpu", "cuda", "cuda:1", "custom" or "custom:1". Throws Error(device) for anything else and for a
// device that does not exist.
[[nodiscard]] Device parse_device(const char* text);
// A readable name of the hardware, such as "NVIDIA H200" or the processor's ISA and thread count. Valid for
// the process' life.
[[nodiscard]] const char* hardware_name(Device device);
// Waits until all work queued on the device is done. Does nothing on the CPU. Throws Error(state) while a
// step is being captured (mezzo/capture.h), and Error(device) for a device that does not exist, as do all
// functions below that take a device.
void synchronize(Device device = best_device());

// Bytes on one device, with the meaning of PyTorch's statistics of the same names. Counts tensors, and the
// workspace of matrix products, which is not freed after its first use.
struct MemoryStats {
    std::size_t allocated = 0;      // live blocks, rounded to 512 bytes
    std::size_t max_allocated = 0;  // the most ever since start or reset_peak()
    std::size_t reserved = 0;       // taken from the system: live + cached
    std::size_t max_reserved = 0;
    std::size_t largest_free = 0;          // largest cached block
    std::uint64_t allocations = 0;         // allocator calls
    std::uint64_t system_allocations = 0;  // those that allocated from the system
};
[[nodiscard]] MemoryStats memory_stats(Device device);
void reset_peak(Device device);
// Returns all cached blocks to the system. Throws Error(state) while a step is being captured.
void empty_cache(Device device);
// Limits the bytes that are reserved on the device (0: no limit). Allocations beyond the limit throw
// Error(memory).
void set_memory_limit(Device device, std::size_t bytes);

// Whether scaled_dot_product_attention on CUDA may use Tensor Cores: float16 and bfloat16, dim 32, 64 or 128,
// rows that start at multiples of 16 bytes; all other cases use float32 or float64 arithmetic. The self-check
// is per dim and dtype, separately for forward and backward. May be changed at any time: a gradient does not
// depend on the kernel of the forward pass.
void set_flash_attention(FastPath use);
[[nodiscard]] FastPath flash_attention();

// Sets the number of threads of the CPU backend, the calling one included. The default is the number of
// processors that this process may run on. Threads start with the first parallel work. If the system can
// start only some of them, the work continues with those, and num_threads() returns their number. Throws
// Error(value) for a number outside [1, 1024], and Error(state) inside a parallel loop.
void set_num_threads(int n);
[[nodiscard]] int num_threads();

// Seeds the process's stream of random numbers, which all devices share: the same seed gives the same numbers
// on the CPU and on CUDA, normally distributed ones up to rounding (docs/guide/numerics.md).
void manual_seed(std::uint64_t seed);

// The state of the random stream: Philox4x32-10 key and the position in it. Restoring it repeats the stream
// exactly. While a step is being captured, set_random_state() and manual_seed() throw Error(state) for
// another seed or an earlier position.
struct RandomState {
    std::uint64_t seed = 0;
    std::uint64_t offset = 0;
};
[[nodiscard]] RandomState random_state();
void set_random_state(RandomState state);

}  // namespace mezzo

#pragma GCC visibility pop
