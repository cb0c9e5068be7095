// A program outside the library. Its argument is the version of mezzo that it must find.
#include <mezzo/mezzo.h>

#include <cstring>

// Uses type information, virtual functions and templates of the library from another project.
struct Halving : mezzo::optim::CustomOptimizer {
    explicit Halving(const mezzo::Tensor& w)
        : CustomOptimizer({.name = "Halving", .options = {{"lr", 1}}}, {{.params = {w}}}) {}
    void update(mezzo::optim::ParameterUpdate& p) override { p.value = p.value * 0.5; }
};

bool crosses_the_border() {
    const mezzo::Tensor w = mezzo::ones({2}).set_requires_grad();
    Halving halving(w);
    w.set_grad(mezzo::ones({2}));
    halving.step();
    const mezzo::optim::Optimizer& base = halving;
    if (dynamic_cast<const Halving*>(&base) == nullptr ||
        w.to_vector<double>() != std::vector<double>{0.5, 0.5})
        return false;
    try {
        static_cast<void>(mezzo::matmul(mezzo::ones({2, 3}), w));
    } catch (const mezzo::Error& error) {
        return error.kind() == mezzo::ErrorKind::shape;
    }
    return false;
}

int main(int, char** argv) {
    if (std::strcmp(mezzo::version(), argv[1]) != 0) return 2;  // that of mezzo.pc
    if (!crosses_the_border()) return 3;
    mezzo::nn::Linear layer(3, 2);
    mezzo::sum(layer(mezzo::ones({4, 3}))).backward();
    return layer.bias.grad().to_vector<float>() == std::vector<float>{4, 4} ? 0 : 1;
}
