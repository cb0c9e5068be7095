#include "cpu/attention/attention_products.h"

#include <algorithm>
#include <cstring>

#include "cpu/attention/attention.h"
#include "cpu/buffer.h"
#include "mezzo/error.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t plane_bytes = 2 * tile_bytes;  // one plane of a panel, for 32 steps of k

std::int64_t tiles_along(std::int64_t k) { return (k + tile_steps - 1) / tile_steps; }

float* floats(char* p) { return reinterpret_cast<float*>(p); }
const float* floats(const char* p) { return reinterpret_cast<const float*>(p); }

}  // namespace

AttentionProducts::AttentionProducts(const GemmKernels& vectors, const TileKernels* tiles, Dtype type)
    : rows(tiles ? panel_lines : vectors.mr),
      steps(tiles ? tile_steps : 1),
      columns(vectors.nr),
      vectors_(vectors),
      tiles_(tiles),
      type_(type) {
    check(!tiles || columns == panel_lines, ErrorKind::value, "attention on tiles: blocks of ", columns,
          " columns, where panels have ", panel_lines);
}

const TileProduct& AttentionProducts::product(Types types) const {
    const bool bf16 = type_ == bfloat16;
    if (types == Types::inputs_weights) return bf16 ? tiles_->bf16_f32 : tiles_->f16_f32;
    if (types == Types::weights_inputs) return bf16 ? tiles_->f32_bf16 : tiles_->f32_f16;
    return bf16 ? tiles_->bf16 : tiles_->f16;
}

std::int64_t AttentionProducts::a_panel(std::int64_t k) const {
    return tiles_along(k) * product(Types::inputs).planes_a * plane_bytes;
}

std::int64_t AttentionProducts::a_bytes(std::int64_t m, std::int64_t k) const {
    return tiles_ ? round_up(m, rows) / rows * a_panel(k) : round_up(m, rows) * k * 4;
}
std::int64_t AttentionProducts::b_bytes(std::int64_t n, std::int64_t k) const {
    return tiles_ ? round_up(n, columns) / columns * a_panel(k) : round_up(n, columns) * k * 4;
}

void AttentionProducts::pack_a(const Operand& x, std::int64_t m, std::int64_t k, char* to) const {
    if (!tiles_) return vectors_.pack_a(x, m, k, floats(to));
    if (!product(Types::inputs).pack_a({x, m, k, 0, tiles_along(k), to, a_panel(k)})) throw NoPlanes();
}
void AttentionProducts::pack_b(const Operand& x, std::int64_t n, std::int64_t k, char* to) const {
    if (!tiles_) return vectors_.pack_b(x, n, k, floats(to));
    if (!product(Types::inputs).pack_b({x, n, k, 0, tiles_along(k), to, a_panel(k)})) throw NoPlanes();
}

const char* AttentionProducts::a_from(const char* a, std::int64_t i, std::int64_t p, std::int64_t k) const {
    if (!tiles_) return a + (i * k + p * rows) * 4;
    return a + i / rows * a_panel(k) + a_panel(p);
}
const char* AttentionProducts::b_from(const char* b, std::int64_t j, std::int64_t k) const {
    return b + (tiles_ ? j / columns * a_panel(k) : j * k * 4);
}

const char* AttentionProducts::weights_b(const float* t, std::int64_t k, std::int64_t n) const {
    if (!tiles_) return reinterpret_cast<const char*>(t);
    thread_local Buffer packed;
    const TileProduct& by_weights = product(Types::inputs_weights);
    const std::int64_t panel = tiles_along(k) * by_weights.planes_b * plane_bytes;
    char* const to = packed.get<char>(panel);
    if (!by_weights.pack_b({{t, Dtype::float32, columns, false}, n, k, 0, tiles_along(k), to, panel}))
        throw NoPlanes();
    return to;
}

std::int64_t AttentionProducts::weights_a_bytes(std::int64_t m, std::int64_t k) const {
    if (!tiles_) return round_up(m, rows) * k * 4;
    return round_up(m, rows) / rows * tiles_along(k) * product(Types::weights_inputs).planes_a * plane_bytes;
}

void AttentionProducts::pack_weights_a(const float* t, std::int64_t m, std::int64_t zeros, std::int64_t j,
                                       std::int64_t n, std::int64_t k, char* to) const {
    if (!tiles_) {
        for (std::int64_t i = 0; i < m; i += rows) {
            float* const at = floats(to) + i * k + j * rows;
            if (i < zeros)
                std::fill(at, at + n * rows, 0.0f);
            else
                vectors_.pack_a({t + i * columns, Dtype::float32, columns, true}, std::min(rows, m - i), n,
                                at);
        }
        return;
    }
    const TileProduct& of_weights = product(Types::weights_inputs);
    const std::int64_t step = of_weights.planes_a * plane_bytes, panel = tiles_along(k) * step;
    char* const at = to + j / tile_steps * step;
    for (std::int64_t i = 0; i < zeros; i += rows) std::memset(at + i / rows * panel, 0, std::size_t(step));
    if (zeros < m && !of_weights.pack_a({{t + zeros * columns, Dtype::float32, columns, true},
                                         m - zeros,
                                         n,
                                         0,
                                         1,
                                         at + zeros / rows * panel,
                                         panel}))
        throw NoPlanes();
}

void AttentionProducts::multiply(Types types, const char* a, std::int64_t all_k, const char* b,
                                 std::int64_t k, std::int64_t m, std::int64_t n, float* t, std::int64_t ldt,
                                 bool accumulate) const {
    if (!tiles_) {
        Prefetch none;  // everything is in the cache already: nothing to prefetch
        return vectors_.tile(floats(a), all_k, {floats(b), columns, columns * k}, k, m, n, t, ldt, accumulate,
                             none);
    }
    const TileProduct& tile_product = product(types);
    const Gemm g{.m = m, .n = n, .k = k, .c = t, .ldc = ldt, .beta = accumulate ? 1.0f : 0.0f};
    const std::int64_t panel = tiles_along(all_k) * tile_product.planes_a * plane_bytes;
    // All of k is one range, so no sums are saved between ranges.
    tile_product.multiply({g, nullptr, 0, m, 0, n, 0, tiles_along(k), a, panel, false, nullptr,
                           tiles_along(k), b, tiles_along(k) * tile_product.planes_b * 2 * tile_bytes, t,
                           false});
}

}  // namespace mezzo::cpu
