// Every op refuses inputs of dtypes for storage only, on every device, or only moves their elements.
#include <catch2/catch.hpp>
#include <numeric>
#include <set>
#include <string>

#include "autograd/op.h"
#include "kernels/elementwise.h"
#include "mezzo/pointwise_ops.h"
#include "ops/common.h"
#include "tests/support/op_cases.h"
#include "tests/support/op_inputs.h"
#include "tests/third_backend/backend.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

// Cases that only move elements.
const std::set<std::string> moves{"cast",
                                  "chunk",
                                  "copy",
                                  "flatten",
                                  "flip",
                                  "flip of two",
                                  "gather",
                                  "gather with a smaller index",
                                  "index",
                                  "index by a mask",
                                  "index by a mask and more",
                                  "index of rows and columns",
                                  "index of two apart",
                                  "index_select",
                                  "index_select of the first",
                                  "permute",
                                  "permute of three",
                                  "repeat",
                                  "repeat_interleave",
                                  "reshape",
                                  "roll",
                                  "roll of all",
                                  "select",
                                  "slice",
                                  "split",
                                  "split of sizes",
                                  "squeeze and unsqueeze",
                                  "to_device",
                                  "unbind"};

std::string refusal(const OpCase& c, const Tensors& inputs) {
    try {
        c.function(inputs);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::dtype);
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("ops: inputs of dtypes for storage only are refused", "[ops][dtypes]") {
    std::vector<Device> all = devices();
    all.push_back(third_backend());
    for (const OpCase& c : op_cases())
        for (const Device device : all)
            for (const Dtype dtype : {int8, float8_e4m3fn}) {
                const Tensors inputs = make_inputs(c, c.shapes, float32, device);
                for (std::size_t i = 0; i < inputs.size(); ++i) {
                    if (kind(c, i) != 'f') continue;
                    Tensors x = inputs;
                    x[i] = x[i].to(dtype);
                    INFO(c.name << ": input " << i << " is " << name(dtype) << " on " << name(device.type()));
                    const std::string text = refusal(c, x);
                    if (moves.contains(c.name)) {
                        CHECK(text.empty());
                        continue;
                    }
                    CHECK_THAT(text, Contains(name(dtype)) && Contains("to("));
                    const bool is_public = std::string(c.name).find("_grad") == std::string::npos;
                    if (is_public) CHECK_FALSE(text.starts_with("promote"));
                }
            }
}

TEST_CASE("ops: where selects codes as they are", "[ops][dtypes]") {
    std::vector<Device> all = devices();
    all.push_back(third_backend());
    std::vector<std::uint8_t> bytes(256);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t(0));
    for (const Device device : all)
        for (const Dtype dtype : {int8, float8_e4m3fn, float8_e5m2, float8_e8m0fnu}) {
            INFO(name(dtype) << " on " << name(device.type()));
            const auto as_codes = [&](const Tensor& x) { return as_dtype(x.to(device), dtype); };
            const Tensor every = Tensor::from<std::uint8_t>(bytes, {16, 16}), one = every[3].clone();
            const Tensor condition = Tensor::from<std::uint8_t>(bytes, {16, 16}) < 100.0;
            const Tensor y = where(condition.to(device), as_codes(every).t(), as_codes(one));
            CHECK(y.dtype() == dtype);
            CHECK(equal(as_dtype(y, uint8).to(cpu_device), where(condition, every.t(), one)));
            CHECK_THROWS_WITH(where(condition.to(device), as_codes(every), every.to(float32).to(device)),
                              Contains("where: " + std::string(name(dtype)) + " is for storage only"));
        }
}

// The public functions check their inputs before; calls inside the library have these checks alone.
TEST_CASE("ops: a call of an op and of a kernel refuses dtypes for storage only", "[ops][dtypes]") {
    const AnyOp* neg = AnyOp::first();
    while (neg != nullptr && std::string(neg->name()) != "neg") neg = neg->next();
    REQUIRE(neg != nullptr);
    const kernels::neg at;
    for (const Device device : devices()) {
        const Tensor codes = ones({2}, {.dtype = int8, .device = device}), f = ones({2}, {.device = device});
        const auto negated = [&](const Tensor& x, std::optional<Dtype> result) {
            return call_one(*neg, In(&x, 1), AttributesRef(at), x.shape(), result);
        };
        CHECK(doubles(negated(f, {})) == std::vector<double>{-1, -1});
        CHECK_THROWS_WITH(negated(codes, {}), Contains("neg: int8 is for storage only"));
        CHECK_THROWS_WITH(negated(f, float8_e5m2), Contains("neg: float8_e5m2 is for storage only"));
        const KernelOf<kernels::add> add{"sum"};
        const Tensor both[] = {f, codes};
        CHECK_THROWS_WITH(add(both, {}, f), Contains("sum: int8 is for storage only"));
        CHECK_THROWS_WITH(add(Tensors{f, f}, {}, codes), Contains("sum: int8 is for storage only"));
        CHECK(doubles(codes) == std::vector<double>{1, 1});
    }
}
