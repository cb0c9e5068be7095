// Compares work that overlaps with copies from the host with the same work without copies.
#include <cstring>
#include <vector>

#include "core/tensor_impl.h"
#include "cuda/runtime/runtime.h"
#include "cuda/runtime/staging.h"
#include "cuda/self_check/compare.h"
#include "cuda/self_check/self_checks.h"
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

// Waits at its end for the copies of a buffer: before that the buffer must not be destroyed.
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

// Copies into a target that is in use when the copy is requested, and is read right after: the copy has to
// wait for the device, and then the device for the copy.
void check_prefetch(const SelfCheck&) {
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
    const StagingBuffer::Copy parts[] = {{raw(target), 0, bytes}};
    const Waiting end_of_copies{*buffer};
    buffer->send(parts);
    buffer->receive();
    sum_of(target, target, found);
    require_equal("copies beside the device's work", found, expected);
    sum_of(expected, source, expected);
    require_equal("work before a copy beside it", earlier, expected);
}

}  // namespace mezzo::cuda
