#include "tests/emulation/graph.h"

#include <algorithm>

#include "mezzo/error.h"
#include "tests/emulation/engine.h"

namespace mezzo::emulation {

// The stream whose work runs next, of those that are ready; -1 if none is.
int Graph::next_stream(StreamOrder order, int last, const bool (&ready)[stream_count],
                       const std::size_t (&next)[stream_count]) {
    if (!ready[main_stream] || !ready[communication_stream])
        return ready[main_stream] ? main_stream : ready[communication_stream] ? communication_stream : -1;
    switch (order) {
        case StreamOrder::main_first:
            return main_stream;
        case StreamOrder::communication_first:
            return communication_stream;
        case StreamOrder::alternating:
            return last == main_stream ? communication_stream : main_stream;
        default:
            return next[main_stream] < next[communication_stream] ? main_stream : communication_stream;
    }
}

void Graph::add(std::function<void()> work, StreamIndex stream) {
    check(stream == main_stream || communication_captured_, ErrorKind::backend,
          "cuda: work on a stream that takes no part in the capture");
    nodes_.push_back({std::move(work), stream, ends_[stream]});
    ends_[stream] = {nodes_.size() - 1};
    if (stream == communication_stream) communication_joined_ = false;
}

void Graph::hold(StreamIndex stream, const Point& point) {
    const bool joins = stream == main_stream && point.stream == communication_stream;
    check(!joins || communication_captured_, ErrorKind::backend,
          "cuda: cudaStreamWaitEvent failed with cudaErrorStreamCaptureIsolation");
    ends_[stream].insert(ends_[stream].end(), point.nodes.begin(), point.nodes.end());
    if (stream == communication_stream) communication_captured_ = true;
    if (joins && point.nodes == ends_[communication_stream]) communication_joined_ = true;
}

const char* Graph::defect() const {
    return communication_joined_ ? nullptr : "cudaErrorStreamCaptureUnjoined";
}

void Graph::run(StreamOrder order) const {
    std::vector<std::size_t> queues[stream_count];
    for (std::size_t i = 0; i < nodes_.size(); ++i) queues[nodes_[i].stream].push_back(i);
    std::vector<char> done(nodes_.size());
    std::size_t at[stream_count] = {}, total = 0;
    for (int last = main_stream;; ++total) {
        bool ready[stream_count] = {};
        std::size_t next[stream_count] = {};
        for (int stream = 0; stream < stream_count; ++stream) {
            if (at[stream] == queues[stream].size()) continue;
            next[stream] = queues[stream][at[stream]];
            const std::vector<std::size_t>& after = nodes_[next[stream]].after;
            ready[stream] =
                std::all_of(after.begin(), after.end(), [&](std::size_t i) { return done[i] != 0; });
        }
        const int stream = next_stream(order, last, ready, next);
        if (stream < 0) break;
        last = stream;
        ++at[stream];
        run_or_capture(nodes_[next[stream]].work);
        done[next[stream]] = 1;
    }
    check(total == nodes_.size(), ErrorKind::backend, "emulated graph: its work waits for itself");
}

}  // namespace mezzo::emulation
