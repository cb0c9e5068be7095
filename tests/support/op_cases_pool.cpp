// Op cases of pooling, padding and resizing.
#include "mezzo/image_ops.h"
#include "tests/support/op_cases.h"

namespace mezzo::test {

namespace {

using enum Under;
using enum Domain;

const Shape image{2, 5, 6, 3}, volume{2, 4, 3, 5, 2}, line{2, 9, 4};
using enum InterpolateMode;

// clang-format off
#define POOL(text, call, shape, domain, ...) \
    {text, [](In x) { return call; }, {shape}, nullptr, keep, domain, "", __VA_ARGS__}

// Elements at distinct indices of an image twice as large.
Tensor unpooled(In x) {
    const Tensor& v = x[0];
    const Tensor places = arange(v.size(1) * v.size(2), {.dtype = int64, .device = v.device()}) * 3 + 1;
    const Tensor index = places.reshape({1, v.size(1), v.size(2), 1}).expand(v.shape());
    return max_unpool2d(v, index, {.kernel_size = 2});
}

}  // namespace

std::vector<OpCase> pool_cases() {
    return {
        POOL("max_pool2d", max_pool2d(x[0], {.kernel_size = 2}), image, distinct, "max_pool2d_grad max_pool2d_grad_grad", true, false),
        POOL("max_pool2d overlapping and padded", max_pool2d(x[0], {.kernel_size = 3, .stride = 2, .padding = 1}), image, distinct,
             "", true, false),
        POOL("max_pool2d with ceil_mode", max_pool2d(x[0], {.kernel_size = {2, 3}, .stride = 2, .padding = {0, 1}, .ceil_mode = true}),
             image, distinct, "", true, false),
        POOL("max_pool2d dilated", max_pool2d(x[0], {.kernel_size = {2, 3}, .stride = 1, .padding = {1, 0}, .dilation = 2}), image,
             distinct, "", true, false),
        POOL("max_pool2d of 260 places", max_pool2d(x[0], {.kernel_size = {13, 20}, .stride = {5, 3}, .padding = {5, 9}}),
             (Shape{2, 9, 7, 2}), distinct, "", true, false),
        POOL("max_pool2d of 17 channels", max_pool2d(x[0], {.kernel_size = 3, .stride = 1, .padding = 1}), (Shape{2, 3, 4, 17}),
             distinct, "", true, false),
        POOL("adaptive_max_pool2d", adaptive_max_pool2d(x[0], {3, 4}), image, distinct, ""),
        POOL("max_pool1d", max_pool1d(x[0], {.kernel_size = 3, .stride = 2, .padding = 1}), (Shape{2, 9, 4}), distinct, "", true, false),
        POOL("adaptive_max_pool1d", adaptive_max_pool1d(x[0], 4), (Shape{2, 9, 4}), distinct, ""),
        POOL("avg_pool2d", avg_pool2d(x[0], {.kernel_size = 2}), image, any, "avg_pool2d_grad", true, false),
        POOL("avg_pool2d overlapping and padded", avg_pool2d(x[0], {.kernel_size = 3, .stride = 2, .padding = 1}), image, any, "", true,
             false),
        POOL("avg_pool2d without padding in the mean", avg_pool2d(x[0], {.kernel_size = 3, .stride = 2, .padding = 1,
             .count_include_pad = false}), (Shape{2, 5, 6, 18}), any, "", true, false),
        POOL("avg_pool2d with ceil_mode", avg_pool2d(x[0], {.kernel_size = {2, 4}, .stride = {2, 3}, .padding = {1, 2},
             .ceil_mode = true}), image, any, "", true, false),
        POOL("adaptive_avg_pool2d", adaptive_avg_pool2d(x[0], {3, 4}), image, any, ""),
        POOL("adaptive_avg_pool2d of one", adaptive_avg_pool2d(x[0], 1), (Shape{2, 5, 6, 34}), any, ""),
        POOL("adaptive_avg_pool2d to more pixels", adaptive_avg_pool2d(x[0], {7, 8}), image, any, ""),
        POOL("avg_pool1d", avg_pool1d(x[0], {.kernel_size = 3, .stride = 2, .padding = 1}), (Shape{2, 9, 4}), any, "", true, false),
        POOL("adaptive_avg_pool1d", adaptive_avg_pool1d(x[0], 4), (Shape{2, 9, 4}), any, ""),
        POOL("interpolate", interpolate(x[0], {8, 13}), image, any, "interpolate_grad"),
        POOL("interpolate to fewer", interpolate(x[0], {3, 4}), (Shape{2, 5, 6, 19}), any, ""),
        POOL("interpolate bilinear", interpolate(x[0], {8, 13}, {.mode = bilinear}), (Shape{2, 5, 6, 19}), any, ""),
        POOL("interpolate bilinear to fewer", interpolate(x[0], {3, 4}, {.mode = bilinear}), image, any, ""),
        POOL("interpolate bilinear to the double", interpolate(x[0], {10, 12}, {.mode = bilinear}), image, any, ""),
        POOL("interpolate bilinear of corners", interpolate(x[0], {9, 8}, {.mode = bilinear, .align_corners = true}), image, any, ""),
        POOL("interpolate bilinear of corners to fewer", interpolate(x[0], {1, 4}, {.mode = bilinear, .align_corners = true}), image, any, ""),
        POOL("interpolate to fewer pixels, bicubic", interpolate(x[0], {3, 4}, {.mode = bicubic}), image, any, ""),
        POOL("interpolate bicubic of corners", interpolate(x[0], {8, 9}, {.mode = bicubic, .align_corners = true}), image, any, ""),
        POOL("interpolate by factors", interpolate(x[0], {.mode = bilinear, .scale_factor = {1.3, 0.7}}), image, any, "resize", true, false),
        POOL("interpolate linear", interpolate(x[0], 13, {.mode = linear}), line, any, ""),
        POOL("interpolate a volume", interpolate(x[0], {3, 7, 2}), volume, any, ""),
        POOL("interpolate trilinear", interpolate(x[0], {3, 7, 2}, {.mode = trilinear}), volume, any, ""),
        POOL("interpolate area", interpolate(x[0], {3, 4}, {.mode = area}), image, any, ""),
        POOL("interpolate nearest_exact", interpolate(x[0], {3, 9}, {.mode = nearest_exact}), image, any, ""),
        POOL("pad", pad(x[0], {{1, 1, 2}, {-2, 3, 0}}, PadMode::constant, 1.5), image, any, ""),
        POOL("pad of rows", pad(x[0], {{0, 1, 2}, {3, 3, 2}}), (Shape{2, 5, 1, 17}), any, ""),
        POOL("pad that crops", pad(x[0], {{1, -1, 2}, {2, 3, -2}}, PadMode::constant, -2), image, any, "", true, false),
        POOL("pad reflect", pad(x[0], {{1, 4, 2}, {2, -1, 3}}, PadMode::reflect), image, any, "", true, false),
        POOL("pad replicate", pad(x[0], {{1, 6, 2}, {2, 3, -2}}, PadMode::replicate), image, any, "", true, false),
        POOL("max_pool3d", max_pool3d(x[0], {.kernel_size = {2, 3, 2}, .stride = {2, 1, 2}, .padding = {1, 1, 0}, .ceil_mode = true}), volume,
             distinct, "", true, false),
        POOL("max_pool3d with indices", max_pool3d_with_indices(x[0], {.kernel_size = 2, .dilation = {2, 1, 1}}).values, volume, distinct, "",
             true, false),
        POOL("adaptive_max_pool3d", adaptive_max_pool3d(x[0], {3, 2, 2}), volume, distinct, ""),
        POOL("avg_pool3d", avg_pool3d(x[0], {.kernel_size = {2, 3, 2}, .stride = 2, .padding = {1, 1, 0}, .ceil_mode = true}), volume, any,
             "", true, false),
        POOL("avg_pool3d with a divisor", avg_pool3d(x[0], {.kernel_size = 2, .ceil_mode = true, .divisor_override = 3}), volume, any, "",
             true, false),
        POOL("avg_pool2d with a divisor", avg_pool2d(x[0], {.kernel_size = 2, .padding = 1, .divisor_override = 5}), image, any, "", true,
             false),
        POOL("adaptive_avg_pool3d", adaptive_avg_pool3d(x[0], {3, 2, 2}), volume, any, ""),
        POOL("max_unpool2d", unpooled(x), (Shape{2, 2, 3, 2}), any, "", true, false),
        POOL("unfold", unfold(x[0], {.kernel_size = {2, 3}, .dilation = {2, 1}, .padding = 1, .stride = {1, 2}}), image, any, "", true, false),
        POOL("fold", fold(x[0], {3, 4}, {.kernel_size = 2, .padding = {0, 1}}), (Shape{2, 10, 12}), any, "", true, false),
        POOL("pixel_shuffle", pixel_shuffle(x[0], 2), (Shape{2, 3, 2, 8}), any, "", true, false),
        POOL("pixel_unshuffle", pixel_unshuffle(x[0], 2), (Shape{2, 4, 2, 3}), any, "", true, false),
        POOL("channel_shuffle", channel_shuffle(x[0], 2), (Shape{2, 3, 6}), any, "", true, false),
        {"grid_sample", [](In x) { return grid_sample(x[0], 0.9 * x[1]); }, {image, {2, 3, 2, 2}}, nullptr, keep, unit, "", "grid_sample",
         true, false},
        {"grid_sample bicubic and reflected",
         [](In x) {
             return grid_sample(x[0], 0.9 * x[1], {.mode = bicubic, .padding_mode = PadMode::reflect});
         },
         {image, {2, 3, 2, 2}}, nullptr, keep, unit, "", "", true, false, true, 2},
        {"grid_sample of a volume", [](In x) { return grid_sample(x[0], 0.9 * x[1], {.padding_mode = PadMode::replicate}); },
         {volume, {2, 2, 1, 3, 3}}, nullptr, keep, unit, "", "", true, false},
        POOL("affine_grid", affine_grid(x[0], {x[0].size(0), 3, 4, 1}), (Shape{4, 2, 3}), any, "", true, false),
        {"local_response_norm", [](In x) { return local_response_norm(x[0], 3, {.alpha = 0.5}); }, {{2, 3, 5}}, nullptr, fp32, any, "", "",
         true, false},
        {"instance_norm", [](In x) { return instance_norm(x[0], {}, {}, x[1], x[2]); }, {{3, 2, 4, 5}, {5}, {5}}, nullptr, keep, any, "", "",
         true, false, true, 4},
        POOL("pad circular", pad(x[0], {{1, 5, 2}, {2, -1, 3}}, PadMode::circular), image, any, "", true, false),
    };
}
// clang-format on

}  // namespace mezzo::test
