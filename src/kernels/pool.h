// Pooling and resizing of images [N, H, W, C]; everything is computed channel by channel.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace mezzo::kernels {

// Which pixels a result reads along one axis.
struct PoolAxis {
    std::int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
    // Adaptive windows follow from the sizes of image and result; the members above are not read.
    bool adaptive = false;
};
struct PoolWindow {
    PoolAxis height = {}, width = {};
};

// x -> y [N, Ho, Wo, C] and, if there is a second result, the place of each largest element in its window:
// row * window width + column, counted from the window's first place whether that is padding or not. Places
// are uint8 [N, Ho, Wo, C] where no window has more than 256 places, otherwise uint8 [N, Ho, Wo, C, 4] that
// hold a little-endian uint32 each.
struct MaxPool2d {
    static constexpr const char* name = "max_pool2d";
    PoolWindow window = {};
};
// g, places -> the gradient of x; its size is the result's.
struct MaxPool2dGrad {
    static constexpr const char* name = "max_pool2d_grad";
    PoolWindow window = {};
};
// u [N, H, W, C], places -> the elements of u at the places [N, Ho, Wo, C]: the transpose of MaxPool2dGrad.
struct MaxPool2dGather {
    static constexpr const char* name = "max_pool2d_gather";
    PoolWindow window = {};
};
// x -> y [N, Ho, Wo, C]
struct AvgPool2d {
    static constexpr const char* name = "avg_pool2d";
    PoolWindow window = {};
    bool count_include_pad = true;
};
// g [N, Ho, Wo, C] -> the gradient of x; its size is the result's.
struct AvgPool2dGrad {
    static constexpr const char* name = "avg_pool2d_grad";
    PoolWindow window = {};
    bool count_include_pad = true;
};
// x [N, H, W, C] -> y [N, Ho, Wo, C]
struct Interpolate {
    static constexpr const char* name = "interpolate";
    bool bilinear = false;  // otherwise the nearest pixel
    bool align_corners = false;
};
// g [N, Ho, Wo, C] -> the gradient of x; its size is the result's.
struct InterpolateGrad {
    static constexpr const char* name = "interpolate_grad";
    bool bilinear = false;  // otherwise the nearest pixel
    bool align_corners = false;
};

}  // namespace mezzo::kernels
