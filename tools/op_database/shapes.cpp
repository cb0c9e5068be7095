// Functions that make, join, cut and arrange tensors.
#include <algorithm>

#include "tools/op_database/call.h"

namespace database {

namespace {

mz::TensorOptions options(const Call& c, mz::Dtype otherwise) {
    return {.dtype = c.dtype("dtype", 99).value_or(otherwise)};
}

std::int64_t wrapped(std::int64_t dim, std::int64_t dims) {
    return dim < 0 ? dim + std::max<std::int64_t>(dims, 1) : dim;
}

// Moves dimensions to new positions; the others keep their order.
Tensor moved(const Tensor& x, const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to) {
    std::vector<std::int64_t> order(std::size_t(x.dim()), -1);
    std::vector<bool> taken(order.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
        order.at(std::size_t(wrapped(to.at(i), x.dim()))) = wrapped(from[i], x.dim());
        taken.at(std::size_t(wrapped(from[i], x.dim()))) = true;
    }
    std::size_t next = 0;
    for (auto& position : order) {
        if (position >= 0) continue;
        while (taken[next]) ++next;
        position = std::int64_t(next++);
    }
    return order.empty() ? x : x.permute(mz::Axes(order.data(), int(order.size())));
}

Tensor squeezed(Tensor x, std::vector<std::int64_t> dims, bool all) {
    if (all)
        for (int i = 0; i < x.dim(); ++i) dims.push_back(i);
    for (auto& dim : dims) dim = wrapped(dim, x.dim());
    std::sort(dims.rbegin(), dims.rend());
    for (const std::int64_t dim : dims)
        if (x.dim() && x.size(dim) == 1) x = x.squeeze(dim);
    return x;
}

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
    const Tensor y = moved(x, {dim1, dim2}, {-2, -1});
    const std::int64_t rows = y.size(-2), columns = y.size(-1);
    const std::int64_t first = offset < 0 ? -offset * columns : offset;
    const std::int64_t count = std::max<std::int64_t>(
        0, std::min(rows + std::min<std::int64_t>(offset, 0), columns - std::max<std::int64_t>(offset, 0)));
    return mz::index_select(y.flatten(-2), -1, mz::arange(count) * (columns + 1) + first);
}

// PyTorch's atleast_1d, _2d and _3d.
Tensor at_least(Tensor x, int dims) {
    if (x.dim() == 0) x = x.unsqueeze(0);
    if (dims >= 2 && x.dim() == 1) x = x.unsqueeze(0);
    if (dims >= 3 && x.dim() == 2) x = x.unsqueeze(-1);
    return x;
}
Tensors at_least(const Call& c, int dims) {
    Tensors all;
    for (const Tensor& x :
         c.is_list("tensors", 0) || c.positional() > 1 ? c.tensors("tensors", 0) : Tensors{c.x()})
        all.push_back(at_least(x, dims));
    return all;
}

Tensors sections(const Tensor& x, const Call& c, std::size_t position, std::int64_t dim) {
    const std::string name = c.has("indices", position) ? "indices" : "sections";
    const std::int64_t size = x.size(dim);
    std::vector<std::int64_t> sizes;
    if (c.is_tensor("tensor_indices_or_sections", position)) throw NotHere("sections from a tensor");
    if (c.is_list(name, position)) {
        std::int64_t before = 0;
        for (std::int64_t end : c.integers(name, position)) {
            end = std::clamp<std::int64_t>(end < 0 ? end + size : end, 0, size);
            sizes.push_back(std::max<std::int64_t>(end - before, 0));
            before = std::max(end, before);
        }
        sizes.push_back(size - before);
    } else {
        const std::int64_t count = c.integer(name, position, 1);
        for (std::int64_t i = 0; i < count; ++i) sizes.push_back(size / count + (i < size % count ? 1 : 0));
    }
    return mz::split(x, sizes, dim);
}

Table views() {
    return {
        OP("view", {c.x().reshape(c.sizes("size", 1))}),
        OP("reshape", {c.x().reshape(c.sizes("shape", 1))}),
        OP("view_as", {c.x().reshape(c.x(1).shape())}),
        OP("reshape_as", {c.x().reshape(c.x(1).shape())}),
        OP("permute", {c.x().permute(c.sizes("dims", 1))}),
        OP("transpose", {c.x().transpose(c.integer("dim0", 1, 0), c.integer("dim1", 2, 1))}),
        OP("t", {c.x().dim() < 2 ? c.x() : c.x().t()}),
        OP("T", {c.x().dim() < 2 ? c.x() : c.x().t()}),
        OP("mT", {c.x().transpose(-2, -1)}),
        OP("movedim", {moved(c.x(), c.integers("source", 1), c.integers("destination", 2))}),
        OP("squeeze", {squeezed(c.x(), c.integers("dim", 1), !c.has("dim", 1))}),
        OP("unsqueeze", {c.x().unsqueeze(c.integer("dim", 1, 0))}),
        OP("expand", {c.x().expand(c.sizes("size", 1))}),
        OP("expand_as", {c.x().expand(c.x(1).shape())}),
        OP("broadcast_to", {c.x().expand(c.sizes("size", 1))}),
        OP("flatten", {c.x().flatten(c.integer("start_dim", 1, 0), c.integer("end_dim", 2, -1))}),
        OP("ravel", {c.x().reshape({-1})}),
        OP("narrow",
           {c.x().slice(c.integer("dim", 1, 0),
                        c.is_tensor("start", 2) ? c.x(2).item<std::int64_t>() : c.integer("start", 2, 0),
                        (c.is_tensor("start", 2) ? c.x(2).item<std::int64_t>() : c.integer("start", 2, 0)) +
                            c.integer("length", 3, 0))}),
        OP("select", {c.x().select(c.integer("dim", 1, 0), c.integer("index", 2, 0))}),
        OP("slice", {c.x().slice(c.integer("dim", 1, 0), c.integer("start", 2, 0),
                                 c.integer("end", 3, mz::Slice::to_end), c.integer("step", 4, 1))}),
        OP("diagonal",
           {diagonal(c.x(), c.integer("offset", 1, 0), c.integer("dim1", 2, 0), c.integer("dim2", 3, 1))}),
        OP("linalg.diagonal", {diagonal(c.x(), c.integer("offset", 99, 0), c.integer("dim1", 99, -2),
                                        c.integer("dim2", 99, -1))}),
        OP("contiguous", {c.x().contiguous()}),
        OP("clone", {c.x().clone()}),
        OP("unbind", mz::unbind(c.x(), c.integer("dim", 1, 0))),
        OP("split", c.is_list("split_size", 1)
                        ? mz::split(c.x(), c.integers("split_size", 1), c.integer("dim", 2, 0))
                        : mz::split(c.x(), c.integer("split_size", 1, 1), c.integer("dim", 2, 0))),
        OP("split_with_sizes", mz::split(c.x(), c.integers("split_sizes", 1), c.integer("dim", 2, 0))),
        OP("unsafe_split", mz::split(c.x(), c.integer("split_size", 1, 1), c.integer("dim", 2, 0))),
        OP("chunk", mz::chunk(c.x(), c.integer("chunks", 1, 1), c.integer("dim", 2, 0))),
        OP("unsafe_chunk", mz::chunk(c.x(), c.integer("chunks", 1, 1), c.integer("dim", 2, 0))),
        OP("tensor_split", sections(c.x(), c, 1, c.integer("dim", 2, 0))),
        OP("hsplit", sections(c.x(), c, 1, c.x().dim() == 1 ? 0 : 1)),
        OP("vsplit", sections(c.x(), c, 1, 0)),
        OP("dsplit", sections(c.x(), c, 1, 2)),
        OP("atleast_1d", at_least(c, 1)),
        OP("atleast_2d", at_least(c, 2)),
        OP("atleast_3d", at_least(c, 3)),
    };
}

Tensors each_at_least(const Call& c, int dims) {
    Tensors all;
    for (const Tensor& x : c.tensors("tensors", 0)) all.push_back(at_least(x, dims));
    return all;
}
Tensor side_by_side(const Call& c) {
    const Tensors all = each_at_least(c, 1);
    return mz::cat(all, all.at(0).dim() == 1 ? 0 : 1);
}
Tensor columns(const Call& c) {
    Tensors all;
    for (const Tensor& x : c.tensors("tensors", 0)) all.push_back(x.dim() < 2 ? x.reshape({-1, 1}) : x);
    return mz::cat(all, 1);
}

std::vector<mz::Padding> padding(const Call& c) {
    const auto list = c.integers("pad", 1);
    std::vector<mz::Padding> result;
    for (std::size_t i = 0; i + 1 < list.size(); i += 2)
        result.push_back({-1 - std::int64_t(i / 2), list[i], list[i + 1]});
    return result;
}
Tensor padded(const Call& c) {
    const std::map<std::string, mz::PadMode> modes{{"constant", mz::PadMode::constant},
                                                   {"reflect", mz::PadMode::reflect},
                                                   {"replicate", mz::PadMode::replicate},
                                                   {"circular", mz::PadMode::circular}};
    return mz::pad(c.x(), padding(c), modes.at(c.text("mode", 2, "constant")), c.scalar("value", 3, 0));
}

// x.repeat() with leading ones where there are more counts than dimensions, or fewer for tile().
Tensor tiled(const Tensor& x, const mz::Shape& counts) {
    mz::Shape all = counts;
    while (all.size() < x.dim()) all.insert(0, 1);
    return mz::repeat(x, all);
}

Tensor rotated(Tensor x, std::int64_t times, std::vector<std::int64_t> dims) {
    if (dims.empty()) dims = {0, 1};
    times = ((times % 4) + 4) % 4;
    if (times == 2) return mz::flip(x, {dims.at(0), dims.at(1)});
    if (times == 1) return mz::flip(x, {dims.at(1)}).transpose(dims.at(0), dims.at(1));
    if (times == 3) return mz::flip(x.transpose(dims.at(0), dims.at(1)), {dims.at(1)});
    return x;
}

Tensors meshgrid(const Call& c) {
    return mz::meshgrid(
        c.tensors("tensors", 0),
        {.indexing = c.text("indexing", 99, "ij") == "xy" ? mz::MeshIndexing::xy : mz::MeshIndexing::ij});
}

// Lines along the last dimension as diagonals of matrices.
Tensor embedded(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
    const std::int64_t n = x.size(-1) + std::abs(offset);
    const Tensor wide = mz::pad(x, {{-1, offset < 0 ? 0 : offset, offset < 0 ? -offset : 0}});
    const Tensor ones = mz::triu(mz::tril(mz::ones({n, n}, {.dtype = mz::boolean}), offset), offset);
    return moved(mz::where(ones, wide.unsqueeze(-2), mz::zeros({}, {.dtype = x.dtype()})), {-2, -1},
                 {dim1, dim2});
}

Tensors broadcast(const Call& c) {
    const Tensors all = c.tensors("tensors", 0);
    Tensor sum = mz::zeros({});
    for (const Tensor& x : all) sum = sum + mz::zeros_like(x.detach()).to(mz::float32);
    Tensors result;
    for (const Tensor& x : all) result.push_back(x.expand(sum.shape()));
    return result;
}

Tensor unflatten(const Call& c) {
    const std::int64_t dim = wrapped(c.integer("dim", 1, 0), c.x().dim());
    mz::Shape shape;
    for (int i = 0; i < c.x().dim(); ++i)
        if (i == dim)
            for (const std::int64_t size : c.integers("sizes", 2)) shape.push_back(size);
        else
            shape.push_back(c.x().size(i));
    return c.x().reshape(shape);
}

// Windows along a dimension, their elements in a new last one.
Tensor windows(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step) {
    if (x.dim() == 0) return mz::stack(Tensors(std::size_t(size), x), -1);
    if (size > x.size(dim)) throw std::invalid_argument("a window is larger than the tensor");
    Tensors all;
    for (std::int64_t i = 0; i + size <= x.size(dim); i += step)
        all.push_back(moved(x.slice(dim, i, i + size), {dim}, {-1}));
    return mz::stack(all, wrapped(dim, x.dim()));
}

Table arranged() {
    return {
        OP("cat", {mz::cat(c.tensors("tensors", 0), c.integer("dim", 1, 0))}),

        OP("stack", {mz::stack(c.tensors("tensors", 0), c.integer("dim", 1, 0))}),
        OP("hstack", {side_by_side(c)}),
        OP("vstack", {mz::cat(each_at_least(c, 2), 0)}),
        OP("dstack", {mz::cat(each_at_least(c, 3), 2)}),
        OP("column_stack", {columns(c)}),
        OP("meshgrid", meshgrid(c)),
        OP("diff", {mz::diff(c.x(), c.integer("n", 1, 1), c.integer("dim", 2, -1),
                             {.prepend = c.tensor("prepend", 3), .append = c.tensor("append", 4)})}),
        OP("diag_embed",
           {embedded(c.x(), c.integer("offset", 1, 0), c.integer("dim1", 2, -2), c.integer("dim2", 3, -1))}),
        OP("broadcast_tensors", broadcast(c)),
        OP("unflatten", {unflatten(c)}),
        OP("Tensor.unfold",
           {windows(c.x(), c.integer("dimension", 1, 0), c.integer("size", 2, 1), c.integer("step", 3, 1))}),
        OP("tril", {mz::tril(c.x(), c.integer("diagonal", 1, 0))}),
        OP("triu", {mz::triu(c.x(), c.integer("diagonal", 1, 0))}),
        OP("diag", {mz::diag(c.x(), c.integer("diagonal", 1, 0))}),
        OP("diagflat", {mz::diag(c.x().reshape({-1}), c.integer("offset", 1, 0))}),
        OP("flip", {mz::flip(c.x(), c.sizes("dims", 1))}),
        OP("fliplr", {mz::flip(c.x(), {1})}),
        OP("flipud", {mz::flip(c.x(), {0})}),
        OP("roll", {c.has("dims", 2) ? mz::roll(c.x(), c.integers("shifts", 1), c.axes("dims", 2))
                                     : mz::roll(c.x(), c.integers("shifts", 1).at(0))}),
        OP("rot90", {rotated(c.x(), c.integer("k", 1, 1), c.integers("dims", 2))}),
        OP("repeat", {mz::repeat(c.x(), c.sizes("repeats", 1))}),
        OP("tile", {tiled(c.x(), c.sizes("dims", 1))}),
        OP("repeat_interleave",
           {c.is_tensor("repeats", 1)
                ? mz::repeat_interleave(c.has("dim", 2) ? c.x() : c.x().reshape({-1}), c.x(1),
                                        c.integer("dim", 2, 0))
                : mz::repeat_interleave(c.has("dim", 2) ? c.x() : c.x().reshape({-1}),
                                        c.integer("repeats", 1, 1), c.integer("dim", 2, 0))}),
        OP("pad", {padded(c)}),
        OP("constant_pad_nd", {mz::pad(c.x(), padding(c), mz::PadMode::constant, c.scalar("value", 2, 0))}),
        OP("to", {c.x().to(c.dtype("dtype", 1).value_or(c.x().dtype()))}),
        OP("float", {c.x().to(mz::float32)}),
        OP("double", {c.x().to(mz::float64)}),
        OP("half", {c.x().to(mz::float16)}),
        OP("bfloat16", {c.x().to(mz::bfloat16)}),
        OP("long", {c.x().to(mz::int64)}),
        OP("int", {c.x().to(mz::int32)}),
        OP("bool", {c.x().to(mz::boolean)}),
        OP("byte", {c.x().to(mz::uint8)}),
        OP("fill", {mz::full_like(c.x(), c.scalar("value", 1, 0))}),
        OP("zero_", {mz::zeros_like(c.x())}),
    };
}

// Float, int and bool inputs have these dtypes where PyTorch takes them from the value.
mz::Dtype of_value(const Json& value) {
    return value.is_number_integer() ? mz::int64 : value.is_boolean() ? mz::boolean : mz::float32;
}

Table made() {
    return {
        OP("zeros", {mz::zeros(c.sizes("size", 0), options(c, mz::float32))}),
        OP("ones", {mz::ones(c.sizes("size", 0), options(c, mz::float32))}),
        OP("full", {mz::full(c.axes("size", 0), c.scalar("fill_value", 1, 0),
                             options(c, of_value(c.json("fill_value", 1))))}),
        OP("zeros_like", {mz::zeros_like(c.x()).to(c.dtype("dtype", 99).value_or(c.x().dtype()))}),
        OP("ones_like", {mz::ones_like(c.x()).to(c.dtype("dtype", 99).value_or(c.x().dtype()))}),
        OP("full_like", {mz::full_like(c.x().to(c.dtype("dtype", 99).value_or(c.x().dtype())),
                                       c.scalar("fill_value", 1, 0))}),
        OP("new_zeros", {mz::zeros(c.sizes("size", 1), options(c, c.x().dtype()))}),
        OP("new_ones", {mz::ones(c.sizes("size", 1), options(c, c.x().dtype()))}),
        OP("new_full",
           {mz::full(c.axes("size", 1), c.scalar("fill_value", 2, 0), options(c, c.x().dtype()))}),
        OP("scalar_tensor", {mz::scalar(c.scalar("s", 0, 0), options(c, mz::float32))}),
        OP("eye",
           {c.has("m", 1) ? mz::eye(c.integer("n", 0, 0), c.integer("m", 1, 0), options(c, mz::float32))
                          : mz::eye(c.integer("n", 0, 0), options(c, mz::float32))}),
        OP("arange",
           {c.positional() == 1
                ? mz::arange_of(0, c.scalar("end", 0, 0), 1, options(c, of_value(c.json("end", 0))))
                : mz::arange_of(
                      c.scalar("start", 0, 0), c.scalar("end", 1, 0), c.scalar("step", 2, 1),
                      options(c, of_value(c.json("start", 0)) == mz::int64 &&
                                         of_value(c.json("end", 1)) == mz::int64 &&
                                         (!c.has("step", 2) || of_value(c.json("step", 2)) == mz::int64)
                                     ? mz::int64
                                     : mz::float32))}),
        OP("linspace", {mz::linspace(c.scalar("start", 0, 0), c.scalar("end", 1, 0), c.integer("steps", 2, 0),
                                     options(c, mz::float32))}),
        OP("logspace", {mz::pow(mz::scalar(c.number("base", 3, 10), {.dtype = mz::float64}),
                                mz::linspace(c.scalar("start", 0, 0), c.scalar("end", 1, 0),
                                             c.integer("steps", 2, 0), {.dtype = mz::float64}))
                            .to(c.dtype("dtype", 99).value_or(mz::float32))}),
        OP("tril_indices", {mz::nonzero(mz::tril(mz::ones({c.integer("row", 0, 0), c.integer("col", 1, 0)}),
                                                 c.integer("offset", 2, 0)))
                                .t()}),
        OP("triu_indices", {mz::nonzero(mz::triu(mz::ones({c.integer("row", 0, 0), c.integer("col", 1, 0)}),
                                                 c.integer("offset", 2, 0)))
                                .t()}),
    };
}

}  // namespace

Table shapes() {
    Table table = views();
    for (const Table& more : {arranged(), made()}) table.insert(more.begin(), more.end());
    return table;
}

}  // namespace database
