#include "mezzo/tensor.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "core/random_offset.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

std::vector<Device> all_devices() {
    std::vector<Device> devices{cpu_device};
    if (cuda_device_count() > 0) devices.push_back(Device(DeviceType::cuda));
    return devices;
}

template <class F> ErrorKind kind_of(F f) {
    try {
        f();
    } catch (const Error& error) {
        return error.kind();
    }
    FAIL("no error");
    return ErrorKind::value;
}

template <class T> void check_conversions_from(const std::vector<T>& values) {
    for (int i = 0; i < dtype_count; ++i) {
        const auto dtype = static_cast<Dtype>(i);
        if (dtype == float8_e8m0fnu) continue;  // has no 0
        INFO(name(dtype_of<T>()) << " as " << name(dtype));
        const Tensor x = Tensor::from<T>(std::span<const T>(values), {2, 2}, {.dtype = dtype});
        CHECK(x.dtype() == dtype);
        CHECK(x.shape() == Shape{2, 2});
        CHECK(x.to_vector<double>() == std::vector<double>{0, 1, 1, 0});
        CHECK(x.to_vector<T>() == values);
    }
}

}  // namespace

TEST_CASE("tensor: metadata") {
    for (const Device device : all_devices()) {
        const Tensor x = empty({2, 3, 4}, {.dtype = bfloat16, .device = device});
        CHECK(x.defined());
        CHECK(x.shape() == Shape{2, 3, 4});
        CHECK(x.strides() == Strides{12, 4, 1});
        CHECK(x.dim() == 3);
        CHECK(x.size(1) == 3);
        CHECK(x.size(-1) == 4);
        CHECK(x.numel() == 24);
        CHECK(x.dtype() == bfloat16);
        CHECK(x.device() == device);
        CHECK(x.is_contiguous());
        CHECK_FALSE(x.is_view());
        CHECK(x.version() == 0);
        CHECK(empty_like(x).shape() == x.shape());
        CHECK(empty_like(x).dtype() == bfloat16);
        CHECK(empty_like(x).device() == device);
        CHECK_THROWS_WITH(x.size(3), Contains("size: dimension 3"));
    }
    CHECK_THROWS_WITH(empty({}).size(0), Contains("0-dim"));
}

TEST_CASE("tensor: sizes that cannot be") {
    CHECK_THROWS_WITH(empty({2, -3}), Contains("negative size in shape [2, -3]"));
    const std::int64_t big = std::int64_t(1) << 31;
    CHECK_THROWS_WITH(empty({big, big, big}), Contains("beyond 2^63 bytes"));
    CHECK_THROWS_WITH(empty({big, big, big, 0}), Contains("beyond 2^63 bytes"));
    CHECK(kind_of([] { empty({std::int64_t(1) << 55}); }) == ErrorKind::memory);
    CHECK(empty({big, 0, 4}).numel() == 0);
    CHECK(kind_of([] { empty({1}, {.device = Device(DeviceType::cuda, 77)}); }) == ErrorKind::device);
    for (const int index : {65536, 32768, -32769})  // they would wrap around to a device that is there
        CHECK(kind_of([&] { static_cast<void>(Device(DeviceType::cuda, index)); }) == ErrorKind::value);
    CHECK_THROWS_WITH(Device(DeviceType::cuda, 65536), Contains("Device: index 65536"));
    static_assert(Device(DeviceType::cuda, 32767).index == 32767);
}

TEST_CASE("tensor: an undefined tensor says so") {
    const Tensor none;
    CHECK_FALSE(none.defined());
    CHECK_THROWS_WITH(none.shape(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.numel(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.dtype(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.device(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.item<float>(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.to_vector<float>(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.data<float>(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.requires_grad(), Contains("tensor is undefined"));
    CHECK_THROWS_WITH(none.set_grad(none), Contains("tensor is undefined"));
    CHECK(kind_of([&] { none.version(); }) == ErrorKind::state);
    CHECK(none.to_string() == "undefined tensor");
}

TEST_CASE("tensor: handles share, and the last one frees") {
    const LiveObjects before = live_objects();
    {
        Tensor a = empty({4});
        Tensor b = a, c;
        CHECK(b.data<float>() == a.data<float>());
        CHECK(live_objects().tensors == before.tensors + 1);
        c = std::move(b);
        const Tensor& same = c;
        c = same;
        a = Tensor();
        CHECK(c.numel() == 4);
        const Tensor other = alias(c);
        CHECK(other.is_view());
        CHECK(other.data<float>() == c.data<float>());
        CHECK(live_objects().tensors == before.tensors + 2);
        CHECK(live_objects().storages == before.storages + 1);
        std::vector<Tensor> many(1000);
        for (Tensor& t : many) t = empty({3});
        CHECK(live_objects().tensors == before.tensors + 1002);
    }
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().storages == before.storages);
}

TEST_CASE("tensor: from and to_vector convert between all dtypes") {
    check_conversions_from<float>({0, 1, 1, 0});
    check_conversions_from<double>({0, 1, 1, 0});
    check_conversions_from<std::int32_t>({0, 1, 1, 0});
    check_conversions_from<std::int64_t>({0, 1, 1, 0});
    check_conversions_from<std::uint8_t>({0, 1, 1, 0});
    const bool flags[] = {false, true, true, false};
    for (int i = 0; i < dtype_count; ++i) {
        if (Dtype(i) == float8_e8m0fnu) continue;
        const Tensor x = Tensor::from<bool>(flags, {4}, {.dtype = static_cast<Dtype>(i)});
        CHECK(x.to_vector<int>() == std::vector<int>{0, 1, 1, 0});
        CHECK(x.to_vector<bool>() == std::vector<bool>{false, true, true, false});
    }
    const float16_t halves[] = {float16_t(0.5f), float16_t(-65504.0f)};
    CHECK(Tensor::from<float16_t>(halves, {2}).to_vector<float>() == std::vector<float>{0.5f, -65504.0f});
    const bfloat16_t brains[] = {bfloat16_t(0.5f), bfloat16_t(-1e38f)};
    const Tensor wide = Tensor::from<bfloat16_t>(brains, {2}, {.dtype = float32});
    CHECK(wide.to_vector<float>() == std::vector<float>{0.5f, float(brains[1])});
    CHECK(wide.to_vector<bfloat16_t>()[1].bits == brains[1].bits);
}

TEST_CASE("tensor: from a vector, with and without a shape") {
    const std::vector<bool> bits{true, false, true, true};
    CHECK(Tensor::from(bits).dtype() == boolean);
    CHECK(Tensor::from(bits).to_vector<bool>() == bits);
    CHECK(Tensor::from<bool>(bits, {2, 2}).shape() == Shape{2, 2});
    CHECK(Tensor::from(std::vector<bool>()).shape() == Shape{0});
    const Tensor x = Tensor::from(std::vector<std::int64_t>{3, 4});
    CHECK(x.dtype() == int64);
    CHECK(x.to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 4});
    CHECK(Tensor::from({3, 4}).dtype() == float32);
    CHECK_THROWS_WITH(Tensor::from(bits, {3}), Contains("needs 3 values, got 4"));
}

TEST_CASE("tensor: host values become 8-bit integers as by to()") {
    const double inf = std::numeric_limits<double>::infinity();
    const std::vector<double> values{300.7, -129.0, 127.9, -1.5, 1e300, -1e300, inf, -inf, std::nan("")};
    const Tensor wide = Tensor::from<double>(values, {9});
    for (const Dtype dtype : {int8, uint8}) {
        INFO(name(dtype));
        const Tensor codes = wide.to(dtype);
        CHECK(equal(Tensor::from<double>(values, {9}, {.dtype = dtype}), codes));
        const Tensor floats = Tensor::from<float>(wide.to_vector<float>(), {9}, {.dtype = dtype});
        CHECK(equal(floats, wide.to(float32).to(dtype)));
    }
    CHECK(wide.to_vector<std::int8_t>() == wide.to(int8).to_vector<std::int8_t>());
    CHECK(wide.to_vector<std::uint8_t>() == wide.to(uint8).to_vector<std::uint8_t>());
    CHECK(wide[0].item<std::uint8_t>() == 44);
}

TEST_CASE("tensor: conversions round, truncate and saturate") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    const Tensor x = Tensor::from({2.7f, -2.7f, nan, inf, -inf, 3e9f});
    const std::int32_t max = std::numeric_limits<std::int32_t>::max(),
                       min = std::numeric_limits<std::int32_t>::min();
    CHECK(x.to_vector<std::int32_t>() == std::vector<std::int32_t>{2, -2, 0, max, min, max});
    CHECK(x.to_vector<std::uint8_t>() == std::vector<std::uint8_t>{2, 254, 0, 255, 0, 0});
    CHECK(x.to_vector<std::int64_t>()[5] == 3000000000);
    CHECK(x.to_vector<bool>() == std::vector<bool>(6, true));
    CHECK(Tensor::from<double>(std::vector<double>{1e300}, {1}).to_vector<float>()[0] == inf);
    const std::int64_t big = (std::int64_t(1) << 53) + 1;  // no double holds it
    CHECK(Tensor::from(std::vector<std::int64_t>{big}, {}).item<std::int64_t>() == big);
    CHECK(Tensor::from({1e5f}).to_vector<float16_t>()[0].bits == 0x7c00);
}

TEST_CASE("tensor: values come back from every device, in row-major order of any strides") {
    for (const Device device : all_devices()) {
        std::vector<float> values(24);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
        const Tensor x = Tensor::from<float>(values, {2, 3, 4}, {.device = device});
        CHECK(x.to_vector<float>() == values);
        const Tensor t = make_tensor(x->storage, {4, 3}, {1, 4}, 12, float32);  // x[1] transposed
        CHECK_FALSE(t.is_contiguous());
        CHECK(t.is_view());
        CHECK(t.to_vector<int>() == std::vector<int>{12, 16, 20, 13, 17, 21, 14, 18, 22, 15, 19, 23});
        const Tensor spread = make_tensor(x->storage, {2, 2, 2}, {0, 12, 0}, 5, float32);  // expanded
        CHECK(spread.to_vector<int>() == std::vector<int>{5, 5, 17, 17, 5, 5, 17, 17});
        const Tensor one = make_tensor(x->storage, {1, 1}, {99, 99}, 23, float32);
        CHECK(one.is_contiguous());
        CHECK(one.item<std::int64_t>() == 23);
        CHECK(make_tensor(x->storage, {0, 3}, {4, 1}, 24, float32).to_vector<float>().empty());
    }
}

TEST_CASE("tensor: from and item check their arguments") {
    CHECK_THROWS_WITH(Tensor::from({1, 2, 3}, {2, 2}), Contains("from: shape [2, 2] needs 4 values, got 3"));
    CHECK(Tensor::from({1, 2, 3}).shape() == Shape{3});
    CHECK_THROWS_WITH(Tensor::from({1, 2, 3}).item<float>(),
                      Contains("item: needs one element, got shape [3]"));
    CHECK(Tensor::from({5}, {}).item<double>() == 5);
    CHECK(Tensor::from({5}, {1, 1}).item<bool>());
    const Tensor seven = Tensor::from({7.5f});
    for (const Dtype dtype : {float32, float16, float64, int32, int64, uint8}) {
        const Tensor one = seven.to(dtype);
        CHECK(one.item<long long>() == 7);
        CHECK(one.item<long>() == 7);
        CHECK(one.item<unsigned long long>() == 7);
        CHECK(one.item<std::size_t>() == 7);
        CHECK(one.item<unsigned>() == 7);
        CHECK(one.item<short>() == 7);
        CHECK(one.item<unsigned short>() == 7);
        CHECK(one.item<char>() == 7);
        CHECK(one.item<signed char>() == 7);
        CHECK(one.to_vector<std::size_t>() == std::vector<std::size_t>{7});
        CHECK(one.to_vector<long long>() == std::vector<long long>{7});
    }
    CHECK(Tensor::from<std::int64_t>(std::vector<std::int64_t>{INT64_MAX}, {}).item<std::size_t>() ==
          std::size_t(INT64_MAX));
    CHECK(Tensor::from({-3}).item<unsigned>() == 0);  // saturates, as it does in the other integers
    const Tensor x = Tensor::from({1, 2});
    CHECK(x.data<float>()[1] == 2);
    STATIC_REQUIRE(std::is_same_v<decltype(x.data<float>()), const float*>);
    CHECK_THROWS_WITH(x.data<double>(), Contains("data: the tensor holds float32, asked for float64"));
    if (cuda_device_count() > 0) {
        const Tensor y = empty({2}, {.device = Device(DeviceType::cuda)});
        CHECK_THROWS_WITH(y.data<float>(), Contains("the elements are on cuda:0"));
    }
}

TEST_CASE("tensor: mutable_data is an in-place write") {
    const Tensor x = zeros({2, 2}), row = x.select(0, 1);
    const std::uint64_t before = x.version();
    row.mutable_data<float>()[1] = 5;
    CHECK(x.to_vector<float>() == std::vector<float>{0, 0, 0, 5});
    CHECK(x.version() == before + 1);
    CHECK(row.version() == before + 1);
    CHECK(x.data<float>() == x.mutable_data<float>());
    CHECK_THROWS_WITH(x.mutable_data<double>(), Contains("mutable_data: the tensor holds float32"));
    CHECK(kind_of([&] { (void)x.mutable_data<int>(); }) == ErrorKind::dtype);
    CHECK(kind_of([&] { (void)x.select(0, 0).expand({2, 2}).mutable_data<float>(); }) == ErrorKind::state);
    CHECK(kind_of([&] { (void)Tensor().mutable_data<float>(); }) != ErrorKind::dtype);
    const Tensor w = ones({2}, {.requires_grad = true});
    CHECK(kind_of([&] { (void)w.mutable_data<float>(); }) == ErrorKind::state);
    const Tensor y = w * w;  // saves w
    {
        const NoGrad plain;
        *w.mutable_data<float>() = 3;
    }
    CHECK(kind_of([&] { y.sum().backward(); }) == ErrorKind::state);
    for (const Device device : all_devices())
        if (device != cpu_device)
            CHECK(kind_of([&] { (void)empty({2}, {.device = device}).mutable_data<float>(); }) ==
                  ErrorKind::device);
}

TEST_CASE("tensor: requires_grad, leaves and gradients") {
    const Tensor w = empty({2, 3}, {.requires_grad = true});
    CHECK(w.requires_grad());
    CHECK(w.is_leaf());
    CHECK_FALSE(w.grad().defined());
    const Tensor x =
        Tensor::from<float>(std::vector<float>{1, 2}, {2}, {.dtype = float16, .requires_grad = true});
    CHECK(x.requires_grad());
    CHECK_FALSE(alias(x).requires_grad());
    CHECK_FALSE(x.set_requires_grad(false).requires_grad());
    CHECK(kind_of([] { empty({2}, {.dtype = int64, .requires_grad = true}); }) == ErrorKind::dtype);
    CHECK_THROWS_WITH(empty({2}, {.dtype = boolean}).set_requires_grad(),
                      Contains("boolean has no gradient"));
    CHECK_NOTHROW(empty({2}, {.dtype = int32}).set_requires_grad(false));
    const Tensor g = empty({2, 3});
    w.set_grad(g);
    CHECK(w.grad().impl() == g.impl());
    CHECK_THROWS_WITH(w.set_grad(empty({3, 2})),
                      Contains("set_grad: gradient of shape [3, 2] for a tensor of shape [2, 3]"));
    CHECK_THROWS_WITH(w.set_grad(empty({2, 3}, {.dtype = int64})),
                      Contains("set_grad: a gradient of int64; only floating dtypes have gradients"));
    CHECK(w.grad().impl() == g.impl());
    w.set_grad({});
    CHECK_FALSE(w.grad().defined());
}

TEST_CASE("tensor: all_close") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    const Tensor a = Tensor::from({1, nan, inf, -inf});
    CHECK(all_close(a, a));
    CHECK(all_close(a, Tensor::from({1.000005f, nan, inf, -inf})));
    CHECK_FALSE(all_close(a, Tensor::from({1.00005f, nan, inf, -inf})));
    CHECK(all_close(a, Tensor::from({1.1f, nan, inf, -inf}), 0, 0.11));
    CHECK_FALSE(all_close(a, Tensor::from({1, 0, inf, -inf})));
    CHECK_FALSE(all_close(a, Tensor::from({1, nan, inf, inf})));
    CHECK_FALSE(all_close(a, Tensor::from({1, nan, 3e38f, -inf}), 1, 1));
    CHECK(all_close(Tensor::from({1, 2}), Tensor::from(std::vector<std::int64_t>{1, 2}, {2})));
    const std::int64_t big = std::int64_t(1) << 60;
    const Tensor exact = Tensor::from(std::vector<std::int64_t>{big}, {1});
    CHECK_FALSE(all_close(exact, Tensor::from(std::vector<std::int64_t>{big + 2}, {1}), 0, 0));
    CHECK_THROWS_WITH(all_close(a, Tensor::from({1})), Contains("shapes [4] and [1] differ"));
    CHECK(all_close(empty({0}), empty({0})));
}

TEST_CASE("tensor: printing of any strides") {
    const Tensor t = Tensor::from({1, 2, 3, 4}, {2, 2});
    CHECK(make_tensor(t->storage, {2, 2}, {1, 2}, 0, float32).to_string() ==
          "tensor([[1., 3.],\n        [2., 4.]])");
}

TEST_CASE("tensor: printing shortens beyond 1,000 elements and breaks long lines") {
    std::vector<std::int64_t> values(1200);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
    const std::string full =
        Tensor::from(std::vector<std::int64_t>(values.begin(), values.begin() + 1000), {1000}).to_string();
    CHECK_THAT(full,
               Contains("tensor([  0,   1,") && Contains("500") && Contains("999]") && !Contains("..."));
    std::size_t longest = 0, start = 0;
    for (std::size_t end = full.find('\n'); end != std::string::npos;
         start = end + 1, end = full.find('\n', start)) {
        CHECK(full[end - 1] == ',');
        longest = std::max(longest, end - start);
    }
    CHECK(longest > 70);
    CHECK(longest <= 80);
}

TEST_CASE("device: names and parsing") {
    CHECK(parse_device("cpu") == cpu_device);
    for (const char* bad :
         {"", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0", "cuda:99999999999"})
        CHECK_THROWS_WITH(parse_device(bad),
                          Contains(std::string("parse_device: \"") + bad + "\" is no device"));
    CHECK_THROWS_AS(parse_device(nullptr), Error);
    CHECK_THROWS_WITH(parse_device("cuda:123"), Contains("parse_device: no device cuda:123"));
    CHECK_THAT(std::string(hardware_name(cpu_device)), Contains("CPU") && Contains("threads"));
    CHECK_NOTHROW(synchronize(cpu_device));
    if (cuda_device_count() > 0) {
        CHECK(best_device() == Device(DeviceType::cuda));
        CHECK(parse_device("cuda") == parse_device("cuda:0"));
        CHECK(std::string(hardware_name(best_device())) != "");
    } else {
        CHECK(best_device() == cpu_device);
        CHECK_THROWS_AS(parse_device("cuda"), Error);
    }
}

TEST_CASE("device: threads") {
    const int before = num_threads();
    CHECK(before >= 1);
    CHECK(kind_of([] { set_num_threads(0); }) == ErrorKind::value);
    const std::string name_before = hardware_name(cpu_device);
    set_num_threads(before + 1);
    CHECK(num_threads() == before + 1);
    CHECK(hardware_name(cpu_device) != name_before);
    set_num_threads(before);
    CHECK(hardware_name(cpu_device) == name_before);
}
