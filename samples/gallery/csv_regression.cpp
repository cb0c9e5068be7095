// Regression on a table: reads a CSV file with a header, whose last column is the target, normalises it, and
// fits a small network. Without an argument it makes a table of its own.
#include <mezzo/data/table.h>
#include <mezzo/mezzo.h>

#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

mz::Tensor read_csv(const std::string& path) {  // [rows, columns]
    const mz::data::Table table = mz::data::read_csv(path);
    if (table.size() < 10 || table.columns().size() < 2)
        throw std::runtime_error(path + ": too small a table; it needs 10 rows and 2 columns");
    std::vector<std::string> names;
    for (const mz::data::Column& column : table.columns()) names.push_back(column.name);
    return table.numbers(names);
}

mz::Tensor made_table() {
    const mz::Tensor x = mz::rand({400, 3});
    const mz::Tensor y =
        3 * x[{mz::ellipsis, 0}] - 2 * x[{mz::ellipsis, 1}] * x[{mz::ellipsis, 2}] + 0.05 * mz::randn(400);
    return mz::cat({x, y.unsqueeze(1)}, 1);
}

}  // namespace

int main(int argc, char** argv) try {
    mz::manual_seed(1);
    mz::Tensor table = argc > 1 ? read_csv(argv[1]) : made_table();
    table = (table - table.mean(0)) / table.std(0);
    table = table.index_select(0, mz::randperm(table.size(0)));  // rows in random order
    const std::int64_t split = table.size(0) * 4 / 5;
    const mz::Tensor x = table[{mz::ellipsis, mz::Slice(0, -1)}], y = table[{mz::ellipsis, mz::Slice(-1)}];
    const mz::Tensor train_x = x[mz::Slice(0, split)], train_y = y[mz::Slice(0, split)];
    const mz::Tensor test_x = x[mz::Slice(split)], test_y = y[mz::Slice(split)];

    nn::Sequential net{nn::Linear(x.size(1), 32), nn::Tanh(), nn::Linear(32, 1)};
    mz::optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
    for (int epoch = 0; epoch < 200; ++epoch) {
        optimizer.zero_grad();
        mz::mse_loss(net(train_x), train_y).backward();
        optimizer.step();
    }
    const mz::NoGrad plain;
    const mz::Tensor error = (net(test_x) - test_y).square().mean();
    const double r2 = 1 - (error / test_y.var({}, {.correction = 0})).item<double>();
    std::cout << "the first rows:\n" << table[mz::Slice(0, 3)] << "\nR2 on the test rows: " << r2 << '\n';
    return r2 > 0.9 ? 0 : 1;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
