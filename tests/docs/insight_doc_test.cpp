// Code of docs/guide/debugging.md, profiling.md, files.md and interchange.md: each block is a case here.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "mezzo/insight/exponents.h"
#include "mezzo/insight/insight.h"
#include "mezzo/insight/nvtx.h"
#include "mezzo/insight/profiler.h"
#include "mezzo/interchange/dlpack.h"
#include "mezzo/interchange/numpy.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/metrics.h"
#include "tests/support/folder.h"

namespace mz = mezzo;

namespace {

using Catch::Matchers::Contains;

// begin
struct Block : mz::nn::Module {
    explicit Block(std::int64_t n) : fc1(n, 4 * n), fc2(4 * n, n) {}
    mz::Tensor operator()(const mz::Tensor& x) const {
        const mz::nn::ModuleScope here(*this);  // the sum is an op of this block
        return x + fc2(mz::relu(fc1(x)));
    }
    mz::nn::Linear fc1, fc2;
    MEZZO_MODULE(Block, fc1, fc2)
};
// end

struct Net : mz::nn::Module {
    Net() : blocks{Block(64), Block(64), Block(64)}, head(64, 10) {}
    mz::Tensor operator()(mz::Tensor x) const {
        for (const Block& block : blocks) x = block(x);
        return head(x);
    }
    std::vector<Block> blocks;
    mz::nn::Linear head;
    MEZZO_MODULE(Net, blocks, head)
};

struct Run {
    Run() {
        mz::manual_seed(1);
        net = Net();
        x = mz::Tensor::from(std::vector<float>(32 * 64, 20.0f), {32, 64});
        target = mz::zeros({32}, {.dtype = mz::int64});
    }
    mz::Tensor loss() const {
        const mz::amp::Autocast scope({.dtype = mz::float16});
        return mz::cross_entropy(net(x), target);
    }
    Net net;
    mz::Tensor x, target;
};

}  // namespace

TEST_CASE("insight document: a skipped step is explained", "[insight]") {
    Run run;
    const mz::nn::Module& net = run.net;
    {
        const mz::NoGrad plain;
        run.net.blocks[1].fc2.weight.mul_(1e4);
    }
    mz::optim::AdamW optimizer(run.net.parameters());
    mz::amp::GradScaler scaler;
    const auto loss = [&] { return run.loss(); };
    std::string log;
    for (std::int64_t i = 120; i < 121; ++i) {
        // begin
        const mz::RandomState random = mz::random_state();
        scaler.scale(loss()).backward();
        if (scaler.step(optimizer).skipped()) {
            const mz::insight::OverflowReport report = mz::insight::replay(
                net, [&] { scaler.scale(loss()).backward(); }, {.step = i, .random = random});
            log += report.to_string();
        }
        scaler.update();
        optimizer.zero_grad();
        // end
    }
    if (std::getenv("MEZZO_PRINT") != nullptr) std::cout << log;
    CHECK_THAT(log, Contains("step 120: ") && Contains("in blocks.1.fc2"));
}

TEST_CASE("insight document: which scale fits", "[insight]") {
    Run run;
    const mz::nn::Module& net = run.net;
    mz::amp::GradScaler scaler;
    const auto loss = [&] { return run.loss(); };
    std::string text;
    // begin
    mz::insight::RangeTrace trace(net);
    scaler.scale(loss()).backward();
    for (const mz::insight::OpRange& op : trace.ops())
        if (op.pass == mz::insight::Pass::backward && op.dtype == mz::float16)
            text += op.module + " " + op.op + ": " + std::to_string(op.range.max_abs) + "\n";
    const double fits = trace.fitting_scale(scaler.get_scale());
    // end
    CHECK(fits >= 1);
    CHECK_THAT(text, Contains("blocks.2.fc2 linear"));
    if (std::getenv("MEZZO_PRINT") != nullptr) std::cout << text << fits << "\n";
}

TEST_CASE("insight document: exponents", "[insight]") {
    Run run;
    run.loss().backward();
    const mz::Tensor gradient = run.net.blocks[0].fc1.weight.grad();
    // begin
    const mz::insight::ExponentHistogram histogram(gradient);
    const double lost = histogram.underflow(mz::float16);             // would be zero without a scale
    const double kept = 1 - histogram.underflow(mz::float16, 65536);  // with this one
    const std::string picture = histogram.to_string(mz::float16, 65536);
    // end
    CHECK(lost >= 0);
    CHECK(kept <= 1);
    if (std::getenv("MEZZO_PRINT") != nullptr)
        std::cout << lost << " " << kept << "\n" << histogram.to_string();
    CHECK_THAT(picture, Contains("2^"));
}

TEST_CASE("insight document: the first NaN", "[insight]") {
    Run run;
    const Net& net = run.net;
    const mz::Tensor& x = run.x;
    {
        const mz::NoGrad plain;
        run.net.blocks[2].fc1.bias.fill_(-1e30);
        run.net.blocks[2].fc2.weight.fill_(HUGE_VAL);
    }
    std::string said;
    // begin
    try {
        const mz::insight::DetectAnomaly scope({.model = &net});
        mz::sum(net(x)).backward();
    } catch (const mz::Error& error) {
        said = error.what();
    }
    // end
    CHECK_THAT(said, Contains("detect_anomaly: linear in blocks.2.fc2"));
    if (std::getenv("MEZZO_PRINT") != nullptr) std::cout << said << "\n";
}

TEST_CASE("insight document: a profile", "[profiler]") {
    Run run;
    const Net& net = run.net;
    mz::optim::AdamW optimizer(run.net.parameters());
    const mz::Tensor& target = run.target;
    const mz::test::Folder folder;
    const std::string trace = folder.file("trace.json");
    const auto next_batch = [&] { return run.x; };
    std::string text;
    // begin
    mz::insight::Profiler profiler({.model = &net, .profile_memory = true, .skip_first = 2, .active = 4});
    for (int i = 0; i < 10; ++i) {
        const mz::Tensor x = [&] {
            const mz::insight::RecordFunction here("data");  // a name of one's own
            return next_batch();
        }();
        mz::cross_entropy(net(x), target).backward();
        optimizer.step();
        optimizer.zero_grad();
        profiler.step();
    }
    text += profiler.table({.rows = 20});
    text += profiler.table({.group_by = mz::insight::ProfileGroup::module});
    text += profiler.memory_table();
    profiler.write_chrome_trace(trace);  // open it in ui.perfetto.dev
    // end
    if (std::getenv("MEZZO_PRINT") != nullptr) std::cout << text;
    CHECK_THAT(text, Contains("blocks.1.fc2") && Contains("4 steps") && Contains("data"));
}

TEST_CASE("insight document: device times and NVTX", "[insight]") {
    const mz::Device device = mz::best_device();
    Run run;
    run.net.to(device);
    run.x = run.x.to(device);
    run.target = run.target.to(device);
    const mz::nn::Module& net = run.net;
    const auto train = [&] { run.loss().backward(); };
    const mz::test::Folder folder;
    const std::string trace = folder.file("trace.json");
    std::string text;
    double seconds = 0;
    // begin
    mz::insight::Profiler profiler({.model = &net, .device_times = true, .device = device});
    for (int i = 0; i < 3; ++i) {
        train();
        profiler.step();
    }
    text += profiler.table({.sort_by = mz::insight::ProfileSort::self_device_time});
    for (const mz::insight::ProfiledDeviceWork& work : profiler.device_work())
        seconds += 1e-9 * double(work.duration);  // work.name is the kernel's
    profiler.write_chrome_trace(trace);           // a track for each stream
    // end
    CHECK_THAT(text, Contains("3 steps"));
    CHECK((seconds > 0) == profiler.device_times());
    if (!mz::insight::nvtx_available()) return;
    // begin
    {
        const mz::insight::EmitNvtx scope({.model = &net});  // until the scope ends
        train();
    }
    // end
}

TEST_CASE("insight document: logs", "[io]") {
    const mz::test::Folder folder;
    const std::string runs = folder.file("runs"), csv_path = folder.file("log.csv");
    mz::nn::Linear net(2, 2);
    const mz::Tensor picture = mz::zeros({4, 4, 3});
    const double loss = 0.5, scale = 65536;
    const std::int64_t step = 1;
    // begin
    mz::io::SummaryWriter board(runs);  // tensorboard --logdir runs
    board.add_scalar("loss", loss, step);
    board.add_histogram("weight", net.weight, step);
    board.add_image("input", picture, step);
    mz::io::CsvWriter csv(csv_path);  // or JsonLinesWriter
    csv.log(step, {{"loss", loss}, {"scale", scale}});
    // end
    csv.flush();
    CHECK(!folder.listing().empty());
}

TEST_CASE("insight document: NumPy's files and DLPack", "[io]") {
    const mz::test::Folder folder;
    const std::string path = folder.file("weights.npz");
    const mz::nn::Linear net(2, 2);
    // begin
    mz::io::save_npz(path, net.state_dict(), {.compressed = true});  // numpy.load(path)
    const mz::StateDict arrays = mz::io::load_npz(path);
    const mz::io::NpzFile archive(path);  // one by one: members that mezzo cannot read are no obstacle
    mz::dlpack::DLManagedTensor* const lent = mz::dlpack::to_dlpack(net.weight);  // for another library
    const mz::Tensor same_memory = mz::dlpack::from_dlpack(lent);
    // end
    CHECK(arrays.size() == 2);
    CHECK(same_memory.data<float>() == net.weight.data<float>());
}
