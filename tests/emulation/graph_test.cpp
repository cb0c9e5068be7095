// The emulator's graphs: the communication stream and the main one in each order, and calls that a
// capture refuses.
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "cuda/runtime/runtime.h"
#include "tests/cuda/device_array.h"
#include "tests/emulation/engine.h"

namespace {

using namespace mezzo;
using cuda::Marker;
using cuda::StreamKind;
using emulation::StreamOrder;

// Restores the options at the end.
struct Restored {
    ~Restored() { emulation::options = options; }
    const emulation::Options options = emulation::options;
};

}  // namespace

TEST_CASE("emulated graph: streams run in the order asked for", "[cuda][emulation]") {
    const Restored restored;
    const std::map<StreamOrder, std::string> expected{{StreamOrder::queued, "aABbCDcEF"},
                                                      {StreamOrder::main_first, "aABCDbcEF"},
                                                      {StreamOrder::communication_first, "abcABCDEF"},
                                                      {StreamOrder::alternating, "abAcBCDEF"}};
    for (const auto& [order, text] : expected) {
        std::string seen;
        const auto note = [&](char c) { emulation::run_or_capture([&seen, c] { seen += c; }); };
        const auto communicate = [&](char c) {
            const cuda::OnCommunicationStream scope;
            note(c);
        };
        cuda::begin_capture();
        Marker begin(Marker::Use::in_graphs), end(Marker::Use::in_graphs);
        note('a');
        begin.record(StreamKind::compute);
        begin.hold(StreamKind::communication);
        note('A');
        note('B');
        communicate('b');
        note('C');
        note('D');
        communicate('c');
        end.record(StreamKind::communication);
        end.hold(StreamKind::compute);
        note('E');
        note('F');
        void* const graph = cuda::end_capture();
        emulation::options.stream_order = order;
        cuda::launch_graph(graph);
        cuda::destroy_graph(graph);
        CHECK(seen == text);
    }
}

TEST_CASE("emulated graph: what a capture does not take", "[cuda][emulation]") {
    const test::DeviceArray<float> a(std::vector<float>{1, 2, 3});
    const auto communicate = [&] {
        const cuda::OnCommunicationStream scope;
        cuda::fill_zero(a.data(), 12);
    };
    cuda::begin_capture();
    Marker begin(Marker::Use::in_graphs);
    begin.record(StreamKind::compute);
    begin.hold(StreamKind::communication);
    communicate();
    CHECK_THROWS_WITH(cuda::end_capture(), Catch::Contains("cudaErrorStreamCaptureUnjoined"));
    cuda::begin_capture();
    CHECK_THROWS_WITH(communicate(), Catch::Contains("takes no part in the capture"));
    Marker end(Marker::Use::in_graphs);
    end.record(StreamKind::communication);
    CHECK_THROWS_WITH(end.hold(StreamKind::compute), Catch::Contains("cudaErrorStreamCaptureIsolation"));
    cuda::destroy_graph(cuda::end_capture());
}
