// insight::EmitNvtx under a tool of the test's own (nvtx_injection.cpp), which NVTX attaches as it would
// attach Nsight Systems.
#include "mezzo/insight/nvtx.h"

#include <dlfcn.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <memory>

#include "mezzo/autograd.h"
#include "mezzo/module_scope.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "mezzo/record_function.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using insight::EmitNvtx;

struct Block : nn::Module {
    Tensor operator()(const Tensor& x) const {
        const nn::ModuleScope here(*this);
        return x + down(relu(up(x)));
    }
    nn::Linear up{8, 16}, down{16, 8};
    MEZZO_MODULE(Block, up, down)
};
struct Net : nn::Module {
    Tensor operator()(const Tensor& x) const { return head(block(x)); }
    Block block;
    nn::Linear head{8, 4};
    MEZZO_MODULE(Net, block, head)
};

#ifdef MEZZO_HAVE_NVTX
template <class F> F function_named(const char* name) {
    void* const library = dlopen(std::getenv("NVTX_INJECTION64_PATH"), RTLD_NOW);
    REQUIRE(library != nullptr);
    return reinterpret_cast<F>(dlsym(library, name));
}
std::string ranges() { return function_named<const char* (*)()>("nvtx_test_ranges")(); }
int depth() { return function_named<int (*)()>("nvtx_test_depth")(); }
#endif

}  // namespace

#ifdef MEZZO_HAVE_NVTX

TEST_CASE("nvtx: modules around ops, forward", "[nvtx]") {
    const Net net;
    const Tensor x = ones({2, 8});
    const NoGrad plain;
    {
        const EmitNvtx scope({.model = &net});
        (void)net(x);
        (void)relu(x);
    }
    CHECK(ranges() ==
          "block\n"
          "  block.up\n"
          "    linear\n"
          "  relu\n"
          "  block.down\n"
          "    linear\n"
          "  add\n"
          "head\n"
          "  linear\n"
          "relu\n");
    (void)net(x);
    CHECK(ranges().empty());
    {
        const EmitNvtx off({.model = &net, .enabled = false});
        (void)net(x);
    }
    CHECK(ranges().empty());
    {
        const EmitNvtx nameless({.record_shapes = true});
        (void)net(x);
    }
    CHECK_THAT(ranges(),
               Contains("Block\n  linear, sizes = [[2, 8], [16, 8], [16]]\n  relu, sizes = [[2, 16]]\n"));
    CHECK(depth() == 0);
}

TEST_CASE("nvtx: backward, named parts and the optimizer", "[nvtx]") {
    Net net;
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const EmitNvtx scope({.model = &net});
    const Tensor loss = [&] {
        const insight::RecordFunction here("my part");
        return mse_loss(net(ones({2, 8})), zeros({2, 4}));
    }();
    CHECK_THAT(ranges(), Contains("my part\n") && Contains("\n  block\n    block.up\n      linear\n") &&
                             Contains("\n  mse_loss\n"));
    loss.backward();
    const std::string backward = ranges();
    CHECK_THAT(backward, Contains("mse_loss backward\n") && Contains("head\n  linear backward\n    ") &&
                             Contains("block.down\n  linear backward\n    ") &&
                             Contains("block\n  add backward\n"));
    CHECK(backward.find("head\n") < backward.find("block.up\n"));
    optimizer.step();
    CHECK(ranges() == "Optimizer.step\n");
    CHECK(depth() == 0);
}

TEST_CASE("nvtx: what throws ends, and what is open when the scope ends, too", "[nvtx]") {
    const Net net;
    {
        const EmitNvtx scope({.model = &net});
        CHECK_THROWS_AS(net(ones({2, 9})), Error);
        CHECK(depth() == 0);
    }
    auto scope = std::make_unique<EmitNvtx>();
    const insight::RecordFunction open("open");
    CHECK(depth() == 1);
    scope.reset();
    CHECK(depth() == 0);
    (void)ranges();
    const EmitNvtx again;  // the end of "open" is not its own
    CHECK(depth() == 0);
}

TEST_CASE("nvtx: a checkpoint's second forward has the modules of the first", "[nvtx]") {
    const Net net;
    const Tensor x = ones({2, 8}).set_requires_grad();
    const Tensor y =
        sum(autograd::checkpoint([&](const Tensors& in) -> Tensors { return {net.block(in[0])}; }, {x})[0]);
    const EmitNvtx scope({.model = &net});
    y.backward();
    CHECK_THAT(ranges(), Contains("block\n") && Contains("block.up\n") && Contains("block.down\n"));
    CHECK(depth() == 0);
}

#else

TEST_CASE("nvtx: a build without it says so", "[nvtx]") {
    CHECK(!insight::nvtx_available());
    CHECK_THROWS_WITH(EmitNvtx(), Contains("this build has no NVTX"));
    const EmitNvtx off({.enabled = false});
}

#endif
