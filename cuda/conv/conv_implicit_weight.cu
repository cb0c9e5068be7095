// Gradients of convolutions with respect to the weight on Tensor Cores; the kernel for float16.
#include <algorithm>

#include "cuda/conv/conv_implicit_weight.cuh"

namespace mezzo::cuda {

namespace weight_product {

extern template void run_tile<bfloat16_t>(const WeightProduct& p, ConvTile tile, std::int64_t parts);

}  // namespace weight_product

namespace {

using namespace weight_product;

ConvTile chosen(const ConvSizes& s, ConvTile tile) {
    if (tile != ConvTile::automatic) return tile;
    if (s.result_channels > 64 && s.window() > 64) return ConvTile::m128n128;
    return s.window() > 64 ? ConvTile::m128n64 : ConvTile::m64n64;
}

// Parts that fill the device twice, none with less than 8 steps, all together at most 32 MiB.
std::int64_t parts_of(const ConvSizes& s, ConvTile tile, std::int64_t steps) {
    const int rows = tile == ConvTile::m128n128 ? 128 : 64, columns = tile == ConvTile::m64n64 ? 64 : 128;
    const std::int64_t tiles = tiles_of(s.result_channels, rows) * tiles_of(s.window(), columns);
    const std::int64_t bytes = s.result_channels * s.window() * std::int64_t(sizeof(float));
    const std::int64_t most = std::min(steps / 8, (std::int64_t(32) << 20) / bytes);
    return std::max<std::int64_t>(std::min(2 * conv_full_device / tiles, most), 1);
}

}  // namespace

bool implicit_weight_grad(const ConvSizes& s, const Tensor& g, const Tensor& x, double beta, const Tensor& dw,
                          ConvTile tile, int splits) {
    if (!implicit_takes(s, g, x) || dw.dtype() == float64) return false;
    const kernels::ConvGeometry& at = s.geometry;
    const std::int64_t steps = tiles_of(s.pixels(), conv_depth);
    tile = chosen(s, tile);
    std::int64_t parts = splits > 0 ? std::min<std::int64_t>(splits, steps) : parts_of(s, tile, steps);
    const std::int64_t part_steps = (steps + parts - 1) / parts;
    parts = (steps + part_steps - 1) / part_steps;
    const Scratch memory(dw.device(), parts > 1 ? parts * dw.numel() * std::int64_t(sizeof(float)) : 0);
    WeightProduct p = {};
    p.g = raw(g), p.x = raw(x);
    p.parts = parts > 1 ? memory.as<float>() : nullptr;
    p.result = any_of<float>(dw);
    p.beta = static_cast<float>(beta);
    p.h = {int(s.height), int(at.stride.height), int(at.padding.height), int(at.dilation.height)};
    p.w = {int(s.width), int(at.stride.width), int(at.padding.width), int(at.dilation.width)};
    p.image_pixels = FastDivide(s.result_height * s.result_width);
    p.row_pixels = FastDivide(s.result_width);
    p.channels = FastDivide(s.channels);
    p.kernel_width = FastDivide(s.kernel_width);
    p.pixels = int(s.pixels()), p.result_channels = int(s.result_channels), p.window = int(s.window());
    p.steps = int(steps), p.part_steps = int(part_steps);
    x.dtype() == float16 ? run_tile<float16_t>(p, tile, parts) : run_tile<bfloat16_t>(p, tile, parts);
    if (parts > 1) sum_parts(p.parts, dw.numel(), parts, p.beta, dw);
    return true;
}

}  // namespace mezzo::cuda
