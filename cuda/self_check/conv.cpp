// Compares implicit convolutions with products with a matrix of windows: each tile, with strides 1 and 2, on
// images whose pixels fill no tile.
#include "cuda/conv/conv.h"
#include "cuda/proof/compare.h"
#include "cuda/proof/proofs.h"

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
template <class Run> void compare(const char* what, const Proof& proof, const Shape& shape, const Run& run) {
    const Tensor plain = result_of(shape, proof.dtype);
    run(plain, ConvWay{.implicit = false});
    for (const ConvTile tile : tiles) {
        const Tensor fast = result_of(shape, proof.dtype);
        run(fast, ConvWay{.implicit = true, .tile = tile});
        require_close(what, fast, plain, 2 * rounding_of(proof.dtype));
    }
}

}  // namespace

void prove_convolution(const Proof& proof) {
    for (const std::int64_t stride : {1, 2}) {
        const Convolution c(stride);
        const Tensor in[] = {input_of(c.x, proof.dtype, 1), input_of(c.weight, proof.dtype, 2),
                             input_of({results}, proof.dtype, 3)};
        compare("implicit convolution", proof, c.y, [&](const Tensor& out, const ConvWay& way) {
            conv_forward(in, {c.geometry}, {&out, 1}, way);
        });
    }
}

void prove_convolution_input_grad(const Proof& proof) {
    for (const std::int64_t stride : {1, 2}) {
        const Convolution c(stride);
        const Tensor in[] = {input_of(c.y, proof.dtype, 1), input_of(c.weight, proof.dtype, 2)};
        compare("input gradient of an implicit convolution", proof, c.x,
                [&](const Tensor& out, const ConvWay& way) {
                    conv_input_grad(in, {c.geometry, {height, width}}, {&out, 1}, way);
                });
    }
}

void prove_convolution_weight_grad(const Proof& proof) {
    for (const std::int64_t stride : {1, 2}) {
        const Convolution c(stride);
        const Tensor in[] = {input_of(c.y, proof.dtype, 1), input_of(c.x, proof.dtype, 2)};
        for (const int splits : {0, 3})
            compare("weight gradient of an implicit convolution", proof, c.weight,
                    [&](const Tensor& out, ConvWay way) {
                        way.splits = splits;
                        conv_weight_grad(in, {c.geometry, kernel, 0}, {&out, 1}, way);
                    });
    }
}

}  // namespace mezzo::cuda
