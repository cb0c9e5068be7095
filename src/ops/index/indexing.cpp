// x[{...}] and index_put(). Each entry but tensors is a view of one dimension. Tensors become an index of the
// dimensions that they take, flattened to one.
#include <algorithm>

#include "autograd/op_observer.h"
#include "mezzo/index_ops.h"
#include "mezzo/shape_ops.h"
#include "ops/index/index_common.h"

namespace mezzo {

namespace {

using Entries = std::span<const Index>;

// A tensor among the entries: int64, not negative, and the dimension of the view that it takes.
struct Lookup {
    int dim;
    Tensor index;
};
// x after all entries but tensors.
struct Selection {
    Tensor view;
    std::vector<Lookup> lookups;
};

bool is_mask(const Tensor& entry) { return entry.dtype() == boolean; }

// Dimensions of x that an entry takes.
int dimensions_of(const Index& entry) {
    switch (entry.kind()) {
        case Index::Kind::number:
        case Index::Kind::range:
            return 1;
        case Index::Kind::tensor:
            check_defined("index", entry.tensor());
            return is_mask(entry.tensor()) ? entry.tensor().dim() : 1;
        default:
            return 0;
    }
}

// Dimensions that the ellipsis stands for, or that are left at the end.
int check_entries(const Tensor& x, Entries entries) {
    int named = 0, ellipses = 0;
    for (const Index& entry : entries) {
        named += dimensions_of(entry);
        ellipses += entry.kind() == Index::Kind::dots;
    }
    check(named <= x.dim(), ErrorKind::shape, "index: ", named, " entries for the ", x.dim(),
          " dimensions of ", x.shape());
    check(ellipses <= 1, ErrorKind::shape, "index: more than one ellipsis");
    return x.dim() - named;
}

// Adds a look-up of dimension `at` of the view, `taken` of x. Returns the next dimension.
int add_tensor(Selection& s, const Tensor& x, const Tensor& entry, int at, int taken) {
    if (is_mask(entry)) {
        const int dims = entry.dim();
        for (int d = 0; d < dims; ++d)
            check(entry.size(d) == x.size(taken + d), ErrorKind::shape, "index: mask ", entry.shape(),
                  " does not fit ", x.shape(), " from dimension ", taken, " on");
        if (dims == 0) s.view = s.view.unsqueeze(at);
        if (dims > 1) s.view = s.view.flatten(at, at + dims - 1);
        s.lookups.push_back({at, nonzero(entry.reshape({entry.numel()})).reshape({-1})});
        return at + 1;
    }
    const Tensor index = wrapped_index("index", int64_index("index", entry), s.view.size(at));
    if (entry.dim() == 0) {
        s.view = index_select(s.view, at, index).squeeze(at);
        return at;
    }
    s.lookups.push_back({at, index});
    return at + 1;
}

Selection select(const Tensor& x, Entries entries) {
    const int rest = check_entries(x, entries);
    Selection s{x, {}};
    int at = 0;     // the dimension of the view for the next entry
    int taken = 0;  // the same of x, for errors
    for (const Index& entry : entries) {
        switch (entry.kind()) {
            case Index::Kind::number: {
                const std::int64_t i = entry.integer(), n = s.view.size(at);
                check(i >= -n && i < n, ErrorKind::shape, "index: ", i, " is out of range for dimension ",
                      taken, " of ", x.shape(), "; it must be in [", -n, ", ", n, ")");
                s.view = s.view.select(at, i);
                break;
            }
            case Index::Kind::range:
                s.view = s.view.slice(at++, entry.slice().start, entry.slice().stop, entry.slice().step);
                break;
            case Index::Kind::dots:
                at += rest;
                taken += rest;
                break;
            case Index::Kind::axis:
                s.view = s.view.unsqueeze(at++);
                break;
            case Index::Kind::tensor:
                at = add_tensor(s, x, entry.tensor(), at, taken);
                break;
        }
        taken += dimensions_of(entry);
    }
    return s;
}

// Several look-ups as one of flattened dimensions, those of s.view from s.lookups[0].dim on.
Tensor joined(Selection& s, const Shape& shape) {
    const int count = int(s.lookups.size());
    int first = s.lookups[0].dim;
    if (s.lookups.back().dim - first != count - 1) {  // apart: they come first
        Axes axes;
        for (const Lookup& l : s.lookups) axes.push_back(l.dim);
        for (int d = 0; d < s.view.dim(); ++d)
            if (std::none_of(axes.begin(), axes.begin() + count, [d](std::int64_t a) { return a == d; }))
                axes.push_back(d);
        s.view = s.view.permute(axes);
        s.lookups[0].dim = first = 0;
    }
    Tensor place, inside;
    const bool checked = s.view.device().type() == DeviceType::cpu;
    for (int i = 0; i < count; ++i) {
        const Tensor index = s.lookups[std::size_t(i)].index.expand(shape);
        const std::int64_t n = s.view.size(first + i);
        place = i > 0 ? place * n + index : index;
        if (checked) continue;
        const Tensor own = ge(index, 0) & lt(index, n);
        inside = i > 0 ? inside & own : own;
    }
    s.view = s.view.flatten(first, first + count - 1);
    return checked ? place : where(inside, place, -1);
}

// The shape x with `shape` instead of dimension dim.
Shape replaced(const Shape& x, int dim, const Shape& shape) {
    Shape result(x.begin(), dim);
    for (const std::int64_t size : shape) result.push_back(size);
    for (int d = dim + 1; d < x.size(); ++d) result.push_back(x[d]);
    return result;
}

Tensor indexed(const Tensor& x, Entries entries) {
    check_defined("index", x, any_dtype);
    Selection s = select(x, entries);
    if (s.lookups.empty()) return s.view;
    const CompositeOp here("index");
    Shape shape = s.lookups[0].index.shape();
    for (const Lookup& l : s.lookups) shape = broadcast_shapes("index", shape, l.index.shape());
    const Tensor index = s.lookups.size() > 1 ? joined(s, shape) : s.lookups[0].index;
    const int dim = s.lookups[0].dim;
    const Tensor y = index_select(s.view, dim, index.reshape({index.numel()}));
    return shape.size() == 1 ? y : y.reshape(replaced(y.shape(), dim, shape));
}

// Whether the entries are a tensor of one dimension of x, and else leave x as it is.
bool selects_slices(Entries entries) {
    int tensors = 0;
    for (const Index& entry : entries) {
        const Slice& slice = entry.slice();
        const bool whole = entry.kind() == Index::Kind::range && slice.start == 0 &&
                           slice.stop == Slice::to_end && slice.step == 1;
        const bool slices = entry.kind() == Index::Kind::tensor && entry.tensor().dim() > 0 &&
                            (!is_mask(entry.tensor()) || entry.tensor().dim() == 1);
        if (!whole && !slices && entry.kind() != Index::Kind::dots) return false;
        tensors += slices;
    }
    return tensors == 1;
}

// The values broadcast to a selection of that shape; dimensions of size 1 in front are left out.
Tensor fitted_values(Tensor values, const Shape& shape) {
    while (values.dim() > shape.size() && values.size(0) == 1) values = values.squeeze(0);
    check(broadcast_shapes("index_put", shape, values.shape()) == shape, ErrorKind::shape,
          "index_put: values ", values.shape(), " do not broadcast to ", shape);
    return values.expand(shape);
}

// x with the values at each index of the flattened x, which is in range. All three are one-dimensional.
Tensor put_at(const Tensor& x, const Tensor& index, const Tensor& values, IndexPutOptions options) {
    const Tensor flat = x.reshape({x.numel()});
    return (options.accumulate ? scatter_add(flat, 0, index, values) : scatter(flat, 0, index, values))
        .reshape(x.shape());
}

}  // namespace

Tensor Tensor::operator[](std::initializer_list<Index> entries) const {
    return indexed(*this, {entries.begin(), entries.size()});
}

Tensor index(const Tensor& x, const std::vector<Index>& entries) { return indexed(x, entries); }

Tensor index_put(const Tensor& given, const std::vector<Index>& entries, const Tensor& given_values,
                 IndexPutOptions options) {
    const CompositeOp here("index_put");
    check_defined("index_put", given);
    check_defined("index_put", given_values);
    Tensor x = given, values = given_values;
    if (autocast_takes(x) && autocast_takes(values)) {
        const Dtype dtype = promote(x.dtype(), values.dtype());
        x = cast(x, dtype), values = cast(values, dtype);
    }
    check_same_dtype("index_put", x, "values", values);
    const int rest = check_entries(x, entries);
    const bool mask =
        entries.size() == 1 && entries[0].kind() == Index::Kind::tensor && is_mask(entries[0].tensor());
    if (mask && values.dim() == 0 && !options.accumulate) {  // without a look-up, which waits for the device
        const Tensor& m = entries[0].tensor();
        check(Shape(x.shape().begin(), m.dim()) == m.shape(), ErrorKind::shape, "index_put: mask ", m.shape(),
              " does not fit ", x.shape());
        Shape shape = m.shape();
        for (int d = 0; d < rest; ++d) shape.push_back(1);
        return where(m.reshape(shape), values, x);
    }
    if (selects_slices(entries)) {
        const auto [dim, index] = select(x, entries).lookups.at(0);
        Shape shape = x.shape();
        shape[dim] = index.numel();
        const Tensor src = fitted_values(values, replaced(x.shape(), dim, index.shape())).reshape(shape);
        const Tensor at = index.reshape({index.numel()});
        return options.accumulate ? index_add(x, dim, at, src) : index_copy(x, dim, at, src);
    }
    // From 1 on, so that 0, which look-ups out of range give where they are no error, means none.
    const Tensor numbers = arange(1, x.numel() + 1, {.dtype = int64, .device = x.device()});
    const Tensor place = indexed(numbers.reshape(x.shape()), entries) - 1;
    const Shape flat{place.numel()};
    return put_at(x, place.reshape(flat), fitted_values(values, place.shape()).reshape(flat), options);
}

Tensor index_put(const Tensor& x, const std::vector<Index>& entries, Scalar value, IndexPutOptions options) {
    check_defined("index_put", x);
    return index_put(x, entries, full({}, value, {.dtype = x.dtype(), .device = x.device()}), options);
}

Tensor take(const Tensor& x, const Tensor& given) {
    const CompositeOp here("take");
    check_defined("take", x);
    const Tensor index = wrapped_index("take", int64_index("take", given), x.numel());
    return index_select(x.reshape({x.numel()}), 0, index.reshape({index.numel()})).reshape(index.shape());
}

Tensor put(const Tensor& x, const Tensor& given, const Tensor& source, IndexPutOptions options) {
    const CompositeOp here("put");
    check_defined("put", x);
    check_same_dtype("put", x, "source", source);
    const Tensor index = wrapped_index("put", int64_index("put", given), x.numel());
    const Shape flat{index.numel()};
    check(source.numel() == index.numel(), ErrorKind::shape, "put: source ", source.shape(),
          " has not the size of index ", index.shape());
    return put_at(x, index.reshape(flat), source.reshape(flat), options);
}

}  // namespace mezzo
