// Checks that the ops on signals, images and volumes share.
#pragma once

#include "ops/common.h"

namespace mezzo {

// End of an error text: the layout of what has so many axes.
inline const char* layout_hint(int axes) {
    if (axes == 1)
        return "; signals are [batch, length, channels], and x.transpose(1, 2) makes one of [batch, "
               "channels, "
               "length]";
    if (axes == 2)
        return "; images are [batch, height, width, channels], and x.permute({0, 2, 3, 1}) makes one of "
               "[batch, "
               "channels, height, width]";
    return "; volumes are [batch, depth, height, width, channels], and x.permute({0, 2, 3, 4, 1}) makes one "
           "of "
           "[batch, channels, depth, height, width]";
}

// Throws unless x is floating and has a batch, so many axes with pixels, and channels.
inline void check_pixels(const char* op, const Tensor& x, int axes) {
    check_floating(op, x);
    check(x.dim() == axes + 2, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(),
          " dimensions, not ", axes + 2, layout_hint(axes));
    for (int d = 1; d <= axes; ++d)
        check(x.size(d) > 0, ErrorKind::shape, op, ": input ", x.shape(), " has no pixels",
              layout_hint(axes));
}

}  // namespace mezzo
