// Loads, stores, atomics and cp.async.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tests/ptx/lanes.h"

namespace mezzo::ptx {
namespace {

constexpr unsigned copy_bytes = 16;  // of cp.async

u64 address_of(Warp& w, const Instruction& i, int operand, u32 lane, bool wide) {
    return wide ? w.reg<u64>(i.operands[operand])[lane] : w.reg<u32>(i.operands[operand])[lane];
}

// The bytes of an access of M's in a lane, checked.
template <Space space, class M>
char* bytes_at(Warp& w, const Instruction& i, u32 lane, u64 address, bool write) {
    const unsigned bytes = unsigned(sizeof(M)) * i.vector;
    if constexpr (space == Space::global) {
        return global_bytes(w, i, {lane, address, bytes, write, i.used_bytes});
    } else if constexpr (space == Space::shared) {
        return shared_bytes(w, i, {lane, address, bytes, write, i.used_bytes});
    } else if constexpr (space == Space::local) {
        if (address % bytes != 0) fault(w, i, lane, "misaligned local address");
        if (address + bytes > w.kernel->local_bytes) fault(w, i, lane, "outside local memory");
        return w.local.data() + lane * w.kernel->local_bytes + address;
    } else {
        if (address % bytes != 0) fault(w, i, lane, "misaligned parameter");
        if (address + bytes > w.block->parameters->size()) fault(w, i, lane, "outside the parameters");
        return const_cast<char*>(w.block->parameters->data()) + address;
    }
}

template <Space space, class M, class R> void load(Warp& w, const Instruction& i, u32 mask) {
    for (; mask != 0; mask &= mask - 1) {
        const u32 l = u32(std::countr_zero(mask));
        const u64 address = address_of(w, i, 0, l, i.wide_address) + u64(i.immediate);
        const char* const from = bytes_at<space, M>(w, i, l, address, false);
        for (int v = 0; v < i.vector; ++v) {
            M value;
            std::memcpy(&value, from + std::size_t(v) * sizeof(M), sizeof(M));
            w.reg<R>(i.operands[1 + v])[l] = R(value);
        }
    }
}

template <Space space, class M, class R> void store(Warp& w, const Instruction& i, u32 mask) {
    for (; mask != 0; mask &= mask - 1) {
        const u32 l = u32(std::countr_zero(mask));
        const u64 address = address_of(w, i, 0, l, i.wide_address) + u64(i.immediate);
        char* const to = bytes_at<space, M>(w, i, l, address, true);
        for (int v = 0; v < i.vector; ++v) {
            const M value = M(w.reg<R>(i.operands[1 + v])[l]);
            std::memcpy(to + std::size_t(v) * sizeof(M), &value, sizeof(M));
        }
    }
}

template <Space space, class M, class R> Execute access(bool stores) {
    return stores ? &store<space, M, R> : &load<space, M, R>;
}
// With registers that are wider than the memory, loads extend.
template <Space space, class U, class S> Execute access(bool stores, bool is_signed, int register_bytes) {
    switch (register_bytes) {
        case 1:
            return sizeof(U) == 1 ? access<space, u8, u8>(stores) : nullptr;  // a constant
        case 2:
            return is_signed ? access<space, S, s16>(stores) : access<space, U, u16>(stores);
        case 4:
            return is_signed ? access<space, S, s32>(stores) : access<space, U, u32>(stores);
        case 8:
            return is_signed ? access<space, S, s64>(stores) : access<space, U, u64>(stores);
        default:
            return nullptr;
    }
}
template <Space space> Execute access(bool stores, int memory_bytes, bool is_signed, int register_bytes) {
    switch (memory_bytes) {
        case 1:
            return access<space, u8, s8>(stores, is_signed, register_bytes);
        case 2:
            return access<space, u16, s16>(stores, is_signed, register_bytes);
        case 4:
            return access<space, u32, s32>(stores, is_signed, register_bytes);
        case 8:
            return access<space, u64, s64>(stores, is_signed, register_bytes);
        default:
            return nullptr;
    }
}

template <class F, class T> void atomic(Warp& w, const Instruction& i, u32 mask) {
    for (; mask != 0; mask &= mask - 1) {
        const u32 l = u32(std::countr_zero(mask));
        const u64 address = address_of(w, i, 1, l, i.wide_address) + u64(i.immediate);
        char* const bytes = global_bytes(w, i, {l, address, sizeof(T), false});
        T old;
        std::memcpy(&old, bytes, sizeof old);
        const T now = F{}(old, w.reg<T>(i.operands[2])[l]);
        std::memcpy(bytes, &now, sizeof now);
        w.reg<T>(i.operands[0])[l] = old;
    }
}

// The target's bytes count as not written until the wait that covers the copy.
void copy_async(Warp& w, const Instruction& i, u32 mask) {
    for (; mask != 0; mask &= mask - 1) {
        const u32 l = u32(std::countr_zero(mask));
        const u64 to = address_of(w, i, 0, l, i.wide_address),
                  from = address_of(w, i, 1, l, i.wide_second_address);
        const u32 bytes = w.reg<u32>(i.operands[2])[l];
        if (bytes > copy_bytes) fault(w, i, l, fmt::format("cp.async of {} bytes", bytes));
        char* const target = shared_bytes(w, i, {l, to, copy_bytes, true});
        if (from % copy_bytes != 0) fault(w, i, l, "misaligned source of cp.async");
        if (bytes != 0) global_bytes(w, i, {l, from, copy_bytes, false, (1u << bytes) - 1});
        std::memset(target, 0xFF, copy_bytes);
        std::fill_n(&w.block->state[std::size_t(target - w.block->shared.data())], copy_bytes,
                    SharedByte::unwritten);
        auto& groups = w.copies[l];
        if (groups.empty()) groups.emplace_back();
        groups.back().push_back({u32(to), from, bytes});
    }
}

void copy_commit(Warp& w, const Instruction&, u32 mask) {
    each_lane(mask, [&](u32 l) {
        auto& groups = w.copies[l];
        if (groups.empty()) groups.emplace_back();
        groups.emplace_back();
    });
}

// All groups but the last `immediate` ones arrive.
void copy_wait(Warp& w, const Instruction& i, u32 mask) {
    for (; mask != 0; mask &= mask - 1) {
        const u32 l = u32(std::countr_zero(mask));
        auto& groups = w.copies[l];
        while (groups.size() > std::size_t(i.immediate) + 1) {
            for (const PendingCopy& copy : groups.front()) {
                char* const target = shared_bytes(w, i, {l, copy.to, copy_bytes, true});
                std::memset(target, 0, copy_bytes);
                std::memcpy(target, reinterpret_cast<const char*>(copy.from), copy.bytes);
            }
            groups.erase(groups.begin());
        }
    }
}

struct MemoryTable : TableWriter {
    template <class T, class F> void atomic_op(const std::string& name, F) {
        raw("atom.global." + name, &atomic<F, T>, {sizeof(T), 8, sizeof(T)});
    }
};

}  // namespace

void add_memory_opcodes(Opcodes& table) {
    MemoryTable add{{table}};
    add.atomic_op<u32>("add.u32", [](u32 old, u32 x) { return old + x; });
    add.atomic_op<u64>("add.u64", [](u64 old, u64 x) { return old + x; });
    add.atomic_op<f32>("add.f32", [](f32 old, f32 x) { return old + x; });
    add.atomic_op<f64>("add.f64", [](f64 old, f64 x) { return old + x; });
    add.atomic_op<u32>("exch.b32", [](u32, u32 x) { return x; });
    add.atomic_op<u64>("max.u64", [](u64 old, u64 x) { return std::max(old, x); });
    add.raw("membar.gl", [](Warp&, const Instruction&, u32) {}, {});
    add.raw("cp.async.cg.shared.global", &copy_async, {});
    add.raw("cp.async.commit_group", &copy_commit, {});
    add.raw("cp.async.wait_group", &copy_wait, {});
}

Execute load_or_store(bool store, Space space, int memory_bytes, bool is_signed, int register_bytes) {
    switch (space) {
        case Space::global:
            return access<Space::global>(store, memory_bytes, is_signed, register_bytes);
        case Space::shared:
            return access<Space::shared>(store, memory_bytes, is_signed, register_bytes);
        case Space::local:
            return access<Space::local>(store, memory_bytes, is_signed, register_bytes);
        case Space::param:
            return store ? nullptr : access<Space::param>(false, memory_bytes, is_signed, register_bytes);
        default:
            return nullptr;
    }
}

}  // namespace mezzo::ptx
