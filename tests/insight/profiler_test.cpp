// The profiler: events of a step, tables, traces, memory at the peak.
#include "mezzo/insight/profiler.h"

#include <catch2/catch.hpp>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/insight/summary.h"
#include "mezzo/models/bert.h"
#include "mezzo/module_scope.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/support/folder.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using insight::ProfileEvent;
using insight::ProfileGroup;
using insight::ProfileKind;
using insight::Profiler;
using insight::ProfileRow;

struct Block : nn::Module {
    explicit Block(std::int64_t n) : up(n, 2 * n), down(2 * n, n) {}
    Tensor operator()(const Tensor& x) const {
        const nn::ModuleScope here(*this);
        return x + down(relu(up(x)));
    }
    nn::Linear up, down;
    MEZZO_MODULE(Block, up, down)
};
struct Net : nn::Module {
    Net() : block(8), head(8, 4) {}
    Tensor operator()(const Tensor& x) const { return head(block(x)); }
    Block block;
    nn::Linear head;
    MEZZO_MODULE(Net, block, head)
};

struct Training {
    Tensor loss() const { return cross_entropy(net(x), target); }
    void step() {
        loss().backward();
        optimizer.step();
        optimizer.zero_grad();
    }
    Net net;
    optim::AdamW optimizer{net.parameters()};
    Tensor x = ones({16, 8}), target = zeros({16}, {.dtype = int64});
};

const ProfileEvent& event_named(const std::vector<ProfileEvent>& events, const std::string& name,
                                const std::string& module) {
    for (const ProfileEvent& event : events)
        if (event.name == name && event.module == module) return event;
    FAIL("no " << name << " in " << module);
    return events.front();
}

const ProfileRow& row_named(const std::vector<ProfileRow>& rows, const std::string& name) {
    for (const ProfileRow& row : rows)
        if (row.name == name) return row;
    FAIL("no row " << name);
    return rows.front();
}

// Checks that events lie inside their parents, and that children of one parent do not overlap.
void check_nesting(const std::vector<ProfileEvent>& events) {
    std::vector<std::int64_t> end_of_last(events.size() + 1, 0);
    for (std::size_t i = 0; i < events.size(); ++i) {
        const ProfileEvent& event = events[i];
        REQUIRE(event.parent < int(i));
        CHECK(event.duration >= 0);
        std::int64_t& last = end_of_last[std::size_t(event.parent + 1)];
        CHECK(event.begin >= last);
        last = event.begin + event.duration;
        if (event.parent < 0) continue;
        const ProfileEvent& outer = events[std::size_t(event.parent)];
        CHECK(event.begin >= outer.begin);
        CHECK(event.begin + event.duration <= outer.begin + outer.duration);
    }
}

}  // namespace

TEST_CASE("profiler: the events of a step have modules, bytes, FLOPs and an order", "[profiler]") {
    Training training;
    Profiler profiler({.model = &training.net, .record_shapes = true});
    training.step();
    const std::vector<ProfileEvent> events = profiler.events();
    check_nesting(events);

    const ProfileEvent& up = event_named(events, "linear", "block.up");
    CHECK(up.kind == ProfileKind::op);
    CHECK(up.bytes == 4 * (16 * 8 + 16 * 8 + 16 + 16 * 16));
    CHECK(up.flops == 2.0 * 16 * 8 * 16);
    REQUIRE(up.inputs.size() == 3);
    CHECK(up.inputs[0].shape == Shape{16, 8});
    REQUIRE(up.results.size() == 1);
    CHECK(up.results[0].shape == Shape{16, 16});
    CHECK(event_named(events, "add", "block").flops == 0);
    CHECK(event_named(events, "cross_entropy", "").parent == -1);

    // The input of the model needs no gradient, so its layer needs one product; the layers above need two.
    CHECK(event_named(events, "linear backward", "block.up").flops == 2.0 * 16 * 8 * 16);
    CHECK(event_named(events, "linear backward", "block.down").flops == 2 * 2.0 * 16 * 16 * 8);
    CHECK(event_named(events, "linear backward", "head").kind == ProfileKind::backward);
    CHECK(event_named(events, "Optimizer.step", "").kind == ProfileKind::range);
    // Forward comes before backward, and that before the optimizer.
    CHECK(up.begin < event_named(events, "linear backward", "head").begin);
    CHECK(event_named(events, "linear backward", "head").begin <
          event_named(events, "linear backward", "block.up").begin);
    CHECK(event_named(events, "linear backward", "block.up").begin <
          event_named(events, "Optimizer.step", "").begin);
    CHECK(profiler.dropped() == 0);
}

TEST_CASE("profiler: rows by op and by module add up to the same time", "[profiler]") {
    Training training;
    Profiler profiler({.model = &training.net});
    for (int i = 0; i < 3; ++i) {
        training.step();
        profiler.step();
    }
    const auto ops = profiler.rows(), modules = profiler.rows(ProfileGroup::module);
    double by_op = 0, by_module = 0, top = 0;
    for (const ProfileRow& row : ops) by_op += row.self_time;
    for (const ProfileRow& row : modules) by_module += row.self_time;
    for (const ProfileEvent& event : profiler.events())
        if (event.parent < 0) top += double(event.duration) / 1e9;
    CHECK(by_op == Approx(top));
    CHECK(by_module == Approx(top));
    CHECK(row_named(modules, "").total_time == Approx(top));
    CHECK(row_named(ops, "linear").calls == 9);
    CHECK(row_named(ops, "linear").flops == 3 * 2.0 * 16 * (8 * 16 + 16 * 8 + 8 * 4));
    const ProfileRow &block = row_named(modules, "block"), &up = row_named(modules, "block.up"),
                     &down = row_named(modules, "block.down");
    CHECK(block.total_time == Approx(block.self_time + up.total_time + down.total_time));
    CHECK(block.flops == up.flops + down.flops);
    CHECK(up.flops == 3 * 2 * 2.0 * 16 * 8 * 16);
    CHECK(row_named(modules, "").flops == block.flops + row_named(modules, "head").flops);
    CHECK(profiler.steps().size() == 3);

    const std::string table = profiler.table({.sort_by = insight::ProfileSort::calls, .rows = 3});
    CHECK_THAT(table, Contains("linear") && Contains("more)") && Contains("3 steps"));
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 120);
    CHECK_THAT(profiler.table({.group_by = ProfileGroup::module}),
               Contains("block.up") && Contains("(outside of modules)"));
    CHECK_THROWS_WITH(profiler.table({.rows = 0}), Contains("rows is 0"));
}

TEST_CASE("profiler: only the wanted steps are noted", "[profiler]") {
    Training training;
    Profiler profiler({.model = &training.net, .skip_first = 1, .active = 2});
    for (int i = 0; i < 5; ++i) {
        training.step();
        profiler.step();
    }
    REQUIRE(profiler.steps().size() == 2);
    CHECK(profiler.steps()[0].number == 1);
    for (const ProfileEvent& event : profiler.events()) CHECK((event.step == 1 || event.step == 2));
    CHECK(row_named(profiler.rows(), "linear").calls == 6);
    CHECK(event_named(profiler.events(), "linear backward", "block.up").step == 1);
    CHECK_THROWS_WITH(Profiler({.skip_first = -1}), Contains("skip_first is -1"));
    CHECK_THROWS_WITH(Profiler({.max_events = 0}), Contains("max_events is 0"));
}

TEST_CASE("profiler: events beyond the limit are counted, and those before keep their end", "[profiler]") {
    Training training;
    Profiler profiler({.max_events = 5});
    training.step();
    CHECK(profiler.events().size() == 5);
    CHECK(profiler.dropped() > 5);
    check_nesting(profiler.events());
    CHECK_THAT(profiler.table(), Contains("events are missing"));
}

TEST_CASE("profiler: an op that throws ends, and what runs is still open", "[profiler]") {
    Profiler profiler;
    const insight::RecordFunction outer("outer");
    {
        const insight::RecordFunction inner("inner");
        const Tensor a = ones({4096, 1}), b = ones({1, 4096});
        empty_cache(cpu_device);
        set_memory_limit(cpu_device, 1 << 24);
        CHECK_THROWS_AS(matmul(a, b), Error);
        set_memory_limit(cpu_device, 0);
    }
    static_cast<void>(ones({2}) + 1.0);
    const auto events = profiler.events();
    check_nesting(events);
    CHECK(event_named(events, "outer", "").parent == -1);
    CHECK(events[std::size_t(event_named(events, "matmul", "").parent)].name == "inner");
    CHECK(events.back().parent == 0);

    const insight::RecordFunction one("one"), two("two"), three("three");
    check_nesting(profiler.events());
}

TEST_CASE("profiler: it sees its own thread only, from when it was made on", "[profiler]") {
    const insight::RecordFunction before("before");
    auto profiler = std::make_unique<Profiler>();
    std::thread([] { static_cast<void>(ones({2}) * 2.0); }).join();
    CHECK(profiler->events().empty());
    static_cast<void>(ones({2}) * 2.0);
    CHECK(!profiler->events().empty());
    const insight::RecordFunction open("open");  // ends after the profiler
    profiler.reset();
    static_cast<void>(ones({2}) * 2.0);
}

TEST_CASE("profiler: ops of a decomposition and of a checkpoint belong to their modules", "[profiler]") {
    Training training;
    Profiler profiler({.model = &training.net});
    const Tensor x = ones({16, 8}).set_requires_grad();
    sum(autograd::checkpoint([&](const Tensors& in) -> Tensors { return {training.net.block(in[0])}; },
                             {x})[0])
        .backward();
    const auto events = profiler.events();
    check_nesting(events);
    int in_backward = 0;
    for (const ProfileEvent& event : events) {
        if (event.name != "linear" || event.module != "block.up") continue;
        if (event.parent >= 0 && events[std::size_t(event.parent)].kind == ProfileKind::backward)
            ++in_backward;
    }
    CHECK(in_backward == 1);
    CHECK(event_named(events, "linear backward", "block.down").parent >= 0);
}

TEST_CASE("profiler: FLOPs of a BERT are those of its summary, each product counted once", "[profiler]") {
    nn::BertConfig config;
    config.vocab_size = 50;
    config.hidden_size = 32;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.intermediate_size = 64;
    config.max_position_embeddings = 16;
    nn::Bert bert(config);
    const Tensor ids = zeros({2, 16}, {.dtype = int64});
    const double expected = nn::summary(bert, ids).flops;
    bert.eval();
    Profiler profiler({.model = &bert});
    const auto output = bert(ids);
    double flops = 0;
    for (const ProfileRow& row : profiler.rows(ProfileGroup::module))
        if (row.name.empty()) flops = row.flops;
    CHECK(flops == Approx(expected));
    CHECK(flops > 0);
}

TEST_CASE("profiler: the trace is JSON whose events nest", "[profiler]") {
    Training training;
    const test::Folder folder;
    const std::string path = folder.file("trace.json");
    {
        Profiler profiler({.model = &training.net, .record_shapes = true});
        const insight::RecordFunction hostile("a \"name\"\n\xff");
        training.step();
        profiler.step();
        profiler.write_chrome_trace(path);
        CHECK_THROWS_WITH(profiler.write_chrome_trace(folder.file("none") + "/trace.json"),
                          Contains("Profiler.write_chrome_trace"));
    }
    const nlohmann::json trace = nlohmann::json::parse(test::read_file(path));
    std::vector<std::pair<double, double>> open;
    int complete = 0, named = 0;
    bool linear = false;
    for (const auto& event : trace.at("traceEvents")) {
        CHECK(event.at("pid").is_number_integer());
        CHECK(event.at("tid").is_number_integer());
        if (event.at("ph") == "M") {
            ++named;
            continue;
        }
        if (event.at("cat") == "step") {  // a track of their own
            CHECK(event.at("tid") == 0);
            CHECK(event.at("name") == "step 0");
            continue;
        }
        REQUIRE(event.at("ph") == "X");
        ++complete;
        const double begin = event.at("ts").get<double>(), end = begin + event.at("dur").get<double>();
        // Microseconds with three digits: sums of two of them may differ from a third in the last bits.
        while (!open.empty() && open.back().second <= begin + 1e-6) open.pop_back();
        if (!open.empty()) CHECK(end <= open.back().second + 1e-6);
        open.emplace_back(begin, end);
        if (event.at("name") == "linear" && event.at("args").at("module") == "block.up") {
            linear = true;
            CHECK(event.at("args").at("flops") == 2.0 * 16 * 8 * 16);
            CHECK(event.at("args").at("inputs") == "float32 [16, 8], float32 [16, 8], float32 [16]");
            CHECK(event.at("cat") == "op");
        }
    }
    CHECK(linear);
    CHECK(named == 3);
    CHECK(complete > 10);
}

TEST_CASE("profiler: memory at the peak, by module", "[profiler]") {
    struct Wide : nn::Module {
        Tensor operator()(const Tensor& x) const { return second(relu(first(x))); }
        nn::Linear first{64, 1024}, second{1024, 8};
        MEZZO_MODULE(Wide, first, second)
    };
    Wide net;
    const Tensor x = ones({256, 64});
    const auto before = std::int64_t(memory_stats(cpu_device).allocated);
    Profiler profiler({.model = &net, .profile_memory = true});
    reset_peak(cpu_device);
    for (int i = 0; i < 2; ++i) {
        sum(net(x)).backward();
        net.zero_grad();
        profiler.step();
    }
    const insight::MemoryPeak peak = profiler.memory();
    CHECK(peak.bytes == std::int64_t(memory_stats(cpu_device).max_allocated));
    CHECK(peak.before == before);
    CHECK(peak.step == 0);
    std::int64_t sum_of_modules = 0;
    for (const insight::ModuleMemory& module : peak.modules) sum_of_modules += module.total();
    CHECK(sum_of_modules + peak.before == peak.bytes);
    // In relu's backward its saved result and both gradients are alive, [256, 1024] each: one belongs to
    // `second`, two to no module.
    const auto of = [&](const std::string& path) {
        for (const insight::ModuleMemory& module : peak.modules)
            if (module.module == path) return module;
        return insight::ModuleMemory{};
    };
    constexpr std::int64_t hidden = 256 * 1024 * 4;
    CHECK(of("second").backward >= hidden);
    CHECK(of("").forward >= hidden);
    CHECK(of("").backward >= hidden);
    CHECK_THAT(profiler.memory_table(),
               Contains("second") && Contains("(before the profiled steps)") && Contains("at the peak"));
    CHECK_THROWS_WITH(Profiler({.profile_memory = true}), Contains("another profiler"));
}

TEST_CASE("profiler: the peak is that of the noted steps, and what is older than they is one sum",
          "[profiler]") {
    Training training;
    Profiler profiler({.model = &training.net, .profile_memory = true, .skip_first = 2, .active = 2});
    std::int64_t before = 0;
    for (int i = 0; i < 6; ++i) {
        if (i == 2) before = std::int64_t(memory_stats(cpu_device).allocated);
        {
            const Tensor large = i == 2 || i == 3 ? Tensor() : ones({1 << 20});
            training.step();
        }
        profiler.step();
    }
    const insight::MemoryPeak peak = profiler.memory();
    CHECK(peak.step >= 2);
    CHECK(peak.step <= 3);
    CHECK(peak.before > 0);
    CHECK(peak.before <= before);
    CHECK(peak.bytes < before + (4 << 20));
    std::int64_t sum_of_modules = 0;
    for (const insight::ModuleMemory& module : peak.modules) sum_of_modules += module.total();
    CHECK(sum_of_modules + peak.before == peak.bytes);
    CHECK(sum_of_modules > 0);
    CHECK_THROWS_WITH(Profiler().memory(), Contains("profile_memory"));
}

TEST_CASE("profiler: on every device, with times of the host or of the device", "[profiler]") {
    for (const Device device : test::devices()) {
        Net net;
        net.to(device);
        for (const bool wait : {false, true}) {
            Profiler profiler({.model = &net, .profile_memory = true, .synchronize = wait, .device = device});
            sum(net(ones({16, 8}, {.device = device}))).backward();
            check_nesting(profiler.events());
            const bool of_host = device.type() != DeviceType::cpu && !wait;
            CHECK((profiler.table().find("times are those of the host") != std::string::npos) == of_host);
            CHECK(profiler.memory().bytes > profiler.memory().before);
            CHECK(!profiler.memory().modules.empty());
            net.zero_grad();
        }
    }
}

TEST_CASE("profiler: a long name keeps its end, and no part of a character", "[profiler]") {
    Profiler profiler;
    {
        const insight::RecordFunction here(
            "\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc the name of a very long part");
    }
    const std::string table = profiler.table();
    CHECK_THAT(table, Contains("the name of a very long part") && !Contains("..\xbc"));
}

TEST_CASE("profiler: steps have the same bits, and nothing stays behind", "[profiler]") {
    const auto run = [](bool profiled) {
        manual_seed(5);
        Training training;
        std::unique_ptr<Profiler> profiler;
        if (profiled)
            profiler = std::make_unique<Profiler>(insight::ProfilerOptions{
                .model = &training.net, .record_shapes = true, .profile_memory = true, .synchronize = true});
        for (int i = 0; i < 3; ++i) training.step();
        return test::doubles(training.net.head.weight);
    };
    CHECK(run(true) == run(false));
    Profiler again({.profile_memory = true});  // the other one has ended
    CHECK(again.memory().modules.empty());
}
