// Branches of a graph in every order that the graph allows, and graphs that lack an order they need.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "core/branch.h"
#include "core/capture.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime.h"
#include "tests/branch_cases.h"
#include "tests/device_array.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/fake_lt.h"

namespace {

using namespace mezzo;
using emulation::BranchOrder;
using emulation::fake_lt;
using test::Way;

const Device gpu{DeviceType::cuda};
constexpr BranchOrder orders[] = {BranchOrder::queued, BranchOrder::main_first, BranchOrder::side_first,
                                  BranchOrder::alternating};
constexpr std::size_t mebibyte = std::size_t(1) << 20;

// Restores the options and the library at the end.
struct Restored {
    Restored() { cuda::clear_gemm_plans(); }
    ~Restored() {
        emulation::options = options;
        fake_lt = {};
        cuda::clear_gemm_plans();
    }
    const emulation::Options options = emulation::options;
};

// Captures `work` and runs the graph with its branches in the given order.
void run_graph(BranchOrder order, const std::function<void()>& work) {
    cuda::begin_capture();
    work();
    void* const graph = cuda::end_capture();
    emulation::options.branch_order = order;
    cuda::launch_graph(graph);
    cuda::destroy_graph(graph);
}

}  // namespace

TEST_CASE("branches: the numbers do not depend on the order of the branches", "[cuda][emulation]") {
    const Restored restored;
    fake_lt.workspace = 8 << 10;  // the products' sums go through it
    for (const test::BranchCase& c : test::branch_cases()) {
        const test::BranchRun eager = run_branch_case(c, Way::eager);
        for (BranchOrder order : orders) {
            CAPTURE(c.name, int(order));
            emulation::options.branch_order = order;
            CHECK((run_branch_case(c, Way::branches).values == eager.values));
        }
    }
}

TEST_CASE("branches: a graph without its joins gives other numbers", "[cuda][emulation]") {
    const Restored restored;
    for (const test::BranchCase& c : test::branch_cases()) {
        if (c.branches == 0) continue;
        CAPTURE(c.name);
        const test::BranchRun eager = run_branch_case(c, Way::eager);
        emulation::options.loses_joins = true;
        emulation::options.branch_order = BranchOrder::main_first;
        CHECK_FALSE((run_branch_case(c, Way::branches).values == eager.values));
        emulation::options.loses_joins = false;
    }
}

TEST_CASE("branches: products side by side have a workspace each", "[cuda][emulation][gemm]") {
    const Restored restored;
    fake_lt.workspace = 1 << 20;
    std::map<int, std::set<const void*>> seen;
    fake_lt.on_run = [&](const cuda::lt::Operands& o) { seen[cuda::current_branch()].insert(o.workspace); };
    const test::BranchCase& mlp = test::branch_cases()[0];
    run_branch_case(mlp, Way::captured);
    CHECK(seen.size() == 1);
    run_branch_case(mlp, Way::branches);
    REQUIRE(seen.size() == 2);
    CHECK(seen[0].size() == 1);
    CHECK(seen[1].size() == 1);
    CHECK(*seen[0].begin() != *seen[1].begin());
    CHECK(cuda::workspace_bytes() == 2 * 32 * mebibyte);
}

TEST_CASE("branches: an error between fork and join leaves a graph that runs", "[cuda][emulation]") {
    const Restored restored;
    enum { before_enter, before_join, in_a_product };
    for (int place : {before_enter, before_join, in_a_product})
        for (bool while_capturing : {false, true}) {
            CAPTURE(place, while_capturing);
            const Tensor w = full({4, 4}, 0.5, {.device = gpu}).set_requires_grad();
            const Tensor count = zeros({1}, {.device = gpu}), one = ones({1}, {.device = gpu});
            bool fails = false;
            const auto now = [&] { return fails && (StepGraph::capturing() != nullptr) == while_capturing; };
            cuda::CapturedStep step(
                [&](const Tensors& in) {
                    count.add_(one);
                    Tensor y, z;
                    {
                        Branch side(gpu);
                        y = in[0] + 1.0;
                        if (place == before_enter && now()) throw 1;
                        side.enter();
                        z = in[0] * 2.0;
                        if (place == before_join && now()) throw 1;
                        side.join();
                    }
                    const Tensor loss = sum(matmul(matmul(y, w), w) + z);
                    if (place == in_a_product && now())
                        fake_lt.on_run = [](const auto&) {
                            if (cuda::current_branch() == 1) throw 1;
                        };
                    loss.backward();
                    const Tensor g = w.grad();
                    w.set_grad({});
                    return Tensors{loss, g};
                },
                {.warmup = 1, .device = gpu, .parallel_branches = true});
            const Tensor x = ones({4, 4}, {.device = gpu});
            const Tensors expected = step({x});
            const std::vector<float> loss = expected[0].to_vector<float>(),
                                     g = expected[1].to_vector<float>();
            fails = true;
            if (!while_capturing) step.clear();
            CHECK_THROWS_AS(step({x}), int);
            CHECK(cuda::current_branch() == 0);
            CHECK(count.to_vector<float>() == std::vector<float>{2});  // as without a capture
            fails = false;
            fake_lt.on_run = {};
            w.set_grad({});
            for (int i = 0; i < 4; ++i) {
                const Tensors out = step({x});
                CHECK(out[0].to_vector<float>() == loss);
                CHECK(out[1].to_vector<float>() == g);
            }
            CHECK(step.statistics().graphs == 1);
            CHECK(step.statistics().parallel_branches == 2);
        }
}

TEST_CASE("branches: only in steps that ask for them, one at a time", "[cuda][emulation]") {
    const Restored restored;
    int inside = 0, inner = 0;
    const auto body = [&](const Tensors& in) {
        inside = inner = 0;
        Branch side(gpu);
        side.enter();
        inside = cuda::current_branch();
        {
            Branch nested(gpu);
            nested.enter();
            inner = cuda::current_branch();
            nested.join();
        }
        CHECK(cuda::current_branch() == inside);  // the outer one goes on
        const Tensor y = in[0] + 1.0;
        side.join();
        side.join();  // nothing left to do
        CHECK(cuda::current_branch() == 0);
        const Branch other(gpu, false), cpu(cpu_device);
        return Tensors{y};
    };
    const Tensor x = ones({4}, {.device = gpu});
    body({x});
    CHECK(inside == 0);
    for (bool branches : {false, true}) {
        cuda::CapturedStep step(body, {.warmup = 2, .device = gpu, .parallel_branches = branches});
        step({x});
        CHECK(inside == 0);  // only the run that plans the memory
        for (int i = 0; i < 2; ++i) {
            step({x});
            CHECK(inside == int(branches));
            CHECK(inner == inside);
        }
        CHECK(step({x})[0].to_vector<float>() == std::vector<float>(4, 2));
        CHECK(step.statistics().parallel_branches == std::size_t(branches));
    }
}

TEST_CASE("branches: each shape's graph has its own", "[cuda][emulation]") {
    const Restored restored;
    const Tensor w = full({4, 4}, 0.5, {.device = gpu}).set_requires_grad();
    cuda::CapturedStep step(
        [&](const Tensors& in) {
            sum(matmul(matmul(in[0], w), w)).backward();
            const Tensor g = w.grad();
            w.set_grad({});
            return Tensors{g};
        },
        {.warmup = 1, .device = gpu, .parallel_branches = true});
    for (int i = 0; i < 4; ++i)
        for (std::int64_t rows : {2, 3}) {
            // 0.5 (in^T 1) summed over 4 columns, and (in w)^T 1
            const std::vector<float> expected(16, float(rows) * 2 + float(rows) * 2);
            CHECK(step({ones({rows, 4}, {.device = gpu})})[0].to_vector<float>() == expected);
        }
    CHECK(step.statistics().captures == 2);
    CHECK(step.statistics().parallel_branches == 2);
}

TEST_CASE("branches: the emulated graph runs them in the order asked for", "[cuda][emulation]") {
    const Restored restored;
    const std::map<BranchOrder, std::string> expected{{BranchOrder::queued, "aABbCDcEF"},
                                                      {BranchOrder::main_first, "aABCDbcEF"},
                                                      {BranchOrder::side_first, "abcABCDEF"},
                                                      {BranchOrder::alternating, "abAcBCDEF"}};
    for (const auto& [order, text] : expected) {
        std::string seen;
        const auto note = [&](char c) { emulation::run_or_capture([&seen, c] { seen += c; }); };
        run_graph(order, [&] {
            note('a');
            cuda::fork_branch();
            note('A');
            note('B');
            cuda::enter_branch();
            note('b');
            emulation::branch_of_thread = 0;  // as the main branch goes on
            note('C');
            note('D');
            emulation::branch_of_thread = 1;
            note('c');
            cuda::join_branch();
            note('E');
            note('F');
        });
        CHECK(seen == text);
    }
}

TEST_CASE("branches: what a capture does not take", "[cuda][emulation]") {
    const Restored restored;
    const test::DeviceArray<float> a(std::vector<float>{1, 2, 3});
    cuda::begin_capture();
    cuda::fork_branch();
    cuda::enter_branch();
    cuda::fill_zero(a.data(), 12);
    emulation::branch_of_thread = 0;
    CHECK_THROWS_WITH(cuda::end_capture(), Catch::Contains("cudaErrorStreamCaptureUnjoined"));
    cuda::begin_capture();
    cuda::fork_branch();  // never entered
    CHECK_THROWS_WITH(cuda::join_branch(), Catch::Contains("cudaErrorStreamCaptureIsolation"));
    emulation::branch_of_thread = 1;
    CHECK_THROWS_WITH(cuda::fill_zero(a.data(), 12), Catch::Contains("takes no part in the capture"));
    emulation::branch_of_thread = 0;
    CHECK_THROWS_WITH(cuda::end_capture(), Catch::Contains("cudaErrorStreamCaptureInvalidated"));
}
