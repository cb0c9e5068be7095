// Moves, predicates, bits and integers.

#include "tests/ptx/lanes.h"

namespace mezzo::ptx {
namespace {

template <class T> void select(Warp& w, const Instruction& i, u32 mask) {
    const u32 chosen = w.predicate(i.operands[3]);
    T* const d = w.reg<T>(i.operands[0]);
    const T *const x = w.reg<T>(i.operands[1]), *const y = w.reg<T>(i.operands[2]);
    each_lane(mask, [=](u32 l) { d[l] = (chosen >> l & 1) != 0 ? x[l] : y[l]; });
}

template <class T> T shift_left(T x, u32 n) { return n >= sizeof(T) * 8 ? T(0) : T(x << n); }
template <class T> T shift_right(T x, u32 n) {
    if (n >= sizeof(T) * 8) return std::is_signed_v<T> && x < 0 ? T(-1) : T(0);
    return T(x >> n);
}

// prmt: four of the eight bytes of b:a, or their signs.
u32 permute(u32 a, u32 b, u32 selector) {
    const u64 both = u64(b) << 32 | a;
    u32 result = 0;
    for (u32 k = 0; k < 4; ++k) {
        const u32 chosen = selector >> 4 * k & 15;
        u32 byte = u32(both >> 8 * (chosen & 7)) & 0xFF;
        if ((chosen & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
        result |= byte << 8 * k;
    }
    return result;
}

// bfi
template <class T> T insert_bits(T a, T b, u32 at, u32 length) {
    constexpr u32 width = sizeof(T) * 8;
    at &= 0xFF;
    length &= 0xFF;
    if (at >= width || length == 0) return b;
    const T ones = length >= width ? T(~T(0)) : T((T(1) << length) - 1);
    return T((b & ~T(ones << at)) | ((a & ones) << at));
}

u32 reversed(u32 x) {
    u32 result = 0;
    for (u32 k = 0; k < 32; ++k) result |= (x >> k & 1) << (31 - k);
    return result;
}

template <class T, bool remainder> void divide(Warp& w, const Instruction& i, u32 mask) {
    T* const d = w.reg<T>(i.operands[0]);
    const T *const x = w.reg<T>(i.operands[1]), *const y = w.reg<T>(i.operands[2]);
    each_lane(mask, [&](u32 l) {
        if (y[l] == 0) {
            report(*w.kernel, &i, "division by zero", position(w, l));
            d[l] = T(-1);
        } else if (std::is_signed_v<T> && y[l] == T(-1)) {
            d[l] = remainder ? T(0) : T(0 - std::make_unsigned_t<T>(x[l]));
        } else {
            d[l] = remainder ? T(x[l] % y[l]) : T(x[l] / y[l]);
        }
    });
}

// Arithmetic with the carry: F gives 64 bits, of which the upper half is the carry or borrow.
template <class F, bool sets> void with_carry(Warp& w, const Instruction& i, u32 mask) {
    const auto* const x = w.reg<u32>(i.operands[1]);
    const auto* const y = w.reg<u32>(i.operands[2]);
    const auto* const z = w.reg<u32>(i.operands[3]);  // of mad
    each_lane(mask, [&](u32 l) {
        const u64 result = F{}(u64(x[l]), u64(y[l]), u64(z[l]), u64(w.carry >> l & 1));
        w.reg<u32>(i.operands[0])[l] = u32(result);
        if (sets) set_bits(w.carry, u32(result >> 32 & 1) << l, 1u << l);
    });
}

// The halves of a wider word.
template <class Whole, class Half> void pack(Warp& w, const Instruction& i, u32 mask) {
    each_lane(mask, [&](u32 l) {
        const Half low = w.reg<Half>(i.operands[1])[l], high = w.reg<Half>(i.operands[2])[l];
        w.reg<Whole>(i.operands[0])[l] = Whole(low) | Whole(Whole(high) << 8 * sizeof(Half));
    });
}
template <class Whole, class Half> void unpack(Warp& w, const Instruction& i, u32 mask) {
    each_lane(mask, [&](u32 l) {
        const Whole x = w.reg<Whole>(i.operands[0])[l];
        w.reg<Half>(i.operands[1])[l] = Half(x);
        w.reg<Half>(i.operands[2])[l] = Half(x >> 8 * sizeof(Half));
    });
}

struct IntegerTable : TableWriter {
    template <class T> void moves(const std::string& type) {
        op<T, T>("mov." + type, [](T x) { return x; });
        raw("selp." + type, &select<T>, {sizeof(T), sizeof(T), sizeof(T), 0});
    }
    template <class T> void bits(const std::string& type) {
        moves<T>(type);
        op<T, T, T>("and." + type, [](T x, T y) { return x & y; });
        op<T, T, T>("or." + type, [](T x, T y) { return x | y; });
        op<T, T, T>("xor." + type, [](T x, T y) { return x ^ y; });
        op<T, T>("not." + type, [](T x) { return ~x; });
        op<T, T, u32>("shl." + type, [](T x, u32 n) { return shift_left(x, n); });
        comparison<T>("eq." + type, [](T x, T y) { return x == y; });
        comparison<T>("ne." + type, [](T x, T y) { return x != y; });
    }
    template <class T> void integers(const std::string& type) {
        using U = std::make_unsigned_t<T>;
        moves<T>(type);
        ordered<T>(type);
        op<T, T, T>("add." + type, [](T x, T y) { return T(U(x) + U(y)); });
        op<T, T, T>("sub." + type, [](T x, T y) { return T(U(x) - U(y)); });
        op<T, T, T>("mul.lo." + type, [](T x, T y) { return T(u64(U(x)) * u64(U(y))); });
        op<T, T, T, T>("mad.lo." + type, [](T x, T y, T z) { return T(u64(U(x)) * u64(U(y)) + u64(U(z))); });
        op<T, T>("neg." + type, [](T x) { return T(0 - U(x)); });
        op<T, T>("abs." + type, [](T x) { return x < 0 ? T(0 - U(x)) : x; });
        op<T, T, T>("min." + type, [](T x, T y) { return y < x ? y : x; });
        op<T, T, T>("max." + type, [](T x, T y) { return y > x ? y : x; });
        op<T, T, u32>("shr." + type, [](T x, u32 n) { return shift_right(x, n); });
        raw("div." + type, &divide<T, false>, {sizeof(T), sizeof(T), sizeof(T)});
        raw("rem." + type, &divide<T, true>, {sizeof(T), sizeof(T), sizeof(T)});
    }
    void all_predicates() {
        raw("mov.pred",
            [](Warp& w, const Instruction& i, u32 mask) {
                set_bits(w.predicate(i.operands[0]), w.predicate(i.operands[1]), mask);
            },
            {0, 0});
        raw("not.pred",
            [](Warp& w, const Instruction& i, u32 mask) {
                set_bits(w.predicate(i.operands[0]), ~w.predicate(i.operands[1]), mask);
            },
            {0, 0});
        predicates("and.pred", [](u32 x, u32 y) { return x & y; });
        predicates("or.pred", [](u32 x, u32 y) { return x | y; });
        predicates("xor.pred", [](u32 x, u32 y) { return x ^ y; });
    }
    void products() {
        op<s32, s32, s32>("mul.hi.s32", [](s32 x, s32 y) { return s32(s64(x) * y >> 32); });
        op<u32, u32, u32>("mul.hi.u32", [](u32 x, u32 y) { return u32(u64(x) * y >> 32); });
        op<s64, s64, s64>("mul.hi.s64", [](s64 x, s64 y) { return s64(s128(x) * y >> 64); });
        op<u64, u64, u64>("mul.hi.u64", [](u64 x, u64 y) { return u64(u128(x) * y >> 64); });
        op<s64, s32, s32>("mul.wide.s32", [](s32 x, s32 y) { return s64(x) * y; });
        op<u64, u32, u32>("mul.wide.u32", [](u32 x, u32 y) { return u64(x) * y; });
        op<u32, u16, u16>("mul.wide.u16", [](u16 x, u16 y) { return u32(x) * y; });
        op<s32, s16, s16>("mul.wide.s16", [](s16 x, s16 y) { return s32(x) * y; });
        op<u64, u32, u32, u64>("mad.wide.u32", [](u32 x, u32 y, u64 z) { return u64(x) * y + z; });
        op<s64, s32, s32, s64>("mad.wide.s32",
                               [](s32 x, s32 y, s64 z) { return s64(u64(s64(x) * y) + u64(z)); });
    }
    void bit_fields() {
        op<u32, u32>("popc.b32", [](u32 x) { return std::popcount(x); });
        op<u32, u64>("popc.b64", [](u64 x) { return std::popcount(x); });
        op<u32, u32>("clz.b32", [](u32 x) { return std::countl_zero(x); });
        op<u32, u64>("clz.b64", [](u64 x) { return std::countl_zero(x); });
        op<u32, u32>("brev.b32", [](u32 x) { return reversed(x); });
        op<u32, u32>("bfind.shiftamt.u32", [](u32 x) { return x == 0 ? ~0u : u32(std::countl_zero(x)); });
        op<u32, u32, u32, u32, u32>("bfi.b32",
                                    [](u32 a, u32 b, u32 at, u32 n) { return insert_bits(a, b, at, n); });
        op<u64, u64, u64, u32, u32>("bfi.b64",
                                    [](u64 a, u64 b, u32 at, u32 n) { return insert_bits(a, b, at, n); });
        op<u32, u32, u32, u32>("prmt.b32",
                               [](u32 a, u32 b, u32 selector) { return permute(a, b, selector); });
        raw("(pack).b32", &pack<u32, u16>, {4, 2, 2});
        raw("(pack).b64", &pack<u64, u32>, {8, 4, 4});
        raw("(unpack).b32", &unpack<u32, u16>, {4, 2, 2});
        raw("(unpack).b64", &unpack<u64, u32>, {8, 4, 4});
    }
    // Operands x, y, z of mad, and the carry.
    template <class F> void carry(const std::string& name, F) {
        const bool sets = name.find(".cc") != std::string::npos;
        const std::vector<u8> bytes(name.compare(0, 3, "mad") == 0 ? 4 : 3, 4);
        raw(name + ".u32", sets ? &with_carry<F, true> : &with_carry<F, false>, bytes);
    }
    void carries() {
        const auto add = [](u64 x, u64 y, u64, u64) { return x + y; };
        const auto add_carry = [](u64 x, u64 y, u64, u64 in) { return x + y + in; };
        const auto subtract = [](u64 x, u64 y, u64, u64) { return x - y; };
        const auto subtract_borrow = [](u64 x, u64 y, u64, u64 in) { return x - y - in; };
        const auto low = [](u64 x, u64 y, u64 z, u64) { return (x * y & 0xFFFFFFFF) + z; };
        const auto low_carry = [](u64 x, u64 y, u64 z, u64 in) { return (x * y & 0xFFFFFFFF) + z + in; };
        const auto high_carry = [](u64 x, u64 y, u64 z, u64 in) { return (x * y >> 32) + z + in; };
        carry("add.cc", add), carry("addc.cc", add_carry), carry("addc", add_carry);
        carry("sub.cc", subtract), carry("subc.cc", subtract_borrow), carry("subc", subtract_borrow);
        carry("mad.lo.cc", low), carry("madc.lo.cc", low_carry);
        carry("madc.hi.cc", high_carry), carry("madc.hi", high_carry);
    }

    __extension__ using s128 = __int128;
    __extension__ using u128 = unsigned __int128;
};

}  // namespace

void add_integer_opcodes(Opcodes& table) {
    IntegerTable add{{table}};
    add.bits<u16>("b16"), add.bits<u32>("b32"), add.bits<u64>("b64");
    add.integers<s16>("s16"), add.integers<s32>("s32"), add.integers<s64>("s64");
    add.integers<u16>("u16"), add.integers<u32>("u32"), add.integers<u64>("u64");
    add.moves<f32>("f32"), add.moves<f64>("f64");
    add.all_predicates();
    add.products();
    add.bit_fields();
    add.carries();
}

}  // namespace mezzo::ptx
