// Padding: each line of the result is constants, a line of x, and constants.
#include "kernels/pad.h"

#include <cstring>

#include "core/tensor_impl.h"
#include "cpu/elementwise/convert.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"

namespace mezzo {
namespace {

// The result as lines of `inner` elements: inner dimensions that are not padded are joined to the dimension
// before.
struct PaddedLines {
    int dims;               // those that are walked, without the line's own
    std::int64_t inner;     // elements of a line of the result
    std::int64_t from, to;  // where x is in it

    PaddedLines(const Shape& x, const Shape& y, const Shape& before) {
        int d = y.size() - 1;
        std::int64_t scale = 1;
        for (; d > 0 && x[d] == y[d]; --d) scale *= y[d];
        dims = d;
        inner = y[d] * scale;
        from = before[d] * scale;
        to = from + x[d] * scale;
    }
};

// The line of x that a line of the result holds, or -1.
std::int64_t source_line(const Shape& x, const Shape& y, const Shape& before, int dims, std::int64_t line) {
    std::int64_t source = 0, stride = 1;
    for (int d = dims - 1; d >= 0; --d) {
        const std::int64_t i = line % y[d] - before[d];
        line /= y[d];
        if (i < 0 || i >= x[d]) return -1;
        source += i * stride;
        stride *= x[d];
    }
    return source;
}

// `size` bytes each: the first one is given, the rest are copies of it.
void repeat(char* to, const char* element, std::int64_t size, std::int64_t n) {
    if (n <= 0) return;
    std::memcpy(to, element, std::size_t(size));
    for (std::int64_t done = 1; done < n; done *= 2)
        std::memcpy(to + done * size, to, std::size_t((done < n - done ? done : n - done) * size));
}

}  // namespace

namespace cpu_kernels {

void pad(In in, const kernels::Pad& at, Out out) {
    const Tensor &x = in[0], &y = out[0];
    if (y->numel == 0) return;
    const PaddedLines lines(x->shape, y->shape, at.before);
    const auto size = std::int64_t(size_of(y->dtype));
    alignas(8) char element[8];
    cpu::convert(&at.value, float64, element, y->dtype, 1);
    const char* const from = x->numel ? x->bytes() : nullptr;
    constexpr std::int64_t grain = 32768;
    cpu::parallel_for(
        y->numel / lines.inner, grain / lines.inner + 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                char* const to = y->bytes() + i * lines.inner * size;
                const std::int64_t source =
                    from ? source_line(x->shape, y->shape, at.before, lines.dims, i) : -1;
                const std::int64_t kept = source < 0 ? lines.inner : lines.from,
                                   length = lines.to - lines.from;
                repeat(to, element, size, kept);
                if (source < 0) continue;
                std::memcpy(to + kept * size, from + source * length * size, std::size_t(length * size));
                repeat(to + lines.to * size, element, size, lines.inner - lines.to);
            }
        });
}

constinit const KernelList pad_list = kernel_list<pad>;

}  // namespace cpu_kernels
}  // namespace mezzo
