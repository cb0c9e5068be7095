// unfold and fold: look-ups of the pixels that windows read, and their transpose.

#include "autograd/op_observer.h"
#include "mezzo/image_ops.h"
#include "ops/conv/conv.h"
#include "ops/index/index.h"
#include "ops/pool/image.h"

namespace mezzo {

namespace {

// Windows over an image of `size`, its padding included.
struct Windows {
    Size2d size, count;
};

void check_number(const char* op, const char* what, Size2d value, std::int64_t least) {
    constexpr std::int64_t most = 0x7fffffff;  // so that products of two of them fit
    check(value.height >= least && value.width >= least && value.height <= most && value.width <= most,
          ErrorKind::value, op, ": ", what, " is ", value.height, " x ", value.width, "; each must be ",
          least, " to 2^31 - 1");
}

Windows checked_windows(const char* op, Size2d image, const UnfoldOptions& o) {
    check_number(op, "kernel_size", o.kernel_size, 1);
    check_number(op, "dilation", o.dilation, 1);
    check_number(op, "padding", o.padding, 0);
    check_number(op, "stride", o.stride, 1);
    const Windows windows{
        {image.height + 2 * o.padding.height, image.width + 2 * o.padding.width},
        {conv_size(image.height, o.kernel_size.height, o.stride.height, o.padding.height, o.dilation.height),
         conv_size(image.width, o.kernel_size.width, o.stride.width, o.padding.width, o.dilation.width)}};
    check(windows.count.height > 0 && windows.count.width > 0, ErrorKind::shape, op, ": the ",
          o.kernel_size.height, " x ", o.kernel_size.width, " kernel does not fit into the ", image.height,
          " x ", image.width, " pixels with padding");
    return windows;
}

// For each window and each of its positions the number of the pixel in the padded image.
Tensor pixels_read(const Windows& windows, const UnfoldOptions& o, Device device) {
    const TensorOptions integers{.dtype = int64, .device = device};
    const auto along = [&](std::int64_t count, std::int64_t kernel, std::int64_t stride,
                           std::int64_t dilation, std::int64_t step) {
        return (arange(count, integers).unsqueeze(1) * stride + arange(kernel, integers) * dilation) * step;
    };
    const std::int64_t h = windows.count.height, w = windows.count.width;
    const Tensor rows =
                     along(h, o.kernel_size.height, o.stride.height, o.dilation.height, windows.size.width),
                 columns = along(w, o.kernel_size.width, o.stride.width, o.dilation.width, 1);
    return (rows.reshape({h, 1, o.kernel_size.height, 1}) + columns.reshape({1, w, 1, o.kernel_size.width}))
        .reshape({-1});
}

}  // namespace

Tensor unfold(const Tensor& x, const UnfoldOptions& o) {
    const CompositeOp here("unfold");
    check_pixels("unfold", x, 2);
    const Windows windows = checked_windows("unfold", {x.size(1), x.size(2)}, o);
    const auto [rows, columns] = o.padding;
    const Tensor padded = rows == 0 && columns == 0 ? x : pad(x, {{1, rows, rows}, {2, columns, columns}});
    const std::int64_t n = x.size(0), c = x.size(3);
    return index_select(padded.reshape({n, windows.size.height * windows.size.width, c}), 1,
                        pixels_read(windows, o, x.device()))
        .reshape(
            {n, windows.count.height * windows.count.width, o.kernel_size.height * o.kernel_size.width * c});
}

Tensor fold(const Tensor& x, Size2d size, const UnfoldOptions& o) {
    const char* op = "fold";
    const CompositeOp here(op);
    check_floating(op, x);
    check_number(op, "output_size", size, 1);
    const Windows windows = checked_windows(op, size, o);
    const std::int64_t count = windows.count.height * windows.count.width,
                       positions = o.kernel_size.height * o.kernel_size.width;
    check(x.dim() == 3 && x.size(1) == count && x.size(2) % positions == 0, ErrorKind::shape, op, ": input ",
          x.shape(), " is not [batch, ", count, " windows, ", positions,
          " channels]; PyTorch's [batch, channels, windows] becomes one by transpose(1, 2)");
    const std::int64_t n = x.size(0), c = x.size(2) / positions;
    return index_select_grad(x.reshape({n, count * positions, c}), 1, pixels_read(windows, o, x.device()),
                             windows.size.height * windows.size.width, x.dtype())
        .reshape({n, windows.size.height, windows.size.width, c})
        .slice(1, o.padding.height, o.padding.height + size.height)
        .slice(2, o.padding.width, o.padding.width + size.width)
        .contiguous();
}

}  // namespace mezzo
