// Versions of NCCL that groups accept or refuse, over the stand-in.
#include <catch2/catch.hpp>

#include "cuda/nccl/nccl.h"
#include "tests/distributed/device_groups.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;
using distributed::DataParallel;
using distributed::Group;

namespace {

// A group of `ranks`, each of which tries to exchange a tensor of its device, twice, and then goes on.
void check_refused(int ranks, const char* words) {
    run_ranks(ranks, [&](const Group& group) {
        const Tensor x = ones({4}, {.device = group.device()});
        for (int attempt = 0; attempt < 2; ++attempt) RANK_CHECK_THROWS(group.all_reduce_(x), words);
        RANK_CHECK(doubles(x) == std::vector<double>(4, 1.0));
        const Tensor host = ones({4});
        group.all_reduce_(host);
        RANK_CHECK(doubles(host)[0] == group.size());
        RANK_CHECK(group.engine() == "threads");
    });
    run_ranks(ranks, [&](const Group& group) {
        nn::Sequential net = make_mlp(5);
        net.to(group.device());
        DataParallel parallel(net, group);
        const Tensor x = rows(group.rank()).to(group.device());
        RANK_CHECK_THROWS(mse_loss(net(x), x).backward(), words);
    });
}

// A group in which tensors of devices travel by `engine`.
void check_travels(int ranks, const std::string& engine) {
    run_ranks(ranks, [&](const Group& group) {
        nn::Sequential net = make_mlp(5);
        net.to(group.device());
        DataParallel parallel(net, group);
        const Tensor x = rows(group.rank()).to(group.device());
        mse_loss(net(x), x).backward();
        const Tensor gradient = net.parameters()[0].grad(), of_rank_0 = gradient.clone();
        group.broadcast_(of_rank_0, 0);
        RANK_CHECK(doubles(gradient) == doubles(of_rank_0));
        RANK_CHECK(group.engine() == engine);
    });
}

}  // namespace

TEST_CASE("nccl versions: one that is too old is an error where it is named", "[distributed]") {
    for (const int ranks : {2, 3}) {
        CAPTURE(ranks);
        const Devices devices(ranks);
        emulation::nccl_options.version = 21300;
        check_refused(ranks, "rank 0: NCCL 2.13.0 is too old; mezzo needs version 2.14.0 or newer");
        emulation::nccl_options.version = 21399;
        check_refused(ranks, "rank 0: NCCL 2.13.99 is too old");
        emulation::nccl_options.version = 21400;
        check_travels(ranks, "NCCL 2.14.0");
        CHECK(emulation::nccl_report().violations == "");
        CHECK(emulation::nccl_report().communicators == 0);
    }
}

// The library is the one that is open already.
TEST_CASE("nccl versions: one that is too old is not used where it was found", "[distributed]") {
    const Devices devices(2);
    cuda::nccl::library.open();
    setenv("MEZZO_NCCL", "", 1);
    for (const bool one_rank : {false, true}) {
        CAPTURE(one_rank);
        emulation::nccl_options.version = one_rank ? 22809 : 21300;
        emulation::nccl_options.other_version = one_rank ? 21300 : 0;
        const Log log;
        check_travels(2, "threads");
        REQUIRE(log.lines.size() == 1);
        CHECK_THAT(log.lines[0], Contains("through host memory, by threads; rank ") &&
                                     Contains("NCCL 2.13.0 is too old; mezzo needs version 2.14.0 or newer"));
    }
}

TEST_CASE("nccl versions: ranks with different ones get the same error", "[distributed]") {
    for (const char* const named : {MEZZO_NCCL_STAND_IN, ""}) {
        CAPTURE(named);
        const Devices devices(2);
        cuda::nccl::library.open();
        setenv("MEZZO_NCCL", named, 1);
        emulation::nccl_options.other_version = 22703;
        check_refused(2, "; all ranks need the same version, or MEZZO_NCCL=off");
        check_refused(2, "NCCL 2.28.9 on rank ");
        check_refused(2, "NCCL 2.27.3 on rank ");
        emulation::nccl_options.other_version = 0;
        check_travels(2, "NCCL 2.28.9");
        CHECK(emulation::nccl_report().communicators == 0);
    }
}
