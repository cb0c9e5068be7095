// One rank of the tests of groups: `rank_program SCENARIO FOLDER` writes its outcome into FOLDER/<rank>.
#include <fcntl.h>
#include <fmt/format.h>
#include <mezzo/distributed/data_parallel.h>
#include <mezzo/distributed/group.h>
#include <mezzo/distributed/sync_batch_norm.h>
#include <mezzo/mezzo.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;
using md::Group;
using md::ReduceOp;

namespace {

std::string folder, ends;

}  // namespace

namespace rank_test {

void write_outcome(const std::string& text) {
    std::string path = folder + "/alone";
    for (const char* const variable : {"SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK"})
        if (const char* const rank = std::getenv(variable)) path = folder + "/" + rank;
    if (std::FILE* file = std::fopen(path.c_str(), "a")) {
        std::fputs((text + "\n").c_str(), file);
        std::fclose(file);
    }
}

void note_end() { close(open(ends.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)); }

void require(bool condition, const std::string& what) {
    if (!condition) throw std::logic_error("wrong: " + what);
}

double option(const char* name, double otherwise) {
    const char* const value = std::getenv(name);
    return value != nullptr ? std::strtod(value, nullptr) : otherwise;
}

Group join() {
    return md::init(
        {.timeout = option("TEST_TIMEOUT", 8), .rendezvous_timeout = option("TEST_RENDEZVOUS_TIMEOUT", 8)});
}

}  // namespace rank_test

namespace {

using namespace rank_test;

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

mz::Tensor mine(const Group& group, const mz::Shape& shape, mz::Dtype dtype) {
    return mz::full(shape, group.rank() + 1, {.dtype = dtype});
}

void check_reductions(const Group& group) {
    const double n = group.size(), sum = n * (n + 1) / 2;
    for (const mz::Dtype dtype :
         {mz::float16, mz::bfloat16, mz::float32, mz::float64, mz::int32, mz::int64, mz::uint8})
        for (const mz::Shape& shape : {mz::Shape{}, mz::Shape{0}, mz::Shape{3, 5}, mz::Shape{1000, 7}}) {
            const auto reduced = [&](ReduceOp op) {
                const mz::Tensor x = mine(group, shape, dtype);
                group.all_reduce_(x, op);
                return x;
            };
            const auto equals = [&](const mz::Tensor& x, double value) {
                require(
                    x.dtype() == dtype && mz::all_close(x, mz::full(shape, value, {.dtype = dtype}), 0, 0),
                    fmt::format("{} of {}", value, x.to_string()));
            };
            equals(reduced(ReduceOp::sum), sum);
            equals(reduced(ReduceOp::min), 1);
            equals(reduced(ReduceOp::max), n);
            if (mz::is_floating(dtype) && (group.size() & (group.size() - 1)) == 0)
                equals(reduced(ReduceOp::mean), sum / n);
        }
    const bool own[] = {true, group.rank() == 0};
    const mz::Tensor flags = mz::Tensor::from<bool>(std::span<const bool>(own), {2});
    group.all_reduce_(flags, ReduceOp::min);
    require(flags.to_vector<int>() == std::vector<int>{1, group.size() == 1}, "minimum of booleans");
}

void check_others(const Group& group) {
    const int n = group.size();
    const mz::Tensor all = group.all_gather(mz::full({2, 3}, group.rank(), {.dtype = mz::int32}));
    require(all.shape() == mz::Shape{n, 2, 3}, "shape of all_gather");
    for (int r = 0; r < n; ++r) require(all[r].to_vector<int>() == std::vector<int>(6, r), "all_gather");
    for (int root = 0; root < n; ++root) {
        const mz::Tensor x = mz::full({4, 6}, group.rank(), {.dtype = mz::bfloat16}), part = x.t();
        group.broadcast_(part, root);
        require(x.to_vector<int>() == std::vector<int>(24, root), "broadcast_ into a view");
    }
    require(std::abs(group.mean(mz::full({}, group.rank())).item<double>() - (n - 1) / 2.0) < 1e-6, "mean");
    require(group.mean(mz::full({2}, group.rank(), {.dtype = mz::int64})).dtype() == mz::float32,
            "dtype of mean");
    const double weight = group.weight(group.rank() + 1).item<double>();
    require(std::abs(weight - (group.rank() + 1) * 2.0 / (n + 1)) < 1e-6, "weight");
    require(group.weight(0).item<double>() == 0, "weight of nothing");
    group.barrier();
    require(group.shard().rank == group.rank() && group.shard().size == n, "shard");
    require(group.all(true) && group.any(true) && !group.any(false), "all, any");
    require(group.all(group.rank() == 0) == (n == 1) && group.any(group.rank() == n - 1), "all, any of one");
}

// Odd lengths, longer than Gloo's segments; the sum is the same on all ranks, bit for bit.
void check_large(const Group& group) {
    mz::manual_seed(7 + std::uint64_t(group.rank()));
    for (const std::int64_t length : {std::int64_t{1}, std::int64_t{12345}, std::int64_t{1} << 20}) {
        const mz::Tensor x = mz::randn({length + group.size()});
        const mz::Tensor parts = group.all_gather(x);
        group.all_reduce_(x);
        mz::Tensor expected = mz::zeros(x.shape(), {.dtype = mz::float64});
        for (int r = 0; r < group.size(); ++r) expected.add_(parts[r]);
        require(mz::all_close(x, expected, 1e-5, 1e-5), "a large sum");
        const mz::Tensor sums = group.all_gather(x);
        for (int r = 1; r < group.size(); ++r)
            require(mz::all_close(sums[0], sums[r], 0, 0), "the same bits on all ranks");
    }
}

void collectives() {
    const Group group = join();
    check_reductions(group);
    check_others(group);
    check_large(group);
    write_outcome(fmt::format("ok {} of {} threads {}", group.rank(), group.size(), mz::num_threads()));
}

// Some calls that succeed, then `last` on one rank while the others go on calling.
void after_some_calls(const std::function<void(const Group&)>& last) {
    const Group group = join();
    for (int step = 0; step < 3; ++step) group.all_reduce_(mz::ones({1000}));
    write_outcome("begun");
    if (group.rank() == group.size() - 1) return last(group);
    for (;;) group.all_reduce_(mz::ones({1000}));
}

void throw_error(const Group&) {
    note_end();
    static_cast<void>(mz::matmul(mz::ones({2, 3}), mz::ones({4, 5})));
}

void throw_first() {
    const Group group = join();
    group.barrier();
    if (group.rank() == 0) throw_error(group);
    for (;;) group.barrier();
}

// Throws an exception that nothing catches: no destructor runs.
void throw_uncaught(const Group&) {
    note_end();
    std::thread([] { throw std::runtime_error("words of a foreign exception"); }).join();
}

void leave_early(const Group&) {
    write_outcome("left");
    note_end();
}

void exit_early(const Group&) {
    write_outcome("left");
    note_end();
    std::exit(0);
}

void stop_self(const Group&) {
    note_end();
    raise(SIGSTOP);
}

void crash_before_joining() {
    if (option("RANK", 0) == option("TEST_VICTIM", 1)) {
        note_end();
        std::exit(3);
    }
    join();
}

// Different calls give the same error on all ranks, after which the group goes on.
void differing_calls() {
    const Group group = join();
    const bool last = group.rank() == group.size() - 1;
    const std::vector<std::function<void()>> calls = {
        [&] { group.all_reduce_(mz::ones({last ? 8 : 6})); },
        [&] {
            group.all_reduce_(mz::ones(last ? mz::Shape{2, 3} : mz::Shape{6}));
        },
        [&] { group.all_reduce_(mz::ones({6}, {.dtype = last ? mz::float64 : mz::float32})); },
        [&] { group.all_reduce_(mz::ones({6}), last ? ReduceOp::max : ReduceOp::sum); },
        [&] {
            if (last) return group.barrier();
            group.broadcast_(mz::ones({6}));
        },
        [&] { group.broadcast_(mz::ones({6}), last ? 1 : 0); },
    };
    for (const auto& call : calls) {
        try {
            call();
            write_outcome("no error");
        } catch (const mz::Error& error) {
            write_outcome(error.what());
        }
        const mz::Tensor x = mz::ones({6});
        group.all_reduce_(x);
        require(x.to_vector<int>() == std::vector<int>(6, group.size()), "the group goes on");
    }
}

// Weights and optimizer state after some steps of float16 with masters and a scaler.
mz::StateDict train(const Group& group, bool sharded) {
    mz::manual_seed(3);
    mz::nn::Sequential net{mz::nn::Linear(64, 1000), mz::nn::ReLU(), mz::nn::Linear(1000, 50)};
    net.to(mz::float16);
    mz::optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-3});
    mz::amp::GradScaler scaler({.init_scale = 128});
    md::DataParallel parallel(net, group);
    if (sharded) md::shard(optimizer, parallel);
    optimizer.use_master_weights();
    mz::manual_seed(50 + std::uint64_t(group.rank()));
    for (int step = 0; step < 6; ++step) {
        const mz::Tensor x = mz::randn({8, 64}).to(mz::float16), y = mz::randn({8, 50});
        mz::Tensor loss = mz::mse_loss(net(x).to(mz::float32), y);
        if (step == 2 && group.rank() == 1) loss = loss * std::numeric_limits<double>::infinity();
        scaler.scale(loss).backward();
        scaler.unscale_(optimizer);
        mz::nn::clip_grad_norm_(net.parameters(), 0.5);
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
    }
    require(optimizer.skipped_steps() == (group.size() > 1 ? 1 : 0), "steps that were skipped");
    mz::StateDict state = optimizer.state_dict();
    for (const auto& named : net.named_parameters()) state.push_back(named);
    return state;
}

void shard_an_optimizer() {
    const Group group = join();
    const mz::StateDict plain = train(group, false), sharded = train(group, true);
    require(plain.size() == sharded.size(), "the number of entries");
    for (std::size_t i = 0; i < plain.size(); ++i) {
        require(plain[i].first == sharded[i].first &&
                    mz::all_close(plain[i].second.detach(), sharded[i].second.detach(), 0, 0),
                "the bits of " + plain[i].first);
        const mz::Tensor all = group.all_gather(sharded[i].second.detach());
        for (int r = 1; r < group.size(); ++r)
            require(mz::all_close(all[0], all[r], 0, 0), "the same bits on all ranks");
    }
    write_outcome("ok");
}

// Compares a rank's batch norm over its rows with a step over the whole batch. Rank r has 3 r rows: the first
// has none.
void synchronise_batch_norms() {
    const Group group = join();
    const auto step = [](mz::nn::Sequential& net, const mz::Tensor& x, double scale) {
        (mz::sum(mz::square(net(x))) * scale).backward();
        mz::Tensors all;
        for (const mz::Tensor& p : net.parameters()) all.push_back(p.grad().reshape({-1}));
        for (const auto& named : net.named_buffers())
            all.push_back(named.second.reshape({-1}).to(mz::float32));
        return mz::cat(all, 0);
    };
    const auto make = [] {
        mz::manual_seed(3);
        return mz::nn::Sequential{mz::nn::Linear(8, 20), mz::nn::BatchNorm1d(20), mz::nn::ReLU(),
                                  mz::nn::Linear(20, 4)};
    };
    const int n = group.size();
    const std::int64_t rows = 3 * n * (n - 1) / 2, begin = 3 * group.rank() * (group.rank() - 1) / 2;
    mz::nn::Sequential whole = make(), net = make();
    mz::manual_seed(9);
    const mz::Tensor x = mz::randn({rows, 8}) + 3.0;
    const mz::Tensor expected = step(whole, x, 1.0 / double(rows));
    require(md::convert_sync_batchnorm(net, group) == 1, "the number of batch norms");
    md::DataParallel parallel(net, group);
    const mz::Tensor found = step(net, x.slice(0, begin, begin + 3 * group.rank()), double(n) / double(rows));
    require(mz::all_close(found, expected, 1e-4, 1e-5), "gradients and running statistics");
    const mz::Tensor all = group.all_gather(found);
    for (int r = 1; r < n; ++r) require(mz::all_close(all[0], all[r], 0, 0), "the same bits on all ranks");
    write_outcome("ok");
}

// Rank 0 leaves as soon as it has sent its data, while others still read it.
void leave_after_sending() {
    const Group group = join();
    const mz::Tensor x = mz::full({std::int64_t{1} << 23}, group.rank() == 0 ? 5 : 0);
    group.broadcast_(x);
    if (group.rank() == 0) return write_outcome("ok");
    require(mz::all_close(x, mz::full(x.shape(), 5), 0, 0), "what rank 0 has sent");
    pause(0.5);
    write_outcome("ok");
}

// Rank 0 leaves before the others make one more call. If rank 0 holds the store, the store has closed by
// then.
void leave_first() {
    const Group group = join();
    for (int step = 0; step < 3; ++step) group.all_reduce_(mz::ones({1000}));
    if (group.rank() == 0) return write_outcome("ok");
    pause(0.5);
    note_end();
    group.all_reduce_(mz::ones({1000}));
}

std::atomic<bool> asked_to_stop{false};

void stop_when_asked() {
    signal(SIGTERM, [](int) { asked_to_stop = true; });
    const Group group = join();
    int step = 0;
    write_outcome("begun");
    while (!group.any(asked_to_stop)) {
        group.all_reduce_(mz::ones({100}));
        ++step;
        pause(0.01 * (group.rank() + 1));
    }
    write_outcome(fmt::format("stopped after step {}", step));
}

// The end of a forked child is not taken for the end of its rank.
void fork_child() {
    const Group group = join();
    if (group.rank() == 0 && fork() == 0) std::exit(0);
    pause(0.3);
    for (int i = 0; i < 5; ++i) group.barrier();
    write_outcome("ok");
}

void join_twice() {
    const Group group = join();
    try {
        static_cast<void>(join());
    } catch (const mz::Error& error) {
        write_outcome(error.what());
    }
    group.barrier();
}

void ignore_failures() {
    const Group group = join();
    if (group.rank() == 1) std::exit(5);
    signal(SIGTERM, SIG_IGN);
    pause(60);
}

void join_only() {
    const Group group = join();
    write_outcome(fmt::format("joined {} of {}", group.rank(), group.size()));
}

// Rank 0 waits for a file from the test before it joins; all others wait in init().
void join_when_told() {
    write_outcome("begun");
    while (option("RANK", 0) == 0 && !std::filesystem::exists(folder + "/.told")) pause(0.01);
    join_only();
}

void tell_threads() {
    const Group group = join();
    write_outcome(fmt::format("threads {}", mz::num_threads()));
}

// Joins so late that other processes come first.
void wait_and_join() {
    if (std::getenv("RANK") != std::string("0")) pause(1);
    join_only();
}

std::ptrdiff_t entries(const char* folder_of_proc) {
    return std::distance(std::filesystem::directory_iterator(folder_of_proc),
                         std::filesystem::directory_iterator());
}

// Weights after some steps, with DataParallel if there is a group.
mz::Tensor train_some_steps(const Group* group) {
    mz::manual_seed(3);
    mz::nn::Sequential net{mz::nn::Linear(64, 100), mz::nn::LayerNorm(100), mz::nn::Linear(100, 50)};
    mz::optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-3});
    mz::amp::GradScaler scaler({.init_scale = 128});
    std::optional<md::DataParallel> parallel;
    if (group != nullptr) md::shard(optimizer, parallel.emplace(net, *group));
    for (int step = 0; step < 5; ++step) {
        const mz::amp::Autocast scope({.dtype = mz::float16});
        scaler.scale(net(mz::randn({8, 64})).square().mean()).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
    }
    mz::Tensors weights;
    for (const mz::Tensor& p : net.parameters()) weights.push_back(p.detach().reshape({-1}));
    return mz::cat(weights, 0);
}

// A group of one rank opens nothing and starts nothing; training gives the same bits as without a group.
void alone() {
    const mz::Tensor expected = train_some_steps(nullptr);
    const std::ptrdiff_t threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
    const Group group = md::init();
    const mz::Tensor x = mz::Tensor::from({1, 2, 3});
    group.all_reduce_(x);
    require(group.rank() == 0 && group.size() == 1 && group.leader() &&
                x.to_vector<int>() == std::vector<int>{1, 2, 3},
            "alone");
    check_others(group);
    require(mz::all_close(train_some_steps(&group), expected, 0, 0), "the bits without a group");
    require(entries("/proc/self/task") == threads, "a thread was started");
    require(entries("/proc/self/fd") == files, "a file or socket was opened");
    std::ifstream maps("/proc/self/maps");
    const std::string mapped{std::istreambuf_iterator<char>(maps), {}};
    require(!mapped.empty(), "the list of what is mapped");
    for (const char* const library : {"gloo", "nccl", "ibverbs"})
        require(mapped.find(library) == std::string::npos, std::string(library) + " was loaded");
}

const std::map<std::string, std::function<void()>> scenarios = {
    {"collectives", collectives},
    {"join", join_only},
    {"wait_and_join", wait_and_join},
    {"threads", tell_threads},
    {"alone", alone},
    {"kill", [] { after_some_calls([](const Group&) { kill_self(); }); }},
    {"kill_in_reduction", kill_in_reduction},
    {"kill_in_backward", kill_in_backward},
    {"throw", [] { after_some_calls(throw_error); }},
    {"throw_first", throw_first},
    {"throw_in_hook", throw_in_hook},
    {"throw_in_op", throw_in_op},
    {"train_on_fewer_batches", train_on_fewer_batches},
    {"throw_uncaught", [] { after_some_calls(throw_uncaught); }},
    {"leave_early", [] { after_some_calls(leave_early); }},
    {"exit_early", [] { after_some_calls(exit_early); }},
    {"stop", [] { after_some_calls(stop_self); }},
    {"crash_before_joining", crash_before_joining},
    {"join_when_told", join_when_told},
    {"differing_calls", differing_calls},
    {"train_equally", train_equally},
    {"train_equally_in_passes", train_equally_in_passes},
    {"train_equally_by_16_bits", train_equally_by_16_bits},
    {"shard_an_optimizer", shard_an_optimizer},
    {"synchronise_batch_norms", synchronise_batch_norms},
    {"leave_after_sending", leave_after_sending},
    {"leave_first", leave_first},
    {"stop_when_asked", stop_when_asked},
    {"fork_child", fork_child},
    {"fork_calls", fork_calls},
    {"other_order", other_order},
    {"other_models", other_models},
    {"one_call_short", one_call_short},
    {"bucket_meets_barrier", bucket_meets_barrier},
    {"train_and_save", train_and_save},
    {"join_twice", join_twice},
    {"ignore_failures", ignore_failures},
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3 || scenarios.count(argv[1]) == 0) return 2;
    folder = argv[2];
    ends = folder + "/.ends";
    if (std::getenv("TEST_LOG") != nullptr)
        mz::set_log_sink([](std::string_view line) { write_outcome("log: " + std::string(line)); });
    try {
        scenarios.at(argv[1])();
    } catch (const std::exception& error) {
        write_outcome(error.what());
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
    return 0;
}
