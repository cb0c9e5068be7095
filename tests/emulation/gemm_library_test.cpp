// The stand-in for cuBLASLt takes and refuses calls as NVIDIA documents, and gemm() handles its refusals: it
// counts fallbacks, and throws if memory is short.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "core/memory/allocator.h"
#include "cuda/gemm/fallbacks.h"
#include "cuda/gemm/plans.h"
#include "mezzo/error.h"
#include "mezzo/tensor.h"
#include "tests/emulation/cublaslt/cublasLt.h"
#include "tests/emulation/tuned.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using emulation::fake_lt;
using test::DeviceArray;
using test::Product;
using test::Tuned;

const Device gpu{DeviceType::cuda};
constexpr std::size_t mebibyte = std::size_t(1) << 20;

// A well-behaved library without plans, before and after.
struct FreshLibrary {
    emulation::Options old = emulation::options;
    FreshLibrary() { Tuned::reset(); }
    ~FreshLibrary() {
        cuda::set_device(0);
        emulation::options = old;
        Tuned::reset();
    }
};

// Returns the counts since the last call.
struct Since {
    cuda::GemmFallbacks before = cuda::gemm_fallbacks();
    cuda::GemmFallbacks operator()() {
        cuda::GemmFallbacks now = cuda::gemm_fallbacks();
        const cuda::GemmFallbacks old = std::exchange(before, now);
        now.products -= old.products;
        now.invalid -= old.invalid;
        return now;
    }
};

// A product of 16 x 8 x 64 as a caller of the library describes it.
struct Call {
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaDataType_t scale = CUDA_R_32F, a = CUDA_R_32F, b = CUDA_R_32F, c = CUDA_R_32F, d = CUDA_R_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    std::int32_t vector_type = -1, aux_type = -1;
    std::int64_t ldd = 16, aux_ld = 0, aux_stride = 0;
    std::uint64_t rows = 16;
    std::int32_t batch = 1;
    bool no_bias = false, no_aux = false;
    std::size_t attribute_size = 4;  // of EPILOGUE

    cublasStatus_t ask() const {
        static const DeviceArray<double> vectors(4096);
        cublasLtMatmulDescOpaque_t op{};
        cublasLtMatmulDescInit_internal(&op, sizeof op, compute, scale);
        const auto set = [&](cublasLtMatmulDescAttributes_t name, auto value, std::size_t size) {
            return cublasLtMatmulDescSetAttribute(&op, name, &value, size);
        };
        if (const auto status = set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t(epilogue), attribute_size))
            return status;
        const void* const bias = no_bias ? nullptr : vectors.data();
        const void* const aux = no_aux ? nullptr : vectors.data() + 2048;
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, 8);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux, 8);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld, 8);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, aux_stride, 8);
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, vector_type, 4);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, aux_type, 4);
        cublasLtMatrixLayoutOpaque_t layouts[4];
        cublasLtMatrixLayoutInit_internal(&layouts[0], sizeof layouts[0], a, rows, 64, std::int64_t(rows));
        cublasLtMatrixLayoutInit_internal(&layouts[1], sizeof layouts[1], b, 64, 8, 64);
        cublasLtMatrixLayoutInit_internal(&layouts[2], sizeof layouts[2], c, rows, 8, ldd);
        cublasLtMatrixLayoutInit_internal(&layouts[3], sizeof layouts[3], d, rows, 8, ldd);
        for (auto& layout : layouts)
            cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, 4);
        cublasLtMatmulPreferenceOpaque_t preference{};
        cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference);
        const std::uint64_t most = 32 * mebibyte;
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, 8);
        cublasLtMatmulHeuristicResult_t result{};
        int found = 0;
        return cublasLtMatmulAlgoGetHeuristic(nullptr, &op, &layouts[0], &layouts[1], &layouts[2],
                                              &layouts[3], &preference, 1, &result, &found);
    }
};

// All types alike but those given.
Call of(cudaDataType_t ab, cudaDataType_t cd) { return {.a = ab, .b = ab, .c = cd, .d = cd}; }
Call with(Call call, cublasLtEpilogue_t epilogue, std::int32_t vector_type = -1) {
    call.epilogue = epilogue;
    call.vector_type = vector_type;
    const bool mask = epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD || epilogue == CUBLASLT_EPILOGUE_RELU_AUX;
    call.aux_ld = mask ? 128 : 16;
    return call;
}

}  // namespace

TEST_CASE("gemm library: the stand-in takes the documented types and no others", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    const auto yes = CUBLAS_STATUS_SUCCESS, no = CUBLAS_STATUS_NOT_SUPPORTED;
    for (const cudaDataType_t low : {CUDA_R_16F, CUDA_R_16BF}) {
        CHECK(of(low, low).ask() == yes);
        CHECK(of(low, CUDA_R_32F).ask() == yes);
        CHECK(of(CUDA_R_32F, low).ask() == no);
        CHECK(Call{.a = low, .b = CUDA_R_32F}.ask() == no);
        CHECK(Call{.a = low, .b = low, .c = CUDA_R_32F, .d = low}.ask() == no);
        // a bias and its gradient have the type of the result
        for (const auto epilogue : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DRELU_BGRAD,
                                    CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}) {
            CHECK(with(of(low, low), epilogue).ask() == yes);
            CHECK(with(of(low, low), epilogue, low).ask() == yes);
            CHECK(with(of(low, low), epilogue, CUDA_R_32F).ask() == no);
            CHECK(with(of(low, CUDA_R_32F), epilogue, CUDA_R_32F).ask() == yes);
            CHECK(with(of(low, CUDA_R_32F), epilogue, low).ask() == no);
        }
    }
    CHECK(of(CUDA_R_16F, CUDA_R_16BF).ask() == no);
    CHECK(Call{}.ask() == yes);
    CHECK(Call{.compute = CUBLAS_COMPUTE_32F_FAST_TF32}.ask() == yes);
    CHECK(Call{.compute = CUBLAS_COMPUTE_64F}.ask() == no);
    CHECK(Call{.scale = CUDA_R_64F}.ask() == no);
    Call tf32 = of(CUDA_R_16F, CUDA_R_16F);
    tf32.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    CHECK(tf32.ask() == no);
    Call wide = of(CUDA_R_64F, CUDA_R_64F);
    CHECK(wide.ask() == no);
    wide.compute = CUBLAS_COMPUTE_64F;
    CHECK(wide.ask() == no);
    wide.scale = CUDA_R_64F;
    CHECK(wide.ask() == yes);
}

TEST_CASE("gemm library: what the stand-in calls invalid", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    const auto yes = CUBLAS_STATUS_SUCCESS, wrong = CUBLAS_STATUS_INVALID_VALUE;
    CHECK(Call{.ldd = 15}.ask() == wrong);
    CHECK(Call{.batch = 0}.ask() == wrong);
    CHECK(Call{.batch = -2147483647}.ask() == wrong);  // what is left of 2^31 + 1
    CHECK(Call{.ldd = 0, .rows = 0}.ask() == wrong);
    CHECK(Call{.attribute_size = 8}.ask() == wrong);
    CHECK(Call{.ldd = std::int64_t(1) << 31, .rows = std::uint64_t(1) << 31}.ask() ==
          CUBLAS_STATUS_NOT_SUPPORTED);
    Call bias = with({}, CUBLASLT_EPILOGUE_BIAS);
    bias.no_bias = true;
    CHECK(bias.ask() == wrong);
    for (const auto epilogue : {CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_RELU_AUX}) {
        Call aux = with({}, epilogue);
        CHECK(aux.ask() == yes);
        aux.aux_type = CUDA_R_32F;  // its type must stay unset
        CHECK(aux.ask() == wrong);
        aux = with({}, epilogue);
        aux.no_aux = true;
        CHECK(aux.ask() == wrong);
        for (const std::int64_t ld : {0, 8, 20, 64}) {  // shorter than a column, or no multiple
            aux = with({}, epilogue);
            aux.aux_ld = ld;
            if (epilogue == CUBLASLT_EPILOGUE_RELU_AUX || ld < 64) CHECK(aux.ask() == wrong);
        }
        aux = with({}, epilogue);
        aux.aux_stride = 4;
        CHECK(aux.ask() == wrong);
    }
}

TEST_CASE("gemm library: a workspace from k = 64 on, at a multiple of 256 bytes", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    for (const std::int64_t k : {32, 63, 64, 96}) {
        Product x(k);
        x.run();
        CAPTURE(k);
        CHECK((fake_lt.last_workspace != nullptr) == (k >= 64));
        CHECK(reinterpret_cast<std::uintptr_t>(fake_lt.last_workspace) % 256 == 0);
    }
    // one that is less aligned, or too short, is refused by the call
    Product x;
    cuda::GemmService& s = cuda::gemm_service();
    const std::lock_guard lock(s.mutex);
    cuda::CachedPlan& cached = cuda::plan_for(s, x.g, cuda::lt::Epilogue::none);
    const DeviceArray<char> memory(mebibyte + 256);
    cuda::lt::Operands o{.a = x.b.data(),
                         .b = x.a.data(),
                         .bias = nullptr,
                         .d = x.c.data(),
                         .aux = nullptr,
                         .bias_grad = nullptr,
                         .alpha = 1,
                         .beta = 0,
                         .workspace = memory.data(),
                         .workspace_bytes = mebibyte};
    CHECK(cuda::lt::run(*cached.plan, cached.candidates.at(0), o));
    o.workspace = memory.data() + 128;
    CHECK_FALSE(cuda::lt::run(*cached.plan, cached.candidates.at(0), o));
    CHECK(cuda::lt::refusal(*cached.plan) == "cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE (7)");
    o.workspace = memory.data();
    o.workspace_bytes = 8;
    CHECK_FALSE(cuda::lt::run(*cached.plan, cached.candidates.at(0), o));
}

TEST_CASE("gemm library: products that it does not compute are counted, with the reason",
          "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Since since;
    Product x(96);
    const auto fallback = [&] {
        cuda::clear_gemm_plans();
        x.run(), x.run();
        const cuda::GemmFallbacks seen = since();
        CHECK(seen.products == 2);
        return seen;
    };
    x.run();
    CHECK(since().products == 0);
    SECTION("no algorithm") {
        fake_lt.no_algorithm = true;
        const cuda::GemmFallbacks seen = fallback();
        CHECK(seen.last ==
              "[4, 8] = [4, 96] x [96, 8], float32 = float32 x float32, batch 1: "
              "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED (15)");
        CHECK(seen.invalid == 0);
    }
    SECTION("no algorithm, and success") {
        fake_lt.no_algorithm = true;
        fake_lt.status_of_none = CUBLAS_STATUS_SUCCESS;
        CHECK_THAT(fallback().last, Contains("cublasLtMatmulAlgoGetHeuristic gave no algorithm"));
    }
    SECTION("invalid") {
        fake_lt.no_algorithm = true;
        fake_lt.status_of_none = CUBLAS_STATUS_INVALID_VALUE;
        const cuda::GemmFallbacks seen = fallback();
        CHECK(seen.invalid == 1);  // the library was asked once
        CHECK_THAT(seen.last, Contains("CUBLAS_STATUS_INVALID_VALUE (7)"));
    }
    SECTION("an epilogue alone") {  // the product is still the library's
        fake_lt.no_fused = true;
        x.with_bias(Activation::relu);
        cuda::gemm(x.g);
        CHECK(since().products == 0);
        fake_lt.status_of_none = CUBLAS_STATUS_INVALID_VALUE;
        cuda::clear_gemm_plans();
        cuda::gemm(x.g);
        const cuda::GemmFallbacks seen = since();
        CHECK(seen.products == 0);
        CHECK(seen.invalid == 2);  // with the activation, and with the bias alone
        CHECK_THAT(seen.last, Contains("epilogue 1: cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_INVALID"));
    }
    SECTION("nothing executes") {
        fake_lt.failing = 100;
        CHECK_THAT(fallback().last, Contains("no algorithm executes and sums correctly"));
        Product unchecked(64);
        unchecked.run();
        CHECK_THAT(since().last, Contains("cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED (15)"));
    }
    SECTION("nothing sums correctly") {
        fake_lt.dropping_last = 100;
        CHECK_THAT(fallback().last, Contains("no algorithm executes and sums correctly"));
        cuda::set_gemm_options({.autotune = true});
        CHECK_THAT(fallback().last, Contains("no algorithm executes and sums correctly"));
    }
    SECTION("two dtypes") {
        const DeviceArray<float16_t> half(std::vector<float16_t>(4 * 96, float16_t(1.0f)));
        x.g.a = half.data(), x.g.a_type = float16;
        CHECK_THAT(fallback().last, Contains("float32 = float16 x float32, batch 1: operands of two dtypes"));
        x.g.k = 0;
        cuda::gemm(x.g);
        CHECK(since().products == 0);
    }
}

TEST_CASE("gemm library: a wrong descriptor is told from a product without an algorithm",
          "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Since since;
    const DeviceArray<float> memory(4096);
    const cuda::lt::Operands o{.a = memory.data(),
                               .b = memory.data(),
                               .bias = memory.data(),
                               .d = memory.data(),
                               .aux = memory.data(),
                               .bias_grad = memory.data(),
                               .alpha = 1,
                               .beta = 0,
                               .workspace = nullptr,
                               .workspace_bytes = 0};
    cuda::lt::Problem p{.m = 8, .n = 4, .k = 64, .lda = 8, .ldb = 64, .ldd = 8};
    const auto algorithms = [&] { return cuda::lt::heuristics(*cuda::lt::make_plan(p), o, 0, 4).size(); };
    fake_lt.workspace = 0;
    CHECK(algorithms() == 3);
    p.d_type = float16;  // not supported
    CHECK(algorithms() == 0);
    CHECK(since().invalid == 0);
    p.d_type = float32;
    p.ldd = 7;  // invalid
    CHECK(algorithms() == 0);
    CHECK(since().invalid == 1);
    p.ldd = 12;  // no 8 elements
    p.epilogue = cuda::lt::Epilogue::dgelu_tanh;
    CHECK(algorithms() == 0);
    CHECK(since().invalid == 1);
    p.ldd = 8;
    for (int e = 0; e < cuda::lt::epilogue_count; ++e) {  // the descriptors of every epilogue are right
        p.epilogue = cuda::lt::Epilogue(e);
        CHECK(algorithms() == 3);
    }
    CHECK(since().invalid == 0);
}

TEST_CASE("gemm library: numbers that no descriptor holds never reach it", "[cuda][gemm][emulation]") {
    Product x;
    CHECK(cuda::outside_library(x.g) == nullptr);
    const std::int64_t most = 2147483647;
    for (std::int64_t cuda::Gemm::*size :
         {&cuda::Gemm::m, &cuda::Gemm::n, &cuda::Gemm::k, &cuda::Gemm::batch}) {
        cuda::Gemm g = x.g;
        g.*size = most;
        CHECK(cuda::outside_library(g) == nullptr);
        g.*size = most + 1;
        CHECK_THAT(cuda::outside_library(g), Contains("2^31"));
    }
}

TEST_CASE("gemm library: where it has no memory, the cache is given back and the call made again",
          "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Product x(96);
    x.run();  // the workspace is there
    cuda::clear_gemm_plans();
    std::size_t& needed = GENERATE(false, true) ? fake_lt.heuristic_bytes : fake_lt.matmul_bytes;
    needed = 48 * mebibyte;
    const auto fill = [&] {  // leaves 64 MiB, all in the cache
        empty_cache(gpu);
        emulation::options.device_memory = emulation::Engine::get().device_bytes() + 64 * mebibyte;
        Block* const block = allocator(gpu).allocate(60 * mebibyte);
        return block;
    };
    SECTION("a cache that covers it") {
        allocator(gpu).release(fill());
        const std::size_t reserved = memory_stats(gpu).reserved;
        x.run();
        CHECK(algorithm_of(x) == 0);
        // where every block is the system's own there is no cache
        if (reserved > 60 * mebibyte) CHECK(memory_stats(gpu).reserved + 50 * mebibyte <= reserved);
    }
    SECTION("no cache") {
        Block* const block = fill();
        Since since;
        try {
            cuda::gemm(x.g);
            FAIL("no error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::memory);
            CHECK_THAT(error.what(),
                       Contains("out of memory on cuda:0: CUBLAS_STATUS_ALLOC_FAILED (3), after the "
                                "cache was given back"));
        }
        allocator(gpu).release(block);
        CHECK(algorithm_of(x) == 0);  // nothing was given up for it
        CHECK(since().products == 0);
    }
}

TEST_CASE("gemm library: a handle for which there is no memory", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    emulation::options.device_count = 4;
    Product x(32);
    cuda::set_device(3);  // where no product has been yet
    const auto kind_of_error = [&] {
        try {
            cuda::gemm(x.g);
        } catch (const Error& error) {
            return error.kind();
        }
        return ErrorKind::value;  // there was none
    };
    fake_lt.handle_bytes = emulation::options.device_memory;
    CHECK(kind_of_error() == ErrorKind::memory);
    fake_lt.handle_bytes = 0;
    fake_lt.create_status = CUBLAS_STATUS_NOT_INITIALIZED;
    CHECK(kind_of_error() == ErrorKind::backend);
    fake_lt.create_status = 0;
    x.run();
}

TEST_CASE("gemm library: a captured step gives no memory back", "[cuda][gemm][emulation]") {
    const FreshLibrary fresh;
    Product x(96);
    x.run();
    allocator(gpu).release(allocator(gpu).allocate(16 * mebibyte));
    const std::size_t reserved = memory_stats(gpu).reserved;
    fake_lt.matmul_bytes = emulation::options.device_memory;
    cuda::begin_capture();
    CHECK_THROWS_WITH(cuda::gemm(x.g), Contains("CUBLAS_STATUS_ALLOC_FAILED (3) in a captured step"));
    cuda::destroy_graph(cuda::end_capture());
    CHECK(memory_stats(gpu).reserved == reserved);
    fake_lt.matmul_bytes = 0;
    x.run();
}
