// Activations as layers, with PyTorch's names and defaults: each calls the function of its name.
//
//   const nn::Sequential net(nn::Linear(64, 64), nn::LeakyReLU(0.2), nn::Linear(64, 20), nn::GLU());
#pragma once

#include <cstdint>
#include <string>

#include "mezzo/module.h"
#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

namespace detail {
[[nodiscard]] std::string described(const char* option, double value);
}

// Activations without options: element-wise, any shape. The second column is the result for x.
#define MEZZO_ACTIVATION(Class, result)                                       \
    struct Class : Module {                                                   \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {          \
            return with_hooks([](const Tensor& x) { return result; }, input); \
        }                                                                     \
        MEZZO_MODULE(Class)                                                   \
    };
MEZZO_ACTIVATION(ReLU, relu(x))
MEZZO_ACTIVATION(ReLU6, relu6(x))
MEZZO_ACTIVATION(Tanh, tanh(x))
MEZZO_ACTIVATION(Tanhshrink, x - tanh(x))
MEZZO_ACTIVATION(Sigmoid, sigmoid(x))
MEZZO_ACTIVATION(LogSigmoid, logsigmoid(x))
MEZZO_ACTIVATION(Hardsigmoid, hardsigmoid(x))
MEZZO_ACTIVATION(SiLU, silu(x))
MEZZO_ACTIVATION(Hardswish, hardswish(x))
MEZZO_ACTIVATION(Mish, mish(x))
MEZZO_ACTIVATION(SELU, selu(x))
MEZZO_ACTIVATION(Softsign, softsign(x))
#undef MEZZO_ACTIVATION

// Activations with one number, which is also a field: nn::LeakyReLU(0.2).negative_slope.
#define MEZZO_ACTIVATION(Class, Type, option, standard, result)                                      \
    class Class : public Module {                                                                    \
    public:                                                                                          \
        explicit Class(Type value = standard) : option(value) {}                                     \
        [[nodiscard]] Tensor operator()(const Tensor& input) const {                                 \
            return with_hooks([this](const Tensor& x) { return result; }, input);                    \
        }                                                                                            \
        std::string describe() const override { return detail::described(#option, double(option)); } \
                                                                                                     \
        Type option;                                                                                 \
        MEZZO_MODULE(Class)                                                                          \
    };
MEZZO_ACTIVATION(LeakyReLU, double, negative_slope, 0.01, leaky_relu(x, negative_slope))
MEZZO_ACTIVATION(ELU, double, alpha, 1, elu(x, alpha))
MEZZO_ACTIVATION(CELU, double, alpha, 1, celu(x, alpha))
// x where |x| > lambd, else 0.
MEZZO_ACTIVATION(Hardshrink, double, lambd, 0.5, hardshrink(x, lambd))
// x moved towards 0 by lambd, 0 where |x| <= lambd.
MEZZO_ACTIVATION(Softshrink, double, lambd, 0.5, softshrink(x, lambd))
// a sigmoid(b) of the halves a and b of x along dim.
MEZZO_ACTIVATION(GLU, std::int64_t, dim, -1, glu(x, dim))
MEZZO_ACTIVATION(Softmax, std::int64_t, dim, -1, softmax(x, dim))
MEZZO_ACTIVATION(Softmin, std::int64_t, dim, -1, softmax(-x, dim))
MEZZO_ACTIVATION(LogSoftmax, std::int64_t, dim, -1, log_softmax(x, dim))
#undef MEZZO_ACTIVATION

struct GELUOptions {
    bool approximate_tanh = false;
};
class GELU : public Module {
public:
    explicit GELU(const GELUOptions& options = {}) : approximate_tanh(options.approximate_tanh) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return approximate_tanh ? gelu_tanh(x) : gelu(x); },
                          input);
    }
    std::string describe() const override { return approximate_tanh ? "approximate=tanh" : ""; }

    bool approximate_tanh;
    MEZZO_MODULE(GELU)
};

// hardtanh(x, low, high).
class Hardtanh : public Module {
public:
    explicit Hardtanh(double low = -1, double high = 1) : min_val(low), max_val(high) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return hardtanh(x, min_val, max_val); }, input);
    }
    std::string describe() const override;

    double min_val, max_val;
    MEZZO_MODULE(Hardtanh)
};

// value where x <= threshold, else x.
class Threshold : public Module {
public:
    Threshold(double least, double replacement) : threshold(least), value(replacement) {}
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return mezzo::threshold(x, threshold, value); }, input);
    }
    std::string describe() const override;

    double threshold, value;
    MEZZO_MODULE(Threshold)
};

// log(1 + e^(beta x)) / beta, and x where beta x > threshold.
class Softplus : public Module {
public:
    explicit Softplus(double factor = 1, double linear_from = 20) : beta(factor), threshold(linear_from) {}
    [[nodiscard]] Tensor operator()(const Tensor& x) const;
    std::string describe() const override;

    double beta, threshold;
    MEZZO_MODULE(Softplus)
};

struct PReLUOptions {
    std::int64_t num_parameters = 1;  // one for all, or the size of the last dimension, the channels
    double init = 0.25;
    Device device = cpu_device;
    Dtype dtype = float32;
};
// x where x > 0, else weight x, with a learnable weight (He et al., arXiv 1502.01852).
class PReLU : public Module {
public:
    // Error(value) unless num_parameters is positive.
    explicit PReLU(const PReLUOptions& options = {});
    // Error(shape) unless the weight has one element or as many as the last dimension of x.
    [[nodiscard]] Tensor operator()(const Tensor& input) const {
        return with_hooks([this](const Tensor& x) { return prelu(x, weight); }, input);
    }
    std::string describe() const override;

    Parameter weight;  // [num_parameters]
    MEZZO_MODULE(PReLU, weight)
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
