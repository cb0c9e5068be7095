// Branches of a graph, and copies beside the device's work, against the same work in one line.
#include <cstring>
#include <vector>

#include "core/tensor_impl.h"
#include "cuda/proof/compare.h"
#include "cuda/proof/proofs.h"
#include "cuda/runtime.h"
#include "cuda/staging.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"
#include "mezzo/error.h"

namespace mezzo::cuda {
namespace {

const KernelOf<kernels::add> add;

void sum_of(const Tensor& a, const Tensor& b, const Tensor& result) {
    const Tensor in[] = {a, b};
    add(in, {}, result);
}

// A graph that is captured on the current stream.
class CapturedGraph {
public:
    template <class Work> explicit CapturedGraph(const Work& work) {
        begin_capture();
        try {
            work();
        } catch (...) {
            abandon();
            throw;
        }
        graph_ = end_capture();
    }
    ~CapturedGraph() {
        if (graph_ != nullptr) destroy_graph(graph_);
    }
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;
    void launch() const { launch_graph(graph_); }

private:
    // The work has failed, and so may the end of the capture.
    static void abandon() noexcept {
        try {
            if (current_branch() != 0) join_branch();
        } catch (...) {
        }
        try {
            destroy_graph(end_capture());
        } catch (...) {
        }
    }

    void* graph_ = nullptr;
};

// The side branch has much more to do than the main one, so that a result that does not wait for it is wrong.
struct Pair {
    static constexpr std::int64_t size = 1 << 16;
    static constexpr int side_steps = 12;
    Tensor x = input_of({size}, float32, 1), start = result_of({size}, float32),
           main = result_of({size}, float32), side = result_of({size}, float32),
           both = result_of({size}, float32);

    void begin() const { sum_of(x, x, start); }
    void main_work() const { sum_of(start, x, main); }
    void side_work() const {
        sum_of(start, start, side);
        for (int i = 1; i < side_steps; ++i) sum_of(side, x, side);
    }
    void end() const { sum_of(main, side, both); }
};

// Ends when the copies of a buffer have: until then it must not be destroyed.
struct Waiting {
    StagingBuffer& buffer;
    ~Waiting() {
        try {
            buffer.wait();
        } catch (...) {  // the device has failed, and the copies with it
        }
    }
};

}  // namespace

void prove_branches(const Proof&) {
    // Outside of the capture, because the first fork makes a stream and events.
    fork_branch();
    enter_branch();
    join_branch();
    const Pair plain, fast;
    plain.begin(), plain.main_work(), plain.side_work(), plain.end();
    const CapturedGraph graph([&] {
        fast.begin();
        fork_branch();
        fast.main_work();
        enter_branch();
        fast.side_work();
        join_branch();
        fast.end();
    });
    for (int i = 0; i < 2; ++i) {
        graph.launch();
        require_equal("branches of a graph", fast.both, plain.both);
    }
}

// The target is in use when the copy is asked for, and read right after: the copy has to wait for the device, and
// then the device for the copy.
void prove_prefetch(const Proof&) {
    constexpr std::int64_t size = 1 << 16;
    constexpr std::size_t bytes = size * sizeof(float);
    const Tensor source = input_of({size}, float32, 1), expected = result_of({size}, float32),
                 target = result_of({size}, float32), earlier = result_of({size}, float32),
                 found = result_of({size}, float32);
    std::vector<float> values(size);
    copy_to_host(values.data(), raw(source), bytes);
    sum_of(source, source, expected);
    const std::unique_ptr<StagingBuffer> buffer = make_staging(current_device(), bytes);
    check(buffer != nullptr, ErrorKind::memory, "prefetch: no pinned memory");
    std::memcpy(buffer->memory(), values.data(), bytes);
    for (int i = 0; i < 8; ++i) sum_of(source, source, target);
    sum_of(target, source, earlier);
    const StagingBuffer::Part parts[] = {{raw(target), 0, bytes}};
    const Waiting end_of_copies{*buffer};
    buffer->send(parts);
    buffer->receive();
    sum_of(target, target, found);
    require_equal("copies beside the device's work", found, expected);
    sum_of(expected, source, expected);
    require_equal("work before a copy beside it", earlier, expected);
}

}  // namespace mezzo::cuda
