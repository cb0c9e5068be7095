// Parts, repetitions and rearrangements, from views, copies and look-ups.
#include <algorithm>
#include <cstdlib>

#include "autograd/op_observer.h"
#include "core/enumerators.h"
#include "mezzo/image_ops.h"
#include "mezzo/shape_ops.h"
#include "ops/common.h"

namespace mezzo {

namespace {

TensorOptions integers_on(const Tensor& x) { return {.dtype = int64, .device = x.device()}; }

// Indices for triangles of matrices like x: the columns, and for each row the column that is on the diagonal.
// All diagonals beyond a corner give the same triangles as the first one there.
struct Places {
    Tensor column, on_diagonal;
};
Places places(const Tensor& x, std::int64_t diagonal) {
    const std::int64_t rows = x.size(-2), cols = x.size(-1);
    TensorOptions options = integers_on(x);
    if (rows <= 1 << 30 && cols <= 1 << 30) options.dtype = int32;  // half as many bytes to compare
    const Tensor row = arange(rows, options).unsqueeze(1);
    return {arange(cols, options), row + std::clamp(diagonal, -rows, cols)};
}

void check_matrices(const char* op, const Tensor& x) {
    check_defined(op, x);
    check(x.dim() >= 2, ErrorKind::shape, op, ": ", x.shape(), " has fewer than two dimensions");
}

// A square of zeros with n elements on a diagonal. It is built from n rows of size + 1 columns with an
// element each: cut into rows of `size`, each element lies one column further right than the one before.
Tensor diagonal_matrix(const Tensor& x, std::int64_t diagonal) {
    const std::int64_t n = x.size(0), size = n + std::abs(diagonal);
    const std::int64_t start = diagonal >= 0 ? diagonal : -diagonal * size;
    const Tensor rows = pad(x.unsqueeze(1), {{1, 0, size}}).reshape({n * (size + 1)});
    return pad(rows, {{0, start, size * size - start - n * (size + 1)}}).reshape({size, size});
}

Tensor diagonal_of(const Tensor& x, std::int64_t diagonal) {
    const std::int64_t rows = x.size(0), cols = x.size(1);
    const std::int64_t down = std::max<std::int64_t>(-diagonal, 0),
                       right = std::max<std::int64_t>(diagonal, 0);
    const std::int64_t n = std::max<std::int64_t>(0, std::min(rows - down, cols - right));
    if (n == 0) return x.reshape({x.numel()}).slice(0, 0, 0);
    const std::int64_t start = down * cols + right;
    return x.reshape({rows * cols}).slice(0, start, start + (n - 1) * (cols + 1) + 1, cols + 1);
}

// Dimension dim of x with each element (`inner`) or the whole of it repeated.
Tensor repeated(const Tensor& x, int dim, std::int64_t count, bool inner) {
    std::int64_t before = 1, behind = 1;
    for (int d = 0; d < x.dim(); ++d)
        (d < dim ? before : d > dim ? behind : before) *= d == dim ? 1 : x.size(d);
    Shape shape = x.shape();
    const std::int64_t size = shape[dim];
    check(!__builtin_mul_overflow(size, count, &shape[dim]), ErrorKind::shape, "repeat: ", size, " elements ",
          count, " times are beyond 2^63");
    const Tensor flat = inner ? x.reshape({before * size, 1, behind}) : x.reshape({before, 1, size * behind});
    return flat.expand({flat.size(0), count, flat.size(2)}).reshape(shape);
}

void check_count(const char* op, std::int64_t count) {
    check(count >= 0, ErrorKind::value, op, ": a count of ", count, " is negative");
}

int dim_to_part(const char* op, const Tensor& x, std::int64_t dim) {
    check_defined(op, x, any_dtype);
    check(x.dim() > 0, ErrorKind::shape, op, ": a 0-dim tensor has no dimension to part");
    return wrap_dim(op, dim, x.dim());
}

}  // namespace

Tensor tril(const Tensor& x, std::int64_t diagonal) {
    const CompositeOp here("tril");
    check_matrices("tril", x);
    const Places at = places(x, diagonal);
    return masked_fill(x, gt(at.column, at.on_diagonal), 0);
}
Tensor triu(const Tensor& x, std::int64_t diagonal) {
    const CompositeOp here("triu");
    check_matrices("triu", x);
    const Places at = places(x, diagonal);
    return masked_fill(x, lt(at.column, at.on_diagonal), 0);
}

Tensor diag(const Tensor& x, std::int64_t diagonal) {
    const CompositeOp here("diag");
    check_defined("diag", x);
    check(x.dim() == 1 || x.dim() == 2, ErrorKind::shape, "diag: ", x.shape(),
          " is neither a vector nor a matrix");
    constexpr std::int64_t end = std::int64_t(1) << 31;
    check(diagonal > -end && diagonal < end, ErrorKind::value, "diag: diagonal ", diagonal,
          " is out of range");
    return x.dim() == 1 ? diagonal_matrix(x, diagonal) : in_own_memory(diagonal_of(x, diagonal), x);
}

Tensor flip(const Tensor& x, const Axes& dims) {
    const CompositeOp here("flip");
    check_defined("flip", x, any_dtype);
    if (dims.empty()) return x.clone();
    Tensor y = x;
    for (const std::int64_t d : normal_axes("flip", dims, x.dim())) {
        if (x.dim() == 0) break;
        const std::int64_t n = x.size(d);
        y = index_select(y, d, double(n - 1) - arange(n, integers_on(x)));
    }
    return in_own_memory(y, x);
}

Tensor roll(const Tensor& x, std::int64_t shift) {
    const CompositeOp here("roll");
    check_defined("roll", x, any_dtype);
    return roll(x.reshape({x.numel()}), {shift}, {0}).reshape(x.shape());
}

Tensor roll(const Tensor& x, const std::vector<std::int64_t>& shifts, const Axes& dims) {
    const CompositeOp here("roll");
    check_defined("roll", x, any_dtype);
    check(std::int64_t(shifts.size()) == dims.size(), ErrorKind::value, "roll: ", shifts.size(),
          " shifts for ", dims.size(), " dimensions");
    Tensor y = x;
    for (int i = 0; i < dims.size(); ++i) {
        const int d = dim_to_part("roll", x, dims[i]);
        const std::int64_t n = x.size(d);
        const std::int64_t by = n == 0 ? 0 : (shifts[std::size_t(i)] % n + n) % n;
        if (by != 0) y = cat({y.slice(d, n - by, n), y.slice(d, 0, n - by)}, d);
    }
    return in_own_memory(y, x);
}

Tensor repeat(const Tensor& x, const Shape& counts) {
    const CompositeOp here("repeat");
    check_defined("repeat", x, any_dtype);
    const int added = counts.size() - x.dim();
    check(added >= 0, ErrorKind::shape, "repeat: ", counts, " has fewer numbers than ", x.shape(),
          " has dimensions");
    for (const std::int64_t count : counts) check_count("repeat", count);
    Shape shape = Shape::filled(added, 1);
    for (const std::int64_t size : x.shape()) shape.push_back(size);
    Tensor y = x.reshape(shape);
    for (int d = 0; d < counts.size(); ++d)
        if (counts[d] != 1) y = repeated(y, d, counts[d], false);
    return in_own_memory(y, x).contiguous();
}

Tensor repeat_interleave(const Tensor& x, std::int64_t count, std::int64_t dim) {
    const CompositeOp here("repeat_interleave");
    const int d = dim_to_part("repeat_interleave", x, dim);
    check_count("repeat_interleave", count);
    return in_own_memory(repeated(x, d, count, true), x).contiguous();
}

Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim) {
    const CompositeOp here("split");
    const int d = dim_to_part("split", x, dim);
    const std::int64_t n = x.size(d);
    check(size > 0 || (size == 0 && n == 0), ErrorKind::value, "split: parts of ", size, " elements");
    if (n == 0) return {x};
    Tensors parts;
    for (std::int64_t i = 0; i < n; i += std::min(size, n - i))
        parts.push_back(x.slice(d, i, std::min(n, i + std::min(size, n - i))));
    return parts;
}

Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
    const CompositeOp here("split");
    const int d = dim_to_part("split", x, dim);
    std::int64_t left = x.size(d);
    for (const std::int64_t size : sizes) {
        check(size >= 0 && size <= left, ErrorKind::value, "split: a part of ", size, " elements where ",
              left, " are left of ", x.size(d));
        left -= size;
    }
    check(left == 0, ErrorKind::value, "split: the sizes leave ", left, " of ", x.size(d), " elements");
    Tensors parts;
    std::int64_t start = 0;
    for (const std::int64_t size : sizes) {
        parts.push_back(x.slice(d, start, start + size));
        start += size;
    }
    return parts;
}

Tensors chunk(const Tensor& x, std::int64_t count, std::int64_t dim) {
    const CompositeOp here("chunk");
    const int d = dim_to_part("chunk", x, dim);
    check(count > 0, ErrorKind::value, "chunk: ", count, " parts");
    const std::int64_t n = x.size(d);
    if (n == 0) return Tensors(std::size_t(count), x);
    return split(x, std::max<std::int64_t>(1, n / count + (n % count != 0)), d);
}

Tensors unbind(const Tensor& x, std::int64_t dim) {
    const CompositeOp here("unbind");
    const int d = dim_to_part("unbind", x, dim);
    Tensors parts;
    for (std::int64_t i = 0; i < x.size(d); ++i) parts.push_back(x.select(d, i));
    return parts;
}

Tensors meshgrid(const Tensors& tensors, MeshgridOptions options) {
    const CompositeOp here("meshgrid");
    check(!tensors.empty(), ErrorKind::value, "meshgrid: the list of tensors is empty");
    check_enumerator("meshgrid", "indexing", options.indexing, MeshIndexing::xy);
    Shape shape;
    for (const Tensor& x : tensors) {
        check_defined("meshgrid", x, any_dtype);
        check(x.dim() <= 1, ErrorKind::shape, "meshgrid: ", x.shape(), " is not a vector");
        check(x.dtype() == tensors[0].dtype(), ErrorKind::dtype, "meshgrid: tensors are ", tensors[0].dtype(),
              " and ", x.dtype(), "; convert one with to()");
        shape.push_back(x.numel());
    }
    const bool swapped = options.indexing == MeshIndexing::xy && shape.size() > 1;
    Tensors grid;
    for (int i = 0; i < shape.size(); ++i) {
        Shape along = Shape::filled(shape.size(), 1);
        along[i] = shape[i];
        const Tensor x = tensors[std::size_t(i)].reshape(along).expand(shape);
        grid.push_back(swapped ? x.transpose(0, 1) : x);
    }
    return grid;
}

Tensor diff(const Tensor& x, std::int64_t n, std::int64_t dim, const DiffOptions& options) {
    const CompositeOp here("diff");
    check_defined("diff", x);
    const int d = dim_to_part("diff", x, dim);
    check(n >= 0, ErrorKind::value, "diff: n is ", n, "; it must not be negative");
    if (n == 0) return x.clone();
    Tensors parts;
    for (const Tensor& part : {options.prepend, x, options.append})
        if (part.defined()) parts.push_back(part);
    Tensor y = parts.size() > 1 ? cat(parts, d) : x;
    for (std::int64_t i = std::min(n, y.size(d)); i > 0; --i) {
        const std::int64_t size = y.size(d);
        const Tensor later = y.slice(d, 1, size), earlier = y.slice(d, 0, size - 1);
        y = x.dtype() == boolean ? ne(later, earlier) : later - earlier;
    }
    return y;
}

}  // namespace mezzo
