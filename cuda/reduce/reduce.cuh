// Reductions over any axes of a contiguous tensor. The order of every sum depends on the shape and the device
// only, so that results are reproducible.
//
// A reduction is made of a Load, (element offset, output index) -> value, and an Op with an accumulator type
// Acc:
//   identity() -> Acc, lift(value, position within the reduced elements) -> Acc,
//   combine(Acc, Acc) -> Acc, finish(Acc) -> value
// A Load may have many(first offset, step, values), which loads several elements at once.
#pragma once

#include "cuda/elementwise/elements.cuh"

namespace mezzo::cuda {

inline constexpr unsigned reduce_block = 256;

// Sizes and strides of some dimensions, outermost first, as one index space.
struct Walk {
    int dims;
    std::int64_t count;
    std::int64_t sizes[max_dims], strides[max_dims];

    void push(std::int64_t size, std::int64_t stride) {
        count *= size;
        if (size == 1) return;
        if (dims > 0 && strides[dims - 1] == stride * size) {
            sizes[dims - 1] *= size;
            strides[dims - 1] = stride;
        } else {
            sizes[dims] = size;
            strides[dims++] = stride;
        }
    }
    __device__ std::int64_t offset(std::int64_t index) const {
        if (dims == 1) return index * strides[0];
        std::int64_t result = 0;
        for (int d = dims - 1; d > 0; --d) {
            result += index % sizes[d] * strides[d];
            index /= sizes[d];
        }
        return dims == 0 ? 0 : result + index * strides[0];
    }
};

struct ReduceShape {
    Walk kept, reduced;
    bool columns;             // the elements of adjacent outputs are adjacent in memory
    std::int64_t splits = 1;  // each output is reduced in this many parts first
    std::int64_t part() const { return (reduced.count + splits - 1) / splits; }
};

// The reduction of a contiguous tensor over the axes.
inline ReduceShape reduce_shape(const Shape& shape, const Axes& axes) {
    ReduceShape s{};
    s.kept.count = s.reduced.count = 1;
    std::int64_t stride[max_dims] = {}, next = 1;
    bool reduced[max_dims] = {};
    for (int d = shape.size() - 1; d >= 0; next *= shape[d--]) stride[d] = next;
    for (std::int64_t axis : axes) reduced[axis] = true;
    for (int d = 0; d < shape.size(); ++d) (reduced[d] ? s.reduced : s.kept).push(shape[d], stride[d]);
    s.columns = s.kept.dims > 0 && s.kept.strides[s.kept.dims - 1] == 1;
    return s;
}

// The reduction of n adjacent elements to one; a type of its own, so that no kernel for columns is compiled.
struct ReduceAll : ReduceShape {};
inline ReduceAll reduce_all(std::int64_t n) { return {reduce_shape(Shape{n}, Axes{0})}; }

template <class Op> __device__ auto combiner(const Op& op) {
    using Acc = typename Op::Acc;
    return [op](const Acc& a, const Acc& b) { return op.combine(a, b); };
}

// Reduces positions begin, begin + step, … < end of one output. If the reduced elements lie at one stride,
// four accumulators keep four loads in flight. After 1,024 positions (256 per accumulator) their results are
// combined and the accumulators start again, so that the rounding of a long sum hardly grows with it.
template <class Load, class Op>
__device__ typename Op::Acc reduce_range(const Load& load, const Op& op, const Walk& walk, std::int64_t base,
                                         std::int64_t output, std::int64_t begin, std::int64_t end,
                                         std::int64_t step) {
    constexpr int unroll = 4, block = 256;
    typename Op::Acc total = op.identity();
    std::int64_t r = begin;
    do {
        typename Op::Acc acc[unroll];
        for (int u = 0; u < unroll; ++u) acc[u] = op.identity();
        const std::int64_t full = r + unroll * block * step, stop = full < end ? full : end;
        if (walk.dims <= 1) {
            const std::int64_t stride = walk.strides[0];
            for (; r + (unroll - 1) * step < stop; r += unroll * step) {
                decltype(load(base, output)) value[unroll];
                if constexpr (requires { load.many(base, stride, value); }) {
                    load.many(base + r * stride, step * stride, value);
                } else {
                    for (int u = 0; u < unroll; ++u) value[u] = load(base + (r + u * step) * stride, output);
                }
                for (int u = 0; u < unroll; ++u) acc[u] = op.combine(acc[u], op.lift(value[u], r + u * step));
            }
        }
        for (; r < stop; r += step)
            acc[0] = op.combine(acc[0], op.lift(load(base + walk.offset(r), output), r));
        total = op.combine(total, op.combine(op.combine(acc[0], acc[1]), op.combine(acc[2], acc[3])));
    } while (r < end);
    return total;
}

// Output of a kernel: finished results in out, or unfinished ones in parts for the second launch.
template <class Op> struct Target {
    AnyArray<typename Op::Result> out;
    typename Op::Acc* parts;
    __device__ void store(const Op& op, std::int64_t i, const typename Op::Acc& acc) const {
        if (parts != nullptr)
            parts[i] = acc;
        else
            out.store(i, op.finish(acc));
    }
};

// One block per part of an output: for reductions whose elements are adjacent in memory.
template <class Load, class Op>
__global__ void reduce_rows_kernel(Load load, Op op, ReduceShape s, std::int64_t part, Target<Op> target) {
    for (std::int64_t item = blockIdx.x; item < s.kept.count * s.splits; item += gridDim.x) {
        const std::int64_t output = item / s.splits, begin = item % s.splits * part;
        const std::int64_t end = begin + part < s.reduced.count ? begin + part : s.reduced.count;
        auto acc = reduce_range(load, op, s.reduced, s.kept.offset(output), output, begin + threadIdx.x, end,
                                std::int64_t(blockDim.x));
        acc = block_reduce(acc, op.identity(), combiner(op));
        if (threadIdx.x == 0) target.store(op, item, acc);
    }
}

// 32 adjacent outputs per block, one per lane; the warps share the reduced elements.
template <class Load, class Op>
__global__ void reduce_columns_kernel(Load load, Op op, ReduceShape s, std::int64_t part, Target<Op> target) {
    using Acc = typename Op::Acc;
    MEZZO_SHARED(Acc, sums, [reduce_block]);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
    const std::int64_t tiles = (s.kept.count + 31) / 32;
    for (std::int64_t item = blockIdx.x; item < tiles * s.splits; item += gridDim.x) {
        const std::int64_t output = item / s.splits * 32 + lane, split = item % s.splits;
        const std::int64_t begin = split * part;
        const std::int64_t end = begin + part < s.reduced.count ? begin + part : s.reduced.count;
        Acc acc = op.identity();
        if (output < s.kept.count)
            acc = reduce_range(load, op, s.reduced, s.kept.offset(output), output, begin + warp, end,
                               std::int64_t(warps));
        sums[warp * 32 + lane] = acc;
        __syncthreads();
        if (warp == 0 && output < s.kept.count) {
            for (int w = 1; w < warps; ++w) acc = op.combine(acc, sums[w * 32 + lane]);
            target.store(op, output * s.splits + split, acc);
        }
        __syncthreads();
    }
}

// One warp per output combines its parts.
template <class Op> __global__ void reduce_parts_kernel(const typename Op::Acc* parts, Op op,
                                                        std::int64_t outputs, std::int64_t splits,
                                                        Target<Op> target) {
    const std::int64_t warps = item_step() / 32, lane = threadIdx.x % 32;
    for (std::int64_t output = first_item() / 32; output < outputs; output += warps) {
        auto acc = op.identity();
        for (std::int64_t i = lane; i < splits; i += 32) acc = op.combine(acc, parts[output * splits + i]);
        acc = warp_reduce(acc, combiner(op));
        if (lane == 0) target.store(op, output, acc);
    }
}

// Enough parts per output to fill the device, each with work for every thread.
inline std::int64_t splits_for(const ReduceShape& s, std::int64_t items, unsigned block) {
    const std::int64_t wanted = grid_limit(block) / (items > 0 ? items : 1);
    const std::int64_t threads = s.columns ? block / 32 : block, most = s.reduced.count / (threads * 8);
    const std::int64_t splits = wanted < most ? wanted : most;
    return splits > 1 ? splits : 1;
}

// out[i] = reduction of output i's elements, converted to out's dtype. On the current device.
template <class Load, class Op, class S>
void reduce(const Load& load, const Op& op, S s, const AnyArray<typename Op::Result>& out) {
    using Acc = typename Op::Acc;
    auto* kernel = reduce_rows_kernel<Load, Op>;
    if constexpr (!std::is_same_v<S, ReduceAll>)
        if (s.columns) kernel = reduce_columns_kernel<Load, Op>;
    if (s.kept.count == 0) return;
    const unsigned block = s.columns ? reduce_block : block_for(s.reduced.count, reduce_block);
    const std::int64_t items = s.columns ? (s.kept.count + 31) / 32 : s.kept.count;
    s.splits = splits_for(s, items, block);
    const Target<Op> result{out, nullptr};
    const auto run = [&](const Target<Op>& target) {
        launch(kernel, grid_for(items * s.splits, 1), block, 0, load, op, ReduceShape(s), s.part(), target);
    };
    if (s.splits == 1) return run(result);
    const Scratch parts(Device(DeviceType::cuda, current_device()),
                        s.kept.count * s.splits * std::int64_t(sizeof(Acc)));
    run({result.out, parts.as<Acc>()});
    launch(reduce_parts_kernel<Op>, grid_for(s.kept.count * 32, reduce_block), reduce_block, 0,
           parts.as<Acc>(), op, s.kept.count, s.splits, result);
}

template <class Load, class Op, class S>
void reduce(const Load& load, const Op& op, const S& s, const Tensor& out) {
    use_device_of(out);
    reduce(load, op, s, any_of<typename Op::Result>(out));
}

// Loads element `offset` of one array.
template <class A> struct LoadElement {
    A x;
    using C = typename A::C;
    __device__ C operator()(std::int64_t offset, std::int64_t) const { return x.load(offset); }
    template <int n> __device__ void many(std::int64_t first, std::int64_t step, C (&out)[n]) const {
        x.load_many(first, step, out);
    }
};

// reduce() of the elements of x, which are floating: make(C{}) gives the operation in compute type C.
template <class Make>
void reduce_floating(const Tensor& x, const ReduceShape& s, const Tensor& out, const Make& make) {
    visit_dtype<Dtypes::floating>(x.dtype(), [&]<class T>(std::type_identity<T>) {
        reduce(LoadElement<Array<T>>{array_of<T>(x)}, make(Compute<T>(0)), s, out);
    });
}
// The same for elements of any dtype.
template <class Make>
void reduce_elements(const Tensor& x, const ReduceShape& s, const Tensor& out, const Make& make) {
    if (is_floating(x.dtype())) return reduce_floating(x, s, out, make);
    reduce(LoadElement<AnyArray<std::int64_t>>{any_of<std::int64_t>(x)}, make(std::int64_t(0)), s, out);
}

// Sum of the values divided by `divisor`.
template <class C> struct SumOp {
    using Acc = C;
    using Result = C;
    C divisor;
    __device__ C identity() const { return C(0); }
    __device__ C lift(C value, std::int64_t) const { return value; }
    __device__ C combine(C a, C b) const { return a + b; }
    __device__ C finish(C acc) const {
        if constexpr (std::is_integral_v<C>)
            return acc;
        else
            return acc / divisor;
    }
};

}  // namespace mezzo::cuda
