// Options and plan files of matrix products where there is no GPU, or another one.
#include <catch2/catch.hpp>

#include "mezzo/cuda.h"
#include "tests/folder.h"

using namespace mezzo;

namespace {

// The format, by example. The checksum is the CRC-32 of "libraries" as save_gemm_plans() spaces it.
constexpr const char* file_of_another_gpu =
    R"({"format": "mezzo GEMM plans 1", "checksum": 126346510, "libraries": [
{"device": "no such GPU", "major": 9, "minor": 0, "cublaslt": 130100, "plans": [
{"m": 8, "n": 513, "k": 64, "lda": 64, "ldb": 64, "ldd": 8, "batch": 1, "stride_a": 0, 
"stride_b": 0, "stride_d": 0, "align_a": 256, "align_b": 256, "align_d": 256, 
"align_bias": 256, "align_aux": 256, "a": "float16", "b": "float16", "d": "float16", 
"trans_a": true, "trans_b": false, "tf32": false, "beta_is_zero": true, "most": "relu_bias", 
"activation": "relu", "keeps_before": false, "epilogue": "bias", 
"algorithm": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 
"workspace": 4096}]}]}
)";

}  // namespace

TEST_CASE("gemm plans: a file of another GPU, or without one", "[gemm]") {
    const test::Folder folder;
    const std::string path = folder.write("plans", file_of_another_gpu);
    const cuda::LoadedGemmPlans report = cuda::load_gemm_plans(path);
    CHECK(report.other_device == 1);
    CHECK(report.loaded == 0);
    CHECK(report.other_version == 0);
    CHECK(cuda::save_gemm_plans(path) == 0);
    CHECK(folder.read("plans") == file_of_another_gpu);
    CHECK(cuda::save_gemm_plans(folder.file("none")) == 0);
    CHECK(folder.listing() == "plans ");
}

TEST_CASE("gemm options are kept in every build", "[gemm]") {
    CHECK_FALSE(cuda::gemm_options().autotune);
    CHECK_FALSE(cuda::gemm_options().fuse_bias_gradients);
    cuda::set_gemm_options({.autotune = true, .candidates = 3});
    CHECK(cuda::gemm_options().autotune);
    CHECK(cuda::gemm_options().candidates == 3);
    cuda::set_gemm_options({});
    CHECK(cuda::gemm_options().candidates == 8);
}
