#include "cpu/isa/isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "cpu/amx/amx.h"
#include "mezzo/error.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace mezzo::cpu {
namespace {

// __builtin_cpu_supports reads cpuid and masks what the operating system does not save (xgetbv).
Isa detect() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    unsigned a = 0, b = 0, c = 0,
             d = 0;  // compilers disagree on the name "f16c": read its bit, leaf 1 ecx 29
    if (!avx2 || !__get_cpuid(1, &a, &b, &c, &d) || !(c >> 29 & 1u)) return Isa::portable;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!avx512) return Isa::avx2;
    // Leaf 7, subleaf 1, eax bit 5; leaf 7 says in eax how many subleaves there are.
    const bool pairs = __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
                       __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1u);
    if (!pairs) return Isa::avx512;
    return has_tiles() ? Isa::amx : Isa::avx512_bf16;
#else
    return Isa::portable;
#endif
}

Isa checked(Isa isa) {
    if (isa > best_isa())
        fail(ErrorKind::value, "force_isa: this processor has no ", name(isa),
             " instructions; the widest it has is ", name(best_isa()));
    return isa;
}

// The instruction set in use, and whether the user named it: in one number, so that both are read together.
constexpr std::uint8_t named = 0x80;
std::uint8_t by_name(Isa isa) { return std::uint8_t(named | std::uint8_t(isa)); }

std::uint8_t initial() {
    const char* wish = std::getenv("MEZZO_ISA");
    if (wish == nullptr || *wish == '\0') return std::uint8_t(best_isa());
    for (const Isa isa : all_isas)
        if (std::strcmp(wish, name(isa)) == 0) return by_name(checked(isa));
    fail(ErrorKind::value, "MEZZO_ISA: unknown value \"", wish,
         "\"; use portable, avx2, avx512, avx512_bf16 or amx");
}

std::atomic<std::uint8_t>& active() {
    static std::atomic<std::uint8_t> value{initial()};
    return value;
}

}  // namespace

Isa best_isa() {
    static const Isa best = detect();
    return best;
}

Isa active_isa() { return Isa(active().load(std::memory_order_relaxed) & ~named); }

bool isa_is_forced() { return active().load(std::memory_order_relaxed) & named; }

void force_isa(Isa isa) { active().store(by_name(checked(isa)), std::memory_order_relaxed); }

void release_isa() { active().store(initial(), std::memory_order_relaxed); }

const char* name(Isa isa) {
    constexpr const char* names[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
    return names[static_cast<int>(isa)];
}

}  // namespace mezzo::cpu
