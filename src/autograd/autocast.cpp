// Autocast: the thread's state, the scope's cast cache, and what each policy does to an op's inputs.
#include "mezzo/autocast.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "autograd/autocast_state.h"
#include "core/enumerators.h"
#include "core/memory/storage.h"
#include "core/step_recorder.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo {

namespace {

// Entry of the cast cache: a value converted in this scope. It holds the source, so that the source's address
// cannot be reused while the entry lives.
struct CachedCast {
    Tensor source, value;
    std::uint64_t version = 0;
};

struct CastKey {
    TensorImpl* source;
    Dtype dtype;
    friend bool operator==(const CastKey&, const CastKey&) = default;
};
struct CastKeyHash {
    std::size_t operator()(const CastKey& k) const {
        return std::hash<void*>()(k.source) * 31 + std::size_t(k.dtype);
    }
};

// Autocast of this thread, as far as it needs a destructor; ThreadState and the report have the rest.
struct ThreadAutocast {
    std::unordered_map<CastKey, CachedCast, CastKeyHash> cache;
    AutocastCounters counters;
};

ThreadAutocast& thread_autocast() {
    thread_local ThreadAutocast t;
    return t;
}

// A replay reads the 16-bit copy at the address that it has now, so before each replay the copy must still be
// there and be current. Copies that the step itself makes are made anew by each replay.
void note_copy16(const Tensor& x) {
    StepRecorder* const graph = thread_state.recorder;
    if (graph == nullptr || graph->owns(x)) return;
    graph->require([x, data = raw(x), copy = raw(x->grad_meta->copy16.value)] {
        const Copy16& copy16 = x->grad_meta->copy16;
        return raw(x) == data && copy16.value.defined() && raw(copy16.value) == copy &&
               copy16.version == x.version();
    });
}

// A plain conversion, without history.
Tensor convert(const Tensor& x, Dtype dtype) {
    NoGrad plain;
    Tensor y = cast(x, dtype);
    AutocastCounters& counters = thread_autocast().counters;
    ++counters.casts;
    counters.cast_bytes += std::uint64_t(y.numel()) * size_of(dtype);
    if (dtype == float32) y->from_cast = true;
    return y;
}

// Whether a conversion of x is made once for several ops.
bool reusable(const Tensor& x, Dtype dtype) {
    return thread_state.autocast.cache && is_16bit(dtype) && x.dtype() == float32;
}

// The copy of x that an optimizer keeps, or that the kernel made which made x. Undefined if there is none of
// this dtype, or x has been written to since.
Tensor current_copy(const Tensor& x, Dtype dtype) {
    if (x->grad_meta == nullptr) return {};
    const Copy16& copy16 = x->grad_meta->copy16;
    if (!copy16.value.defined() || copy16.value.dtype() != dtype || copy16.version != x.version()) return {};
    ++thread_autocast().counters.copy16_hits;
    note_copy16(x);
    return copy16.value;
}

Dtype widest(const OpTraits& traits, In values, Dtype low) {
    Dtype result = low;
    for (const Tensor& x : values) {
        if (!autocast_takes(x)) continue;
        if (x.dtype() == float32) result = float32;
        check(x.dtype() == float32 || x.dtype() == low, ErrorKind::dtype, traits.name, ": a ", x.dtype(),
              " input inside an Autocast scope of ", low, "; convert it with to()");
    }
    return result;
}

void refuse_banned(const OpTraits& traits, In values) {
    for (const Tensor& x : values)
        check(!autocast_takes(x) || (x.dtype() == float32 && !x->from_cast), ErrorKind::dtype, traits.name,
              ": unsafe inside an Autocast scope, because its gradient can leave the range of a 16-bit "
              "input; use ",
              traits.name,
              "_with_logits on the values before the sigmoid, or close the scope and pass float32");
}

// The copy of a frozen parameter that outlives the scope. The threads of a server share it.
Tensor frozen_copy(const Tensor& x, Dtype dtype) {
    Copy16& copy = x->grad_meta->frozen16;
    const std::uint64_t version = x.version();
    {
        const std::lock_guard lock(packed_mutex);
        if (copy.value.defined() && copy.value.dtype() == dtype && copy.version == version) {
            ++thread_autocast().counters.cache_hits;
            return copy.value;
        }
    }
    const Tensor value = convert(x, dtype);
    Tensor old;  // is freed after the mutex has been released
    const std::lock_guard lock(packed_mutex);
    old = std::exchange(copy.value, value);
    copy.version = version;
    return value;
}

}  // namespace

bool autocast_takes(const Tensor& x) {
    return x.defined() && is_floating(x.dtype()) && x.dtype() != float64 &&
           thread_state.autocast.enabled[int(x.device().type())];
}

AutocastCounters autocast_counters() {
    ThreadAutocast& t = thread_autocast();
    t.counters.cache_entries = std::int64_t(t.cache.size());
    return t.counters;
}

Tensor cached_cast(const Tensor& x, Dtype dtype) {
    if (x.dtype() == dtype) return x;
    if (!reusable(x, dtype)) return convert(x, dtype);
    // In an InferenceMode a frozen parameter counts as well. It has metadata; activations have none there, or
    // a copy of their own, perhaps out of date.
    const bool frozen =
        thread_state.pack_weights && x->grad_meta != nullptr && !x->grad_meta->copy16.value.defined();
    const bool leaf = (tracked(x) || frozen) && x.is_leaf();
    if (leaf) x->grad_meta->copy16.want(dtype);
    if (Tensor copy = current_copy(x, dtype); copy.defined()) return copy;
    if (leaf && frozen && !x->view && x.device().type() == DeviceType::cpu) return frozen_copy(x, dtype);
    ThreadAutocast& t = thread_autocast();
    // A backward or a checkpoint under a restored state: there is no scope whose end would clear the cache.
    if (!leaf || thread_state.autocast_scopes == 0) return convert(x, dtype);
    CachedCast& entry = t.cache[{x.impl(), dtype}];
    if (entry.value.defined() && entry.version == x.version()) {
        ++t.counters.cache_hits;
        return entry.value;
    }
    entry = {x, convert(x, dtype), x.version()};
    return entry.value;
}

Dtype autocast_dtype(CastPolicy cast, const Tensor& x) {
    if (!autocast_takes(x)) return x.dtype();
    if (cast == CastPolicy::low) return thread_state.autocast.dtype[int(x.device().type())];
    return cast == CastPolicy::fp32 ? float32 : x.dtype();
}

namespace {

void apply_policy(const OpTraits& traits, std::span<Tensor> values, std::optional<Dtype>& requested) {
    switch (traits.cast) {
        case CastPolicy::keep:
            return;
        case CastPolicy::low:
            for (Tensor& x : values)
                if (autocast_takes(x))
                    x = cached_cast(x, thread_state.autocast.dtype[int(x.device().type())]);
            return;
        case CastPolicy::fp32:
            for (Tensor& x : values)
                if (autocast_takes(x) && x.dtype() != float32) x = convert(x, float32);
            return;
        case CastPolicy::fp32_out:
            if (!values.empty() && autocast_takes(values[0]) && !requested) requested = float32;
            return;
        case CastPolicy::promote: {
            Dtype low = float32;
            for (const Tensor& x : values)
                if (autocast_takes(x)) low = thread_state.autocast.dtype[int(x.device().type())];
            const Dtype to = widest(traits, values, low);
            for (Tensor& x : values)
                if (autocast_takes(x)) x = cached_cast(x, to);
            return;
        }
        case CastPolicy::banned:
            refuse_banned(traits, values);
            return;
    }
}

}  // namespace

CastWork autocast_inputs(const OpTraits& traits, Tensors& values, std::optional<Dtype>& requested) {
    const AutocastCounters& counters = thread_autocast().counters;
    const std::uint64_t casts = counters.casts, bytes = counters.cast_bytes;
    apply_policy(traits, std::span(values).first(std::min<std::size_t>(traits.cast_inputs, values.size())),
                 requested);
    return {counters.casts - casts, counters.cast_bytes - bytes};
}

const amp::Fp8* scope_fp8(Device device) {
    const auto& fp8 = thread_state.autocast.fp8[int(device.type())];
    return fp8 ? &*fp8 : nullptr;
}

namespace amp {

namespace {

void check_fp8(const AutocastOptions& options) {
    const Fp8& fp8 = *options.fp8;
    check_enumerator("Autocast", "fp8.recipe", fp8.recipe, Recipe::delayed);
    check_enumerator("Autocast", "fp8.granularity", fp8.granularity, Granularity::block32);
    check(!fp8.exact_scale || fp8.granularity != Granularity::block32, ErrorKind::value,
          "Autocast: fp8.exact_scale is true with granularity block32; scales of blocks are powers of two");
    check_enumerator("Autocast", "fp8.weight_grad", fp8.weight_grad, WeightGrad::low);
    check(fp8.least_size > 0, ErrorKind::value, "Autocast: fp8.least_size is ", fp8.least_size,
          "; it must be positive");
    check(fp8.recipe == Recipe::current || fp8.granularity == Granularity::tensor, ErrorKind::value,
          "Autocast: fp8.recipe is delayed and fp8.granularity is not tensor; a history has one scale for a "
          "tensor");
    check(fp8.history >= 1 && fp8.history <= 65536, ErrorKind::value, "Autocast: fp8.history is ",
          fp8.history, "; it must be from 1 to 65536");
    check(fp8.margin >= -64 && fp8.margin <= 64, ErrorKind::value, "Autocast: fp8.margin is ", fp8.margin,
          "; it must be from -64 to 64");
}

}  // namespace

Autocast::Autocast(const AutocastOptions& options) {
    check_dtype("Autocast", options.dtype);
    if (options.device) check_enumerator("Autocast", "device", *options.device, DeviceType::custom);
    const bool low = is_16bit(options.dtype);
    check(low || options.dtype == float32, ErrorKind::dtype, "Autocast: dtype is ", options.dtype,
          "; it must be float16, bfloat16 or, for a scope that is off, float32");
    if (options.fp8) check_fp8(options);
    AutocastState& state = thread_state.autocast;
    cache_ = std::exchange(state.cache, options.cache);
    for (int d = 0; d < device_type_count; ++d) {
        enabled_[d] = state.enabled[d];
        dtype_[d] = state.dtype[d];
        fp8_[d] = state.fp8[d];
        if (options.device && *options.device != DeviceType(d)) continue;
        state.enabled[d] = options.enabled && low;
        if (low) state.dtype[d] = options.dtype;
        state.fp8[d] = state.enabled[d] ? options.fp8 : std::nullopt;
    }
    ++thread_state.autocast_scopes;
}

Autocast::~Autocast() {
    if (--thread_state.autocast_scopes == 0) thread_autocast().cache.clear();
    AutocastState& state = thread_state.autocast;
    std::copy(std::begin(enabled_), std::end(enabled_), state.enabled);
    std::copy(std::begin(dtype_), std::end(dtype_), state.dtype);
    std::copy(std::begin(fp8_), std::end(fp8_), state.fp8);
    state.cache = cache_;
}

bool autocast_enabled(DeviceType device) {
    check_enumerator("autocast_enabled", "device", device, DeviceType::custom);
    return thread_state.autocast.enabled[int(device)];
}
Dtype autocast_dtype(DeviceType device) {
    check_enumerator("autocast_dtype", "device", device, DeviceType::custom);
    return thread_state.autocast.dtype[int(device)];
}

}  // namespace amp
}  // namespace mezzo
