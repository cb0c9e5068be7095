// Conversions between types.
#include <cmath>
#include <limits>

#include "tests/ptx/half.h"
#include "tests/ptx/lanes.h"

namespace mezzo::ptx {
namespace {

// Clamped to D's range. NaN is 0 from f32 to 32 bits and the highest bit alone otherwise.
template <class D, class S> D to_integer(S whole) {
    using Limits = std::numeric_limits<D>;
    if (std::isnan(whole)) return sizeof(D) == 8 || sizeof(S) == 8 ? D(u64(1) << (sizeof(D) * 8 - 1)) : D(0);
    if (whole < S(Limits::min())) return Limits::min();
    const int bits = int(sizeof(D)) * 8 - (std::is_signed_v<D> ? 1 : 0);
    return whole >= std::ldexp(S(1), bits) ? Limits::max() : D(whole);
}

u32 pair_of(u16 high, u16 low) { return u32(high) << 16 | low; }

struct ConversionTable : TableWriter {
    // F is a floating type, I an integer.
    template <class F, class I> void whole_number(const std::string& f, const std::string& i) {
        op<I, F>("cvt.rzi." + i + "." + f, [](F x) { return to_integer<I>(std::trunc(x)); });
        op<I, F>("cvt.rni." + i + "." + f, [](F x) { return to_integer<I>(std::nearbyint(x)); });
        op<I, F>("cvt.rmi." + i + "." + f, [](F x) { return to_integer<I>(std::floor(x)); });
        from_whole<F, I>(f, i);
    }
    template <class F, class I> void from_whole(const std::string& f, const std::string& i) {
        op<F, I>("cvt.rn." + f + "." + i, [](I x) { return F(x); });
    }
    template <class F> void whole_numbers(const std::string& f) {
        whole_number<F, s32>(f, "s32"), whole_number<F, u32>(f, "u32");
        whole_number<F, s64>(f, "s64"), whole_number<F, u64>(f, "u64");
        from_whole<F, s16>(f, "s16"), from_whole<F, u16>(f, "u16");
    }
    template <class D, class S> void width(const std::string& name) {
        op<D, S>(name, [](S x) { return D(x); });
    }
    void widths() {
        width<s64, s32>("cvt.s64.s32"), width<s64, s16>("cvt.s64.s16"), width<s32, s16>("cvt.s32.s16");
        width<u64, u32>("cvt.u64.u32"), width<u64, u16>("cvt.u64.u16"), width<u32, u16>("cvt.u32.u16");
        width<u32, u64>("cvt.u32.u64"), width<u16, u64>("cvt.u16.u64"), width<u16, u32>("cvt.u16.u32");
        op<s16, s16>("cvt.s16.s8", [](s16 x) { return s16(s8(x)); });
        op<s32, s16>("cvt.s32.s8", [](s16 x) { return s32(s8(x)); });
        // Generic addresses are those of their state space: nvcc converts them back before each access.
        for (const char* name : {"cvta.to.global.u64", "cvta.shared.u64", "cvta.to.shared.u64"})
            op<u64, u64>(name, [](u64 x) { return x; });
    }
    void floats() {
        op<f64, f32>("cvt.f64.f32", [](f32 x) { return f64(x); });
        op<f32, f64>("cvt.rn.f32.f64", [](f64 x) { return f32(x); });
        op<f32, f32>("cvt.sat.f32.f32", [](f32 x) {
            return std::isnan(x) || x <= 0 ? 0.0f : x > 1 ? 1.0f : x;
        });
        op<f32, u16>("cvt.f32.f16", [](u16 x) { return from_half(x); });
        op<u16, f32>("cvt.rn.f16.f32", [](f32 x) { return to_half(x); });
        op<u16, f32>("cvt.rn.bf16.f32", [](f32 x) { return to_bfloat(x); });
        op<u32, f32, f32>("cvt.rn.f16x2.f32",
                          [](f32 high, f32 low) { return pair_of(to_half(high), to_half(low)); });
        op<u32, f32, f32>("cvt.rn.bf16x2.f32",
                          [](f32 high, f32 low) { return pair_of(to_bfloat(high), to_bfloat(low)); });
    }
};

}  // namespace

void add_conversion_opcodes(Opcodes& table) {
    ConversionTable add{{table}};
    add.whole_numbers<f32>("f32"), add.whole_numbers<f64>("f64");
    add.widths();
    add.floats();
}

}  // namespace mezzo::ptx
