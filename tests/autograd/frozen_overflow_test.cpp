// Overflow forensics if a part of the model is not recorded, or is written to in between.
#include <catch2/catch.hpp>
#include <limits>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/insight/insight.h"
#include "mezzo/nn.h"

using namespace mezzo;

namespace {

void multiply(const Tensor& x, double factor) {
    NoGrad plain;
    x.mul_(factor);
}

}  // namespace

TEST_CASE("insight: an overflow in a frozen front is named", "[insight]") {
    for (const bool no_grad : {false, true}) {
        CAPTURE(no_grad);
        manual_seed(3);
        nn::Sequential net(nn::Linear(8, 8), nn::Linear(8, 6), nn::Linear(6, 2));
        multiply(net.at<nn::Linear>(0).weight, 1e6);
        if (!no_grad)
            for (int i = 0; i < 2; ++i)
                for (Tensor p : net.at<nn::Linear>(i).parameters()) p.set_requires_grad(false);
        const Tensor x = ones({4, 8});
        const insight::OverflowReport report = insight::replay(net, [&] {
            const amp::Autocast scope({.dtype = float16});
            const auto front = [&] { return relu(net.at<nn::Linear>(1)(net.at<nn::Linear>(0)(x))); };
            const auto plain = [&] {
                const NoGrad none;
                return front();
            };
            const Tensor features = no_grad ? plain() : front();
            sum(net.at<nn::Linear>(2)(features.reshape({2, 2, 6}))).backward();
        });
        REQUIRE(report.forward);
        CHECK(report.forward->op == "linear");
        CHECK(report.forward->module == "0");
        CHECK(report.bad_inputs.empty());
    }
}

TEST_CASE("insight: a parameter that is written to in a trace is looked at again", "[insight]") {
    nn::Linear net(4, 2);
    const insight::RangeTrace trace(net);
    const Tensor good = net(ones({1, 4}));
    multiply(net.weight, std::numeric_limits<double>::quiet_NaN());
    sum(square(net(ones({1, 4})))).backward();
    const insight::OverflowReport report = trace.report();
    CHECK(report.bad_inputs == std::vector<std::string>{"parameter weight"});
    CHECK(!report.forward);
}
