// The step kernels of the CPU, for optimizers and the loss scaler: each is one parallel loop over pieces of
// all parameters that reads and writes an element once.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/elementwise/strided.h"
#include "kernels/functor_step.h"
#include "kernels/narrow_state.h"

namespace mezzo {
namespace {

using namespace cpu;

constexpr std::int64_t piece_size = 16384;

struct Piece {
    std::int32_t param;
    std::int32_t n;
    std::int64_t begin;
};

// Pieces of at most piece_size elements that cover all parameters; for_each() calls body(piece, its index) in
// parallel.
class Pieces {
public:
    explicit Pieces(std::span<const ParamRef> params) : list_(reused()) {
        list_.clear();
        for (std::size_t i = 0; i < params.size(); ++i) {
            for (std::int64_t begin = 0; begin < params[i].numel; begin += piece_size) {
                const std::int64_t n = std::min(params[i].numel - begin, piece_size);
                list_.push_back({std::int32_t(i), std::int32_t(n), begin});
            }
            total_ += params[i].numel;
        }
    }
    std::size_t size() const { return list_.size(); }
    const Piece& operator[](std::size_t i) const { return list_[i]; }
    template <class F> void for_each(const F& body) const {
        const auto count = std::int64_t(list_.size());
        const std::int64_t at_once =
            total_ <= grain ? count : std::max<std::int64_t>(1, count * grain / 2 / total_);
        const Piece* const pieces = list_.data();
        parallel_for(count, at_once, [&](std::int64_t first, std::int64_t last) {
            for (std::int64_t i = first; i < last; ++i) body(pieces[i], std::size_t(i));
        });
    }

private:
    static std::vector<Piece>& reused() {
        thread_local std::vector<Piece> list;
        return list;
    }
    std::vector<Piece>& list_;
    std::int64_t total_ = 0;
};

char* element(void* p, std::int64_t i, Dtype dtype) {
    return static_cast<char*>(p) + i * std::int64_t(size_of(dtype));
}

// Calls body(elements, count) with elements as T: as stored, or in converted chunks, which are written back
// if `write`.
template <class T, class F>
void with_elements(void* p, Dtype dtype, std::int64_t begin, std::int64_t n, bool write, const F& body) {
    if (dtype == dtype_of<T>()) return body(reinterpret_cast<T*>(element(p, begin, dtype)), n);
    Chunk buffer;
    for (std::int64_t i = begin; i < begin + n; i += chunk) {
        const std::int64_t count = std::min(begin + n - i, chunk);
        convert(element(p, i, dtype), dtype, buffer.bytes, dtype_of<T>(), count);
        body(buffer.as<T>(), count);
        if (write) convert(buffer.bytes, dtype_of<T>(), element(p, i, dtype), dtype, count);
    }
}

// The same for a piece of a parameter's gradient, in the type that it is computed in.
template <class F> void with_grad(const ParamRef& param, const Piece& piece, bool write, const F& body) {
    with_real(param.grad_dtype, [&]<class T>(T) {
        with_elements<T>(param.grad, param.grad_dtype, piece.begin, piece.n, write, body);
    });
}

template <class T> void multiply(T* x, std::int64_t n, T factor) {
    constexpr auto compute = std::is_same_v<T, double> ? Compute::f64 : Compute::f32;
    active_loops().unary[int(UnaryOp::mul_scalar)][int(compute)](x, x, n, double(factor), 0);
}

// Checks gradients and computes their norm. A gradient has overflowed if it, or it times the inverse scale,
// is infinite or NaN. The norm is that of the gradients times the inverse scale.
void statistics(std::span<const ParamRef> params, const StepKernels::Statistics& wanted) {
    const float inverse = functors::inverse_scale(wanted);
    const Pieces pieces(params);
    std::vector<double> squares(pieces.size(), 0.0);
    std::vector<std::uint8_t> bad(pieces.size(), 0);
    pieces.for_each([&](const Piece& piece, std::size_t i) {
        with_grad(params[std::size_t(piece.param)], piece, false, [&]<class T>(T* g, std::int64_t n) {
            if (!real_loops<T>().all_finite(g, n, T(inverse))) bad[i] = 1;
            if (wanted.norm) squares[i] += sum_of_squares(g, n);
        });
    });
    StepState& state = *wanted.state;
    const bool any = std::find(bad.begin(), bad.end(), 1) != bad.end();
    state.found_inf = any || (wanted.again && state.found_inf != 0) ? 1.0f : 0.0f;
    state.grad_multiplier = inverse;
    double sum = 0;
    for (const double value : squares) sum += value;
    if (wanted.norm) *wanted.norm = state.norm = float(std::sqrt(sum) * double(inverse));
    if (wanted.scaler) functors::note_check(*wanted.scaler, wanted.first, any, wanted.args);
}

void scale_gradients(std::span<const ParamRef> params, const GradientFactor& factor) {
    const float value = functors::value_of(factor);
    if (value == 1.0f) return;
    Pieces(params).for_each([&](const Piece& piece, std::size_t) {
        with_grad(params[std::size_t(piece.param)], piece, true,
                  [&]<class T>(T* g, std::int64_t n) { multiply(g, n, T(value)); });
    });
}

void flag_nonfinite(std::span<const ParamRef> params, float* flags) {
    const Pieces pieces(params);
    std::vector<std::uint8_t> bad(pieces.size(), 0);
    pieces.for_each([&](const Piece& piece, std::size_t i) {
        with_grad(params[std::size_t(piece.param)], piece, false, [&]<class T>(T* g, std::int64_t n) {
            if (!real_loops<T>().all_finite(g, n, T(1))) bad[i] = 1;
        });
    });
    std::fill(flags, flags + params.size(), 0.0f);
    for (std::size_t i = 0; i < bad.size(); ++i)
        if (bad[i]) flags[pieces[i].param] = 1;
}

void clip_by_value(std::span<const ParamRef> params, double limit) {
    Pieces(params).for_each([&](const Piece& piece, std::size_t) {
        with_grad(params[std::size_t(piece.param)], piece, true, [&]<class T>(T* g, std::int64_t n) {
            constexpr auto compute = std::is_same_v<T, double> ? Compute::f64 : Compute::f32;
            active_loops().unary[int(UnaryOp::clamp)][int(compute)](g, g, n, -limit, limit);
        });
    });
}

// Elements [i, i + n) of a parameter that is not stored as T.
template <class T> void read_param(const ParamRef& ref, std::int64_t i, std::int64_t n, T* to) {
    const char* const param = element(ref.param, i, ref.dtype);
    if constexpr (sizeof(T) == sizeof(float))
        if (ref.low16 != nullptr)
            return active_loops().join_halves(to, reinterpret_cast<const std::uint16_t*>(param),
                                              static_cast<const std::uint16_t*>(ref.low16) + i, n);
    convert(param, ref.dtype, to, dtype_of<T>(), n);
}
template <class T> void write_param(const ParamRef& ref, std::int64_t i, std::int64_t n, const T* from) {
    char* const param = element(ref.param, i, ref.dtype);
    if constexpr (sizeof(T) == sizeof(float))
        if (ref.low16 != nullptr)
            return active_loops().split_halves(reinterpret_cast<std::uint16_t*>(param),
                                               static_cast<std::uint16_t*>(ref.low16) + i, from, n);
    convert(from, dtype_of<T>(), param, ref.dtype, n);
}

constexpr bool with_sign(StateFormat format) { return format == StateFormat::signed_blocks; }

// State k of elements [i, i + n) of a parameter, of another format than `wide`; i is a multiple of 256.
void read_state(const ParamRef& ref, int k, std::int64_t i, std::int64_t n, float* to) {
    if (ref.format[k] == StateFormat::bf16)
        return convert(element(ref.state[k], i, bfloat16), bfloat16, to, float32, n);
    active_loops().read_blocks(to, static_cast<const Block8*>(ref.state[k]) + i / Block8::size, n,
                               with_sign(ref.format[k]));
}
void write_state(const ParamRef& ref, int k, std::int64_t i, std::int64_t n, const float* from) {
    if (ref.format[k] == StateFormat::bf16) {
        std::uint32_t words[chunk / 2];
        active_loops().philox_blocks(words, functors::rounding_key(ref.number, k, *ref.step),
                                     std::uint64_t(ref.first + i) / 8, (n + 7) / 8);
        return active_loops().round_stochastically(static_cast<std::uint16_t*>(ref.state[k]) + i, from, words,
                                                   n);
    }
    active_loops().write_blocks(static_cast<Block8*>(ref.state[k]) + i / Block8::size, from, n,
                                with_sign(ref.format[k]));
}
bool has_narrow_state(const ParamRef& ref) {
    return std::any_of(std::begin(ref.format), std::end(ref.format),
                       [](StateFormat format) { return format != StateFormat::wide; });
}

// Updates elements [i, i + loop.n). Those of another dtype than T are converted while they are in the cache.
template <class T>
void update_chunk(OptimizerId optimizer, UpdateLoop<T>& loop, const ParamRef& ref, std::int64_t i) {
    const Dtype dtype = dtype_of<T>();
    const bool convert_grad = ref.grad_dtype != dtype, convert_param = ref.dtype != dtype;
    const std::int64_t n = loop.n;
    Chunk grad_buffer, param_buffer;
    const char* grad = element(ref.grad, i, ref.grad_dtype);
    if (convert_grad) convert(grad, ref.grad_dtype, grad_buffer.bytes, dtype, n);
    if (convert_param) read_param(ref, i, n, param_buffer.as<T>());
    loop.param = convert_param ? param_buffer.as<T>() : static_cast<T*>(ref.param) + i;
    loop.grad = convert_grad ? grad_buffer.as<T>() : reinterpret_cast<const T*>(grad);
    real_loops<T>().update[int(optimizer)](loop);
    if (convert_param) write_param(ref, i, n, loop.param);
    if (ref.copy16) convert(loop.param, dtype, element(ref.copy16, i, ref.copy16_dtype), ref.copy16_dtype, n);
}

template <class T>
void update_piece(OptimizerId optimizer, UpdateLoop<T> loop, const ParamRef& ref, const Piece& piece) {
    const bool converts = ref.grad_dtype != dtype_of<T>() || ref.dtype != dtype_of<T>();
    const std::int64_t end = piece.begin + piece.n, step = converts || ref.copy16 ? chunk : piece.n;
    for (std::int64_t i = piece.begin; i < end; i += step) {
        loop.n = std::min(end - i, step);
        for (int k = 0; k < max_optimizer_state; ++k)
            loop.state[k] = ref.state[k] ? static_cast<T*>(ref.state[k]) + i : nullptr;
        update_chunk(optimizer, loop, ref, i);
    }
}

// The same for a parameter with state in another format than `wide`.
void update_narrow(OptimizerId optimizer, UpdateLoop<float> loop, const ParamRef& ref, const Piece& piece) {
    alignas(64) float state[max_optimizer_state][chunk];
    const std::int64_t end = piece.begin + piece.n;
    for (std::int64_t i = piece.begin; i < end; i += chunk) {
        loop.n = std::min(end - i, chunk);
        for (int k = 0; k < max_optimizer_state; ++k) {
            const bool wide = ref.format[k] == StateFormat::wide;
            loop.state[k] = ref.state[k] == nullptr ? nullptr
                            : wide                  ? static_cast<float*>(ref.state[k]) + i
                                                    : state[k];
            if (!wide) read_state(ref, k, i, loop.n, state[k]);
        }
        update_chunk(optimizer, loop, ref, i);
        for (int k = 0; k < max_optimizer_state; ++k)
            if (ref.format[k] != StateFormat::wide) write_state(ref, k, i, loop.n, state[k]);
    }
}

template <class Row>
void update_all(std::span<const ParamRef> params, std::span<const StepArgs> groups, double factor) {
    std::vector<typename Row::Options> options;
    for (const StepArgs& args : groups) options.push_back(functors::options_of<Row>(args));
    Pieces(params).for_each([&](const Piece& piece, std::size_t) {
        const ParamRef& ref = params[std::size_t(piece.param)];
        with_real(ref.dtype, [&]<class T>(T) {
            const functors::Prepared<Row, T> prepared(options[ref.group], ref.step);
            const OptimizerId optimizer = groups[ref.group].optimizer;
            const UpdateLoop<T> loop{.param = nullptr,
                                     .state = {},
                                     .grad = nullptr,
                                     .n = 0,
                                     .multiplier = T(prepared.maximize ? -factor : factor),
                                     .way = prepared.way,
                                     .formula = &prepared.formula};
            if constexpr (sizeof(T) == sizeof(float))
                if (has_narrow_state(ref)) return update_narrow(optimizer, loop, ref, piece);
            update_piece<T>(optimizer, loop, ref, piece);
        });
    });
    for (const ParamRef& ref : params) functors::count_update<Row>(options[ref.group], ref.step);
}

using UpdateAll = void (*)(std::span<const ParamRef>, std::span<const StepArgs>, double factor);
constexpr UpdateAll updates[] = {
#define MEZZO_OPTIMIZER(name) update_all<functors::name##Row>,
#include "mezzo/optimizers.def"
};

void update(std::span<const ParamRef> params, std::span<const StepArgs> groups, const GradientFactor& factor,
            const float* found_inf, StepState* counts) {
    if (found_inf && *found_inf != 0) {
        counts->skipped += 1;
        return;
    }
    if (!groups.empty())
        updates[int(groups.front().optimizer)](params, groups, double(functors::value_of(factor)));
    counts->applied += 1;
}

void update_scale(ScalerState* scaler, const StepKernels::ScalerArgs& args) {
    functors::advance(*scaler, args);
}

}  // namespace

extern const StepKernels cpu_step_kernels;
const StepKernels cpu_step_kernels = {.statistics = statistics,
                                      .update = update,
                                      .scale_gradients = scale_gradients,
                                      .clip_by_value = clip_by_value,
                                      .flag_nonfinite = flag_nonfinite,
                                      .update_scale = update_scale};

}  // namespace mezzo
