// Ranks whose calls do not match, and a rank that forks.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;
using md::Group;

namespace rank_test {
namespace {

bool is_last(const Group& group) { return group.rank() == group.size() - 1; }

// Writes the error that a call throws as an outcome.
void note_error(const std::function<void()>& call) {
    try {
        call();
        write_outcome("no error");
    } catch (const mz::Error& error) {
        write_outcome(error.what());
    }
}

}  // namespace

// The last rank makes two calls the other way round: both fail, nothing is written, and the group goes on.
void other_order() {
    const Group group = join();
    const mz::Tensor sum = mz::full({6}, group.rank()), sent = mz::full({4}, group.rank());
    std::vector<std::function<void()>> calls = {[&] { group.all_reduce_(sum); },
                                                [&] { group.broadcast_(sent, 1); }};
    if (is_last(group)) std::swap(calls[0], calls[1]);
    for (const auto& call : calls) note_error(call);
    require(sum.to_vector<int>() == std::vector<int>(6, group.rank()),
            "a call that failed has written nothing");
    require(sent.to_vector<int>() == std::vector<int>(4, group.rank()),
            "a call that failed has written nothing");
    group.all_reduce_(sum);
    require(sum.to_vector<int>() == std::vector<int>(6, group.size() * (group.size() - 1) / 2),
            "the group goes on");
}

// The last rank leaves out one of several calls.
void one_call_short() {
    const Group group = join();
    for (int step = 0; step < 3; ++step) group.all_reduce_(mz::ones({10}));
    if (!is_last(group)) note_error([&] { group.all_reduce_(mz::ones({10})); });
    note_error([&] { group.barrier(); });
}

// The last rank has another model, then other options. The constructor throws on all ranks, and the group
// goes on.
void other_models() {
    const Group group = join();
    const bool last = is_last(group);
    const auto note = [&](const mz::nn::Linear& head, const md::DataParallelOptions& options) {
        mz::nn::Sequential net{mz::nn::Linear(4, 8), head};
        note_error([&] {
            md::DataParallel parallel(net, group, options);
            mz::sum(net(mz::ones({2, 4}))).backward();
            require(net.parameters()[0].grad().defined(), "a gradient of equal models");
        });
    };
    const mz::nn::Linear same(8, 3);
    note(mz::nn::Linear(8, last ? 5 : 3), {});
    note(mz::nn::Linear(8, 3, {.bias = !last}), {});
    mz::nn::Linear frozen(8, 3);
    frozen.parameters()[1].set_requires_grad(!last);
    note(frozen, {});
    note(same, {.first_bucket_bytes = last ? 512 : 1024});
    note(same, {.bucket_bytes = last ? 2048 : 4096});
    note(same, {.wire = last ? mz::bfloat16 : mz::float32});
    note(same, {.ordered = last});
    note(same, {.check_interval = last ? 7 : 3});
    note(same, {});
}

// Most ranks reduce a gradient's bucket while the last one makes another call.
void bucket_meets_barrier() {
    const Group group = join();
    mz::nn::Linear net(4, 3);
    md::DataParallel parallel(net, group);
    mz::sum(net(mz::ones({2, 4}))).backward();
    static_cast<void>(net.parameters()[0].grad());
    note_error([&] {
        if (is_last(group)) return group.barrier();
        mz::sum(net(mz::ones({2, 4}))).backward();
        static_cast<void>(net.parameters()[0].grad());
    });
    note_error([&] { group.barrier(); });
}

// A forked child inherits handles and a rank's connections, but no thread. None of its calls may act as the
// rank.
void fork_calls() {
    const Group group = join();
    group.barrier();
    mz::nn::Linear net(4, 3);
    md::DataParallel parallel(net, group);
    const pid_t child = group.rank() == 0 ? fork() : 0;
    if (group.rank() == 0 && child == 0) {
        const mz::Tensor x = mz::ones({3});
        note_error([&] { group.barrier(); });
        note_error([&] { group.all_reduce_(x); });
        note_error([&] { static_cast<void>(group.any(true)); });
        note_error([&] { mz::sum(net(mz::ones({2, 4}))).backward(); });
        std::exit(7);  // with destructors of statics
    }
    int status = 0;
    if (group.rank() == 0)
        require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7,
                fmt::format("the child ended with status {}", status));
    for (int i = 0; i < 5; ++i) group.barrier();
    mz::sum(net(mz::ones({2, 4}))).backward();
    require(net.parameters()[0].grad().defined(), "a gradient after the child");
    write_outcome("ok");
}

}  // namespace rank_test
