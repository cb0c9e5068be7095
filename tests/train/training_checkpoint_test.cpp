// training::Checkpoint: one file with all state, loading all or nothing, and the folder of the last and the
// best checkpoints.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "mezzo/data/loader.h"
#include "mezzo/distributed/group.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"
#include "tests/distributed/thread_group.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"
#include "tests/train/training_run.h"

using namespace mezzo;
using Catch::Matchers::Contains;
using test::Folder;
using test::same_bits;
using test::TrainingRun;
using training::Checkpoint;
using training::CheckpointFolder;

namespace {

ErrorKind kind_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.kind();
    }
    FAIL("no error");
    return ErrorKind::backend;
}

// Collects the log while it exists.
struct Log {
    Log() {
        set_log_sink([this](std::string_view line) { text += std::string(line) + "\n"; });
    }
    ~Log() { set_log_sink(nullptr); }
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;
    std::string text;
};

struct Pair {
    nn::Linear a{2, 3}, b{3, 2};
};

std::vector<double> numbers(const StateDict& state) {
    std::vector<double> result;
    for (const auto& [name, value] : state)
        for (const double v : value.to_vector<double>()) result.push_back(v);
    return result;
}

std::string steps_in(const CheckpointFolder& folder) {
    std::string text;
    for (const training::CheckpointFile& file : folder.files()) text += std::to_string(file.step) + " ";
    return text;
}

}  // namespace

TEST_CASE("checkpoint of a run: every part and the middle of an epoch, bit for bit", "[training]") {
    for (const Device device : test::devices()) {
        const Folder folder;
        TrainingRun whole(11, device);
        whole.train(17);  // epochs have 7 batches
        Checkpoint(whole.parts())
            .save(folder.file("run"),
                  {.step = 17, .metrics = {{"loss", 0.1}}, .metadata = {{"why", "a test"}}});
        const std::vector<double> then = whole.state();
        whole.train(40);

        TrainingRun resumed(99, device);
        const training::CheckpointInfo info = Checkpoint(resumed.parts()).load(folder.file("run"));
        CHECK(info.step == 17);
        CHECK(info.metrics == io::Metrics{{"loss", 0.1}});
        CHECK(info.metadata == io::Metadata{{"why", "a test"}});
        resumed.step_done = info.step;
        CHECK(same_bits(resumed.state(), then));
        resumed.train(40);
        CHECK(same_bits(resumed.state(), whole.state()));
        CHECK(whole.optimizer->skipped_steps() == 4);
    }
}

TEST_CASE("checkpoint of a run: master weights, and another device", "[training]") {
    const Folder folder;
    const std::vector<Device> devices = test::devices();
    const auto make = [](Device device) {
        nn::Linear net(4, 4);
        net.to(device);
        net.to(bfloat16);
        return net;
    };
    const auto step = [](const nn::Linear& net, optim::SGD& optimizer) {
        optimizer.zero_grad();
        mean(square(net(full({2, 4}, 0.5, {.dtype = bfloat16, .device = net.weight.device()})))).backward();
        optimizer.step();
    };
    manual_seed(1);
    nn::Linear first = make(cpu_device);
    optim::SGD first_optimizer(first.parameters(), {.lr = 1e-3, .momentum = 0.9});
    first_optimizer.use_master_weights();
    for (int i = 0; i < 5; ++i) step(first, first_optimizer);
    Checkpoint({.model = first, .optimizer = first_optimizer}).save(folder.file("run"));
    nn::Linear second = make(devices.back());
    optim::SGD second_optimizer(second.parameters(), {.lr = 1, .momentum = 0.9});
    Checkpoint({.model = second, .optimizer = second_optimizer}).load(folder.file("run"));
    CHECK(second_optimizer.lr() == 1e-3);
    CHECK(second.weight.device() == devices.back());
    CHECK(numbers(second.state_dict()) == numbers(first.state_dict()));
    CHECK(second_optimizer.master_parameters()[0].dtype() == float32);
    CHECK(numbers({{"", second_optimizer.master_parameters()[0]}}) ==
          numbers({{"", first_optimizer.master_parameters()[0]}}));
    for (int i = 0; i < 5; ++i) step(first, first_optimizer), step(second, second_optimizer);
    const test::Tolerance allowed{.relative = 1e-6,
                                  .absolute = 2e-5};  // devices round bfloat16 gradients apart
    CHECK(test::difference(numbers({{"", second_optimizer.master_parameters()[0]}}),
                           numbers({{"", first_optimizer.master_parameters()[0]}}), allowed)
              .empty());
}

TEST_CASE("checkpoint of a run: what does not fit changes nothing", "[training]") {
    const Folder folder;
    const std::string path = folder.file("run");
    Pair saved, other;
    optim::SGD optimizer(saved.a.parameters(), {.lr = 0.1}),
        other_optimizer(other.a.parameters(), {.lr = 0.2});
    amp::GradScaler scaler({.init_scale = 64}), other_scaler({.init_scale = 32});
    data::DataLoader loader(TrainingRun::data(), {.batch_size = 4}),
        short_loader({zeros({3, 8}), zeros({3}, {.dtype = int64})});
    loader.set_position({.epoch = 2, .samples = 40});
    Checkpoint({.model = saved.a,
                .optimizer = optimizer,
                .scaler = scaler,
                .loader = loader,
                .others = {{"b", saved.b}}})
        .save(path);
    const auto state = [&] {
        std::vector<double> result = numbers(other.a.state_dict());
        for (const StateDict& s :
             {other.b.state_dict(), other_optimizer.state_dict(), other_scaler.state_dict()})
            for (const double v : numbers(s)) result.push_back(v);
        result.push_back(double(random_state().seed));
        result.push_back(double(short_loader.position().epoch));
        return result;
    };
    manual_seed(77);
    other_optimizer.load_state_dict(
        other_optimizer.state_dict());  // has entries for all parameters from now on
    const std::vector<double> before = state();
    const auto refused = [&](const training::CheckpointParts& parts, const std::string& text,
                             ErrorKind kind = ErrorKind::value) {
        const Checkpoint checkpoint(parts);
        CHECK_THROWS_WITH(checkpoint.load(path), Contains(text) && Contains(path));
        CHECK(kind_of([&] { checkpoint.load(path); }) == kind);
        CHECK(state() == before);
    };
    refused({.model = other.a, .optimizer = other_optimizer, .scaler = other_scaler, .loader = short_loader},
            "has other.b, and this training has not");
    refused(
        {.model = other.a, .optimizer = other_optimizer, .scaler = other_scaler, .others = {{"b", other.b}}},
        "has loader, and this training has not");
    optim::AveragedModel average(other.a);
    refused({.model = other.a,
             .optimizer = other_optimizer,
             .scaler = other_scaler,
             .average = average,
             .loader = loader,
             .others = {{"b", other.b}}},
            "has no average; it was saved with model, optimizer, scaler, other.b, loader");
    refused({.model = other.a,
             .optimizer = other_optimizer,
             .scaler = other_scaler,
             .loader = short_loader,
             .others = {{"b", other.b}}},
            "loader: DataLoader: position is epoch 2, sample 40");
    optim::Adam adam(other.a.parameters());
    refused({.model = other.a,
             .optimizer = adam,
             .scaler = other_scaler,
             .loader = loader,
             .others = {{"b", other.b}}},
            "optimizer: ");
    // The second model does not fit: the first one, the optimizer, the scaler and the loader are restored.
    nn::Linear wide(5, 2);
    loader.set_position({.epoch = 1, .samples = 8});
    refused({.model = other.a,
             .optimizer = other_optimizer,
             .scaler = other_scaler,
             .loader = loader,
             .others = {{"b", wide}}},
            "other.b: Linear.load_state_dict: of 2 names 2 are there");
    CHECK(loader.position() == data::LoaderPosition{.epoch = 1, .samples = 8});
    refused({.model = wide,
             .optimizer = other_optimizer,
             .scaler = other_scaler,
             .loader = loader,
             .others = {{"b", other.b}}},
            "model: Linear.load_state_dict");

    io::save_checkpoint(folder.file("plain"), {});
    CHECK_THROWS_WITH(Checkpoint({}).load(folder.file("plain")),
                      Contains("was not saved by training::Checkpoint"));
    CHECK_THROWS_WITH(Checkpoint({}).load(folder.file("none")), Contains("none"));
    Checkpoint({.model = other.a,
                .optimizer = other_optimizer,
                .scaler = other_scaler,
                .loader = loader,
                .others = {{"b", other.b}}})
        .load(path);
    CHECK(numbers(other.b.state_dict()) == numbers(saved.b.state_dict()));
    CHECK(other_optimizer.lr() == 0.1);
    CHECK(other_scaler.get_scale() == 64);
}

TEST_CASE("checkpoint of a run: settings and names", "[training]") {
    const Folder folder;
    const std::string path = folder.file("run");
    nn::Linear net(2, 2);
    Checkpoint({.model = net, .settings = {{"--batch", "64"}, {"--lr", "0.1"}}}).save(path, {.step = 3});
    CHECK_THROWS_WITH(
        Checkpoint({.model = net, .settings = {{"--batch", "32"}, {"--seed", "1"}}}).load(path),
        Contains("cannot be resumed") &&
            Contains("\n  --batch: 64, now 32\n  --seed: not stored, now 1\n  --lr: 0.1, now unknown"));
    CHECK(Checkpoint({.model = net, .settings = {{"--lr", "0.1"}, {"--batch", "64"}}}).load(path).step == 3);
    CHECK(training::read_checkpoint_info(path).step == 3);
    CHECK(Checkpoint({.settings = {{"--lr", "0.1"}, {"--batch", "64"}}}).check_settings(path).step == 3);
    CHECK_THROWS_WITH(Checkpoint({.settings = {{"--lr", "0.2"}, {"--batch", "64"}}}).check_settings(path),
                      Contains("--lr: 0.1, now 0.2"));
    for (const char* name : {"", "a.b", "a b"})
        CHECK_THROWS_WITH(Checkpoint({.others = {{name, net}}}), Contains("is no name of a part"));
    CHECK_THROWS_WITH(Checkpoint({.others = {{"a", net}, {"a", net}}}),
                      Contains("two parts are named \"a\""));
    CHECK_THROWS_WITH(Checkpoint({.settings = {{"a", ""}, {"a", ""}}}), Contains("two settings are named"));
    CHECK_THROWS_WITH(Checkpoint({}).save(path, {.step = -1}), Contains("step is -1"));
    CHECK_THROWS_WITH(Checkpoint({}).save(path, {.metrics = {{"", 1}}}), Contains("has no name"));
    CHECK_THROWS_WITH(Checkpoint({}).save(path, {.metrics = {{"a", 1}, {"a", 1}}}), Contains("two metrics"));
    CHECK_THROWS_WITH(Checkpoint({}).save(path, {.metadata = {{"training.x", "1"}}}),
                      Contains("names that begin with"));
    CHECK_THROWS_WITH(Checkpoint({}).save(path, {.metadata = {{"mezzo.x", "1"}}}), Contains("mezzo's"));
    CHECK(training::read_checkpoint_info(path).step == 3);
    for (const double value : {1.0 / 3, -1e-310, HUGE_VAL, 0.0}) {
        Checkpoint({}).save(path, {.metrics = {{"x", value}}});
        CHECK(training::read_checkpoint_info(path).metrics[0].second == value);
    }
}

TEST_CASE("checkpoint folder: the last and the best stay", "[training]") {
    const Folder folder;
    nn::Linear net(2, 2);
    const Checkpoint checkpoint({.model = net});
    const CheckpointFolder last(folder.file("a/b"), {.keep_last = 2});
    CHECK(last.files().empty());
    CHECK_FALSE(last.load_newest(checkpoint).has_value());
    for (int step : {0, 5, 10, 10, 15}) last.save(checkpoint, {.step = step});
    CHECK(steps_in(last) == "10 15 ");
    CHECK(last.load_newest(checkpoint)->step == 15);

    const CheckpointFolder best(folder.file("c"), {.keep_last = 1, .keep_best = 2, .metric = "accuracy"});
    const double accuracy[] = {0.5, 0.9, std::nan(""), 0.7, 0.9, 0.1};
    for (int i = 0; i < 6; ++i) {
        net.load_state_dict({{"weight", zeros({2, 2})}, {"bias", full({2}, i)}});
        best.save(checkpoint, {.step = i, .metrics = {{"accuracy", accuracy[i]}}});
    }
    CHECK(steps_in(best) == "1 4 5 ");
    CHECK(best.load_best(checkpoint)->step == 4);
    CHECK(net.bias.to_vector<double>()[0] == 4);
    CHECK(best.load_newest(checkpoint)->step == 5);
    const CheckpointFolder lowest(folder.file("c"),
                                  {.keep_best = 1, .metric = "accuracy", .better = training::Better::lower});
    CHECK(lowest.load_best(checkpoint)->step == 5);
    best.save(checkpoint, {.step = 6});  // without the metric
    CHECK(steps_in(best) == "1 4 6 ");

    CHECK_THROWS_WITH(CheckpointFolder(""), Contains("has no name"));
    CHECK_THROWS_WITH(CheckpointFolder("x", {.keep_last = 0}), Contains("keep_last is 0"));
    CHECK_THROWS_WITH(CheckpointFolder("x", {.keep_best = -1}), Contains("keep_best is -1"));
    CHECK_THROWS_WITH(CheckpointFolder("x", {.keep_best = 1}), Contains("no metric says"));
    CHECK_THROWS_WITH(CheckpointFolder(folder.write("file", "")).save(checkpoint, {}), Contains("cannot be"));
}

TEST_CASE("checkpoint folder: damaged ones are skipped, later ones are not lost", "[training]") {
    const Folder folder;
    Log log;
    nn::Linear net(2, 2);
    const Checkpoint checkpoint({.model = net});
    const CheckpointFolder run(folder.path, {.keep_last = 5});
    for (int step : {1, 2, 3}) run.save(checkpoint, {.step = step});
    CHECK_THROWS_WITH(run.save(checkpoint, {.step = 2}),
                      Contains("has step 3, and this training is at step 2"));
    CHECK(kind_of([&] { run.save(checkpoint, {.step = 2}); }) == ErrorKind::value);
    CHECK(steps_in(run) == "1 2 3 ");

    const std::string third = folder.read("step-0000000003.ckpt");
    folder.write("step-0000000003.ckpt", third.substr(0, third.size() / 2));
    folder.write("step-0000000004.ckpt", "");
    folder.write("step-x.ckpt", "");
    folder.write("step-0000000001.ckpt.mezzo-partial", "left by a killed program");
    CHECK(run.load_newest(checkpoint)->step == 2);
    CHECK_THAT(log.text,
               Contains("skipped: ") && Contains("step-0000000003.ckpt") && Contains("step-0000000004.ckpt"));
    CHECK(folder.listing() ==
          "step-0000000001.ckpt step-0000000001.ckpt.mezzo-partial step-0000000002.ckpt step-0000000003.ckpt "
          "step-0000000004.ckpt step-x.ckpt ");
    run.save(checkpoint, {.step = 3});  // replaces the damaged file; 4 is set aside
    CHECK(folder.listing() ==
          "step-0000000001.ckpt step-0000000002.ckpt step-0000000003.ckpt step-0000000004.ckpt.damaged "
          "step-x.ckpt ");
    CHECK(run.load_newest(checkpoint)->step == 3);
    for (const training::CheckpointFile& file : run.files()) std::filesystem::resize_file(file.path, 9);
    CHECK_THROWS_WITH(run.load_newest(checkpoint),
                      Contains("none of 3 checkpoints can be read") && Contains("0000000003"));
    // If the newest checkpoint is intact but does not fit, no older one is loaded.
    run.save(checkpoint, {.step = 4});
    nn::Linear wide(3, 3);
    CHECK_THROWS_WITH(run.load_newest(Checkpoint({.model = wide})),
                      Contains("0000000004") && Contains("model: "));
}

TEST_CASE("checkpoint folder: several ranks save one file, and fail together", "[training]") {
    const Folder folder;
    std::vector<double> loaded[2];
    std::string errors[2];
    test::run_ranks(2, [&](const distributed::Group& group) {
        const auto rank = std::size_t(group.rank());
        nn::Linear net(2, 2);
        net.load_state_dict({{"weight", full({2, 2}, 1.0 + double(rank))}, {"bias", zeros({2})}});
        const Checkpoint checkpoint({.model = net, .group = &group});
        const CheckpointFolder run(folder.path, {.keep_last = 1});
        for (int step : {1, 2}) run.save(checkpoint, {.step = step});
        if (run.load_newest(checkpoint)->step == 2) loaded[rank] = net.weight.to_vector<double>();
        try {
            run.save(checkpoint, {.step = 1});
        } catch (const Error& error) {
            errors[rank] = error.what();
        }
        group.barrier();
        if (group.leader()) folder.write("step-0000000002.ckpt", "damaged");
        group.barrier();
        try {
            run.load_newest(checkpoint);
        } catch (const Error& error) {
            errors[rank] += error.what();
        }
    });
    for (const std::vector<double>& weights : loaded) CHECK(weights == std::vector<double>(4, 1.0));
    CHECK_THAT(errors[0], Contains("has step 2, and this training is at step 1") && Contains("none of 1"));
    CHECK_THAT(errors[1], Contains("rank 0 could not save") && Contains("none of 1"));
}

TEST_CASE("checkpoint of a run: any damaged or missing byte is refused", "[training]") {
    const Folder folder;
    nn::Linear net(1, 2);
    optim::SGD optimizer(net.parameters(), {.lr = 0.5});
    const Checkpoint checkpoint({.model = net, .optimizer = optimizer});
    checkpoint.save(folder.file("run"), {.step = 1, .metrics = {{"loss", 0.25}}});
    const std::string whole = folder.read("run");
    checkpoint.load(folder.file("run"));
    const auto state = [&] {
        std::vector<double> result = numbers(net.state_dict());
        for (const double v : numbers(optimizer.state_dict())) result.push_back(v);
        return result;
    };
    const std::vector<double> before = state();
    std::size_t refused = 0;
    const auto try_bytes = [&](const std::string& bytes) {
        std::filesystem::remove(
            folder.file("damaged"));  // some file systems wait for the disk when a file is written over
        folder.write("damaged", bytes);
        try {
            checkpoint.load(folder.file("damaged"));
        } catch (const Error& error) {
            refused += error.kind() == ErrorKind::io;
        }
    };
    for (std::size_t i = 0; i < whole.size(); ++i) {
        for (const int change : {0x01, 0x80, 0xff}) {
            std::string bytes = whole;
            bytes[i] = char(bytes[i] ^ change);
            try_bytes(bytes);
        }
        try_bytes(whole.substr(0, i) + whole.substr(i + 1));
        try_bytes(whole.substr(0, i));
    }
    CHECK(refused == 5 * whole.size());
    CHECK(state() == before);
}
