// Views: new shapes and strides on the same storage.
#include "kernels/copy.h"
#include "kernels/dispatch.h"
#include "ops/common.h"
#include "ops/view_attributes.h"

#include <algorithm>
#include <optional>

namespace mezzo {

namespace {

const KernelOf<kernels::CopyInto> copy_into;

// Zeros of the input's shape, with g in the elements that the slice selects.
Tensor slice_grad(const Tensor& g, const SliceAt& at);
Tensor part_grad(const Node& c, const SliceAt& at, const Tensor& g);

Tensor raw_view(const Tensor& x, const Shape& shape, const Strides& strides, std::int64_t offset = 0) {
    return make_tensor(x->storage, shape, strides, x->offset + offset, x.dtype());
}

// `count` elements of dimension dim, from start on, `step` apart. Not recorded.
Tensor raw_slice(const Tensor& x, int dim, std::int64_t start, std::int64_t step, std::int64_t count) {
    Shape shape = x.shape();
    Strides strides = x.strides();
    const std::int64_t offset = count > 0 ? start * strides[dim] : 0;
    shape[dim] = count;
    if (count > 1) strides[dim] *= step;  // step is less than the dimension's size: no overflow
    return raw_view(x, shape, strides, offset);
}

const Op<NoAttributes> reshape_op{
    {.name = "reshape", .saves = save_none, .strided = true},
    [](const Node& c, const Tensors& g) -> Tensors { return {g[0].reshape(c.inputs[0].shape)}; }};

const Op<Permute> permute_op{{.name = "permute", .saves = save_none, .strided = true},
                             [](const Node&, const Permute& at, const Tensors& g) -> Tensors {
                                 Axes inverse = at.axes;
                                 for (int d = 0; d < inverse.size(); ++d) inverse[int(at.axes[d])] = d;
                                 return {g[0].permute(inverse)};
                             }};

const Op<SliceAt> slice_op{
    {.name = "slice", .saves = save_none, .strided = true},
    [](const Node& c, const SliceAt& at, const Tensors& g) -> Tensors { return {part_grad(c, at, g[0])}; }};

const Op<SliceAt> slice_grad_op{{.name = "slice_grad", .saves = save_none, .strided = true},
                                [](const Node& c, const SliceAt& at, const Tensors& g) -> Tensors {
                                    const std::int64_t count = c.inputs[0].shape[at.dim];
                                    const std::int64_t end =
                                        at.start + std::max<std::int64_t>(count - 1, 0) * at.step + 1;
                                    return {g[0].slice(at.dim, at.start, count ? end : at.start, at.step)};
                                }};

const Op<SliceAt> select_op{{.name = "select", .saves = save_none, .strided = true},
                            [](const Node& c, const SliceAt& at, const Tensors& g) -> Tensors {
                                return {part_grad(c, at, g[0].unsqueeze(at.dim))};
                            }};

const Op<NoAttributes> expand_op{
    {.name = "expand", .saves = save_none, .strided = true},
    [](const Node& c, const Tensors& g) -> Tensors { return {sum_to(g[0], c.inputs[0].shape)}; }};

Tensor slice_grad(const Tensor& g, const SliceAt& at) {
    Shape shape = g.shape();
    shape[at.dim] = at.size;
    const Tensor full = zeros(shape, {.dtype = g.dtype(), .device = g.device()});
    if (g.numel() > 0) copy_into(In(&g, 1), {}, raw_slice(full, at.dim, at.start, at.step, g.size(at.dim)));
    return record_view(slice_grad_op, g, at, full);
}

// The gradient of x from that of a part. It is added to the part of x's gradient if there is one already, so
// that all parts of x share one gradient.
Tensor part_grad(const Node& c, const SliceAt& at, const Tensor& g) {
    Tensor sum = g.dtype() == float32 ? c.accumulator(0) : Tensor();
    const bool is_leaf = sum.defined();
    if (!is_leaf) sum = c.take_accumulated(0, true);
    if (!sum.defined()) return slice_grad(g, at);
    if (sum.dtype() != g.dtype()) return sum + slice_grad(g, at);
    raw_slice(sum, at.dim, at.start, at.step, g.size(at.dim)).add_(g);
    return is_leaf ? Tensor() : sum;
}

// The requested shape with its -1 replaced.
Shape complete_shape(const Shape& wanted, const Tensor& x) {
    Shape shape = wanted;
    int unknown = -1;
    for (int d = 0; d < shape.size(); ++d) {
        check(shape[d] >= -1, ErrorKind::shape, "reshape: size ", shape[d], " in ", wanted, " is negative");
        check(shape[d] != -1 || unknown < 0, ErrorKind::shape, "reshape: more than one -1 in ", wanted);
        if (shape[d] == -1) shape[unknown = d] = 1;
    }
    const std::int64_t known = checked_numel("reshape", shape, size_of(x.dtype()));
    if (unknown >= 0 && known > 0) shape[unknown] = x.numel() / known;
    const bool fits = unknown < 0 || known > 0;
    check(fits && checked_numel("reshape", shape, size_of(x.dtype())) == x.numel(), ErrorKind::shape,
          "reshape: ", x.shape(), " has ", x.numel(), " elements, which do not fit ", wanted);
    return shape;
}

// Strides of `shape` over the elements of x, if its strides allow them. Dimensions of x are merged into runs
// that are evenly spaced in memory; every run must be cut exactly by sizes of the new shape.
std::optional<Strides> view_strides(const Tensor& x, const Shape& shape) {
    if (x.is_contiguous() || x.numel() == 0) return contiguous_strides(shape);
    Strides strides = Strides::filled(shape.size(), 1);
    int next = shape.size() - 1;
    std::int64_t run = 1, spacing = 0;
    bool open = false;
    const auto cut = [&] {
        std::int64_t step = spacing, covered = 1;
        while (next >= 0 && covered < run) {
            strides[next] = step;
            covered *= shape[next];
            step *= shape[next--];
        }
        return covered == run;
    };
    for (int d = x.dim() - 1; d >= 0; --d) {
        if (x.size(d) == 1) continue;
        if (open && x.strides()[d] == spacing * run) {
            run *= x.size(d);
            continue;
        }
        if (open && !cut()) return std::nullopt;
        run = x.size(d);
        spacing = x.strides()[d];
        open = true;
    }
    if (open && !cut()) return std::nullopt;
    return strides;  // the remaining dimensions have size 1
}

Tensor as_shape(const Tensor& x, const Shape& shape, const Strides& strides) {
    return recorded_view(reshape_op, x, NoAttributes(), raw_view(x, shape, strides));
}

}  // namespace

Tensor Tensor::reshape(const Shape& wanted) const {
    check_defined("reshape", *this, any_dtype);
    const Shape target = complete_shape(wanted, *this);
    if (target == shape()) return *this;
    if (const auto strides = view_strides(*this, target)) return as_shape(*this, target, *strides);
    return as_shape(contiguous(), target, contiguous_strides(target));
}

Tensor Tensor::permute(const Axes& axes) const {
    check_defined("permute", *this, any_dtype);
    check(axes.size() == dim(), ErrorKind::shape, "permute: ", axes, " does not list the ", dim(),
          " dimensions of ", shape());
    Permute at;
    Shape new_shape;
    Strides new_strides;
    bool used[max_dims] = {};
    for (std::int64_t axis : axes) {
        const int d = wrap_dim("permute", axis, dim());
        check(!used[d], ErrorKind::shape, "permute: dimension ", d, " is listed twice in ", axes);
        used[d] = true;
        at.axes.push_back(d);
        new_shape.push_back(shape()[d]);
        new_strides.push_back(strides()[d]);
    }
    return recorded_view(permute_op, *this, at, raw_view(*this, new_shape, new_strides));
}

Tensor Tensor::transpose(std::int64_t dim0, std::int64_t dim1) const {
    check_defined("transpose", *this, any_dtype);
    const int a = wrap_dim("transpose", dim0, dim()), b = wrap_dim("transpose", dim1, dim());
    if (a == b) return *this;
    Axes axes;
    for (int d = 0; d < dim(); ++d) axes.push_back(d == a ? b : d == b ? a : d);
    return permute(axes);
}

Tensor Tensor::t() const {
    check_defined("t", *this, any_dtype);
    check(dim() == 2, ErrorKind::shape, "t: needs a matrix, got ", shape(), "; use transpose(dim0, dim1)");
    return permute({1, 0});
}

Tensor Tensor::slice(std::int64_t along, std::int64_t start, std::int64_t end, std::int64_t step) const {
    check_defined("slice", *this, any_dtype);
    check(dim() > 0, ErrorKind::shape, "slice: a 0-dim tensor has no dimension to slice");
    check(step > 0, ErrorKind::value, "slice: step ", step, " is not positive; flip() reverses a dimension");
    const int d = wrap_dim("slice", along, dim());
    const std::int64_t n = shape()[d];
    const auto within = [n](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + n : i, 0, n); };
    start = within(start);
    end = std::max(start, within(end));
    const std::int64_t count = end > start ? (end - start - 1) / step + 1 : 0;
    if (count == n) return *this;
    return recorded_view(slice_op, *this, SliceAt{.dim = d, .start = start, .step = step, .size = n},
                         raw_slice(*this, d, start, step, count));
}

Tensor Tensor::select(std::int64_t along, std::int64_t index) const {
    check_defined("select", *this, any_dtype);
    check(dim() > 0, ErrorKind::shape, "select: a 0-dim tensor has no dimension to index; use item()");
    const int d = wrap_dim("select", along, dim());
    const std::int64_t n = shape()[d], i = index < 0 ? index + n : index;
    check(i >= 0 && i < n, ErrorKind::shape, "select: index ", index, " is outside dimension ", d, " of ",
          shape());
    Shape rest = shape();
    Strides rest_strides = strides();
    const std::int64_t offset = i * rest_strides[d];
    rest.erase(d);
    rest_strides.erase(d);
    return recorded_view(select_op, *this, SliceAt{.dim = d, .start = i, .step = 1, .size = n},
                         raw_view(*this, rest, rest_strides, offset));
}

Tensor Tensor::squeeze(std::int64_t along) const {
    check_defined("squeeze", *this, any_dtype);
    const int d = wrap_dim("squeeze", along, dim());
    if (dim() == 0 || shape()[d] != 1) return *this;
    Shape new_shape = shape();
    Strides new_strides = strides();
    new_shape.erase(d);
    new_strides.erase(d);
    return as_shape(*this, new_shape, new_strides);
}

Tensor Tensor::unsqueeze(std::int64_t along) const {
    check_defined("unsqueeze", *this, any_dtype);
    const int d = wrap_dim("unsqueeze", along, dim() + 1);
    Shape new_shape = shape();
    Strides new_strides = strides();
    const std::int64_t stride = d < dim() ? shape()[d] * strides()[d] : 1;
    new_shape.insert(d, 1);
    new_strides.insert(d, stride);
    return as_shape(*this, new_shape, new_strides);
}

Tensor Tensor::expand(const Shape& wanted) const {
    check_defined("expand", *this, any_dtype);
    const int added = wanted.size() - dim();
    check(added >= 0, ErrorKind::shape, "expand: ", wanted, " has fewer dimensions than ", shape());
    Shape new_shape = wanted;
    Strides new_strides = Strides::filled(wanted.size(), 0);
    for (int d = 0; d < wanted.size(); ++d) {
        const std::int64_t own = d < added ? 1 : shape()[d - added];
        if (wanted[d] == -1 && d >= added) new_shape[d] = own;
        check(new_shape[d] >= 0 && (own == 1 || new_shape[d] == own), ErrorKind::shape, "expand: ", shape(),
              " does not broadcast to ", wanted);
        if (d >= added && new_shape[d] == own) new_strides[d] = strides()[d - added];
    }
    if (new_shape == shape()) return *this;
    checked_numel("expand", new_shape, size_of(dtype()));
    return recorded_view(expand_op, *this, NoAttributes(), raw_view(*this, new_shape, new_strides));
}

Tensor Tensor::flatten(std::int64_t start_dim, std::int64_t end_dim) const {
    check_defined("flatten", *this, any_dtype);
    const int first = wrap_dim("flatten", start_dim, dim()), last = wrap_dim("flatten", end_dim, dim());
    if (dim() == 0) return reshape({1});
    check(first <= last, ErrorKind::shape, "flatten: start_dim ", start_dim, " is after end_dim ", end_dim);
    Shape flat;
    for (int d = 0; d < dim(); ++d) {
        if (d > first && d <= last)
            flat.back() *= shape()[d];
        else
            flat.push_back(shape()[d]);
    }
    return reshape(flat);
}

}  // namespace mezzo
