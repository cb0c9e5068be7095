// Comparison of the ranks' tensors; the ranks are threads of one process.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>

#include "mezzo/distributed/data_parallel.h"
#include "mezzo/distributed/group.h"
#include "mezzo/distributed/state.h"
#include "mezzo/mezzo.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using distributed::DataParallel;
using distributed::DataParallelOptions;
using distributed::Group;

namespace {

// Sets an environment variable for as long as the object lives.
struct Variable {
    const char* name;
    Variable(const char* n, const char* value) : name(n) { setenv(name, value, 1); }
    ~Variable() { unsetenv(name); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;
};

// Trains four steps; rank 1 changes one of its weights after the second. Returns the step whose reduction
// threw the comparison's error, or 0. Gradients are reduced by backward or, if they are local, by
// clip_grad_norm_.
int step_of_the_error(const Group& group, const DataParallelOptions& options, bool local = false) {
    const nn::Sequential net = test::make_mlp(3);
    optim::SGD optimizer(net.parameters(), {.lr = 0.01});
    DataParallel parallel(net, group, options);
    for (int step = 1; step <= 4; ++step) {
        const Tensor loss = mean(net(test::rows(step + 10 * group.rank())));
        try {
            std::optional<DataParallel::Local> here;
            if (local) here.emplace(parallel);
            loss.backward();
            here.reset();
            nn::clip_grad_norm_(net.parameters(), 1);
        } catch (const Error& error) {
            RANK_CHECK(error.kind() == ErrorKind::state);
            RANK_CHECK(std::string(error.what()).starts_with("require_same: 0.weight float32 ["));
            return step;
        }
        optimizer.step();
        optimizer.zero_grad();
        const NoGrad plain;
        if (step == 2 && group.rank() == 1) static_cast<void>(net.parameters()[0].add_(full({}, 1e-6)));
    }
    return 0;
}

}  // namespace

TEST_CASE("require_same: names the first tensor that differs, on all ranks, and the group goes on",
          "[distributed_state]") {
    test::run_ranks(3, [](const Group& group) {
        const Tensor same = full({2, 3}, 0.5), none = empty({0}),
                     mine = full({4}, group.rank() == 2 ? -0.0 : 0.0);
        const Tensor longer = zeros({group.rank() == 1 ? 4 : 5});
        distributed::require_same(
            group, {{"a", same}, {"b", none}, {"c", same.to(float16)}, {"d", same.transpose(0, 1)}});
        RANK_CHECK_THROWS(distributed::require_same(group, {{"a", same}, {"b", mine}}),
                          "require_same: b float32 [4]");
        RANK_CHECK_THROWS(distributed::require_same(group, {{"a", same}, {"b", mine}}),
                          "on rank 2; all ranks must");
        RANK_CHECK_THROWS(distributed::require_same(group, {{"length", longer}}), "length float32 [4]");
        if (group.rank() == 0)
            RANK_CHECK_THROWS(distributed::require_same(group, {}), "require_same: nothing more on rank 0");
        else
            RANK_CHECK_THROWS(distributed::require_same(group, {{"a", same}}), "a float32 [2, 3]");
        RANK_CHECK(group.all(true));
    });
}

TEST_CASE("require_same: an optimizer's and a scaler's state", "[distributed_state]") {
    test::run_ranks(2, [](const Group& group) {
        const nn::Sequential net = test::make_mlp(3);
        optim::AdamW optimizer(net.named_parameters(), {.lr = 0.01});
        amp::GradScaler scaler({.init_scale = group.rank() == 0 ? 1024.0 : 512.0});
        distributed::require_same(group, optimizer.state_dict());
        RANK_CHECK_THROWS(distributed::require_same(group, scaler.state_dict()), "require_same: scale");
    });
}

TEST_CASE("data parallel: parameters are compared every so many reductions", "[distributed]") {
    const auto error_at = [](const DataParallelOptions& options) {
        const int step = options.check_interval == 0 ? 0 : options.check_interval == 1 ? 3 : 4;
        for (const bool local : {false, true})
            test::run_ranks(
                2, [&](const Group& group) { RANK_CHECK(step_of_the_error(group, options, local) == step); });
    };
    error_at({});
    error_at({.check_interval = 1});
    error_at({.check_interval = 2});
    const Variable variable("MEZZO_DISTRIBUTED_CHECK", "2");
    test::run_ranks(2, [](const Group& group) { RANK_CHECK(step_of_the_error(group, {}) == 4); });
    error_at({.check_interval = 1});  // the program's option takes precedence
}

TEST_CASE("data parallel: check_interval is in range, and the same on all ranks", "[distributed]") {
    test::run_ranks(2, [](const Group& group) {
        const nn::Sequential net = test::make_mlp(3);
        RANK_CHECK_THROWS(DataParallel(net, group, {.check_interval = -1}), "check_interval is -1");
        RANK_CHECK_THROWS(DataParallel(net, group, {.check_interval = 1 + group.rank()}),
                          "check_interval = 2 on rank 1");
    });
    const Variable variable("MEZZO_DISTRIBUTED_CHECK", "often");
    test::run_ranks(2, [](const Group& group) {
        const nn::Sequential net = test::make_mlp(3);
        RANK_CHECK_THROWS(DataParallel(net, group),
                          "DataParallel: MEZZO_DISTRIBUTED_CHECK=often; it must be a whole number from 1");
    });
}
