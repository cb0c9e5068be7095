// Runs every case of op_cases.cpp: values, layouts, dtypes, devices, gradients of both orders, autocast, and
// lifetimes.
#include <catch2/catch.hpp>

#include <cmath>
#include <set>
#include <sstream>

#include "autograd/op.h"
#include "kernels/registry.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "tests/support/op_cases.h"
#include "tests/support/op_inputs.h"
#include "tests/third_backend/backend.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

constexpr Dtype floating[] = {float32, bfloat16, float16, float64};

// All devices and the third backend, which has hardly any kernels.
std::vector<Device> all_devices() {
    std::vector<Device> all = devices();
    all.push_back(third_backend());
    return all;
}

std::vector<double> expected_values(const OpCase& c, const Tensors& inputs) {
    const Tensors x = exact(inputs);
    if (!c.reference) {
        ByDecomposition reference;
        return doubles(c.function(x));
    }
    std::vector<Array> arrays;
    for (const Tensor& t : x) arrays.push_back({t.shape(), doubles(t)});
    return c.reference(arrays);
}

Tolerance allowed(const OpCase& c, Dtype dtype, double factor = 1) {
    Tolerance t = tolerance(dtype);
    t.relative *= factor * c.loose;
    t.absolute *= factor * c.loose;
    return t;
}

void check_values(const OpCase& c, const Tensors& inputs, Dtype dtype) {
    const Tensor y = c.function(inputs);
    if (is_floating(y.dtype())) CHECK(y.dtype() == dtype);
    CHECK(y.device() == inputs[0].device());
    CHECK_FALSE(y.requires_grad());
    CHECK(difference(doubles(y), expected_values(c, inputs), allowed(c, y.dtype())) == "");
}

std::vector<Shape> ones_of(const std::vector<Shape>& shapes) {
    std::vector<Shape> result;
    for (const Shape& s : shapes) result.push_back(Shape::filled(s.size(), 1));
    return result;
}

// The shapes with the first size of the first input replaced by 0 wherever it occurs.
std::vector<Shape> emptied(const std::vector<Shape>& shapes) {
    std::vector<Shape> result = shapes;
    const std::int64_t size = shapes[0][0];
    for (Shape& s : result)
        for (int d = 0; d < s.size(); ++d)
            if (s[d] == size) s[d] = 0;
    return result;
}

Tensors tracked_leaves(const Tensors& inputs) {
    Tensors leaves;
    for (const Tensor& x : inputs) {
        leaves.push_back(x.detach().clone());
        if (is_floating(x.dtype())) leaves.back().set_requires_grad();
    }
    return leaves;
}

// Dtype to which the incoming gradient is rounded, so that both sides of a comparison start from the same
// one.
Dtype rounding(Dtype dtype) { return is_16bit(dtype) ? bfloat16 : float32; }

// The gradients of <f(inputs), v>, with v rounded.
std::vector<std::vector<double>> gradients(const OpCase& c, const Tensors& inputs, Dtype round_to = float32) {
    const Tensors x = tracked_leaves(inputs);
    const Tensor y = c.function(x);
    REQUIRE(y.requires_grad());
    const Tensor v = tensor_of(random_values(y.numel(), 50, Domain::unit), y.shape(), round_to).to(y.dtype());
    autograd::backward({y}, {.grad_outputs = {v.to(y.device())}});
    std::vector<std::vector<double>> result;
    for (const Tensor& leaf : x) {
        if (!leaf.requires_grad()) continue;
        if (leaf.grad().defined()) {
            CHECK(leaf.grad().shape() == leaf.shape());
            CHECK(leaf.grad().dtype() == leaf.dtype());
        }
        result.push_back(leaf.grad().defined() ? doubles(leaf.grad())
                                               : std::vector<double>(std::size_t(leaf.numel()), 0.0));
    }
    return result;
}

double magnitude(const std::vector<double>& values) {
    double m = 0;
    for (double v : values) m = std::max(m, std::abs(v));
    return m;
}

// Runs the kernel of a recorded call once more, into results with guard values on both sides. Needs the
// inputs, saved or from the test itself; returns false if it has not all of them.
bool guarded_run(const Node& call, const Tensors& given) {
    Tensors inputs = call.saved_inputs;
    inputs.resize(call.inputs.size());
    bool known = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].defined() && i < given.size()) inputs[i] = given[i];
        known = known && inputs[i].defined() && inputs[i].shape() == call.inputs[i].shape;
    }
    const Device device = call.outputs[0].device;
    AnyKernel* kernel = call.op->kernel(device.type());
    if (!known || !kernel) return false;
    const std::int64_t guard = 64;  // elements; keeps results aligned for 16-byte accesses
    Tensors wide, results;
    for (const TensorMeta& m : call.outputs) {
        wide.push_back(full({guard + m.shape.numel() + guard}, 77, {.dtype = m.dtype, .device = device}));
        results.push_back(
            make_tensor(wide.back()->storage, m.shape, contiguous_strides(m.shape), guard, m.dtype));
    }
    Tensors plain;
    for (const Tensor& x : inputs)
        plain.push_back(call.op->traits().strided ? x.detach() : x.detach().contiguous());
    kernel(plain, call.attributes.value(), results);
    for (const Tensor& w : wide) {
        CHECK(doubles(w.slice(0, 0, guard)) == std::vector<double>(guard, 77));
        CHECK(doubles(w.slice(0, w.numel() - guard, w.numel())) == std::vector<double>(guard, 77));
    }
    return true;
}

template <class Body> void for_each_case(const Body& body) {
    for (const OpCase& c : op_cases()) {
        DYNAMIC_SECTION(c.name) { body(c); }
    }
}

}  // namespace

TEST_CASE("op values", "[ops]") {
    for_each_case([](const OpCase& c) {
        for (Device device : all_devices())
            for (Dtype dtype : floating)
                for (Placement layout :
                     {Placement::plain, Placement::transposed, Placement::sliced, Placement::shifted}) {
                    CAPTURE(name(dtype), name(device.type()), int(layout));
                    check_values(c, make_inputs(c, c.shapes, dtype, device, layout), dtype);
                }
    });
}

TEST_CASE("op values of one element and of none", "[ops]") {
    for_each_case([](const OpCase& c) {
        if (!c.resizable) return;
        for (Device device : all_devices()) {
            CAPTURE(name(device.type()));
            check_values(c, make_inputs(c, ones_of(c.shapes), float32, device), float32);
            if (c.empty) check_values(c, make_inputs(c, emptied(c.shapes), float32, device), float32);
        }
    });
}

TEST_CASE("op gradients agree with differences of values", "[ops]") {
    for_each_case([](const OpCase& c) {
        if (!c.gradient) return;
        const Tensors inputs = make_inputs(c, c.shapes, float64, cpu_device);
        CHECK(check_gradient(c.function, inputs) == "");
        CHECK(check_second_gradient(c.function, inputs) == "");
    });
}

TEST_CASE("op gradients of the decomposition agree with those of the op", "[ops]") {
    for_each_case([](const OpCase& c) {
        if (!c.gradient || c.reference) return;
        const Tensors inputs = make_inputs(c, c.shapes, float64, cpu_device);
        const auto fused = gradients(c, inputs);
        ByDecomposition reference;
        const auto composed = gradients(c, inputs);
        for (std::size_t i = 0; i < fused.size(); ++i)
            CHECK(difference(fused[i], composed[i], {1e-9, 1e-9}) == "");
    });
}

TEST_CASE("op gradients in every dtype on every device", "[ops]") {
    for_each_case([](const OpCase& c) {
        if (!c.gradient) return;
        for (Device device : all_devices())
            for (Dtype dtype : floating) {
                CAPTURE(name(dtype), name(device.type()));
                const Tensors inputs = make_inputs(c, c.shapes, dtype, device);
                const Dtype round_to = rounding(dtype);
                const auto actual = gradients(c, inputs, round_to),
                           wanted = gradients(c, exact(inputs), round_to);
                for (std::size_t i = 0; i < actual.size(); ++i) {
                    Tolerance t = allowed(c, dtype, 4);  // a gradient of several ops rounds several times
                    t.absolute += t.relative * magnitude(wanted[i]);
                    CHECK(difference(actual[i], wanted[i], t) == "");
                }
            }
    });
}

TEST_CASE("op gradients of small and large inputs in 16 bit", "[ops][range]") {
    const auto largest = [](const std::vector<std::vector<double>>& all) {
        double m = 0;
        for (const std::vector<double>& values : all) m = std::max(m, magnitude(values));
        return m;
    };
    for_each_case([&](const OpCase& c) {
        if (!c.gradient || c.domain == Domain::unit) return;
        for (Device device : all_devices())
            for (Dtype dtype : {float16, bfloat16})
                for (const double scale : {0x1p-11, 0x1p-6, 0x1p5, 0x1p10}) {
                    CAPTURE(name(dtype), name(device.type()), scale);
                    Tensors inputs = make_inputs(c, c.shapes, dtype, device);
                    for (Tensor& x : inputs)
                        if (is_floating(x.dtype())) x = x * scale;
                    if (magnitude(expected_values(c, inputs)) > 60000) continue;
                    const auto wanted = gradients(c, exact(inputs), bfloat16);
                    if (largest(wanted) > 60000) continue;
                    const auto actual = gradients(c, inputs, bfloat16);
                    for (std::size_t i = 0; i < actual.size(); ++i) {
                        Tolerance t = allowed(c, dtype, 8);
                        // If a softmax is saturated, rounding errors are relative to the incoming gradient.
                        t.absolute = t.relative * std::max(magnitude(wanted[i]), 0.1);
                        CHECK(difference(actual[i], wanted[i], t) == "");
                    }
                }
    });
}

TEST_CASE("op gradients of one element and of none", "[ops]") {
    for_each_case([](const OpCase& c) {
        if (!c.gradient || !c.resizable) return;
        for (Device device : all_devices()) {
            CAPTURE(name(device.type()));
            const Tensors one = make_inputs(c, ones_of(c.shapes), float32, device);
            const auto actual = gradients(c, one), wanted = gradients(c, exact(one));
            for (std::size_t i = 0; i < actual.size(); ++i)
                CHECK(difference(actual[i], wanted[i], {1e-4, 1e-5}) == "");
            if (c.empty) gradients(c, make_inputs(c, emptied(c.shapes), float32, device));
        }
    });
}

TEST_CASE("op results under autocast", "[ops][autocast]") {
    for_each_case([](const OpCase& c) {
        if (c.autocast == Under::fixed) return;
        for (Device device : all_devices())
            for (Dtype scope : {float16, bfloat16})
                for (Dtype dtype : {float32, scope}) {
                    CAPTURE(name(scope), name(dtype), name(device.type()));
                    const Tensors inputs = make_inputs(c, c.shapes, dtype, device);
                    const std::vector<double> wanted = expected_values(c, inputs);
                    amp::Autocast open({.device = device.type(), .dtype = scope});
                    const Tensor y = c.function(inputs);
                    const Dtype low_or_kept = c.autocast == Under::low ? scope : dtype;
                    CHECK(y.dtype() == (c.autocast == Under::fp32 ? float32 : low_or_kept));
                    Tolerance t = allowed(c, c.autocast == Under::low ? scope : y.dtype(), 2);
                    t.absolute += 2 * t.relative * magnitude(wanted);
                    CHECK(difference(doubles(y), wanted, t) == "");
                }
    });
}

TEST_CASE("op gradients under autocast are those of plain ops, within rounding", "[ops][autocast]") {
    for_each_case([](const OpCase& c) {
        if (c.autocast == Under::fixed || !c.gradient) return;
        for (Device device : all_devices())
            for (Dtype scope : {float16, bfloat16}) {
                CAPTURE(name(scope), name(device.type()));
                const Tensors inputs = make_inputs(c, c.shapes, scope, device);
                const auto wanted = gradients(c, exact(inputs), bfloat16);
                for (Dtype dtype : {float32, scope}) {
                    Tensors given;
                    for (const Tensor& x : inputs) given.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
                    amp::Autocast open({.device = device.type(), .dtype = scope});
                    const auto actual = gradients(c, given, bfloat16);
                    for (std::size_t i = 0; i < actual.size(); ++i) {
                        Tolerance t = allowed(c, scope, 4);
                        t.absolute += t.relative * magnitude(wanted[i]);
                        CHECK(difference(actual[i], wanted[i], t) == "");
                    }
                }
            }
    });
}

TEST_CASE("ops record only what is asked for and leave nothing alive", "[ops]") {
    for_each_case([](const OpCase& c) {
        for (Device device : all_devices()) {
            CAPTURE(name(device.type()));
            const LiveObjects before = live_objects();
            {
                const Tensors x = tracked_leaves(make_inputs(c, c.shapes, float32, device));
                const Tensor y = c.function(x);
                CHECK(y.requires_grad() == c.gradient);
                NoGrad plain;
                const Tensor z = c.function(x);
                if (z.impl() != x[0].impl()) CHECK_FALSE(z.requires_grad());
            }
            if (c.gradient) {
                gradients(c, make_inputs(c, c.shapes, float32, device));
                if (device == cpu_device)
                    (void)check_second_gradient(c.function, make_inputs(c, c.shapes, float64, cpu_device));
            }
            const LiveObjects after = live_objects();
            CHECK(after.tensors == before.tensors);
            CHECK(after.nodes == before.nodes);
            CHECK(after.storages == before.storages);
        }
    });
}

TEST_CASE("op kernels write their results and nothing beside them", "[ops]") {
    int ran = 0;
    for (const OpCase& c : op_cases()) {
        if (!c.gradient) continue;
        for (Device device : all_devices())
            for (Dtype dtype : {float32, float16}) {
                CAPTURE(c.name, name(device.type()), name(dtype));
                const Tensors x = tracked_leaves(make_inputs(c, c.shapes, dtype, device));
                const Tensor y = c.function(x);
                if (y->grad_meta->node) ran += guarded_run(*y->grad_meta->node, x);
            }
    }
    CHECK(ran > 120 * int(devices().size()));
}

TEST_CASE("every op has a line", "[ops]") {
    std::set<std::string> covered{"activation_grad",  "mse_loss_bias_grad",  // linear_grad_test
                                  "dropout",                                 // dropout_test
                                  "ctc_loss",         "ctc_loss_grad",       // ctc_loss_test
                                  "quantized_linear",                        // quantize_weights_test
                                  "reattach",         "checkpoint",
                                  "function"};  // the engine's own: autograd_test
    for (const OpCase& c : op_cases()) {
        covered.insert(c.name);
        std::istringstream rows(c.rows);
        for (std::string row; rows >> row;) covered.insert(row);
    }
    int count = 0;
    for (const AnyOp* op = AnyOp::first(); op; op = op->next(), ++count) {
        if (std::string_view(op->name()).starts_with("test: ")) continue;
        CAPTURE(op->name());
        CHECK(covered.contains(op->name()));
    }
    CHECK(count > 90);
}
