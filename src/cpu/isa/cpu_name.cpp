#include "cpu/isa/cpu_name.h"

#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace mezzo::cpu {

std::string cpu_name() {
#if defined(__x86_64__) || defined(__i386__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return "unknown processor";
    const unsigned family = (a >> 8 & 15u) + ((a >> 8 & 15u) == 15 ? a >> 20 & 255u : 0);
    const unsigned model = (a >> 4 & 15u) | (a >> 12 & 0xf0u), stepping = a & 15u;
    unsigned words[12] = {};
    for (unsigned i = 0; i < 3; ++i) {
        if (!__get_cpuid(0x80000002u + i, &a, &b, &c, &d)) break;
        const unsigned part[4] = {a, b, c, d};
        std::memcpy(words + 4 * i, part, sizeof part);
    }
    char text[sizeof words + 1] = {};
    std::memcpy(text, words, sizeof words);
    std::string brand = text;
    while (!brand.empty() && brand.back() == ' ') brand.pop_back();
    return brand + ", family " + std::to_string(family) + " model " + std::to_string(model) + " stepping " +
           std::to_string(stepping);
#else
    return "unknown processor";
#endif
}

}  // namespace mezzo::cpu
