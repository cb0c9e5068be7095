// Checks that the ops on images share.
#pragma once

#include "ops/common.h"

namespace mezzo {

inline constexpr const char* image_layout =
    "; images are [batch, height, width, channels], and x.permute({0, 2, 3, 1}) makes one of [batch, "
    "channels, height, width]";

// Throws unless x is a floating image [N, H, W, C] with pixels.
inline void check_image(const char* op, const Tensor& x) {
    check_floating(op, x);
    check(x.dim() == 4, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(), " dimensions, not 4",
          image_layout);
    check(x.size(1) > 0 && x.size(2) > 0, ErrorKind::shape, op, ": input ", x.shape(), " has no pixels",
          image_layout);
}

inline constexpr const char* volume_layout =
    "; volumes are [batch, depth, height, width, channels], and x.permute({0, 2, 3, 4, 1}) makes one of "
    "[batch, channels, depth, height, width]";

// Throws unless x is a floating volume [N, D, H, W, C] with voxels.
inline void check_volume(const char* op, const Tensor& x) {
    check_floating(op, x);
    check(x.dim() == 5, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(), " dimensions, not 5",
          volume_layout);
    check(x.size(1) > 0 && x.size(2) > 0 && x.size(3) > 0, ErrorKind::shape, op, ": input ", x.shape(),
          " has no voxels", volume_layout);
}

}  // namespace mezzo
