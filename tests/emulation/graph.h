// A stream capture of the emulated device: work, and the order that streams and events give it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace mezzo::emulation {

// Streams whose work may be part of a graph.
enum StreamIndex { main_stream, communication_stream, stream_count };

// In which order a graph runs the work of its streams where nothing orders it. A GPU may do any of these, or
// both streams at once.
enum class StreamOrder { queued, main_first, communication_first, alternating };

class Graph {
public:
    void add(std::function<void()> work, StreamIndex stream);
    // Work queued on a stream so far, which the stream's next work depends on.
    struct Point {
        StreamIndex stream = main_stream;
        std::vector<std::size_t> nodes = {};
    };
    Point point(StreamIndex stream) const { return {stream, ends_[stream]}; }
    void hold(StreamIndex stream, const Point& point);
    // Reason for which cudaStreamEndCapture fails, or null.
    const char* defect() const;
    void run(StreamOrder order) const;

private:
    struct Node {
        std::function<void()> work;
        StreamIndex stream;
        std::vector<std::size_t> after;
    };
    static int next_stream(StreamOrder order, int last, const bool (&ready)[stream_count],
                           const std::size_t (&next)[stream_count]);

    std::vector<Node> nodes_;
    std::vector<std::size_t> ends_[stream_count];  // what the next work of a stream comes after
    bool communication_captured_ = false, communication_joined_ = true;
};

}  // namespace mezzo::emulation
