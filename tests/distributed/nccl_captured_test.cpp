// Captured steps of several ranks on emulated devices, over the stand-in for NCCL: their results, and the
// order in which graphs, communicators and handles end.
#include "tests/distributed/device_training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallelOptions;
using emulation::StreamOrder;

namespace {

// Orders in which a graph runs operations that have no dependencies on each other: communication early, late,
// or in between. A missing wait inside the graph gives wrong values.
constexpr StreamOrder orders[] = {StreamOrder::queued, StreamOrder::main_first,
                                  StreamOrder::communication_first, StreamOrder::alternating};

// With sizes that float8 products take.
struct Wide {
    nn::Sequential net;
    explicit Wide(std::uint64_t seed)
        : net(seeded(seed, [] {
              return nn::Sequential{nn::Linear(32, 48), nn::ReLU(), nn::Linear(48, 32)};
          })) {}
    static Tensors part(int number) { return {rows(number, 16, 32), rows(number + 1000, 16, 32)}; }
    Tensor forward(const Tensors& in) const { return net(in[0]); }
    static Tensor loss(const Tensor& y, const Tensors& in) { return mse_loss(y, in[1]); }
};

void check_captured(const std::vector<Trained>& captured, const std::vector<Trained>& eager) {
    check_ranks(captured);
    CHECK(first_difference(eager[0].state, captured[0].state) == "");
    for (const Trained& rank : captured) {
        CHECK(rank.captures.captures == 1);
        CHECK(rank.captures.replays == std::uint64_t(rank.steps) - 3);
    }
}

}  // namespace

TEST_CASE("nccl captured: steps are eager ones, bit for bit", "[distributed]") {
    for (const DataParallelOptions& options :
         {Recipe().options, DataParallelOptions{.first_bucket_bytes = 2000, .wire = float16}}) {
        CAPTURE(options.wire);
        const Devices devices(2);
        const std::vector<Trained> eager = train(2, {.options = options});
        for (const Timing& timing : timings)
            for (const StreamOrder order : orders) {
                CAPTURE(timing.late_work, timing.early_communication, int(order));
                emulation::options.stream_order = order;
                check_captured(train(2, {.options = options, .captured = true}, timing), eager);
            }
    }
}

TEST_CASE("nccl captured: a rank that must record its step anew makes all do so", "[distributed]") {
    const Devices devices(2);
    const std::vector<Trained> eager = train(2, {});
    const std::vector<Trained> captured = train(2, {.captured = true, .restart_step = 9});
    check_ranks(captured);
    CHECK(first_difference(eager[0].state, captured[0].state) == "");
    for (const Trained& rank : captured) {
        CHECK(rank.captures.captures == 2);
        CHECK(rank.captures.eager_runs == 4);
        CHECK(rank.captures.replays == std::uint64_t(rank.steps) - 6);
    }
}

namespace {

template <class Model> void check_captured_float16(const DataParallelOptions& options, int steps) {
    const Devices devices(3);
    const Recipe recipe{.options = options, .autocast = true, .steps = steps};
    Recipe in_graphs = recipe;
    in_graphs.captured = true;
    const std::vector<Trained> eager = train<Model>(3, recipe);
    check_ranks(eager);
    for (std::size_t i = 0; i < std::size(timings); ++i) {
        CAPTURE(timings[i].late_work, timings[i].early_communication, int(orders[i]));
        emulation::options.stream_order = orders[i];
        check_captured(train<Model>(3, in_graphs, timings[i]), eager);  // with the overflow in a replay
    }
}

}  // namespace

TEST_CASE("nccl captured: ranks exchange the largest elements of float8 operands", "[distributed]") {
    const Devices devices(2);
    Recipe recipe{.autocast = true, .fp8 = amp::Fp8{.recipe = amp::Recipe::delayed, .least_size = 16}};
    const std::vector<Trained> eager = train<Wide>(2, recipe);
    CHECK(first_difference(eager[0].state, train<Wide>(2, {.autocast = true})[0].state) != "");
    recipe.captured = true;
    for (std::size_t i = 0; i < std::size(timings); ++i) {
        CAPTURE(timings[i].late_work, timings[i].early_communication, int(orders[i]));
        emulation::options.stream_order = orders[i];
        check_captured(train<Wide>(2, recipe, timings[i]), eager);  // with the overflow
    }
}

TEST_CASE("nccl captured: 3 ranks in float16 autocast with a scaler", "[distributed]") {
    for (const bool ordered : {false, true}) {
        CAPTURE(ordered);
        check_captured_float16<Mlp>({.first_bucket_bytes = 2000, .bucket_bytes = 4000, .ordered = ordered},
                                    20);
    }
    check_captured_float16<Bert>({.first_bucket_bytes = 2000, .bucket_bytes = 5000}, 7);
}
