#include "cpu/conv/merged_groups.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/conv/window_tables.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t least_channels = 4;  // with fewer, vectors have less to do than tiles full of zeros
constexpr std::int64_t tile_rows = 16, tile_steps = 32;
constexpr std::int64_t size = 2;  // bytes of an element

bool suits(Dtype a, Dtype b, std::int64_t channels, std::int64_t outputs) {
    return a == bfloat16 && b == bfloat16 && std::min(channels, outputs) >= least_channels &&
           std::max(channels, outputs) <= tile_rows;
}

// Groups that fill a tile's steps.
std::int64_t groups_of(const WindowProduct& p) {
    const std::int64_t channels = p.windows.channels, columns = p.columns();
    if (!suits(p.windows.type, p.weight.type, channels, columns)) return 1;
    std::int64_t n = tile_steps / std::max(channels, columns);
    while (p.groups % n != 0) --n;
    return n;
}

// Groups that fill a tile's rows and columns. In float32, two whose channels fill a vector of 16: half of the
// products are dropped, but no window is copied.
std::int64_t groups_of(const WindowGradient& p) {
    const std::int64_t channels = p.windows.channels, outputs = p.group_outputs();
    if (p.windows.type == float32 && p.gradient_type == float32)
        return window_kernels().lanes == 16 && channels == 8 && outputs == 8 && p.groups % 2 == 0 ? 2 : 1;
    if (!suits(p.windows.type, p.gradient_type, channels, outputs)) return 1;
    for (std::int64_t n = 1; n <= tile_rows / least_channels; ++n)
        if (p.groups % n == 0 && n * channels % tile_rows == 0 && n * outputs % tile_rows == 0) return n;
    return 1;
}

}  // namespace

MergedProduct::MergedProduct(const WindowProduct& p) : product(p), p_(p) {
    const std::int64_t n = groups_of(p);
    product.groups /= n, product.windows.channels *= n, product.weight.inputs *= n;
    if (n > 1) product.weight.tensor = nullptr;
}

bool MergedProduct::exact() const {
    const Windows& x = p_.windows;
    const std::int64_t count = x.images * x.height * x.width * x.pixel, four = count / 4;
    std::atomic<bool> finite{true};
    // The exponents of four elements at a time, of which none may be all ones.
    parallel_for(four, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
        std::uint64_t overflows = 0;
        for (std::int64_t i = begin; i < end; ++i) {
            std::uint64_t bits;
            std::memcpy(&bits, x.data + i * 4 * size, sizeof bits);
            overflows |= (bits & 0x7f807f807f807f80u) + 0x0080008000800080u;
        }
        if ((overflows & 0x8000800080008000u) != 0) finite.store(false, std::memory_order_relaxed);
    });
    for (std::int64_t i = four * 4; i < count; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, x.data + i * size, sizeof bits);
        if ((bits & 0x7f80u) == 0x7f80u) return false;
    }
    return finite;
}

void MergedProduct::set_weight() {
    const ConvWeight& from = p_.weight;
    ConvWeight& w = product.weight;
    const std::int64_t bytes = w.outputs * w.row() * size, inputs = from.inputs * size;
    char* to = weight_.get<char>(bytes);
    std::memset(to, 0, std::size_t(bytes));
    w.data = to;
    const std::int64_t merged = p_.groups / product.groups;
    for (std::int64_t o = 0; o < w.outputs; ++o) {
        const std::int64_t group = o / p_.group_outputs() % merged;
        for (std::int64_t t = 0; t < w.taps; ++t, to += w.inputs * size)
            std::memcpy(to + group * inputs, from.data + (o * from.taps + t) * inputs, std::size_t(inputs));
    }
}

WindowGradient merged_gradient(const WindowGradient& p) {
    const std::int64_t n = groups_of(p);
    WindowGradient merged = p;
    merged.groups /= n, merged.windows.channels *= n;
    return merged;
}

void split_merged(const WindowGradient& p, const WindowGradient& merged, const float* sums, float* to) {
    const std::int64_t channels = p.windows.channels, taps = std::int64_t(p.windows.taps.size()),
                       groups = p.groups / merged.groups;
    for (std::int64_t o = 0; o < p.outputs; ++o) {
        const float* from = sums + o / p.group_outputs() % groups * channels;
        for (std::int64_t t = 0; t < taps; ++t, sums += merged.windows.channels, to += channels)
            std::copy_n(from + t * merged.windows.channels, channels, to);
    }
}

}  // namespace mezzo::cpu
