#include "cpu/gemm/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/thread_state.h"
#include "cpu/gemm/operand.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {
namespace {

constexpr std::int64_t most_rows = 8, least_elements = 1 << 16;

// The first bytes of a packed copy: what it is a copy of.
struct alignas(64) Header {
    std::int64_t n, k;
    std::uint64_t version;  // of the weight's storage
    Dtype dtype;

    friend bool operator==(const Header&, const Header&) = default;
};

// No views: the merged weights of several layers are a view of memory whose parts have versions of their own.
bool worth_a_copy(const Tensor& w) {
    return !w->view && w->shape.size() == 2 && w->numel >= least_elements && w->contiguous &&
           w->offset == 0 && w->dtype != float64 &&
           std::size_t(w->numel) * size_of(w->dtype) == w->storage->bytes;
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

Ref<Storage> make_packed(const Tensor& w, const Header& header) {
    const std::int64_t elements = round_up(header.n, packed_columns) * round_up(header.k, packed_steps);
    Ref<Storage> packed =
        allocate_storage(sizeof(Header) + std::size_t(elements) * size_of(w->dtype), cpu_device);
    std::memcpy(packed->data, &header, sizeof header);
    char* const panels = static_cast<char*>(packed->data) + sizeof(Header);
    w->dtype == float16 ? pack<std::uint16_t>(w, panels) : pack<std::uint32_t>(w, panels);
    return packed;
}

}  // namespace

Ref<Storage> packed_weight(const Tensor& weight, std::int64_t rows) {
    if (!thread_state.pack_weights || rows > most_rows || !worth_a_copy(weight)) return {};
    Storage& storage = *weight->storage;
    Header header{weight->shape[0], weight->shape[1], storage.version.load(std::memory_order_relaxed),
                  weight->dtype};
    const std::lock_guard lock(packed_mutex);
    if (storage.packed && *static_cast<const Header*>(storage.packed->data) == header) return storage.packed;
    storage.packed = {};  // before the new copy needs memory
    return storage.packed = make_packed(weight, header);
}

const void* panels_of(const Storage& packed) {
    return static_cast<const char*>(packed.data) + sizeof(Header);
}

}  // namespace mezzo::cpu
