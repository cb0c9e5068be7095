// DLPack in both directions. tests/interop/dlpack_test.py does the same with NumPy and PyTorch.
#include "mezzo/interchange/dlpack.h"

#include <catch2/catch.hpp>

#include "core/tensor_impl.h"
#include "mezzo/ops.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using namespace mezzo::dlpack;
using Catch::Matchers::Contains;

// Memory of another library, which counts how often it is released.
template <class Managed> struct Foreign {
    Foreign() {
        managed.dl_tensor = {.data = values,
                             .device = {device_cpu, 0},
                             .ndim = 2,
                             .dtype = {type_float, 32, 1},
                             .shape = shape,
                             .strides = nullptr,
                             .byte_offset = 0};
        managed.manager_ctx = this;
        managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_ctx)->given_back; };
        if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = dlpack::version;
    }
    float values[6] = {1, 2, 3, 4, 5, 6};
    std::int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
    Managed managed{};
    int given_back = 0;
};

template <class Change> void refused(const char* text, const Change& change) {
    Foreign<DLManagedTensorVersioned> foreign;
    change(foreign);
    CHECK_THROWS_WITH(from_dlpack(&foreign.managed), Contains(text));
    CHECK(foreign.given_back == 1);
}

}  // namespace

TEMPLATE_TEST_CASE("dlpack: another library's memory is shared, and given back once", "[dlpack]",
                   DLManagedTensor, DLManagedTensorVersioned) {
    Foreign<TestType> foreign;
    const LiveObjects before = live_objects();
    {
        Tensor x = from_dlpack(&foreign.managed);
        CHECK(x.shape() == Shape({2, 3}));
        CHECK(x.data<float>() == foreign.values);
        foreign.values[1] = 20;
        CHECK(x.to_vector<float>() == std::vector<float>{1, 20, 3, 4, 5, 6});
        x.mul_(2.0);
        CHECK(foreign.values[5] == 12);
        const Tensor part = x.select(0, 1);
        x = Tensor();
        CHECK(foreign.given_back == 0);
        CHECK(part.to_vector<float>() == std::vector<float>{8, 10, 12});
    }
    CHECK(foreign.given_back == 1);
    CHECK(live_objects().storages == before.storages);
    foreign.managed.dl_tensor.strides = foreign.strides;
    foreign.managed.dl_tensor.byte_offset = 4;
    foreign.shape[1] = 2;
    const Tensor turned = from_dlpack(&foreign.managed);
    CHECK(turned.to_vector<float>() == std::vector<float>{40, 8, 6, 10});
    CHECK((turned + 1.0).to_vector<float>() == std::vector<float>{41, 9, 7, 11});
    // A deleter is optional.
    foreign.managed.deleter = nullptr;
    CHECK_NOTHROW(from_dlpack(&foreign.managed));
}

TEST_CASE("dlpack: what cannot be taken is refused, and given back", "[dlpack]") {
    using Bad = Foreign<DLManagedTensorVersioned>;
    refused("DLPack 2", [](Bad& b) { b.managed.version.major = 2; });
    refused("lanes", [](Bad& b) { b.managed.dl_tensor.dtype.lanes = 4; });
    refused("type code 5", [](Bad& b) { b.managed.dl_tensor.dtype.code = 5; });
    refused("16 bits", [](Bad& b) { b.managed.dl_tensor.dtype = {type_int, 16, 1}; });
    refused("code 7", [](Bad& b) { b.managed.dl_tensor.device.device_type = 7; });
    refused("no cuda", [](Bad& b) { b.managed.dl_tensor.device = {device_cuda, 99}; });
    refused("no cuda device 65536", [](Bad& b) { b.managed.dl_tensor.device = {device_cuda, 65536}; });
    refused("size -3", [](Bad& b) { b.shape[1] = -3; });
    refused("9 dimensions", [](Bad& b) { b.managed.dl_tensor.ndim = 9; });
    refused("-1 dimensions", [](Bad& b) { b.managed.dl_tensor.ndim = -1; });
    refused("dimensions", [](Bad& b) { b.managed.dl_tensor.shape = nullptr; });
    refused("from_dlpack", [](Bad& b) { b.shape[0] = b.shape[1] = std::int64_t(1) << 62; });
    refused("too far", [](Bad& b) {
        b.managed.dl_tensor.strides = b.strides;
        b.strides[0] = std::int64_t(1) << 62;
    });
    refused("stride -2", [](Bad& b) {
        b.managed.dl_tensor.strides = b.strides;
        b.strides[1] = -2;
    });
    refused("no memory", [](Bad& b) { b.managed.dl_tensor.data = nullptr; });
    CHECK_THROWS_WITH(from_dlpack(static_cast<DLManagedTensor*>(nullptr)), Contains("null"));
    CHECK_THROWS_WITH(from_dlpack(static_cast<DLManagedTensorVersioned*>(nullptr)), Contains("null"));
}

TEST_CASE("dlpack: read-only memory is copied, empty tensors have none", "[dlpack]") {
    Foreign<DLManagedTensorVersioned> foreign;
    foreign.managed.flags = flag_read_only;
    const Tensor x = from_dlpack(&foreign.managed);
    CHECK(foreign.given_back == 1);
    CHECK(x.data<float>() != foreign.values);
    CHECK(x.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
    Foreign<DLManagedTensor> none;
    none.shape[0] = 0;
    none.managed.dl_tensor.data = nullptr;
    CHECK(from_dlpack(&none.managed).shape() == Shape({0, 3}));
    CHECK(none.given_back == 1);
}

TEST_CASE("dlpack: mezzo's memory for others, in every dtype and back", "[dlpack]") {
    const LiveObjects before = live_objects();
    for (const Device device : test::devices())
        for (const Dtype dtype : all_dtypes) {
            const Tensor x = Tensor::from({0, 1, 2, 3, 4, 5}, {2, 3}).to(dtype).to(device);
            DLManagedTensorVersioned* const lent = to_dlpack_versioned(x);
            CHECK(lent->version.major == 1);
            CHECK(lent->flags == 0);
            CHECK(lent->dl_tensor.dtype.bits == 8 * size_of(dtype));
            if (dtype == int8) CHECK(lent->dl_tensor.dtype.code == type_int);
            if (dtype == float8_e4m3fn) CHECK(int(lent->dl_tensor.dtype.code) == 10);  // DLPack 1.1
            if (dtype == float8_e5m2) CHECK(int(lent->dl_tensor.dtype.code) == 12);
            if (dtype == float8_e8m0fnu) CHECK(int(lent->dl_tensor.dtype.code) == 14);
            CHECK(lent->dl_tensor.device.device_type ==
                  (device.type() == DeviceType::cuda ? device_cuda : device_cpu));
            const Tensor back = from_dlpack(lent);
            CHECK(back.dtype() == dtype);
            CHECK(raw(back) == raw(x));
            CHECK(test::doubles(back) == test::doubles(x));
        }
    CHECK(live_objects().storages == before.storages);
    Tensor x = Tensor::from({1, 2, 3, 4}, {2, 2});
    DLManagedTensor* const lent = to_dlpack(x.t());
    x = Tensor();
    CHECK(lent->dl_tensor.strides[0] == 1);
    CHECK(lent->dl_tensor.strides[1] == 2);
    CHECK(static_cast<float*>(lent->dl_tensor.data)[3] == 4);
    lent->deleter(lent);
    CHECK(live_objects().storages == before.storages);
    CHECK_THROWS_WITH(to_dlpack({}), Contains("undefined"));
    const Tensor w = ones({2}).set_requires_grad();
    CHECK(!from_dlpack(to_dlpack(w)).requires_grad());
}

TEST_CASE("dlpack: memory that is not aligned to its elements is refused", "[dlpack]") {
    for (const std::uint64_t offset : {1u, 2u, 3u}) {
        Foreign<DLManagedTensor> theirs;
        theirs.managed.dl_tensor.shape[0] = 1;
        theirs.managed.dl_tensor.byte_offset = offset;
        CHECK_THROWS_WITH(from_dlpack(&theirs.managed), Contains("which is no multiple of 4; pass a copy"));
        CHECK(theirs.given_back == 1);
    }
    Foreign<DLManagedTensor> theirs;
    theirs.managed.dl_tensor.shape[0] = 1;
    theirs.managed.dl_tensor.byte_offset = 4;
    CHECK(from_dlpack(&theirs.managed).to_vector<float>()[0] == 2);
    Foreign<DLManagedTensor> beyond;
    beyond.managed.dl_tensor.byte_offset = ~std::uint64_t(0);
    CHECK_THROWS_WITH(from_dlpack(&beyond.managed), Contains("beyond the end of all memory"));
}
