// The CPU backend: host memory and plain copies, without anything to wait for.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "cpu/isa/isa.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "kernels/registry.h"

namespace mezzo {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t huge_page = std::size_t(2) << 20;

std::size_t physical_memory() {
    static const std::size_t bytes = [] {
        const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page)
                                     : SIZE_MAX;
    }();
    return bytes;
}

int device_count() { return 1; }

// The names are never freed: the thread count may change, and a pointer that was returned must stay valid.
const char* hardware_name(int) {
    static std::mutex mutex;
    static std::set<std::string>& names = *new std::set<std::string>;
    const std::string now = std::string("CPU, ") + cpu::name(cpu::active_isa()) + ", " +
                            std::to_string(num_threads()) + " threads";
    const std::lock_guard lock(mutex);
    return names.insert(now).first->c_str();
}

// Refuses more bytes than there is physical memory: Linux would grant them, and kill the process when it
// touches them. Large blocks lie on huge pages: far fewer TLB misses when a GEMM walks down a column.
void* allocate(int, std::size_t bytes) {
    if (bytes > physical_memory()) return nullptr;
    const std::size_t unit = bytes >= 2 * huge_page ? huge_page : alignment;
    const std::size_t rounded = (bytes + unit - 1) / unit * unit;
    void* memory = std::aligned_alloc(unit, rounded);
#ifdef MADV_HUGEPAGE
    if (memory != nullptr && unit == huge_page) madvise(memory, rounded, MADV_HUGEPAGE);  // a hint; may fail
#endif
    return memory;
}

void release(int, void* memory) { std::free(memory); }

void copy(int, void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memmove(to, from, bytes);
}

void nothing_to_wait_for(int) {}

const Backend memory{.device_count = device_count,
                     .hardware_name = hardware_name,
                     .allocate = allocate,
                     .release = release,
                     .copy_in = copy,
                     .copy_out = copy,
                     .copy = copy,
                     .synchronize = nothing_to_wait_for};

}  // namespace

extern const StepKernels cpu_step_kernels;  // src/cpu/step.cpp
extern const BackendParts cpu_parts;
using namespace cpu_kernels;
constinit const BackendParts cpu_parts{
    &memory,
    lists_of<attention_grad_list, attention_list, batch_norm_list, class_loss_list, conv_list, copy_list,
             ctc_list, elementwise_list, group_norm_list, index_list, interpolate_list, loss_list,
             matmul_list, moments_list, norm_list, pad_list, pointwise_list, pool_list, quantize_list,
             random_list, range_list, recurrent_list, reduce_list, rowwise_list, scan_list, sort_list>,
    &cpu_step_kernels};

void set_num_threads(int n) { cpu::set_num_threads(n); }

int num_threads() { return cpu::num_threads(); }

}  // namespace mezzo
