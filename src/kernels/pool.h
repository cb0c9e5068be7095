// Pooling and resizing of images [N, H, W, C]; everything is computed channel by channel.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "mezzo/shape.h"

namespace mezzo::kernels {

// Window of a pooling along one axis.
struct PoolAxis {
    std::int32_t kernel = 1, stride = 1, padding = 0, dilation = 1;
    // Adaptive windows follow from the sizes of image and result; the members above are not read.
    bool adaptive = false;
};
struct PoolWindow {
    PoolAxis height = {}, width = {};
};

// Number of kernel positions of a window along an axis from `size` pixels to `results`; for adaptive windows
// a bound.
inline std::int64_t places_along(const PoolAxis& axis, std::int64_t size, std::int64_t results) {
    if (!axis.adaptive) return axis.kernel;
    return size % results == 0 ? size / results : size / results + 2;
}
// Up to so many kernel positions of a window are numbered by one byte.
inline constexpr std::int64_t byte_places = 256;

// x -> y [N, Ho, Wo, C] and, if there is a second result, the kernel position of each largest element in its
// window: row * places_along(width) + column, counted from the window's first position whether that is
// padding or not. Positions are uint8 [N, Ho, Wo, C] if places_along(height) * places_along(width) is at most
// byte_places, otherwise uint8 [N, Ho, Wo, C, 4] that hold a little-endian uint32 each. Padding never wins: a
// window that reads no pixel gives -inf and position 0, which is padding.
struct MaxPool2d {
    static constexpr const char* name = "max_pool2d";
    PoolWindow window = {};
    Size2d size = 1;  // of the result; only the decomposition reads it
};
// g, kernel positions -> the gradient of x; its size is the result's.
struct MaxPool2dGrad {
    static constexpr const char* name = "max_pool2d_grad";
    PoolWindow window = {};
};
// u [N, H, W, C], kernel positions -> the elements of u there [N, Ho, Wo, C], 0 for padding: the transpose of
// MaxPool2dGrad.
struct MaxPool2dGather {
    static constexpr const char* name = "max_pool2d_gather";
    PoolWindow window = {};
};
// x -> y [N, Ho, Wo, C]
struct AvgPool2d {
    static constexpr const char* name = "avg_pool2d";
    PoolWindow window = {};
    Size2d size = 1;  // of the result; only the decomposition reads it
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
    Size2d size = 1;        // of the result; only the decomposition reads it
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
