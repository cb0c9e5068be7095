// Compares implicit convolutions with products with a matrix of windows: each tile, with strides 1 and 2, on
// images whose pixels fill no tile.
#include "cuda/conv/conv.h"
#include "cuda/self_check/compare.h"
#include "cuda/self_check/self_checks.h"

namespace mezzo::cuda {
namespace {

constexpr std::int64_t images = 2, height = 9, width = 11, channels = 24, results = 40, kernel = 3;
constexpr ConvTile tiles[] = {ConvTile::automatic, ConvTile::m128n128, ConvTile::m128n64, ConvTile::m64n64};

struct Convolution {
    kernels::ConvGeometry geometry;
    Shape x{images, height, width, channels}, weight{results, kernel, kernel, channels}, y;

    explicit Convolution(std::int64_t stride)
        : geometry{.stride = stride, .padding = 1},
          y{images, (height - 1) / stride + 1, (width - 1) / stride + 1, results} {}
};

// run(out, way) computes one result; those of all tiles are compared with that of the matrix of windows. Sums
// are float32 in another order, and rounded once.
template <class Run>
void compare(const char* what, const SelfCheck& self_check, const Shape& shape, const Run& run) {
    const Tensor plain = result_of(shape, self_check.dtype);
    run(plain, ConvWay{.implicit = false});
    for (const ConvTile tile : tiles) {
        const Tensor fast = result_of(shape, self_check.dtype);
        run(fast, ConvWay{.implicit = true, .tile = tile});
        require_close(what, fast, plain, 2 * rounding_of(self_check.dtype));
    }
}

}  // namespace

void check_convolution(const SelfCheck& self_check) {
    for (const std::int64_t stride : {1, 2}) {
        const Convolution c(stride);
        const Tensor in[] = {input_of(c.x, self_check.dtype, 1), input_of(c.weight, self_check.dtype, 2),
                             input_of({results}, self_check.dtype, 3)};
        compare("implicit convolution", self_check, c.y, [&](const Tensor& out, const ConvWay& way) {
            conv_forward(in, {c.geometry}, {&out, 1}, way);
        });
    }
}

void check_convolution_input_grad(const SelfCheck& self_check) {
    for (const std::int64_t stride : {1, 2}) {
        const Convolution c(stride);
        const Tensor in[] = {input_of(c.y, self_check.dtype, 1), input_of(c.weight, self_check.dtype, 2)};
        compare("input gradient of an implicit convolution", self_check, c.x,
                [&](const Tensor& out, const ConvWay& way) {
                    conv_input_grad(in, {c.geometry, {height, width}}, {&out, 1}, way);
                });
    }
}

void check_convolution_weight_grad(const SelfCheck& self_check) {
    for (const std::int64_t stride : {1, 2}) {
        const Convolution c(stride);
        const Tensor in[] = {input_of(c.y, self_check.dtype, 1), input_of(c.x, self_check.dtype, 2)};
        for (const int splits : {0, 3})
            compare("weight gradient of an implicit convolution", self_check, c.weight,
                    [&](const Tensor& out, ConvWay way) {
                        way.splits = splits;
                        conv_weight_grad(in, {c.geometry, kernel, 0}, {&out, 1}, way);
                    });
    }
}

}  // namespace mezzo::cuda
