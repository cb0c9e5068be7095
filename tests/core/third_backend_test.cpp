// A backend with five kernels: other ops run their decomposition or the CPU's kernel, and a network trains on
// it as on the CPU. op_test.cpp runs every op on it.
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/norm.h"
#include "kernels/registry.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"
#include "tests/third_backend/backend.h"

namespace {

using namespace mezzo;
using test::third_backend;

// Trains a small network for five steps in float16 with a loss scaler; one step overflows. Returns losses,
// scales, and the final parameters.
std::vector<double> trained(Device device) {
    manual_seed(3);
    nn::Linear first(6, 16), second(16, 4);
    first.to(device);
    second.to(device);
    Tensors parameters = first.parameters();
    for (const Tensor& p : second.parameters()) parameters.push_back(p);
    optim::SGD optimizer(parameters, {.lr = 0.1, .momentum = 0.9});
    amp::GradScaler scaler({.init_scale = 1024});
    const Tensor x = test::tensor_of(test::random_values(48, 1, test::Domain::any), {8, 6}, float32, device);
    const Tensor target = Tensor::from<std::int64_t>({0, 1, 2, 3, 3, 2, 1, 0}, {8}).to(device);
    std::vector<double> result;
    for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        Tensor loss;
        {
            const amp::Autocast scope({.device = device.type()});
            loss = cross_entropy(second(relu(first(x))), target);
        }
        scaler.scale(step == 2 ? loss * 1e6 : loss).backward();
        scaler.step(optimizer);
        scaler.update();
        result.push_back(loss.item<double>());
        result.push_back(scaler.get_scale());
    }
    for (const Tensor& p : parameters)
        for (const double v : test::doubles(p)) result.push_back(v);
    return result;
}

int calls = 0;
void counted(In, const kernels::RmsNorm&, Out) { ++calls; }
void other(In, const kernels::RmsNorm&, Out) {}
void of_layer_norm(In, const kernels::LayerNorm&, Out) {}

}  // namespace

TEST_CASE("a third backend: a network trains in float16 as on the CPU", "[backend]") {
    const std::vector<double> expected = trained(cpu_device), actual = trained(third_backend());
    CHECK(std::isfinite(expected.back()));
    CHECK(expected[5] < expected[3]);  // the scale, after the overflow
    CHECK(test::difference(actual, expected, {2e-3, 1e-3}) == "");
}

TEST_CASE("a third backend: views of its memory keep what lies between their elements", "[backend]") {
    const Tensor whole = arange(12, {.device = third_backend()}).reshape({3, 4});
    whole.slice(1, 0, 4, 2).mul_(10.0);  // mul_scalar: the CPU's kernel on copies
    CHECK(test::doubles(whole) == std::vector<double>{0, 1, 20, 3, 40, 5, 60, 7, 80, 9, 100, 11});
    CHECK(whole.device() == third_backend());
}

TEST_CASE("a third backend: names and errors", "[backend]") {
    CHECK(parse_device("custom") == third_backend());
    CHECK(std::string(name(DeviceType::custom)) == "custom");
    CHECK_THROWS_WITH(empty({1}, {.device = Device(DeviceType::custom, 1)}), Catch::Contains("custom:1"));
    CHECK_THROWS_AS(ones({2}) + ones({2}, {.device = third_backend()}), Error);
}

TEST_CASE("a kernel is for the op whose attributes it reads", "[backend]") {
    const KernelEntry entry = kernel_entry<counted>();
    CHECK(entry.id == &kernel_id<kernels::RmsNorm>);
    const kernels::RmsNorm attributes{};
    entry.run({}, &attributes, {});
    CHECK(calls == 1);
    CHECK(kernel_entry<of_layer_norm>().id != entry.id);
    // A kernel of another op does not compile as a kernel of this one.
    STATIC_REQUIRE_FALSE(std::is_convertible_v<decltype(&of_layer_norm), Kernel<kernels::RmsNorm>*>);
}

TEST_CASE("registering a backend refuses what cannot work", "[backend]") {
    const Backend memory{};
    const KernelEntry two[] = {kernel_entry<counted>(), kernel_entry<other>()}, none[] = {{nullptr, nullptr}};
    const KernelList twice = two, empty_entry = none;
    const KernelList *const lists[] = {&twice}, *const empties[] = {&empty_entry};
    third_backend();
    CHECK_THROWS_WITH(register_backend(DeviceType::custom, {&memory, lists}),
                      Catch::Contains("two kernels for rms_norm"));
    CHECK_THROWS_WITH(register_backend(DeviceType::custom, {&memory, empties}),
                      Catch::Contains("an empty entry"));
    CHECK_THROWS_WITH(register_backend(DeviceType::custom, {}), Catch::Contains("without memory"));
    CHECK_THROWS_WITH(register_backend(DeviceType::custom, {&memory}),
                      Catch::Contains("has a backend already"));
    CHECK(find_kernel(kernel_id<kernels::RmsNorm>, DeviceType::custom) == nullptr);
}
