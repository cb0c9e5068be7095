// Synchronised batch norms on several ranks, compared with one process that has the whole batch.
#include "mezzo/distributed/sync_batch_norm.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "mezzo/models/resnet.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::convert_sync_batchnorm;
using distributed::DataParallel;
using distributed::Group;

namespace {

constexpr std::int64_t width = 6, channels = 10;

struct Net : nn::Module {
    nn::Linear first{width, channels};
    nn::BatchNorm1d norm;
    nn::Linear last{channels, 3};
    MEZZO_MODULE(Net, first, norm, last)

    explicit Net(const nn::BatchNormLayerOptions& options) : norm(channels, options) {
        const NoGrad plain;
        if (norm.weight.defined())
            norm.weight.copy_(Tensor::from(random_values(channels, 3, Domain::positive), {channels}));
    }
    Tensor operator()(const Tensor& x) const {
        const Tensor h = first(x);
        return last(norm(h, {.relu = true, .residual = h}));
    }
};

struct How {
    nn::BatchNormLayerOptions options = {};
    Dtype autocast = float32;
    Dtype dtype = float32;
    Device device = cpu_device;
};

// Results of one training step over some rows, and of an evaluation with the running statistics.
struct Step {
    std::vector<double> result, input_gradient, evaluated;
    Snapshot gradients, buffers;
};

Tensor batch(std::int64_t rows, Dtype dtype) {
    // The mean is large compared with the deviations.
    return (tensor_of(random_values(rows * width, 11, Domain::any), {rows, width}, float32) + 20.0).to(dtype);
}

// scale: factor of the rank's sum, so that the mean over the ranks is the mean over all rows.
Step step(Net& net, const Tensor& part, const Tensor& wanted, double scale, const How& how) {
    Step out;
    const Tensor x = part.clone();
    x.set_requires_grad(true);
    Tensor y;
    {
        const amp::Autocast scope(
            {.dtype = how.autocast == float32 ? float16 : how.autocast, .enabled = how.autocast != float32});
        y = net(x);
    }
    (sum(square(y.to(float32) - wanted)) * scale).backward();
    out.result = doubles(y.detach());
    out.input_gradient = doubles(x.grad());
    for (double& v : out.input_gradient) v /= scale;
    out.gradients = gradients_of(net);
    append(out.buffers, "", net.named_buffers());
    net.eval();
    out.evaluated = doubles(net(part).detach());
    return out;
}

Net make(const How& how) {
    Net net = seeded(4, [&] { return Net(how.options); });
    net.to(how.dtype);
    net.to(how.device);
    return net;
}

Step alone(std::int64_t rows, const How& how) {
    Net net = make(how);
    const Tensor wanted = tensor_of(random_values(rows * 3, 12, Domain::any), {rows, 3}, float32, how.device);
    return step(net, batch(rows, how.dtype).to(how.device), wanted, 1.0 / double(rows), how);
}

std::vector<Step> on_ranks(const std::vector<std::int64_t>& counts, const How& how) {
    const int ranks = int(counts.size());
    const std::int64_t rows = std::accumulate(counts.begin(), counts.end(), std::int64_t(0));
    std::vector<Step> steps(counts.size());
    run_ranks(ranks, [&](const Group& group) {
        const auto rank = std::size_t(group.rank());
        const std::int64_t begin =
            std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t(0));
        const auto mine = [&](const Tensor& x) { return x.slice(0, begin, begin + counts[rank]); };
        Net net = make(how);
        RANK_CHECK(convert_sync_batchnorm(net, group) == 1);
        DataParallel parallel(net, group);
        const Tensor wanted =
            tensor_of(random_values(rows * 3, 12, Domain::any), {rows, 3}, float32, how.device);
        steps[rank] = step(net, mine(batch(rows, how.dtype).to(how.device)), mine(wanted),
                           double(ranks) / double(rows), how);
    });
    return steps;
}

std::vector<double> joined(const std::vector<Step>& steps, std::vector<double> Step::*field) {
    std::vector<double> all;
    for (const Step& s : steps) all.insert(all.end(), (s.*field).begin(), (s.*field).end());
    return all;
}

double relative(const std::vector<double>& a, const std::vector<double>& b) {
    return largest_difference({{"", a}}, {{"", b}});
}

void check_like_one_process(const std::vector<std::int64_t>& counts, const How& how, double tolerance) {
    CAPTURE(counts, dtype_info(how.autocast).name, dtype_info(how.dtype).name);
    const std::int64_t rows = std::accumulate(counts.begin(), counts.end(), std::int64_t(0));
    const Step expected = alone(rows, how);
    const std::vector<Step> ranks = on_ranks(counts, how);
    CHECK(relative(expected.result, joined(ranks, &Step::result)) < tolerance);
    CHECK(relative(expected.evaluated, joined(ranks, &Step::evaluated)) < tolerance);
    CHECK(relative(expected.input_gradient, joined(ranks, &Step::input_gradient)) < tolerance);
    for (const Step& rank : ranks) {
        CHECK(largest_difference(expected.gradients, rank.gradients) < tolerance);
        CHECK(largest_difference(expected.buffers, rank.buffers) < tolerance);
        CHECK(first_difference(rank.buffers, ranks[0].buffers) == "");
    }
}

}  // namespace

TEST_CASE("sync batch norm: ranks compute what one process computes of the whole batch", "[distributed]") {
    const std::vector<std::vector<std::int64_t>> splits = {
        {6, 6}, {5, 7}, {12, 0}, {1, 1}, {0, 5, 7}, {4, 4, 4}, {2, 1, 9}, {1, 4, 0, 7}, {3, 3, 3, 3}};
    for (const auto& counts : splits) {
        check_like_one_process(counts, {}, 3e-5);
        check_like_one_process(counts, {.dtype = float64}, 1e-6);
    }
}

TEST_CASE("sync batch norm: under autocast, and in 16 bits", "[distributed]") {
    for (const Dtype dtype : {float16, bfloat16}) {
        const double tolerance = 12 * dtype_info(dtype).epsilon;
        check_like_one_process({5, 7}, {.autocast = dtype}, tolerance);
        check_like_one_process({1, 4, 7}, {.autocast = dtype}, tolerance);
    }
}

TEST_CASE("sync batch norm: statistics of 16-bit rows are float32", "[distributed]") {
    for (const Dtype dtype : {float16, bfloat16}) {
        CAPTURE(dtype_info(dtype).name);
        const Tensor x = batch(12, dtype);
        const nn::BatchNorm1d whole(width, {.momentum = 1});
        const Tensor expected = whole(x);
        run_ranks(2, [&](const Group& group) {
            nn::BatchNorm1d norm(width, {.momentum = 1});
            convert_sync_batchnorm(norm, group);
            const std::int64_t begin = group.rank() == 0 ? 0 : 5, end = group.rank() == 0 ? 5 : 12;
            const Tensor y = norm(x.slice(0, begin, end));
            RANK_CHECK(y.dtype() == dtype);
            RANK_CHECK(all_close(y.detach(), expected.detach().slice(0, begin, end),
                                 2 * dtype_info(dtype).epsilon, 2 * dtype_info(dtype).epsilon));
            RANK_CHECK(all_close(norm.running_mean, whole.running_mean, 1e-6, 1e-6));
            RANK_CHECK(all_close(norm.running_var, whole.running_var, 1e-5, 1e-6));
        });
    }
}

TEST_CASE("sync batch norm: every kind of layer", "[distributed]") {
    check_like_one_process({5, 7}, {.options = {.momentum = nn::cumulative_average}}, 3e-5);
    check_like_one_process({5, 7}, {.options = {.eps = 0.1, .momentum = 0.7}}, 3e-5);
    check_like_one_process({5, 7}, {.options = {.affine = false}}, 3e-5);
    check_like_one_process({5, 7}, {.options = {.bias = false}}, 3e-5);
}

TEST_CASE("sync batch norm: on every device", "[distributed]") {
    for (const Device device : devices()) {
        CAPTURE(int(device.type()));
        check_like_one_process({5, 7}, {.device = device}, 3e-5);
    }
}

TEST_CASE("sync batch norm: a ResNet, trained for some steps", "[distributed]") {
    nn::ResNetConfig config = nn::resnet_config(8);
    const Tensor images = tensor_of(random_values(8 * 8 * 8 * 3, 3, Domain::any), {8, 8, 8, 3}, float32),
                 labels = Tensor::from(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, {8});
    const auto train = [&](const Group* group) {
        nn::ResNet net = seeded(2, [&] { return nn::ResNet(config); });
        const std::int64_t count = group != nullptr ? 8 / group->size() : 8,
                           begin = group != nullptr ? count * group->rank() : 0;
        std::optional<DataParallel> parallel;
        if (group != nullptr) {
            check(convert_sync_batchnorm(net, *group) == 7, ErrorKind::state, "the number of batch norms");
            parallel.emplace(net, *group);
        }
        optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
        for (int i = 0; i < 3; ++i) {
            optimizer.zero_grad();
            cross_entropy(net(images.slice(0, begin, begin + count)), labels.slice(0, begin, begin + count))
                .backward();
            optimizer.step();
        }
        Snapshot state;
        append(state, "", net.state_dict());
        return state;
    };
    const Snapshot expected = train(nullptr);
    for (const int ranks : {2, 4}) {
        CAPTURE(ranks);
        std::vector<Snapshot> states(static_cast<std::size_t>(ranks));
        run_ranks(ranks, [&](const Group& group) { states[std::size_t(group.rank())] = train(&group); });
        for (const Snapshot& state : states) {
            CHECK(largest_difference(expected, state) < 2e-3);
            CHECK(first_difference(state, states[0]) == "");
        }
    }
}

TEST_CASE("sync batch norm: checkpointed segments count a batch once", "[distributed]") {
    std::vector<Snapshot> plain(2), checkpointed(2);
    for (const bool checkpoint : {false, true})
        run_ranks(2, [&](const Group& group) {
            Net net = make({});
            convert_sync_batchnorm(net, group);
            DataParallel parallel(net, group);
            const Tensor x = rows(group.rank() + 1, 4, width);
            const auto run = [&](const Tensors& in) { return Tensors{net(in[0])}; };
            mean(square(checkpoint ? autograd::checkpoint(run, {x})[0] : run({x})[0])).backward();
            Snapshot& state = (checkpoint ? checkpointed : plain)[std::size_t(group.rank())];
            state = gradients_of(net);
            append(state, "", net.named_buffers());
        });
    for (std::size_t rank = 0; rank < 2; ++rank)
        CHECK(first_difference(plain[rank], checkpointed[rank]) == "");
}

TEST_CASE("sync batch norm: a batch that is not finite leaves running statistics as they are",
          "[distributed]") {
    run_ranks(2, [](const Group& group) {
        Net net = make({});
        convert_sync_batchnorm(net, group);
        const Tensor x = rows(1, 4, width);
        if (group.rank() == 1) x.select(0, 2).copy_(full({width}, std::numeric_limits<double>::infinity()));
        static_cast<void>(net(x));
        RANK_CHECK(net.norm.num_batches_tracked.item<std::int64_t>() == 0);
        for (const double v : doubles(net.norm.running_mean)) RANK_CHECK(v == 0);
        for (const double v : doubles(net.norm.running_var)) RANK_CHECK(v == 1);
    });
}

TEST_CASE("sync batch norm: what is wrong is the same error on all ranks", "[distributed]") {
    run_ranks(3, [](const Group& group) {
        Net net = make({});
        convert_sync_batchnorm(net, group);
        const auto part = [](std::int64_t n) { return rows(1, n, width); };
        RANK_CHECK_THROWS(net(part(group.rank() == 1 ? 1 : 0)),
                          "all ranks together have 1 values per channel");
        RANK_CHECK_THROWS(net(part(0)), "all ranks together have 0 values per channel");
        const Tensor x = part(4);
        x.set_requires_grad(true);
        const Tensor y = sum(square(net(x)));
        RANK_CHECK_THROWS(autograd::grad({y}, {x}, {.create_graph = true}),
                          "second derivatives across ranks");
        if (group.rank() == 2) net.to(float64);
        RANK_CHECK_THROWS(net(part(4).to(group.rank() == 2 ? float64 : float32)),
                          "SyncBatchNorm's statistics");
        group.barrier();
        // Evaluation does not communicate.
        net.eval();
        if (group.rank() == 0) static_cast<void>(net(part(4)));
        group.barrier();
    });
}

TEST_CASE("sync batch norm: a group of one rank changes nothing", "[distributed]") {
    const Group one = distributed::init();
    REQUIRE(one.size() == 1);
    Net net = make({}), converted = make({});
    CHECK(convert_sync_batchnorm(converted, one) == 1);
    CHECK(converted.to_string() == net.to_string());
    const Tensor x = rows(1, 5, width);
    CHECK(doubles(net(x).detach()) == doubles(converted(x).detach()));
    CHECK(!converted.norm.synchronised);
    run_ranks(2, [](const Group& group) {
        Net shown = make({});
        convert_sync_batchnorm(shown, group);
        RANK_CHECK(shown.to_string().find("track_running_stats=true, synchronised)") != std::string::npos);
    });
}
