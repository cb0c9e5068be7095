// The code of docs/guide/below_16_bit.md.
#include <catch2/catch.hpp>

#include <iostream>

#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"
#include "tests/support/folder.h"

namespace test = mezzo::test;
namespace mz = mezzo;

namespace {

struct Net : mz::nn::Module {
    mz::Tensor operator()(const mz::Tensor& x) const { return head(body(x)); }
    mz::nn::Linear body{512, 512}, head{512, 16};
    MEZZO_MODULE(Net, body, head)
};

}  // namespace

TEST_CASE("page below 16 bit: a step in float8", "[docs]") {
    Net net;
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const mz::Tensor x = mz::randn({512, 512}), labels = mz::zeros({512}, {.dtype = mz::int64});
    // begin
    net.head.set_fp8(false);
    // end
    mz::amp::clear_autocast_report();
    mz::amp::collect_autocast_report(true);
    // begin
    mz::Tensor loss;
    {
        const mz::amp::Autocast scope({.dtype = mz::bfloat16, .fp8 = mz::amp::Fp8{}});
        loss = mz::cross_entropy(net(x), labels);
    }
    loss.backward();  // float8 products, too
    optimizer.step();
    // end
    mz::amp::collect_autocast_report(false);
    std::ostringstream text;
    std::streambuf* const before = std::cout.rdbuf(text.rdbuf());
    // begin
    for (const mz::amp::AutocastReportLine& line : mz::amp::autocast_report())
        if (!line.reason.empty()) std::cout << line.op << ": " << line.reason << '\n';
    // end
    std::cout.rdbuf(before);
    mz::amp::clear_autocast_report();
    CHECK(text.str() == "linear: set_fp8(false)\n");
}

TEST_CASE("page below 16 bit: weights for inference", "[docs]") {
    const test::Folder folder;
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path);
    Net net;
    const mz::Tensor x = mz::randn({2, 512});
    // begin
    net.eval();
    mz::nn::quantize_weights(net);  // int8, a scale for each 32 neighbouring elements of a row
    const mz::Tensor y = net(x);
    mz::io::save_safetensors("net.safetensors", net.state_dict());
    // end
    std::filesystem::current_path(before);
    CHECK(y.shape() == mz::Shape{2, 16});
    CHECK(mz::io::load_state_dict_file(folder.file("net.safetensors"))["body.weight"].dtype() == mz::int8);
    // begin
    const mz::Tensor w = mz::dequantize_weight(net.body.weight);  // float32
    const mz::Tensor scale = mz::weight_scale(net.body.weight);   // [out, groups]
    // end
    CHECK(w.dtype() == mz::float32);
    CHECK(scale.shape() == mz::Shape{512, 16});
}

TEST_CASE("page below 16 bit: quantize()", "[docs]") {
    // begin
    const mz::Tensor x = mz::Tensor::from({0.1f, -2, 30});
    const mz::Quantized q = mz::quantize(x);    // float8_e4m3fn, and 448 / 30 rounded down to a power of two
    const float scale = q.scale.item<float>();  // 8
    const std::vector<float> back = mz::dequantize(q).to_vector<float>();  // 0.1016, -2, 30
    // end
    CHECK(scale == 8);
    CHECK(back == std::vector<float>{0.1015625f, -2, 30});
}

TEST_CASE("page below 16 bit: MXFP8", "[docs]") {
    // begin
    const mz::Quantized blocks = mz::quantize(mz::randn({4, 64}), {.granularity = mz::Granularity::block32});
    const mz::Tensor scale = blocks.scale;      // [4, 2] in float32: codes = x scale
    const mz::Tensor factors = blocks.inverse;  // [4, 2] in float8_e8m0fnu: x = codes factors, as in MX files
    // end
    CHECK(scale.shape() == mz::Shape{4, 2});
    CHECK(factors.dtype() == mz::float8_e8m0fnu);
}

TEST_CASE("page below 16 bit: delayed scaling", "[docs]") {
    Net net;
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    // begin
    const mz::amp::Fp8 fp8{.recipe = mz::amp::Recipe::delayed, .history = 16};
    mz::amp::Fp8State state(net);  // the histories, for checkpoints
    const mz::training::Checkpoint checkpoint(
        {.model = net, .optimizer = optimizer, .others = {{"fp8", state}}});
    // end
    {
        const mz::amp::Autocast scope({.dtype = mz::bfloat16, .fp8 = fp8});
        net.body(mz::randn({512, 512})).sum().backward();
    }
    optimizer.step();
    CHECK(state.state_dict().size() == 3);
    const mz::test::Folder folder;
    checkpoint.save(folder.file("checkpoint"));
    const float before = state.state_dict()[0].second.to_vector<float>()[1];
    state.load_state_dict({});
    checkpoint.load(folder.file("checkpoint"));
    CHECK(state.state_dict()[0].second.to_vector<float>()[1] == before);
}
