// Random streams and checkpoints of several ranks, which are threads of one process.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/distributed/group.h"
#include "mezzo/distributed/state.h"
#include "mezzo/mezzo.h"
#include "tests/distributed/thread_group.h"
#include "tests/support/folder.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;

namespace {

bool same(const RandomState& a, const RandomState& b) { return a.seed == b.seed && a.offset == b.offset; }

io::Checkpoint checkpoint_of(int rank) {
    return {.model = {{"weight", full({3}, 10.0 + rank)}},
            .extra = {{"step", scalar(12, {.dtype = int64})}},
            .random = {std::uint64_t(40 + rank), std::uint64_t(100 * rank)},
            .position = {.epoch = 2, .samples = 64}};
}

// Result of load_checkpoint() on each rank.
std::vector<io::Checkpoint> loaded(int ranks, const std::string& path) {
    std::vector<io::Checkpoint> result;
    result.resize(std::size_t(ranks));
    test::run_ranks(ranks, [&](const distributed::Group& group) {
        result[std::size_t(group.rank())] = distributed::load_checkpoint(group, path);
    });
    return result;
}

std::string error_of(const std::exception_ptr& error, ErrorKind kind) {
    try {
        if (error) std::rethrow_exception(error);
    } catch (const Error& e) {
        return e.kind() == kind ? e.what() : std::string("of another kind: ") + e.what();
    }
    return "none";
}

namespace mz = mezzo;

constexpr std::int64_t epochs = 3;

data::Dataset points() {
    std::vector<float> x;
    std::vector<std::int64_t> y;
    for (int i = 0; i < 29; ++i) {
        for (int j = 0; j < 6; ++j) x.push_back(0.1F * float((i * 7 + j * 5) % 19) - 0.9F);
        y.push_back(i % 3);
    }
    return {Tensor::from(x, {29, 6}), Tensor::from(y, {29})};
}

// Trains until the end, or stops after `last_step` as if killed once that step's checkpoint is written.
// Returns the weights.
StateDict train(const mz::distributed::Group& group, const StateDict& initial, const std::string& path,
                int last_step) {
    const data::Dataset dataset = points();
    nn::Sequential net{nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 3)};
    net.load_state_dict(initial);
    mz::distributed::DataParallel parallel(net, group);
    mz::optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-2});
    mz::data::DataLoader loader(dataset, {.batch_size = 8, .shuffle = true, .shard = group.shard()});
    if (mz::distributed::checkpoint_exists(group, path)) {
        const mz::io::Checkpoint saved = mz::distributed::load_checkpoint(group, path);
        net.load_state_dict(saved.model);
        optimizer.load_state_dict(saved.optimizer);
        loader.set_position(saved.position);
    }
    int step = 0;
    while (loader.position().epoch < epochs)
        for (const mz::data::Batch& batch : loader) {
            const mz::Tensor loss = mz::cross_entropy(net(batch.x), batch.y) * batch.weight;
            loss.backward();
            optimizer.step();
            optimizer.zero_grad();
            if (++step != last_step) continue;
            mz::distributed::save_checkpoint(group, path,
                                             {.model = net.state_dict(),
                                              .optimizer = optimizer.state_dict(),
                                              .position = loader.position()});
            return {};
        }
    return net.state_dict();
}

// The largest difference of two lists of weights.
double apart(const StateDict& a, const StateDict& b) {
    double most = a.size() == b.size() ? 0 : 1e9;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        most = std::max(most, max(abs(a[i].second - b[i].second)).item<double>());
    return most;
}

}  // namespace

TEST_CASE("ranks: a training that is stopped goes on with any number of ranks", "[distributed_state]") {
    const Folder folder;
    const nn::Sequential fresh{nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 3)};
    StateDict initial;
    for (const auto& [name, value] : fresh.state_dict()) initial.emplace_back(name, value.clone());
    const std::string none = folder.file("none");
    const StateDict whole = train(distributed::init(), initial, none, 0);
    CHECK(apart(whole, initial) > 0.05);
    for (const int last_step : {0, 3, 4, 6})  // in the first epoch, behind its last batch, in the second one
        for (const int then : {1, 2, 4})
            for (const int now : {1, 2, 3}) {
                CAPTURE(last_step, then, now);
                const std::string path =
                    folder.file(std::to_string(last_step) + std::to_string(then) + std::to_string(now));
                std::vector<StateDict> ends(static_cast<std::size_t>(now));
                if (last_step > 0)
                    test::run_ranks(then, [&](const distributed::Group& group) {
                        train(group, initial, path, last_step);
                    });
                test::run_ranks(now, [&](const distributed::Group& group) {
                    ends[std::size_t(group.rank())] = train(group, initial, path, 0);
                });
                for (const StateDict& end : ends) {
                    CHECK(apart(end, whole) < 2e-5);
                    CHECK(apart(end, ends[0]) == 0);
                }
            }
}

TEST_CASE("ranks: streams of random numbers of their own", "[distributed_state]") {
    const RandomState before = random_state();
    const std::vector<distributed::Group> groups = test::thread_groups(std::make_shared<test::Meeting>(3));
    for (int rank = 0; rank < 3; ++rank) {
        distributed::manual_seed(groups[std::size_t(rank)], ~std::uint64_t{0});
        CHECK(same(random_state(), RandomState{~std::uint64_t{0} + std::uint64_t(rank), 0}));
    }
    set_random_state(before);
}

TEST_CASE("ranks: rank 0 writes one checkpoint, and any number of ranks goes on from it",
          "[distributed_state]") {
    const Folder folder;
    const std::string path = folder.file("run");
    test::run_ranks(3, [&](const distributed::Group& group) {
        distributed::save_checkpoint(group, path, checkpoint_of(group.rank()));
        check(std::filesystem::exists(path), ErrorKind::io, "the file is not there when the call returns");
    });
    const std::vector<io::Checkpoint> three = loaded(3, path);
    for (std::size_t rank = 0; rank < 3; ++rank) {
        CHECK(three[rank].model[0].second.to_vector<float>()[0] == 10);  // rank 0's
        CHECK(same(three[rank].random, checkpoint_of(int(rank)).random));
        CHECK(three[rank].position == data::LoaderPosition{2, 64});
        CHECK(three[rank].extra.size() == 1);
    }
    const std::vector<io::Checkpoint> two = loaded(2, path);
    CHECK(same(two[0].random, RandomState{40, 200}));
    CHECK(same(two[1].random, RandomState{41, 200}));
    CHECK(same(loaded(1, path)[0].random, RandomState{40, 200}));
    CHECK(same(io::load_checkpoint(path).random, RandomState{40, 0}));

    // One rank goes on from three, and writes its own state.
    const distributed::Group one = distributed::init();
    io::Checkpoint later = distributed::load_checkpoint(one, path);
    later.random = {40, 350};
    distributed::save_checkpoint(one, folder.file("later"), later);
    CHECK(same(distributed::load_checkpoint(one, folder.file("later")).random, RandomState{40, 350}));

    // A single process writes the same format as before, and several ranks go on from that, too.
    distributed::save_checkpoint(distributed::init(), path, checkpoint_of(5));
    CHECK(io::load_checkpoint(path).random_states.empty());
    CHECK(same(loaded(1, path)[0].random, RandomState{45, 500}));
    CHECK(same(loaded(2, path)[1].random, RandomState{46, 500}));
}

TEST_CASE("ranks: errors of files reach all ranks, and the group can go on", "[distributed_state]") {
    const Folder folder;
    const std::string path = folder.file("run");
    std::vector<std::string> saving(2), loading(2), differing(2), absent(2);
    std::vector<char> usable(2);  // no bits, which share a byte
    std::ofstream(folder.file("damaged")) << "no checkpoint";
    io::save_checkpoint(folder.file("0"), checkpoint_of(0));
    io::save_checkpoint(folder.file("1"), checkpoint_of(1));
    test::run_ranks(2, [&](const distributed::Group& group) {
        const auto rank = std::size_t(group.rank());
        const auto attempt = [&](const auto& f) {
            try {
                f();
            } catch (...) {
                return error_of(std::current_exception(), ErrorKind::io);
            }
            return std::string("none");
        };
        const std::string own = folder.file(std::to_string(rank));
        saving[rank] =
            attempt([&] { distributed::save_checkpoint(group, folder.file("no/folder"), checkpoint_of(0)); });
        loading[rank] = attempt([&] {
            static_cast<void>(distributed::load_checkpoint(group, rank == 1 ? folder.file("damaged") : own));
        });
        differing[rank] = attempt([&] { static_cast<void>(distributed::load_checkpoint(group, own)); });
        absent[rank] = attempt(
            [&] { static_cast<void>(distributed::checkpoint_exists(group, rank == 0 ? own : path)); });
        usable[rank] = !distributed::checkpoint_exists(group, path) && group.all(true);
    });
    CHECK_THAT(saving[0], Contains("no/folder"));
    CHECK_THAT(saving[1], Contains("rank 0 could not write it"));
    CHECK_THAT(loading[0], Contains("another rank could not read it"));
    CHECK_THAT(loading[1], Contains("damaged"));
    CHECK_THAT(differing[0], Contains("rank 1 has read another file than rank 0"));
    CHECK_THAT(differing[1], Contains("rank 0 has read another file than rank 1"));
    CHECK_THAT(absent[0], Contains("is there on rank 0, unlike on other ranks"));
    CHECK_THAT(absent[1], Contains("is not there on rank 1, unlike on other ranks"));
    CHECK(usable[0]);
    CHECK(usable[1]);
}
