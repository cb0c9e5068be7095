#include "cpu/amx/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mezzo::cpu {
namespace {

bool detect() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1u)) return false;  // OSXSAVE: xgetbv is allowed
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned states =
        3u << 17 | 7u << 5 | 3u << 1;  // tile configuration and data, AVX-512, AVX, SSE
    if ((low & states) != states) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1u) || !(d >> 24 & 1u)) return false;
    // Leaf 0x1d, palette 1: 8 tiles of 16 rows of 64 bytes. Some hypervisors report AMX without it.
    if (!__get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) return false;
    return b >> 16 >= 8 && (b & 0xffffu) == 64 && (c & 0xffffu) == 16;
}

}  // namespace

bool has_tiles() {
    static const bool has = detect();
    return has;
}

bool request_tiles() {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
    static const bool granted = has_tiles() && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return granted;
}

}  // namespace mezzo::cpu

#else

namespace mezzo::cpu {

bool has_tiles() { return false; }
bool request_tiles() { return false; }

}  // namespace mezzo::cpu

#endif
