// Two networks against each other: a generator learns to put points on a circle, a discriminator to
// distinguish them from real ones (Goodfellow et al., arXiv 1406.2661).
#include <mezzo/mezzo.h>

#include <iostream>

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

mz::Tensor real_points(std::int64_t n) {
    const mz::Tensor angle = 6.2831853 * mz::rand(n);
    return mz::stack({angle.cos(), angle.sin()}, 1) + 0.02 * mz::randn({n, 2});
}

nn::Sequential network(std::int64_t in, std::int64_t out) {
    return nn::Sequential{nn::Linear(in, 64), nn::GELU(), nn::Linear(64, 64), nn::GELU(),
                          nn::Linear(64, out)};
}

}  // namespace

int main() {
    mz::manual_seed(4);
    constexpr std::int64_t batch = 128, noise = 4;
    const nn::Sequential generator = network(noise, 2), discriminator = network(2, 1);
    mz::optim::Adam train_generator(generator.parameters(), {.lr = 1e-3, .beta1 = 0.5});
    mz::optim::Adam train_discriminator(discriminator.parameters(), {.lr = 1e-3, .beta1 = 0.5});
    const mz::Tensor yes = mz::ones({batch, 1}), no = mz::zeros({batch, 1});

    for (int step = 0; step < 600; ++step) {
        const mz::Tensor made = generator(mz::randn({batch, noise}));

        // The generator does not train here: detach() cuts its history off.
        train_discriminator.zero_grad();
        mz::Tensor loss = mz::binary_cross_entropy_with_logits(discriminator(real_points(batch)), yes);
        loss += mz::binary_cross_entropy_with_logits(discriminator(made.detach()), no);
        loss.backward();
        train_discriminator.step();

        // The discriminator's gradients of this pass are dropped by the zero_grad() of the next step.
        train_generator.zero_grad();
        mz::binary_cross_entropy_with_logits(discriminator(made), yes).backward();
        train_generator.step();
    }
    const mz::NoGrad plain;
    const mz::Tensor points = generator(mz::randn({1000, noise})), radius = points.norm(1);
    std::cout << "some points:\n"
              << points[mz::Slice(0, 4)] << "\nmean radius " << radius.mean().item<double>()
              << ", standard deviation " << radius.std().item<double>() << '\n';
    const double mean = radius.mean().item<double>();
    return mean > 0.8 && mean < 1.2 ? 0 : 1;
}
