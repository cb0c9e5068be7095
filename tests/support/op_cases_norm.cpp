// Op cases of batch_norm and group_norm.
#include "mezzo/image_ops.h"
#include "tests/support/op_cases.h"

namespace mezzo::test {

namespace {

// Running statistics, new for every call because training writes them.
struct Running {
    explicit Running(const Tensor& x) {
        const TensorOptions like{.dtype = x.dtype(), .device = x.device()};
        const Tensor places = arange(x.size(-1), like);
        mean = places * 0.25 - 0.5;
        var = places * 0.5 + 0.5;
    }
    Tensor mean, var;
};

Tensor with_running(In x, const BatchNormOptions& options) {
    const Running running(x[0]);
    return batch_norm(x[0], running.mean, running.var, x.size() > 1 ? x[1] : Tensor(),
                      x.size() > 2 ? x[2] : Tensor(), options);
}
Tensor trained(In x) { return with_running(x, {}); }
Tensor trained_bare(In x) { return with_running(x, {.eps = 1e-3}); }
Tensor trained_relu(In x) { return with_running(x, {.relu = true}); }
Tensor trained_residual(In x) { return with_running(x, {.residual = x[3]}); }
Tensor trained_residual_relu(In x) { return with_running(x, {.relu = true, .residual = x[3]}); }
Tensor evaluated(In x) { return with_running(x, {.training = false}); }
Tensor evaluated_residual_relu(In x) {
    return with_running(x, {.training = false, .relu = true, .residual = x[3]});
}
Tensor untracked(In x) { return batch_norm(x[0], {}, {}, x[1], {}, {.training = false}); }
Tensor grouped(In x) { return group_norm(x[0], 2, x[1], x[2]); }
Tensor grouped_bare(In x) { return group_norm(x[0], 3, {}, {}, 1e-3); }
Tensor grouped_each(In x) { return group_norm(x[0], 5, x[1], x[2]); }

}  // namespace

std::vector<OpCase> norm_cases() {
    using enum Under;
    using enum Domain;
    const Shape c{5}, image{3, 2, 2, 5}, c16{16};
    // clang-format off
    return {
        {"batch_norm", trained, {image, c, c}, nullptr, keep, any, "", "batch_norm_grad", true, false},
        {"batch_norm without weight", trained_bare, {{7, 3}}, nullptr, keep, any, "", "", true, false},
        {"batch_norm with ReLU", trained_relu, {{6, 7}, {7}, {7}}, nullptr, keep, any, "", "", true, false},
        {"batch_norm with residual", trained_residual, {image, c, c, image}, nullptr, keep, any, "", "", true, false},
        {"batch_norm with residual and ReLU", trained_residual_relu, {{2, 3, 16}, c16, c16, {2, 3, 16}}, nullptr, keep, any,
         "", "", true, false},
        {"batch_norm of running statistics", evaluated, {image, c, c}, nullptr, keep, any, "", "", true, true},
        {"batch_norm of running statistics with residual and ReLU", evaluated_residual_relu, {image, c, c, image}, nullptr,
         keep, any, "", "", true, true},
        {"batch_norm without running statistics", untracked, {{4, 3, 5}, c}, nullptr, keep, any, "", "", true, false},
        {"group_norm", grouped, {{3, 2, 2, 6}, {6}, {6}}, nullptr, fp32, any, "", "group_norm_grad", true, false},
        {"group_norm without weight", grouped_bare, {{2, 4, 6}}, nullptr, fp32, any, "", "", true, false},
        {"group_norm of single channels", grouped_each, {{2, 4, 5}, c, c}, nullptr, fp32, any, "", "", true, false},
    };
    // clang-format on
}

}  // namespace mezzo::test
