// Queue of the nodes that a backward pass visits next: newest first, whatever the order in which they come.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>

#include "autograd/engine.h"
#include "autograd/extra.h"

namespace {

using namespace mezzo;

struct Waiting {
    static constexpr const char* name = "test: waiting";
};
const Op<Waiting> op{{.fused_gradients = 2}};

std::vector<Ref<Node>> nodes_of(std::size_t count) {
    std::vector<Ref<Node>> nodes;
    for (std::size_t i = 0; i < count; ++i) {
        nodes.push_back(new_node());
        nodes.back()->op = &op;
        nodes.back()->outputs.resize(1 + i % 3);
    }
    return nodes;
}

// Adds a node that is not in the queue. Its scale state is its sequence number, so that the entry can be
// recognised. Returns whether the entry was as it has to be.
bool add(ReadyQueue& queue, const Ref<Node>& node) {
    ReadyQueue::Entry& entry = queue[node];
    const bool fresh = entry.scaled == 0 && entry.gradients.size() == node->outputs.size() + 2 &&
                       std::none_of(entry.gradients.begin(), entry.gradients.end(),
                                    [](const Tensor& x) { return x.defined(); });
    entry.scaled = ScaleState(node->sequence);
    return fresh && queue.find(*node) == &queue[node];
}

// Removes the newest node. Returns whether it is this one, with its entry.
bool take(ReadyQueue& queue, const Ref<Node>& node) {
    const bool announced = queue.newest() == node->sequence;
    ReadyQueue::Entry entry = queue.take_newest();
    const bool right = entry.node == node && entry.scaled == ScaleState(node->sequence);
    entry.gradients.clear();
    queue.recycle(std::move(entry.gradients));
    return announced && right && queue.find(*node) == nullptr;
}

void add_and_take_all(std::vector<Ref<Node>> nodes) {
    ReadyQueue queue;
    CHECK(std::all_of(nodes.begin(), nodes.end(), [&](const Ref<Node>& node) { return add(queue, node); }));
    CHECK(std::all_of(nodes.begin(), nodes.end(), [&](const Ref<Node>& node) {
        const ReadyQueue::Entry* const entry = queue.find(*node);
        return entry != nullptr && entry->node == node;
    }));
    std::sort(nodes.begin(), nodes.end(),
              [](const Ref<Node>& a, const Ref<Node>& b) { return a->sequence > b->sequence; });
    CHECK(std::all_of(nodes.begin(), nodes.end(), [&](const Ref<Node>& node) { return take(queue, node); }));
    CHECK(queue.empty());
    CHECK(queue.newest() == 0);
}

}  // namespace

TEST_CASE("ready queue: newest first, from nodes in any order", "[autograd]") {
    std::mt19937 random(1);
    for (const std::size_t count : {1, 2, 63, 64, 65, 66, 128, 500}) {
        std::vector<Ref<Node>> nodes = nodes_of(count);
        add_and_take_all(nodes);
        std::reverse(nodes.begin(), nodes.end());
        add_and_take_all(nodes);
        std::shuffle(nodes.begin(), nodes.end(), random);
        add_and_take_all(nodes);
    }
}

TEST_CASE("ready queue: nodes that come and go in turn", "[autograd]") {
    std::mt19937 random(2);
    const std::vector<Ref<Node>> nodes = nodes_of(2000);
    ReadyQueue queue;
    std::map<std::uint64_t, std::size_t> waiting;  // by sequence number
    bool right = true;
    for (std::size_t step = 0; step < 20000; ++step) {
        const std::size_t i = random() % nodes.size();
        const bool growing = step % 4000 < 2000;
        if (random() % 8 < (growing ? 5 : 3)) {
            const bool is_new = waiting.emplace(nodes[i]->sequence, i).second;
            right = right && (queue.find(*nodes[i]) == nullptr) == is_new;
            right = right && (!is_new || add(queue, nodes[i]));
        } else if (!waiting.empty()) {
            right = right && take(queue, nodes[waiting.rbegin()->second]);
            waiting.erase(std::prev(waiting.end()));
        }
        right = right && queue.empty() == waiting.empty();
    }
    CHECK(right);
}

// A sum over a list, and the join of a list: the nodes that wait come oldest last, or oldest first.
TEST_CASE("ready queue: 100,000 nodes wait", "[autograd]") {
    std::vector<Ref<Node>> nodes = nodes_of(100000);
    add_and_take_all(nodes);
    std::reverse(nodes.begin(), nodes.end());
    add_and_take_all(nodes);
    std::rotate(nodes.begin(), nodes.begin() + 50000, nodes.end());
    add_and_take_all(nodes);
}
