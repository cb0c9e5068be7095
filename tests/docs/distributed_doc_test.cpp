// Code of docs/guide/distributed.md and scaling.md: each block is a case here, run by a group of one rank.
#include <catch2/catch.hpp>

#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/distributed/group.h"
#include "mezzo/distributed/state.h"
#include "mezzo/distributed/sync_batch_norm.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/resnet.h"
#include "tests/support/folder.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;
namespace distributed = mezzo::distributed;
namespace optim = mezzo::optim;
namespace amp = mezzo::amp;

namespace {

const mz::Tensor rows = mz::full({4, 3}, 0.5);

}  // namespace

TEST_CASE("distributed document: the same program alone and on many", "[distributed]") {
    const mz::test::Folder folder;
    const std::string path = folder.file("run.ckpt");
    nn::Linear net(3, 2);
    // begin
    const auto group = mz::distributed::init();  // from the environment
    net.to(group.device());                      // cuda:LOCAL_RANK, or the CPU
    // ... the training; then rank 0 writes:
    mz::distributed::save_checkpoint(group, path, {.model = net.state_dict()});
    // end
    CHECK(folder.listing() == "run.ckpt ");
}

TEST_CASE("distributed document: DataParallel", "[distributed]") {
    nn::Linear net(3, 2);
    const std::vector<float> before = net.weight.to_vector<float>();
    const mz::Tensor x = rows.to(distributed::init().device());
    // begin
    const auto group = distributed::init();
    net.to(group.device());
    optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-4});
    amp::GradScaler scaler;
    distributed::DataParallel parallel(net, group);  // compares the models, gives all ranks rank 0's values
    for (int step = 0; step < 10; ++step) {
        const mz::Tensor loss = net(x).square().mean();
        scaler.scale(loss).backward();  // buckets of gradients leave while it runs
        scaler.step(optimizer);         // waits for them; skipped on all ranks or on none
        scaler.update();
        optimizer.zero_grad();
    }
    // end
    CHECK(net.weight.to_vector<float>() != before);
}

TEST_CASE("distributed document: accumulation", "[distributed]") {
    const mz::Tensor x = rows;
    nn::Linear net(3, 2);
    const auto group = distributed::init();
    optim::SGD optimizer(net.parameters(), {.lr = 1});
    distributed::DataParallel parallel(net, group);
    const int passes = 2;
    const auto loss = [&](int i) { return net(x * double(i)).sum(); };
    // begin
    for (int i = 0; i < passes; ++i) {
        const distributed::DataParallel::Local here(parallel);
        (loss(i) / passes).backward();  // stays on this rank
    }
    optimizer.step();  // reduces, then updates
    // end
    CHECK(net.bias.grad().to_vector<float>() == std::vector<float>{4, 4});
}

TEST_CASE("distributed document: sharded optimizers", "[distributed]") {
    const mz::Tensor x = rows;
    nn::Linear net(3, 2);
    const auto group = distributed::init();
    // begin
    optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-4});
    distributed::DataParallel parallel(net, group);
    distributed::shard(optimizer, parallel);  // from now on each rank keeps its share of the state
    // end
    net(x).sum().backward();
    CHECK_NOTHROW(optimizer.step());
}

TEST_CASE("distributed document: batch norms", "[distributed]") {
    const auto group = distributed::init();
    // begin
    nn::ResNet net(nn::resnet_config(20));
    distributed::convert_sync_batchnorm(net, group);  // all BatchNorm1d and BatchNorm2d in it, once
    distributed::DataParallel parallel(net, group);
    // end
    CHECK(!net.parameters().empty());
}

TEST_CASE("distributed document: data", "[distributed]") {
    const auto group = distributed::init();
    nn::Linear net(3, 2);
    const mz::data::Dataset dataset{.x = mz::ones({10, 3}), .y = mz::zeros({10}, {.dtype = mz::int64})};
    // begin
    mz::data::DataLoader loader(dataset, {.batch_size = 256, .shuffle = true, .shard = group.shard()});
    for (const mz::data::Batch& batch : loader) {
        const mz::Tensor loss = mz::cross_entropy(net(batch.x), batch.y) * batch.weight;
        loss.backward();
    }
    // end
    CHECK(net.weight.grad().defined());
}

TEST_CASE("distributed document: checkpoints", "[distributed]") {
    const mz::test::Folder folder;
    const std::string path = folder.file("run.ckpt");
    const auto group = distributed::init();
    nn::Linear net(3, 2);
    optim::SGD optimizer(net.parameters(), {.lr = 1});
    amp::GradScaler scaler;
    mz::data::DataLoader loader({.x = mz::ones({10, 3}), .y = mz::zeros({10}, {.dtype = mz::int64})});
    const auto train = [&] {
        // begin
        if (mz::distributed::checkpoint_exists(group, path)) {
            const mz::io::Checkpoint saved = mz::distributed::load_checkpoint(group, path);
            net.load_state_dict(saved.model);
            optimizer.load_state_dict(saved.optimizer);
            scaler.load_state_dict(saved.scaler);
            loader.set_position(saved.position);
            mz::set_random_state(saved.random);
        }
        // ... a part of the training; then:
        mz::distributed::save_checkpoint(group, path,
                                         {.model = net.state_dict(),
                                          .optimizer = optimizer.state_dict(),
                                          .scaler = scaler.state_dict(),
                                          .position = loader.position()});
        // end
    };
    train();
    const std::vector<float> saved = net.weight.to_vector<float>();
    {
        const mz::NoGrad plain;
        net.weight.fill_(7);
    }
    train();
    CHECK(net.weight.to_vector<float>() == saved);
}
