#include "self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>

namespace mz = mezzo;

namespace {

// Sizes that are not multiples of any tile.
constexpr std::int64_t rows = 33, inner = 65, columns = 17;

// Multiples of 1/8 from -1 to 1, which every floating dtype represents exactly, in pseudo-random order: bits
// of multiples of a large number (Knuth, The Art of Computer Programming, volume 3, section 6.4).
std::vector<double> values(std::int64_t count, std::int64_t factor) {
    std::vector<double> result(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
        result[static_cast<std::size_t>(i)] =
            double((static_cast<std::uint32_t>((i + 1) * factor) >> 9) % 17) / 8 - 1;
    return result;
}

struct Problem {
    std::vector<double> a = values(rows * inner, 2654435761), b = values(inner * columns, 2246822519);
    mz::Tensor x, w;

    Problem(mz::Dtype dtype, mz::Device device)
        : x(mz::Tensor::from(a, {rows, inner}).to(device).to(dtype).detach()),
          w(mz::Tensor::from(b, {inner, columns}).to(device).to(dtype).detach()) {
        x.set_requires_grad();
        w.set_requires_grad();
    }
    double exact(std::int64_t row, std::int64_t column) const {
        double sum = 0;
        for (std::int64_t k = 0; k < inner; ++k)
            sum += a[static_cast<std::size_t>(row * inner + k)] *
                   b[static_cast<std::size_t>(k * columns + column)];
        return sum;
    }
};

// Returns the largest error of a product, relative to its largest element.
double product_error(const Problem& problem) {
    const std::vector<double> found = mz::matmul(problem.x, problem.w).to_vector<double>();
    double error = 0, largest = 0;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
        const double exact = problem.exact(i / columns, i % columns);
        error = std::fmax(error, std::fabs(found[static_cast<std::size_t>(i)] - exact));
        largest = std::fmax(largest, std::fabs(exact));
        if (!std::isfinite(found[static_cast<std::size_t>(i)])) error = INFINITY;
    }
    return error / largest;
}

// Returns the largest error of the gradient of the product's sum with respect to x, which has the sums of w's
// rows in every row; relative to the largest possible sum.
double gradient_error(const Problem& problem) {
    mz::matmul(problem.x, problem.w).sum().backward();
    const std::vector<double> found = problem.x.grad().to_vector<double>();
    double error = 0;
    for (std::int64_t i = 0; i < rows * inner; ++i) {
        double exact = 0;
        for (std::int64_t j = 0; j < columns; ++j)
            exact += problem.b[static_cast<std::size_t>(i % inner * columns + j)];
        const double off = std::fabs(found[static_cast<std::size_t>(i)] - exact);
        error = std::isfinite(off) ? std::fmax(error, off) : INFINITY;
    }
    return error / columns;
}

// Returns the last loss of a training divided by the first.
double loss_ratio(mz::Dtype dtype, mz::Device device) {
    const Problem data(mz::float32, device);
    const mz::Tensor x = data.x.detach(), y = mz::matmul(x, data.w).detach() * 0.1;
    const mz::Tensor w = mz::zeros({columns, inner}, {.device = device}).set_requires_grad();
    mz::optim::Adam optimizer({w}, {.lr = 1e-2});
    mz::amp::GradScaler scaler({.enabled = dtype == mz::float16});
    double first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope({.dtype = dtype});
            loss = mz::mse_loss(mz::linear(x, w), y);
        }
        last = loss.item<double>();
        if (step == 0) first = last;
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
    }
    return std::isfinite(last) ? last / first : INFINITY;
}

SelfTestLine line(mz::Dtype dtype, const char* what, double limit, const std::function<double()>& measure) {
    const std::string name = fmt::format("{} {}", mz::name(dtype), what);
    try {
        const double found = measure();
        return {name, found <= limit, fmt::format("{:.2g}, at most {:.2g}", found, limit)};
    } catch (const std::exception& error) {
        return {name, false, error.what()};
    }
}

}  // namespace

std::vector<SelfTestLine> self_test(mz::Device device) {
    std::vector<SelfTestLine> lines;
    for (const mz::Dtype dtype : {mz::float32, mz::bfloat16, mz::float16}) {
        const double epsilon = mz::dtype_info(dtype).epsilon;
        lines.push_back(line(dtype, "product", 2 * epsilon, [&] { return product_error({dtype, device}); }));
        lines.push_back(line(dtype, "gradient", 2 * epsilon, [&] {
            return gradient_error({dtype, device});
        }));
        lines.push_back(line(dtype, "training", 0.1, [&] { return loss_ratio(dtype, device); }));
    }
    return lines;
}
