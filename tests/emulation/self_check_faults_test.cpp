// A wrong value, a NaN and a launch error in every fast path: each ends on the plain path, with the plain
// path's numbers, and with a reason.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "core/tensor_impl.h"
#include "cuda/runtime/runtime.h"
#include "kernels/conv.h"
#include "kernels/self_check.h"
#include "mezzo/autograd.h"
#include "mezzo/data/prefetch.h"
#include "mezzo/log.h"
#include "tests/emulation/faults.h"
#include "tests/emulation/self_check_scope.h"
#include "tests/support/kernels.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using emulation::Fault;
using test::SelfCheckScope;

const Device gpu{DeviceType::cuda};

using Bits = std::vector<std::string>;

std::string bits_of(const Tensor& x) {
    std::string bits(std::size_t(x.numel()) * size_of(x.dtype()), 0);
    cuda::copy_to_host(bits.data(), raw(x), bits.size());
    return bits;
}

Tensor values(const Shape& shape, Dtype dtype, std::uint64_t seed) {
    return test::tensor_of(test::random_values(shape.numel(), seed, test::Domain::any), shape, dtype, gpu);
}

Bits attention(const SelfCheck& p, FastPath choice, bool gradient) {
    set_flash_attention(choice);
    const Shape shape{1, 21, 2, p.size};
    const kernels::ScaledDotProductAttention at{.scale = 1 / std::sqrt(double(p.size))};
    Tensors in, out;
    for (std::uint64_t i = 0; i < 3; ++i) in.push_back(values(shape, p.dtype, i));
    in.emplace_back();
    for (const Shape& of_result : {shape, Shape{1, 2, 21}, Shape{1, 2, 21}})
        out.push_back(empty(of_result, {.dtype = out.empty() ? p.dtype : float32, .device = gpu}));
    if (gradient) set_flash_attention(false);
    test::cuda_kernel(in, at, out);
    if (!gradient) return {bits_of(out[0])};
    set_flash_attention(choice);
    const Tensor given[] = {values(shape, p.dtype, 4), in[0], in[1], in[2], out[0], out[1], out[2], {}};
    Tensors grads;
    for (int i = 0; i < 3; ++i) grads.push_back(empty(shape, {.dtype = p.dtype, .device = gpu}));
    test::cuda_kernel(given, kernels::ScaledDotProductAttentionGrad{at}, grads);
    return {bits_of(grads[0]), bits_of(grads[1]), bits_of(grads[2])};
}

Bits convolution(const SelfCheck& p, FastPath choice) {
    cuda::set_implicit_convolution(choice);
    const kernels::ConvGeometry geometry{.padding = 1};
    const Shape x{1, 5, 7, 16}, weight{8, 3, 3, 16}, y{1, 5, 7, 8};
    const auto result = [&](const Shape& shape) { return empty(shape, {.dtype = p.dtype, .device = gpu}); };
    if (p.path == FastPathId::implicit_convolution) {
        const Tensor in[] = {values(x, p.dtype, 1), values(weight, p.dtype, 2), {}}, out = result(y);
        test::cuda_kernel(in, kernels::Conv2d{geometry}, {&out, 1});
        return {bits_of(out)};
    }
    if (p.path == FastPathId::implicit_convolution_input_grad) {
        const Tensor in[] = {values(y, p.dtype, 1), values(weight, p.dtype, 2)}, out = result(x);
        test::cuda_kernel(in, kernels::Conv2dInputGrad{geometry, {5, 7}}, {&out, 1});
        return {bits_of(out)};
    }
    const Tensor in[] = {values(y, p.dtype, 1), values(x, p.dtype, 2)}, out = result(weight);
    test::cuda_kernel(in, kernels::Conv2dWeightGrad{geometry, 3, 0}, {&out, 1});
    return {bits_of(out)};
}

cuda::GemmOptions options_for(FastPathId path, FastPath choice) {
    cuda::GemmOptions options{.fuse_bias_gradients = false, .fuse_layers = false, .relu_masks = false};
    if (path == FastPathId::bias_gradients) options.fuse_bias_gradients = choice;
    if (path == FastPathId::layers) options.fuse_layers = choice;
    if (path == FastPathId::relu_masks) options.fuse_layers = true, options.relu_masks = choice;
    return options;
}

Bits layers(const SelfCheck& p, FastPath choice) {
    cuda::set_gemm_options(options_for(p.path, choice));
    Tensors leaves;
    for (const Shape& shape : {Shape{20, 16}, Shape{24, 16}, Shape{24}, Shape{8, 24}, Shape{8}})
        leaves.push_back(values(shape, p.dtype, leaves.size()).detach().set_requires_grad());
    const Tensor hidden = linear(leaves[0], leaves[1], leaves[2], LinearActivation::relu);
    sum(linear(hidden, leaves[3], leaves[4]).to(float32)).backward();
    Bits bits;
    for (const Tensor& leaf : leaves) bits.push_back(bits_of(leaf.grad()));
    return bits;
}

Bits prefetch(FastPath choice) {
    std::vector<Tensor> batches;
    for (std::uint64_t i = 0; i < 4; ++i)
        batches.push_back(test::tensor_of(test::random_values(9, i, test::Domain::any), {9}, float32));
    const int ahead = choice == FastPath::automatic ? data::automatic_prefetch
                      : choice == FastPath::on      ? 2
                                                    : 0;
    Bits bits;
    for (const Tensor& x : data::prefetch(batches, {.device = gpu, .ahead = ahead}))
        bits.push_back(bits_of(x));
    return bits;
}

// Computes a problem that takes the path, with the setting for it.
Bits use(const SelfCheck& p, FastPath choice) {
    switch (p.path) {
        case FastPathId::flash_attention:
        case FastPathId::flash_attention_grad:
            return attention(p, choice, p.path == FastPathId::flash_attention_grad);
        case FastPathId::bias_gradients:
        case FastPathId::layers:
        case FastPathId::relu_masks:
            return layers(p, choice);
        case FastPathId::prefetch:
            return prefetch(choice);
        default:
            return convolution(p, choice);
    }
}

std::set<const void*> kernels_of(const SelfCheck& p, FastPath choice) {
    std::set<const void*> kernels;
    emulation::on_work = [&](const emulation::Work& work) { kernels.insert(work.kernel); };
    use(p, choice);
    emulation::on_work = nullptr;
    return kernels;
}

bool has_kernels(const SelfCheck& p) { return p.path != FastPathId::prefetch; }

// The kernels of the fast path that the plain one does not have.
std::set<const void*> own_kernels(const SelfCheck& p) {
    std::set<const void*> own = kernels_of(p, FastPath::on);
    for (const void* kernel : kernels_of(p, FastPath::off)) own.erase(kernel);
    CHECK(own.empty() == !has_kernels(p));
    return own;
}

CheckResult check_result_of(const SelfCheck& p) {
    for (const ListedCheckResult& listed : check_results_of(gpu))
        if (text_of(listed.self_check) == text_of(p)) return listed.result;
    FAIL("not listed");
    return {};
}

std::vector<SelfCheck> all_self_checks() {
    std::vector<SelfCheck> all;
    for (const ListedCheckResult& listed : check_results_of(gpu)) all.push_back(listed.self_check);
    return all;
}

}  // namespace

TEST_CASE("self-check: a device that computes rightly passes every self-check, and then uses the paths",
          "[cuda][emulation]") {
    for (const SelfCheck& p : all_self_checks()) {
        SelfCheckScope scope;
        CAPTURE(text_of(p));
        const Bits fast = use(p, FastPath::on);
        REQUIRE(passes_self_check(p.path, gpu, p.dtype, p.size));
        CHECK(check_result_of(p).state == CheckResult::good);
        CHECK((use(p, FastPath::automatic) == fast || p.path == FastPathId::relu_masks));
        CHECK(scope.told(text_of(p)) == std::vector<std::string>{"passed"});
    }
}

TEST_CASE("self-check: every fault ends on the plain path", "[cuda][emulation]") {
    for (const SelfCheck& p : all_self_checks()) {
        SelfCheckScope scope;
        const Bits plain = use(p, FastPath::off);
        const std::set<const void*> own = own_kernels(p);
        for (const Fault fault : {Fault::value, Fault::nan, Fault::launch}) {
            CAPTURE(text_of(p), int(fault));
            scope.restart();
            {
                const emulation::PlantedFault planted(
                    fault, [&](const void* kernel) { return own.count(kernel) != 0; }, !has_kernels(p));
                CHECK_FALSE(passes_self_check(p.path, gpu, p.dtype, p.size));
            }
            CHECK(use(p, FastPath::automatic) == plain);
            const CheckResult result = check_result_of(p);
            CHECK(result.state == CheckResult::bad);
            CHECK_THAT(result.reason,
                       Catch::Matchers::Contains(fault == Fault::launch ? "cudaErrorLaunchOutOf"
                                                                        : "the plain path gives"));
            CHECK(scope.told(text_of(p)) == std::vector<std::string>{"not used; " + result.reason});
        }
    }
}

TEST_CASE("self-check: a fault that strikes where the path is used first leaves the program's numbers",
          "[cuda][emulation]") {
    const SelfCheck p{FastPathId::flash_attention, bfloat16, 64};
    SelfCheckScope scope;
    const Bits plain = use(p, FastPath::off);
    const std::set<const void*> own = own_kernels(p);
    scope.restart();
    const emulation::PlantedFault planted(
        Fault::value, [&](const void* kernel) { return own.count(kernel) != 0; }, false);
    CHECK(use(p, FastPath::automatic) == plain);
    CHECK(check_result_of(p).state == CheckResult::bad);
    CHECK(use(p, FastPath::on) != plain);  // an override needs no self_check
}
