// Matrix products: checks, batches, and the choice of the kernels that compute each matrix.
#include "cpu/gemm/gemm.h"

#include <algorithm>

#include "cpu/amx/amx.h"
#include "cpu/amx/tile_tables.h"
#include "cpu/gemm/choice.h"
#include "cpu/gemm/five_loops.h"
#include "cpu/parallel.h"
#include "mezzo/error.h"

namespace mezzo::cpu {
namespace {

// The operand of batch item `index`. An operand without elements has no memory, and stays null.
const void* item(const void* base, Dtype type, std::int64_t index, std::int64_t stride) {
    if (base == nullptr) return base;
    return static_cast<const char*>(base) + index * stride * static_cast<std::int64_t>(size_of(type));
}

void check_stride(const char* name, std::int64_t ld, std::int64_t row) {
    check(ld >= row, ErrorKind::value, "gemm: ", name, " = ", ld, " is less than a row of ", row);
}

bool storable(Dtype type) { return is_16bit(type) || type == float32; }

void check_arguments(const Gemm& g) {
    check(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0, ErrorKind::value, "gemm: negative size, m ", g.m,
          ", n ", g.n, ", k ", g.k, ", batch ", g.batch);
    const bool f64 = g.a_type == float64 && g.b_type == float64 && g.c_type == float64;
    check(f64 || (storable(g.a_type) && storable(g.b_type) && storable(g.c_type)), ErrorKind::dtype,
          "gemm: cannot multiply ", g.a_type, " and ", g.b_type, " into ", g.c_type,
          "; each must be float16, bfloat16 or float32, or all float64");
    check(!g.bias || is_floating(g.bias_type), ErrorKind::dtype, "gemm: the bias is ", g.bias_type,
          "; it must be of a floating type");
    if (g.m == 0 || g.n == 0 || g.batch == 0) return;
    if (g.k > 0) {
        check_stride("lda", g.lda, g.trans_a ? g.m : g.k);
        check_stride("ldb", g.ldb, g.trans_b ? g.k : g.n);
    }
    check_stride("ldc", g.ldc, g.n);
    check(g.batch == 1 || g.stride_c >= g.n, ErrorKind::value, "gemm: stride_c = ", g.stride_c,
          " makes the outputs of the batch overlap");
}

Gemm at(const Gemm& g, std::int64_t index) {
    Gemm one = g;
    one.batch = 1;
    one.a = item(g.a, g.a_type, index, g.stride_a);
    one.b = item(g.b, g.b_type, index, g.stride_b);
    one.c = const_cast<void*>(item(g.c, g.c_type, index, g.stride_c));
    one.pre_activation = const_cast<void*>(item(g.pre_activation, g.c_type, index, g.stride_c));
    one.saved = item(g.saved, g.c_type, index, g.stride_c);
    one.added = item(g.added, g.c_type, index, g.stride_c);
    return one;
}

// Stacked A with one B is a single taller product.
bool stacked(const Gemm& g) {
    return g.batch > 1 && g.stride_b == 0 && !g.trans_a && g.stride_a == g.m * g.lda &&
           g.stride_c == g.m * g.ldc;
}

// Kernels of depth 2 multiply pairs of bfloat16 only; other operands get the AVX-512 kernels.
const GemmKernels& suited(const GemmKernels& kernels, const Gemm& g) {
    const bool pairs = g.a_type == bfloat16 && g.b_type == bfloat16;
    return kernels.depth == 1 || pairs ? kernels : gemm_avx512;
}

// Calls compute(one) for every matrix of the batch, or once if they make a single taller product.
template <class F> void each(const Gemm& g, const F& compute) {
    check_arguments(g);
    if (g.m == 0 || g.n == 0 || g.batch == 0) return;
    if (stacked(g)) {
        Gemm tall = g;
        tall.batch = 1;
        tall.m *= g.batch;
        return compute(tall);
    }
    if (g.batch == 1) return compute(g);
    const std::int64_t work = g.m * g.n * g.k;
    if (work >= parallel_work && g.batch < 2 * num_threads()) {
        for (std::int64_t i = 0; i < g.batch; ++i) compute(at(g, i));
        return;
    }
    constexpr std::int64_t least_work = 1024;  // multiply-adds that take the time of the smallest product
    parallel_for(g.batch, grain(g.batch, g.batch * std::max(work, least_work)),
                 [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) compute(at(g, i));
                 });
}

bool multiplies_floats(const Gemm& g) { return g.c_type != float64 && g.m > 0 && g.n > 0 && g.k > 0; }

}  // namespace

bool is_small(const GemmKernels& kernels, const Gemm& g) {
    return g.m <= largest_small && g.n <= kernels.lanes && g.k <= largest_small && g.a_type == g.b_type &&
           g.c_type == g.a_type && g.alpha == 1 && g.beta == 0 && !g.bias &&
           g.activation == Activation::none && !g.pre_activation && !g.saved && !g.a_sums &&
           (g.a_type == float32 || on_vectors(kernels, g));
}

std::int64_t grain(std::int64_t n, std::int64_t work) {
    if (work < parallel_work) return n;
    return std::max<std::int64_t>(1, n * (parallel_work / 8) / work);
}

const GemmKernels& gemm_kernels(Isa isa) {
    static const GemmKernels with_pairs = [] {
        GemmKernels kernels = gemm_avx512_bf16;
        kernels.epilogue = gemm_avx512.epilogue;
        kernels.skinny = gemm_avx512.skinny;
        kernels.small = gemm_avx512.small;
        kernels.panels = gemm_avx512.panels;
        kernels.codes = gemm_avx512.codes;
        return kernels;
    }();
    static const GemmKernels with_tiles = [] {
        GemmKernels kernels = gemm_avx512;
        kernels.tiles = &tiles_amx;
        return kernels;
    }();
    if (isa == Isa::amx && tiles_amx.bf16.planes_a != 0 && request_tiles()) return with_tiles;
    if (isa >= Isa::avx512_bf16 && gemm_avx512_bf16.mr != 0) return with_pairs;
    if (isa >= Isa::avx512 && gemm_avx512.mr != 0) return gemm_avx512;
    if (isa != Isa::portable && gemm_avx2.mr != 0) return gemm_avx2;
    return gemm_portable;
}

void gemm(const Gemm& g, const GemmKernels& kernels) {
    each(g, [&](const Gemm& one) {
        one.c_type == float64 ? gemm_f64(one) : multiply_one(suited(kernels, one), one);
    });
}

void gemm_without_tiles(const Gemm& g, const GemmKernels& kernels) {
    GemmKernels plain = kernels;
    plain.tiles = nullptr;
    gemm(g, plain);
}

bool takes_saved(const Gemm& g) {
    const bool known = g.activation == Activation::relu || g.activation == Activation::gelu;
    return known && g.c_type == float32 && multiplies_floats(g) &&
           on_vectors(suited(chosen_gemm_kernels(g), g), g);
}
const GemmKernels* packing_kernels(const Gemm& g) {
    if (!multiplies_floats(g) || g.batch != 1) return nullptr;
    const GemmKernels& kernels = suited(chosen_gemm_kernels(g), g);
    return packed_b(kernels, g) > 0 ? &kernels : nullptr;
}
bool makes_a_sums(const Gemm& g) {
    return multiplies_floats(g) && g.batch == 1 && packs_rows_of_a(suited(chosen_gemm_kernels(g), g), g);
}

void gemm(const Gemm& g) {
    each(g, [](const Gemm& one) {
        if (one.c_type == float64) return gemm_f64(one);
        const GemmKernels& kernels = suited(chosen_gemm_kernels(one), one);
        // Tiles support neither of them, and another thread may have allowed tiles after the call of
        // takes_saved().
        one.saved || one.a_sums ? gemm_without_tiles(one, kernels) : multiply_one(kernels, one);
    });
}

}  // namespace mezzo::cpu
