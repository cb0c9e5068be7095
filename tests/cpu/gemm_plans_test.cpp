// Options and plan files of matrix products without a GPU, or with another one.
#include <catch2/catch.hpp>

#include "autograd/op.h"
#include "mezzo/amp.h"
#include "mezzo/cuda.h"
#include "mezzo/nn.h"
#include "mezzo/transformer.h"
#include "tests/support/folder.h"

using namespace mezzo;

namespace {

// The ops that f runs inside an Autocast scope of the CPU.
template <class F> std::string ops_of(const F& f) {
    amp::clear_autocast_report();
    amp::collect_autocast_report(true);
    {
        const amp::Autocast scope({.device = DeviceType::cpu});
        f();
    }
    amp::collect_autocast_report(false);
    std::string ops;
    for (const auto& line : amp::autocast_report()) ops += line.op + "*" + std::to_string(line.calls) + " ";
    amp::clear_autocast_report();
    return ops;
}

// An example of the format. The checksum is the CRC-32 of "libraries" as save_gemm_plans() spaces it.
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
    CHECK(cuda::gemm_options().fuse_bias_gradients == FastPath::automatic);
    cuda::set_gemm_options({.autotune = true, .candidates = 3});
    CHECK(cuda::gemm_options().autotune);
    CHECK(cuda::gemm_options().candidates == 3);
    cuda::set_gemm_options({});
    CHECK(cuda::gemm_options().candidates == 8);
}

TEST_CASE("gemm options change nothing that runs on the CPU", "[gemm]") {
    struct Options {
        explicit Options(const cuda::GemmOptions& options) { cuda::set_gemm_options(options); }
        ~Options() { cuda::set_gemm_options({}); }
    };
    const nn::Linear first(8, 8), second(8, 8);
    const nn::Sequential net{first, nn::ReLU(), second};
    const nn::TransformerEncoderLayer layer(8, 2, {.dim_feedforward = 16, .dropout = 0});
    const Tensor x = ones({2, 3, 8});
    const auto run = [&] {
        net(x);
        layer(x);
    };
    const std::string plain = ops_of(run);
    const Options all({.fuse_bias_gradients = true, .fuse_layers = true, .relu_masks = true});
    CHECK(ops_of(run) == plain);
    const Tensor y = linear(x, first.weight, first.bias, LinearActivation::relu);
    const Tensor of_bias = autograd::grad({sum(y)}, {first.bias}, {.create_graph = true})[0];
    REQUIRE(of_bias->grad_meta);
    CHECK(std::string(of_bias->grad_meta->node->op->name()) == "column_sum");
}
