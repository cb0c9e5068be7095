// Device times of the profiler: the emulated device's kernels, copies and fills, reported by a stand-in for
// CUPTI.
#include <dlfcn.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cuda/runtime/cupti.h"
#include "mezzo/insight/profiler.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/emulation/cupti_stand_in.h"
#include "tests/emulation/engine.h"
#include "tests/support/folder.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using insight::ProfileEvent;
using insight::ProfileGroup;
using insight::ProfileKind;
using insight::Profiler;
using insight::ProfilerOptions;
using insight::ProfileRow;

constexpr std::int64_t kernel_ns = 1'000'000, copy_ns = 3'000, fill_ns = 500;
constexpr std::int64_t clocks_differ = 100'000;  // at most
const Device device{DeviceType::cuda};

// Stand-in for CUPTI, which is notified of all that the emulated device does.
class Cupti {
public:
    Cupti() {
        setenv("MEZZO_CUPTI", MEZZO_CUPTI_STAND_IN, 1);
        library_ = dlopen(MEZZO_CUPTI_STAND_IN, RTLD_NOW);
        REQUIRE(library_ != nullptr);
        const auto work = reinterpret_cast<CuptiStandInWork>(dlsym(library_, "mezzo_stand_in_work"));
        emulation::on_work = [work](const emulation::Work& w) {
            if (w.what == "copy")
                work(cuda::cupti::kind_memcpy, nullptr, cuda::cupti::copy_to_device, copy_ns);
            else if (w.what == "fill")
                work(cuda::cupti::kind_memset, nullptr, 0, fill_ns);
            else
                work(cuda::cupti::kind_concurrent_kernel, "_ZN5mezzo4cuda7computeEi", 0, kernel_ns);
        };
        state() = {};
        state().ahead = std::int64_t(1) << 50;
    }
    ~Cupti() {
        emulation::on_work = {};
        setenv("MEZZO_CUPTI", "off", 1);
    }
    CuptiStandIn& state() {
        return *reinterpret_cast<CuptiStandInState>(dlsym(library_, "mezzo_stand_in_state"))();
    }

private:
    void* library_;
};

struct Net : nn::Module {
    Tensor operator()(const Tensor& x) const { return down(relu(up(x))); }
    nn::Linear up{8, 16}, down{16, 4};
    MEZZO_MODULE(Net, up, down)
};
struct Training {
    Training() { net.to(device); }
    void step() {
        mse_loss(net(x), y).backward();
        optimizer.step();
        optimizer.zero_grad();
    }
    Net net;
    optim::SGD optimizer{net.parameters(), {.lr = 0.1}};
    Tensor x = ones({4, 8}, {.device = device}), y = zeros({4, 4}, {.device = device});
};

ProfileRow row_named(const Profiler& profiler, ProfileGroup group, const std::string& name) {
    for (const ProfileRow& row : profiler.rows(group))
        if (row.name == name) return row;
    FAIL("no row " << name);
    return {};
}

double seconds(std::int64_t nanoseconds) { return 1e-9 * double(nanoseconds); }

}  // namespace

// The first case: the library is opened once in a process.
TEST_CASE("device times: without CUPTI the profiler has the host's times and says why", "[device_times]") {
    Training training;
    const auto said = [&](const char* cupti) {
        setenv("MEZZO_CUPTI", cupti, 1);
        Profiler profiler({.model = &training.net, .device_times = true, .device = device});
        training.step();
        CHECK(!profiler.device_times());
        CHECK(profiler.device_work().empty());
        CHECK(row_named(profiler, ProfileGroup::op, "linear").device_time == 0);
        CHECK_THAT(profiler.table(), Contains("no device times: " + profiler.device_times_absence()) &&
                                         Contains("times are those of the host"));
        return profiler.device_times_absence();
    };
    CHECK(said("off") == "CUPTI: it is switched off by MEZZO_CUPTI=off");
    CHECK_THAT(said("/none/libcupti.so"),
               StartsWith("CUPTI cannot be opened: ") && Contains("/none/libcupti.so"));
    setenv("MEZZO_CUPTI", "off", 1);
    const Profiler plain({.device = device});
    CHECK(plain.device_times_absence().empty());
    CHECK_THAT(plain.table(), !Contains("device times"));
    // The CPU's times are those of the work anyway.
    const Profiler on_cpu({.device_times = true});
    CHECK(on_cpu.device_times_absence().empty());
}

TEST_CASE("device times: each piece of work belongs to the op that has handed it over", "[device_times]") {
    Cupti cupti;
    Training training;
    Profiler profiler({.model = &training.net, .device_times = true, .device = device});
    training.step();
    const Tensor outside = zeros({4}, {.device = device});  // no op
    REQUIRE(profiler.device_times());
    const auto events = profiler.events();
    const auto all = profiler.device_work();
    REQUIRE(!all.empty());
    std::int64_t of_events = 0, of_nobody = 0, last = 0;
    for (const insight::ProfiledDeviceWork& work : all) {
        CHECK(work.begin >= last);
        last = work.begin;
        CHECK(work.stream == 7);
        const bool kernel = work.name == "mezzo::cuda::compute(int)";
        CHECK(work.duration == (kernel ? kernel_ns : work.name == "fill" ? fill_ns : copy_ns));
        if (work.event < 0) {
            of_nobody += work.duration;
            continue;
        }
        of_events += work.duration;
        const ProfileEvent& event = events[std::size_t(work.event)];
        // The clocks were compared when the profiler began.
        CHECK(work.begin >= event.begin - clocks_differ);
        CHECK(work.begin <= event.begin + event.duration + clocks_differ);
    }
    CHECK(of_nobody > 0);
    std::int64_t sum = 0;
    bool forward = false, backward = false, optimizer = false;
    for (const ProfileEvent& event : events) {
        sum += event.self_device_time;
        const bool busy = event.self_device_time >= kernel_ns;
        forward |= busy && event.name == "linear" && event.module == "up" && event.kind == ProfileKind::op;
        backward |= busy && event.parent >= 0 &&
                    events[std::size_t(event.parent)].kind == ProfileKind::backward && event.module == "down";
        optimizer |= busy && event.name == "Optimizer.step";
    }
    CHECK((forward && backward && optimizer));
    CHECK(sum == of_events);
    CHECK(profiler.device_work().size() == all.size());  // they stay listed
}

TEST_CASE("device times: rows by op and by module, and the table", "[device_times]") {
    Cupti cupti;
    Training training;
    Profiler profiler({.model = &training.net, .device_times = true, .device = device});
    for (int i = 0; i < 2; ++i) {
        training.step();
        profiler.step();
    }
    double of_ops = 0, of_modules = 0, of_work = 0;
    for (const ProfileRow& row : profiler.rows()) of_ops += row.self_device_time;
    for (const ProfileRow& row : profiler.rows(ProfileGroup::module)) of_modules += row.self_device_time;
    for (const auto& work : profiler.device_work())
        if (work.event >= 0) of_work += seconds(work.duration);
    CHECK(of_ops == Approx(of_work));
    CHECK(of_modules == Approx(of_work));
    const ProfileRow backward = row_named(profiler, ProfileGroup::op, "linear backward");
    CHECK(backward.self_device_time < backward.device_time);  // its products are ops inside of it
    CHECK(row_named(profiler, ProfileGroup::module, "").device_time == Approx(of_work));

    const std::string table = profiler.table({.sort_by = insight::ProfileSort::self_device_time, .rows = 4});
    CHECK_THAT(table, Contains("dev self") && Contains("as CUPTI has recorded them") && Contains(" more)") &&
                          !Contains("with synchronize"));
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 120);
    const auto sorted = profiler.table({.sort_by = insight::ProfileSort::device_time});
    CHECK(sorted.find("linear backward") < sorted.find("\nrelu "));
}

TEST_CASE("device times: the trace has a track for each stream", "[device_times]") {
    Cupti cupti;
    Training training;
    const test::Folder folder;
    const std::string path = folder.file("trace.json");
    Profiler profiler({.model = &training.net, .device_times = true, .device = device});
    training.step();
    profiler.write_chrome_trace(path);
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    int works = 0;
    bool named = false, linear = false;
    for (const auto& event : trace.at("traceEvents")) {
        named |= event.at("ph") == "M" && event.at("args").at("name") == "device 0, stream 7" &&
                 event.at("tid") >= 1 << 30;
        if (event.value("cat", "") != "device") continue;
        ++works;
        CHECK(event.at("tid") >= 1 << 30);
        linear |= event.at("args").value("event", "") == "linear" &&
                  event.at("args").value("module", "") == "up" && event.at("dur") == 1000;
    }
    CHECK(named);
    CHECK(linear);
    CHECK(works == int(profiler.device_work().size()));
}

TEST_CASE("device times: only the wanted steps are watched, and nothing after them", "[device_times]") {
    Cupti cupti;
    Training training;
    auto profiler = std::make_unique<Profiler>(ProfilerOptions{
        .model = &training.net, .device_times = true, .device = device, .skip_first = 1, .active = 1});
    CHECK(cupti.state().enabled == 0);
    training.step();
    profiler->step();
    CHECK(cupti.state().enabled == 6);
    {
        const insight::RecordFunction beyond("beyond the last step");
        training.step();
        CHECK(cupti.state().inside == 1);
        profiler->step();
        CHECK(cupti.state().enabled == 0);
        CHECK(cupti.state().inside == 0);
        training.step();
    }
    CHECK(cupti.state().inside == 0);
    const auto all = profiler->device_work();
    CHECK(!all.empty());
    const auto step = profiler->steps().at(0);
    for (const auto& work : all) CHECK(work.begin < step.begin + step.duration + clocks_differ);
    training.step();
    CHECK(profiler->device_work().size() == all.size());
    profiler.reset();
    const insight::RecordFunction open("open while a profiler comes and goes");
    auto next = std::make_unique<Profiler>(ProfilerOptions{.device_times = true, .device = device});
    const insight::RecordFunction inside("ends after it");
    CHECK(cupti.state().inside == 1);
    next.reset();
    CHECK(cupti.state().inside == 0);
    CHECK(cupti.state().enabled == 0);
}

TEST_CASE("device times: one profile at a time; a refusal and losses are told", "[device_times]") {
    Cupti cupti;
    Training training;
    const ProfilerOptions options{.model = &training.net, .device_times = true, .device = device};
    {
        Profiler first(options);
        CHECK_THROWS_WITH(Profiler(options), Contains("another trace"));
        training.step();
        CHECK(first.device_work().size() > 3);
        cupti.state().dropped = 5;
        training.step();
        CHECK_THAT(first.table(), Contains("5 pieces of the devices' work are missing"));
    }
    cupti.state().refused = 35;
    const Profiler refused(options);
    CHECK_THAT(refused.device_times_absence(),
               Contains("cuptiActivityEnable failed with CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"));
    training.step();
    CHECK(!refused.events().empty());
    cupti.state().refused = 0;
    const Profiler again(options);
    CHECK(again.device_times());
}
