#include "tests/support/conv_reference.h"

namespace mezzo::test {

namespace {

// The sizes of a convolution, read from the shapes of any two of image, weight and result.
struct Sizes {
    std::int64_t images, height, width, channels, outs, kernel_height, kernel_width, rows, columns;
};

// Calls f(index in x, index in weight, index in y) for every product of the sum.
template <class F> void for_each_product(const Sizes& n, const kernels::ConvGeometry& at, const F& f) {
    const std::int64_t each = n.channels / at.groups, out_each = n.outs / at.groups;
    const auto product = [&](std::int64_t image, std::int64_t row, std::int64_t col, std::int64_t o,
                             std::int64_t r, std::int64_t s) {
        const std::int64_t h = row * at.stride.height - at.padding.height + r * at.dilation.height,
                           w = col * at.stride.width - at.padding.width + s * at.dilation.width;
        if (h < 0 || h >= n.height || w < 0 || w >= n.width) return;
        for (std::int64_t c = 0; c < each; ++c)
            f(((image * n.height + h) * n.width + w) * n.channels + o / out_each * each + c,
              ((o * n.kernel_height + r) * n.kernel_width + s) * each + c,
              ((image * n.rows + row) * n.columns + col) * n.outs + o);
    };
    for (std::int64_t image = 0; image < n.images; ++image)
        for (std::int64_t row = 0; row < n.rows; ++row)
            for (std::int64_t col = 0; col < n.columns; ++col)
                for (std::int64_t o = 0; o < n.outs; ++o)
                    for (std::int64_t r = 0; r < n.kernel_height; ++r)
                        for (std::int64_t s = 0; s < n.kernel_width; ++s) product(image, row, col, o, r, s);
}

std::vector<double> zeros_for(const Shape& shape) { return std::vector<double>(std::size_t(shape.numel())); }

double& at(std::vector<double>& values, std::int64_t i) { return values[std::size_t(i)]; }
double at(const std::vector<double>& values, std::int64_t i) { return values[std::size_t(i)]; }

}  // namespace

std::vector<double> naive_conv2d(const Array& x, const Array& weight, const kernels::ConvGeometry& geometry,
                                 Size2d size) {
    const Shape &i = x.shape, &w = weight.shape;
    std::vector<double> y = zeros_for({i[0], size.height, size.width, w[0]});
    for_each_product({i[0], i[1], i[2], i[3], w[0], w[1], w[2], size.height, size.width}, geometry,
                     [&](std::int64_t a, std::int64_t b, std::int64_t c) {
                         at(y, c) += at(x.values, a) * at(weight.values, b);
                     });
    return y;
}

std::vector<double> naive_input_grad(const Array& g, const Array& weight,
                                     const kernels::ConvGeometry& geometry, Size2d size) {
    const Shape &o = g.shape, &w = weight.shape;
    const std::int64_t channels = w[3] * geometry.groups;
    std::vector<double> dx = zeros_for({o[0], size.height, size.width, channels});
    for_each_product({o[0], size.height, size.width, channels, o[3], w[1], w[2], o[1], o[2]}, geometry,
                     [&](std::int64_t a, std::int64_t b, std::int64_t c) {
                         at(dx, a) += at(g.values, c) * at(weight.values, b);
                     });
    return dx;
}

std::vector<double> naive_weight_grad(const Array& g, const Array& x, const kernels::ConvGeometry& geometry,
                                      Size2d kernel_size) {
    const Shape &o = g.shape, &i = x.shape;
    std::vector<double> dw = zeros_for({o[3], kernel_size.height, kernel_size.width, i[3] / geometry.groups});
    for_each_product({i[0], i[1], i[2], i[3], o[3], kernel_size.height, kernel_size.width, o[1], o[2]},
                     geometry, [&](std::int64_t a, std::int64_t b, std::int64_t c) {
                         at(dw, b) += at(g.values, c) * at(x.values, a);
                     });
    return dw;
}

}  // namespace mezzo::test
