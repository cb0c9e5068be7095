// Weight gradients of pairs of images. Two images become one, whose elements are the pairs of theirs, and so
// do their gradients. Then a window finds its pairs at the positions of a float32 image's elements, whatever
// its taps and strides: nothing is copied or packed per tap. (Pairs of neighbouring pixels would be different
// pairs for taps at odd positions.)
#include "cpu/conv/window_paths.h"

#include <algorithm>

#include "cpu/buffer.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t some_slots = 1 << 19;  // paired at once: what stays in the L2 cache
constexpr std::int64_t most_slots = 1 << 21;  // of one pair of images
constexpr std::int64_t least_channels = 8;

// Buffers of each thread that calls.
thread_local struct { Buffer images, gradients; } scratch;

std::int64_t image_elements(const WindowGradient& p) {
    return p.windows.height * p.windows.width * p.windows.pixel;
}
std::int64_t gradient_elements(const WindowGradient& p) {
    return p.windows.rows * p.windows.columns * p.outputs;
}

// to = the pairs of `images` images of n elements each; the last one's partner may be missing.
const char* pair(const char* from, std::int64_t images, std::int64_t n, float* to) {
    const auto* const elements = reinterpret_cast<const bfloat16_t*>(from);
    constexpr std::int64_t grain = 1 << 14;
    const std::int64_t pieces = (n + grain - 1) / grain;
    parallel_for((images + 1) / 2 * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t i = u / pieces * 2, at = u % pieces * grain;
            const bfloat16_t* const first = elements + i * n + at;
            windows_avx512_bf16.pair(first, i + 1 < images ? first + n : nullptr, std::min(grain, n - at),
                                     to + i / 2 * n + at);
        }
    });
    return reinterpret_cast<const char*>(to);
}

}  // namespace

bool pairs_images(const WindowGradient& p) {
    const std::int64_t images = p.windows.images, slots = image_elements(p) + gradient_elements(p);
    return windows_avx512_bf16.mr != 0 && p.windows.taps.size() > 1 && p.windows.channels >= least_channels &&
           (images % 2 == 0 || images >= 8) && slots <= most_slots;
}

void add_window_gradient_by_pairs(const WindowGradient& p, float* sums, bool accumulate) {
    const std::int64_t n = image_elements(p), g = gradient_elements(p);
    const std::int64_t images = p.windows.images, some = std::max<std::int64_t>(1, some_slots / (n + g)) * 2;
    WindowGradient of_pairs = p;
    of_pairs.windows.type = of_pairs.gradient_type = of_pairs.result_type = float32;
    of_pairs.result = reinterpret_cast<char*>(sums);
    of_pairs.beta = accumulate ? 1 : 0;
    for (std::int64_t begin = 0; begin < images; begin += some) {
        const std::int64_t count = std::min(some, images - begin), pairs = (count + 1) / 2;
        of_pairs.windows.images = pairs;
        of_pairs.windows.data =
            pair(p.windows.data + begin * n * 2, count, n, scratch.images.get<float>(pairs * n));
        of_pairs.gradient =
            pair(p.gradient + begin * g * 2, count, g, scratch.gradients.get<float>(pairs * g));
        add_window_gradient_by_vectors(of_pairs, windows_avx512_bf16);
        of_pairs.beta = 1;
    }
}

}  // namespace mezzo::cpu
