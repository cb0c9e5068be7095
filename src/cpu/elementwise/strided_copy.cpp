// Copies between two strided layouts of elements of one size: the kernel of contiguous(), permuted copies and
// cat().
//
// The dimensions are ordered by their strides in the result and merged where one stride of either side leads
// through two. Two of them make a block: the innermost, and the one along which x is read in its own order.
// A block is
//   - copied in runs, where both sides have stride 1 in the innermost dimension,
//   - transposed in registers, where x has stride 1 in the other dimension,
//   - else copied element by element.
// Blocks are shared out among the threads.
#include <array>
#include <cstring>
#include <utility>

#include "cpu/elementwise/strided.h"

namespace mezzo::cpu {
namespace {

struct Dimension {
    std::int64_t size = 1, to = 0, from = 0;  // strides in elements
};

struct Dimensions {
    int count = 0;
    std::array<Dimension, max_dims> list;

    // Sorted by the stride in the result, the smallest last.
    void insert(const Dimension& d) {
        int at = count++;
        for (; at > 0 && list[at - 1].to < d.to; --at) list[at] = list[at - 1];
        list[at] = d;
    }
    void merge() {
        int kept = 0;
        for (int d = 1; d < count; ++d) {
            const Dimension inner = list[d];
            Dimension& outer = list[kept];
            if (outer.to == inner.to * inner.size && outer.from == inner.from * inner.size)
                outer = {outer.size * inner.size, inner.to, inner.from};
            else
                list[++kept] = inner;
        }
        count = count == 0 ? 0 : kept + 1;
    }
    Dimension take(int at) {
        const Dimension d = list[at];
        for (--count; at < count; ++at) list[at] = list[at + 1];
        return d;
    }
    // Removes the second dimension of a block: the one whose elements are neighbours in x, or else the next
    // by the stride in the result.
    Dimension take_other(const Dimension& inner) {
        if (count == 0) return {};
        if (inner.from != 1)
            for (int d = 0; d < count; ++d)
                if (list[d].from == 1) return take(d);
        return take(count - 1);
    }
};

// A rectangle of the two dimensions of a block.
struct Block {
    std::int64_t rows, cols;  // of the other dimension, of the innermost
    Dimension row, col;
};

// memcpy() copies more than about 2 KiB by `rep movsb`, which is three times slower where the distance of the
// two sides is not a multiple of a vector; so it gets less.
void copy_long(char* to, const char* from, std::size_t bytes) {
    constexpr std::size_t vector = 32, piece = 1024;
    if ((reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % vector == 0) {
        std::memcpy(to, from, bytes);
        return;
    }
    for (; bytes > piece; to += piece, from += piece, bytes -= piece) std::memcpy(to, from, piece);
    std::memcpy(to, from, bytes);
}

void copy_runs(const Block& b, char* to, const char* from, std::size_t size) {
    const std::size_t bytes = std::size_t(b.cols) * size;
    const auto to_step = b.row.to * std::int64_t(size), from_step = b.row.from * std::int64_t(size);
    const auto each = [&](const auto& copy) {
        for (std::int64_t i = 0; i < b.rows; ++i) copy(to + i * to_step, from + i * from_step);
    };
    // Two copies of a fixed length, which may overlap, take no call.
    const auto pair = [&]<std::size_t part>(std::array<char, part>) {
        each([&](char* y, const char* x) {
            char first[part], last[part];
            std::memcpy(first, x, part);
            std::memcpy(last, x + bytes - part, part);
            std::memcpy(y, first, part);
            std::memcpy(y + bytes - part, last, part);
        });
    };
    if (bytes < 4)
        each([&](char* y, const char* x) {
            for (std::size_t i = 0; i < bytes; ++i) y[i] = x[i];
        });
    else if (bytes <= 8)
        pair(std::array<char, 4>());
    else if (bytes <= 16)
        pair(std::array<char, 8>());
    else if (bytes <= 32)
        pair(std::array<char, 16>());
    else if (bytes <= 64)
        pair(std::array<char, 32>());
    else
        each([&](char* y, const char* x) { copy_long(y, x, bytes); });
}

template <class T> void copy_elements(const Block& b, T* to, const T* from) {
    const auto copy = [&](const auto& cols) {
        for (std::int64_t i = 0; i < b.rows; ++i) {
            T* const y = to + i * b.row.to;
            const T* const x = from + i * b.row.from;
            for (std::int64_t j = 0; j < cols; ++j) y[j * b.col.to] = x[j * b.col.from];
        }
    };
    switch (b.cols) {
        case 2:
            return copy(std::integral_constant<std::int64_t, 2>());
        case 3:
            return copy(std::integral_constant<std::int64_t, 3>());
        case 4:
            return copy(std::integral_constant<std::int64_t, 4>());
        default:
            return copy(b.cols);
    }
}

// 16 bytes as elements of T.
template <class T> struct Register {
    static constexpr std::int64_t count = 16 / sizeof(T);
    typedef T type __attribute__((vector_size(16)));
};

// The low, or else the high, halves of a and b, element by element in turn.
template <bool high, class V, std::size_t... i> V interleave(V a, V b, std::index_sequence<i...>) {
    constexpr std::size_t n = sizeof...(i);
    return __builtin_shufflevector(a, b, (i / 2 + (high ? n / 2 : 0) + (i % 2 ? n : 0))...);
}

// Transposes a square of n x n elements, where n elements are a register: log2(n) times, register i is
// interleaved with register i + n / 2. Everything is unrolled, so that the arrays are registers.
template <class T, std::size_t... i> void transpose_square(const T* from, std::int64_t from_stride, T* to,
                                                           std::int64_t to_stride,
                                                           std::index_sequence<i...> all) {
    constexpr std::size_t n = sizeof...(i);
    using V = typename Register<T>::type;
    V a[n], b[n];
    (std::memcpy(&a[i], from + std::int64_t(i) * from_stride, sizeof(V)), ...);
    const auto round = [&](const V* x, V* y) {
        ((y[i] = interleave<i % 2 == 1>(x[i / 2], x[i / 2 + n / 2], all)), ...);
    };
    round(a, b);
    if constexpr (n > 2) round(b, a);
    if constexpr (n > 4) round(a, b);
    if constexpr (n > 8) round(b, a);
    const V* const y = n == 2 || n == 8 ? b : a;
    (std::memcpy(to + std::int64_t(i) * to_stride, &y[i], sizeof(V)), ...);
}

constexpr std::int64_t tile = 32;

// One tile. It is first copied to a small buffer, each line of x in one go: lines a power of two apart share
// few sets of the cache, and would evict each other between reads.
template <class T> void transpose_tile(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride,
                                       std::int64_t rows, std::int64_t cols) {
    constexpr std::int64_t n = Register<T>::count;
    T buffer[tile][tile];
    for (std::int64_t j = 0; j < cols; ++j)
        std::memcpy(buffer[j], from + j * from_stride, std::size_t(rows) * sizeof(T));
    const std::int64_t whole_rows = rows / n * n, whole_cols = cols / n * n;
    for (std::int64_t i = 0; i < whole_rows; i += n)
        for (std::int64_t j = 0; j < whole_cols; j += n)
            transpose_square(&buffer[j][i], tile, to + i * to_stride + j, to_stride,
                             std::make_index_sequence<std::size_t(n)>());
    for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = i < whole_rows ? whole_cols : 0; j < cols; ++j)
            to[i * to_stride + j] = buffer[j][i];
}

template <class T> void transpose_block(const Block& b, T* to, const T* from) {
    for (std::int64_t i = 0; i < b.rows; i += tile)
        for (std::int64_t j = 0; j < b.cols; j += tile)
            transpose_tile(from + j * b.col.from + i, b.col.from, to + i * b.row.to + j, b.row.to,
                           std::min(tile, b.rows - i), std::min(tile, b.cols - j));
}

void copy_block(const Block& b, char* to, const char* from, std::size_t size) {
    if (b.col.to == 1 && b.col.from == 1) return copy_runs(b, to, from, size);
    with_bits(size, [&]<class T>(T) {
        T* const y = reinterpret_cast<T*>(to);
        const T* const x = reinterpret_cast<const T*>(from);
        const bool squares = b.col.to == 1 && b.row.from == 1 && std::min(b.rows, b.cols) >= 8;
        squares ? transpose_block(b, y, x) : copy_elements(b, y, x);
    });
}

}  // namespace

void copy_strided(const Shape& shape, char* to, const Strides& to_strides, const char* from,
                  const Strides& from_strides, std::size_t size) {
    Dimensions outer;
    for (int d = 0; d < shape.size(); ++d) {
        if (shape[d] == 0) return;
        if (shape[d] != 1) outer.insert({shape[d], to_strides[d], from_strides[d]});
    }
    outer.merge();
    const Dimension col = outer.count ? outer.take(outer.count - 1) : Dimension{1, 1, 1};
    const Dimension row = outer.take_other(col);
    const bool runs = col.to == 1 && col.from == 1;
    const std::int64_t cols = std::min(col.size, runs ? grain : 8 * tile);
    const std::int64_t rows = std::min(row.size, std::max(grain / cols, tile));
    const std::int64_t row_blocks = (row.size + rows - 1) / rows, col_blocks = (col.size + cols - 1) / cols;
    std::int64_t blocks = row_blocks * col_blocks;
    for (int d = 0; d < outer.count; ++d) blocks *= outer.list[d].size;
    parallel_for(blocks, grain / (rows * cols) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) {
            const std::int64_t i = block / col_blocks % row_blocks * rows, j = block % col_blocks * cols;
            std::int64_t rest = block / (row_blocks * col_blocks);
            std::int64_t to_offset = i * row.to + j * col.to, from_offset = i * row.from + j * col.from;
            for (int d = outer.count - 1; d >= 0; --d) {
                const Dimension& at = outer.list[d];
                to_offset += rest % at.size * at.to;
                from_offset += rest % at.size * at.from;
                rest /= at.size;
            }
            copy_block({std::min(rows, row.size - i), std::min(cols, col.size - j), row, col},
                       to + to_offset * std::int64_t(size), from + from_offset * std::int64_t(size), size);
        }
    });
}

}  // namespace mezzo::cpu
