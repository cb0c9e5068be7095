// Checks that the ops on signals, images and volumes share.
#pragma once

#include "ops/common.h"

namespace mezzo {

// Parts of error texts: the layout of what has so many axes, and how PyTorch's becomes it.
inline const char* layout_hint(int axes) {
    return axes == 1   ? "; signals are [batch, length, channels]"
           : axes == 2 ? "; images are [batch, height, width, channels]"
                       : "; volumes are [batch, depth, height, width, channels]";
}
inline const char* permute_hint(int axes) {
    return axes == 1 ? ", and x.transpose(1, 2) makes one of [batch, channels, length]"
           : axes == 2
               ? ", and x.permute({0, 2, 3, 1}) makes one of [batch, channels, height, width]"
               : ", and x.permute({0, 2, 3, 4, 1}) makes one of [batch, channels, depth, height, width]";
}

// End of an error text about an input that may lack its batch or its channels.
inline const char* missing_dimension_hint(int dims, int expected) {
    return dims + 1 == expected ? "; unsqueeze(0) makes a batch of one, unsqueeze(-1) adds a channel" : "";
}

// Throws unless x is floating and has a batch, so many axes with pixels, and channels.
inline void check_pixels(const char* op, const Tensor& x, int axes) {
    check_floating(op, x);
    check(x.dim() == axes + 2, ErrorKind::shape, op, ": input ", x.shape(), " has ", x.dim(),
          " dimensions, not ", axes + 2, layout_hint(axes),
          x.dim() == axes + 1 ? missing_dimension_hint(x.dim(), axes + 2) : permute_hint(axes));
    for (int d = 1; d <= axes; ++d)
        check(x.size(d) > 0, ErrorKind::shape, op, ": input ", x.shape(), " has no pixels", layout_hint(axes),
              permute_hint(axes));
}

}  // namespace mezzo
