// Graphs of models, and the event that TensorBoard reads.
#include "mezzo/model_graph.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include "io/event_record.h"
#include "mezzo/conv_layers.h"
#include "mezzo/metrics.h"
#include "mezzo/module_scope.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "tests/folder.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;

struct Residual : nn::Module {
    Tensor operator()(const Tensor& x) const {
        const nn::ModuleScope here(*this);
        const Tensor y = layer(x);
        const Tensor last = layer(y).reshape({-1}), first = y.reshape({-1});
        return last + first;
    }
    nn::Linear layer{3, 3};
    MEZZO_MODULE(Residual, layer)
};

const GraphNode& node_named(const ModelGraph& graph, const std::string& name) {
    const auto found =
        std::find_if(graph.begin(), graph.end(), [&](const GraphNode& node) { return node.name == name; });
    REQUIRE(found != graph.end());
    return *found;
}

}  // namespace

TEST_CASE("model graph: nodes have the paths of their modules, inputs, shapes and unique names",
          "[insight]") {
    Residual net;
    net.freeze();
    const ModelGraph graph = nn::graph(net, ones({2, 3}));
    CHECK(node_named(graph, "input").op == "Input");
    CHECK(node_named(graph, "layer/weight").shape == Shape{3, 3});
    const GraphNode &first = node_named(graph, "layer/linear"), &second = node_named(graph, "layer/linear_1");
    CHECK(first.inputs == std::vector<std::string>{"input", "layer/weight", "layer/bias"});
    CHECK(second.inputs == std::vector<std::string>{"layer/linear", "layer/weight", "layer/bias"});
    CHECK(node_named(graph, "reshape").inputs == std::vector<std::string>{"layer/linear_1"});
    CHECK(node_named(graph, "reshape_1").inputs == std::vector<std::string>{"layer/linear"});
    CHECK(node_named(graph, "add").inputs == std::vector<std::string>{"reshape", "reshape_1"});
    CHECK(node_named(graph, "add").shape == Shape{6});
    CHECK(graph.size() == 8);
    for (const GraphNode& node : graph)
        for (const std::string& input : node.inputs) CHECK(&node_named(graph, input) < &node);
    CHECK(!net.layer.weight.requires_grad());
    CHECK(net.training());
}

TEST_CASE("model graph: the event, byte for byte, and texts that readers refuse", "[io]") {
    const ModelGraph graph{{.name = "a", .op = "Input", .shape = {2}, .dtype = int64}};
    std::string hex;
    for (const char c : io::graph_event(1.0, graph))
        hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
    CHECK(hex ==
          "09000000000000f03f22390a330a01611205496e7075742a1a0a0e5f6f75747075745f73686170657312080a06"
          "3a04120208022a0b0a0564747970651202300922020816");
    const test::Folder folder;
    io::SummaryWriter writer(folder.file("runs"));
    writer.add_graph(graph, 1.0);
    CHECK_THROWS_WITH(writer.add_graph({{.name = "\xff", .op = "Input"}}), Contains("UTF-8"));
}
