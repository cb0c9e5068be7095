// A program outside the library that uses every component, each over its own shared object or archive.
#include <mezzo/everything.h>

#include <string>

namespace mz = mezzo;

// Trains a small classifier; a profile lists what core has run.
bool trains() {
    mz::manual_seed(1);
    mz::nn::Sequential net{mz::nn::Linear(4, 8), mz::nn::ReLU(), mz::nn::Linear(8, 2)};
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const mz::Tensor x = mz::randn({32, 4});
    mz::data::DataLoader loader({.x = x, .y = (mz::sum(x, {1}) > 0).to(mz::int64)}, {.batch_size = 8});
    mz::insight::Profiler profiler({.model = &net});
    mz::training::Trainer trainer(net, optimizer, {.epochs = 2});
    static_cast<void>(trainer.fit(
        loader, [&](const mz::data::Batch& batch) { return mz::cross_entropy(net(batch.x), batch.y); }));
    return profiler.table().find("linear") != std::string::npos;
}

// An error of a component arrives as mezzo::Error.
bool throws() {
    try {
        static_cast<void>(mz::data::read_csv("/no/such/file.csv"));
    } catch (const mz::Error& error) {
        return error.kind() == mz::ErrorKind::io;
    }
    return false;
}

// An object of core passes through the other components.
bool exchanges() {
    const mz::nn::ResNet net(
        mz::nn::ResNetConfig{.layers = {1}, .width = 4, .stem = mz::nn::ResNetStem::cifar, .num_classes = 3});
    const mz::nn::Module& module = net;
    const auto words =
        mz::data::WordPiece::from_vocabulary({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"});
    const mz::Tensor x = mz::ones({2, 3});
    const mz::Tensor y = mz::dlpack::from_dlpack(mz::dlpack::to_dlpack(x));
    const auto group = mz::distributed::init();
    return dynamic_cast<const mz::nn::ResNet*>(&module) == &net && words.size() == 6 && group.size() == 1 &&
           y.to_vector<float>() == x.to_vector<float>();
}

int main() { return trains() ? throws() ? exchanges() ? 0 : 3 : 2 : 1; }
