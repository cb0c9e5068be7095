// Splitting, repeating and rearranging of tensors of any dtype, and random draws. split(), chunk(), unbind()
// and meshgrid() return views, the others copies. All but one_hot(), nonzero() and the random draws are
// differentiable.
//
//   const Tensors parts = split(x, 8);  // views of 8 rows each
//   y = one_hot(labels, 10);
//   y = tril(ones({128, 128}));
#pragma once

#include <cstdint>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// The lower (upper) triangle of the last two dimensions, 0 elsewhere: elements with j - i <= diagonal
// (j - i >= diagonal).
[[nodiscard]] Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
[[nodiscard]] Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
// For a vector, the square matrix with it on the given diagonal; for a matrix, its diagonal.
[[nodiscard]] Tensor diag(const Tensor& x, std::int64_t diagonal = 0);

// The elements in reverse order along each of the dimensions.
[[nodiscard]] Tensor flip(const Tensor& x, const Axes& dims);
// Element i becomes element (i + shift) modulo the size; without dims, of the flattened x. Error(value)
// unless there is a shift for each dimension.
[[nodiscard]] Tensor roll(const Tensor& x, std::int64_t shift);
[[nodiscard]] Tensor roll(const Tensor& x, const std::vector<std::int64_t>& shifts, const Axes& dims);

// x that many times along each dimension; with more counts than dimensions, x gets dimensions in front.
[[nodiscard]] Tensor repeat(const Tensor& x, const Shape& counts);
// Every element along dim that many times in a row. With a tensor, int64 [size of dim], each as often as it
// says; that waits for the device.
[[nodiscard]] Tensor repeat_interleave(const Tensor& x, std::int64_t count, std::int64_t dim);
[[nodiscard]] Tensor repeat_interleave(const Tensor& x, const Tensor& counts, std::int64_t dim);

// Views of consecutive parts along dim: of `size` elements each, the last of what is left; of the given
// sizes, which add up to that of x; at most `count` equal parts, as PyTorch's chunk. split() makes one part
// of an empty dimension, chunk() `count`.
[[nodiscard]] Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
[[nodiscard]] Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
[[nodiscard]] Tensors chunk(const Tensor& x, std::int64_t count, std::int64_t dim = 0);
// Views without dim, one for each of its elements.
[[nodiscard]] Tensors unbind(const Tensor& x, std::int64_t dim = 0);

enum class MeshIndexing : std::uint8_t { ij, xy };
struct MeshgridOptions {
    MeshIndexing indexing = MeshIndexing::ij;  // xy: the first two dimensions of the results are swapped
};
// Coordinates of a grid: for vectors (or 0-dim tensors) of sizes n, m, ... as many views [n, m, ...], of
// which the i-th repeats vector i along all dimensions but i. All have one dtype.
[[nodiscard]] Tensors meshgrid(const Tensors& tensors, MeshgridOptions options = {});

struct DiffOptions {
    Tensor prepend = {}, append = {};  // joined with x along dim before; undefined: nothing
};
// Differences of neighbours along dim, x[i + 1] - x[i], taken n times; of booleans whether they differ.
[[nodiscard]] Tensor diff(const Tensor& x, std::int64_t n = 1, std::int64_t dim = -1,
                          const DiffOptions& options = {});

// index [...], int64, to int64 [..., classes] with a 1 at each index. Without classes, as many as the largest
// index needs, which waits for the device. An index that is not a class throws Error(value) on the CPU; on
// CUDA, where a check would wait for the device, it gives zeros.
[[nodiscard]] Tensor one_hot(const Tensor& index, std::int64_t classes = -1);

// Random draws from the stream that manual_seed() begins, the same on every device as far as those of rand()
// and randn() are. 1 with the probability that the floating p has there, else 0, in p's dtype. A p outside of
// [0, 1] throws Error(value) on the CPU; elsewhere, where a check would wait for the device, it gives NaN.
[[nodiscard]] Tensor bernoulli(const Tensor& p);
// A tensor like x, of any dtype, with 1 with the given probability, else 0.
[[nodiscard]] Tensor bernoulli(const Tensor& x, double p);
// The exponential distribution of rate lambda > 0, never 0: PyTorch's x.exponential_(). Computed in float64.
[[nodiscard]] Tensor exponential(const Shape& shape, double lambda = 1, TensorOptions options = {});
// mean + std randn, floating; mean and std broadcast. A negative std throws Error(value) on the CPU.
[[nodiscard]] Tensor normal(const Tensor& mean, const Tensor& std);
[[nodiscard]] Tensor normal(const Tensor& mean, double std = 1);
[[nodiscard]] Tensor normal(double mean, const Tensor& std);

// The functions below wait for the device, because values determine the shape of the result.
// The indices of the elements that are not 0, int64 [n, dims of x], in row-major order.
[[nodiscard]] Tensor nonzero(const Tensor& x);
// The elements of x where the boolean mask holds, [n], in row-major order; x and mask broadcast.
// Differentiable.
[[nodiscard]] Tensor masked_select(const Tensor& x, const Tensor& mask);

struct MultinomialOptions {
    bool replacement = false;  // whether an index may be drawn more than once per row
};
// `count` indices per row of weights [classes] or [rows, classes], floating, drawn with probabilities
// proportional to the weights from the stream that manual_seed() begins: int64 [count] or [rows, count].
// Waits for the device, to refuse with Error(value) weights that are negative or not finite, rows of zeros,
// and, without replacement, rows with fewer than `count` weights that are not 0.
[[nodiscard]] Tensor multinomial(const Tensor& weights, std::int64_t count, MultinomialOptions options = {});

}  // namespace mezzo

#pragma GCC visibility pop
