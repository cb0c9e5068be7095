#include "cpu/gemm/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/thread_state.h"
#include "cpu/gemm/choice.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/gemm/operand.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t most_tile_rows = 4096;  // for more, packing takes a hundredth of the time
constexpr std::int64_t most_rows = 8, least_elements = 1 << 16, least_outputs = 64;

// The first bytes of a packed copy: what it is a copy of. After the first use of a weight there is only the
// header, without panels, whose layout does not matter.
struct alignas(64) Header {
    PackedLayout layout;
    std::uint64_t version;  // of the weight's storage
    Dtype dtype;

    friend bool operator==(const Header&, const Header&) = default;
};

// No views: the merged weights of several layers are a view of memory whose parts have versions of their own.
bool has_own_storage(const Tensor& w) {
    return !w->view && w->contiguous && w->offset == 0 &&
           std::size_t(w->numel) * size_of(w->dtype) == w->storage->bytes;
}

// Little padding: it is read as well.
bool worth_a_copy(const Tensor& w) {
    if (w->shape.size() != 2 || w->shape[0] < least_outputs) return false;
    const std::int64_t padded = round_up(w->shape[0], packed_columns) * round_up(w->shape[1], packed_steps);
    return padded <= w->numel + w->numel / 8 && w->numel >= least_elements && w->dtype != float64;
}

// Copies rows [begin, end) of one panel, which are `bytes` long, unit by unit of neighbouring steps.
template <class Unit>
void pack_panel(const char* rows, std::int64_t count, std::size_t bytes, std::int64_t units, Unit* to) {
    const auto whole = std::int64_t(bytes / sizeof(Unit));
    std::memset(to, 0, std::size_t(units * packed_columns) * sizeof(Unit));
    for (std::int64_t p = 0; p < whole; ++p)
        for (std::int64_t i = 0; i < count; ++i)
            std::memcpy(to + p * packed_columns + i,
                        rows + std::size_t(i) * bytes + std::size_t(p) * sizeof(Unit), sizeof(Unit));
    if (const std::size_t rest = bytes % sizeof(Unit))
        for (std::int64_t i = 0; i < count; ++i)
            std::memcpy(to + whole * packed_columns + i, rows + std::size_t(i + 1) * bytes - rest, rest);
}

template <class Unit> void pack(const Tensor& w, char* panels) {
    const std::int64_t n = w->shape[0], steps = round_up(w->shape[1], packed_steps);
    const std::size_t element_size = size_of(w->dtype), row = std::size_t(w->shape[1]) * element_size;
    const std::size_t panel = std::size_t(steps * packed_columns) * element_size;
    parallel_for(round_up(n, packed_columns) / packed_columns, 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
            pack_panel(w->bytes() + std::size_t(i * packed_columns) * row,
                       std::min(packed_columns, n - i * packed_columns), row,
                       std::int64_t(panel / sizeof(Unit)) / packed_columns,
                       reinterpret_cast<Unit*>(panels + std::size_t(i) * panel));
    });
}

// A header, without panels.
Ref<Storage> make_note(const Header& header) {
    Ref<Storage> note = allocate_storage(sizeof header, cpu_device);
    std::memcpy(note->data, &header, sizeof header);
    return note;
}

Ref<Storage> make_packed(const Header& header, const std::function<void(char*)>& write) {
    Ref<Storage> packed = allocate_storage(sizeof header + header.layout.bytes, cpu_device);
    std::memcpy(packed->data, &header, sizeof header);
    write(static_cast<char*>(packed->data) + sizeof header);
    return packed;
}

enum class Found { nothing, note, panels, other_panels };  // note: or panels to replace

// Looks up the storage's packed copy for a header. packed_mutex is held.
Found found(const Storage& storage, const Header& header) {
    if (!storage.packed) return Found::nothing;
    const Header& have = *static_cast<const Header*>(storage.packed->data);
    const bool panels = storage.packed->bytes > sizeof(Header);
    if (panels && have == header) return Found::panels;
    if (have.version != header.version || have.dtype != header.dtype) return Found::nothing;
    // Products of few rows and of many take turns in a model that generates text. Panels for few rows replace
    // others and stay, because such products take the time of reading the weight.
    return panels && header.layout.reader ? Found::other_panels : Found::note;
}

// Notes the first use of a weight, and frees a copy that is out of date.
void note_use(Storage& storage, const Header& header) {
    Ref<Storage> note = make_note(header), old;  // is freed after the mutex has been released
    const std::lock_guard lock(packed_mutex);
    if (found(storage, header) == Found::nothing) old = std::exchange(storage.packed, std::move(note));
}

}  // namespace

Ref<Storage> packed_copy(const Tensor& weight, const PackedLayout& layout,
                         const std::function<void(char*)>& write) {
    if (!thread_state.pack_weights || !has_own_storage(weight)) return {};
    Storage& storage = *weight->storage;
    const Header header{layout, storage.version.load(std::memory_order_relaxed), weight->dtype};
    Found before = Found::nothing;
    {
        const std::lock_guard lock(packed_mutex);
        before = found(storage, header);
        if (before == Found::panels) return storage.packed;
        if (before == Found::other_panels) return {};
    }
    if (before == Found::nothing) {
        note_use(storage, header);
        return {};
    }
    Ref<Storage> packed = make_packed(header, write), old;
    const std::lock_guard lock(packed_mutex);
    const Found now = found(storage, header);
    if (now == Found::panels) return storage.packed;  // another thread was faster
    if (now == Found::note) old = std::exchange(storage.packed, packed);
    return packed;
}

Ref<Storage> packed_weight(const Tensor& weight, std::int64_t rows) {
    if (!thread_state.pack_weights || rows > most_rows || !worth_a_copy(weight)) return {};
    const std::int64_t n = weight->shape[0], k = weight->shape[1];
    const std::size_t elements = std::size_t(round_up(n, packed_columns) * round_up(k, packed_steps));
    const PackedLayout layout{nullptr, n, k, elements * size_of(weight->dtype)};
    return packed_copy(weight, layout, [&](char* panels) {
        weight->dtype == float16 ? pack<std::uint16_t>(weight, panels) : pack<std::uint32_t>(weight, panels);
    });
}

Ref<Storage> packed_for_tiles(const Tensor& weight, const TileProduct& product, std::int64_t taps,
                              std::int64_t channels, std::int64_t rows) {
    if (!thread_state.pack_weights || weight->dtype != bfloat16 || rows > most_tile_rows) return {};
    const std::int64_t n = weight->shape[0], ld = taps * channels,
                       tap_tiles = round_up(channels, tile_steps) / tile_steps,
                       panel = taps * tap_tiles * 2 * tile_bytes,
                       panels = round_up(n, panel_lines) / panel_lines;
    if (weight->numel != n * ld) return {};
    const PackedLayout layout{&product, n, ld, std::size_t(panels * panel), taps};
    return packed_copy(weight, layout, [&](char* to) {
        parallel_for(panels, 1, [&](std::int64_t begin, std::int64_t end) {
            const std::int64_t first = begin * panel_lines, width = std::min(n, end * panel_lines) - first;
            for (std::int64_t tap = 0; tap < taps; ++tap)
                product.pack_b(
                    {{element(weight->bytes(), bfloat16, first * ld + tap * channels), bfloat16, ld, true},
                     width,
                     channels,
                     0,
                     tap_tiles,
                     to + begin * panel + tap * tap_tiles * 2 * tile_bytes,
                     panel});
        });
    });
}

Ref<Storage> read_packed_tiles(const Tensor& weight, Gemm& g) {
    if (!thread_state.pack_weights || g.a_type != bfloat16 || g.b_type != bfloat16 || !g.trans_b ||
        g.batch != 1 || g.ldb != g.k || g.n != weight->shape[0] || !worth_packing(g))
        return {};
    const TileKernels* const tiles = chosen_gemm_kernels(g).tiles;
    Ref<Storage> packed = tiles ? packed_for_tiles(weight, tiles->bf16, 1, g.k, g.m) : Ref<Storage>();
    if (packed) {
        g.b_tiles = static_cast<const char*>(panels_of(*packed));
        g.b_tile_panel = round_up(g.k, tile_steps) / tile_steps * 2 * tile_bytes;
    }
    return packed;
}

const void* panels_of(const Storage& packed) {
    return static_cast<const char*>(packed.data) + sizeof(Header);
}

}  // namespace mezzo::cpu
