#include "mezzo/prefetch.h"

#include <cstring>

#include "core/backend.h"
#include "core/capture.h"
#include "core/staging.h"
#include "core/tensor_impl.h"

namespace mezzo::data::detail {

namespace {

constexpr std::size_t alignment = 256;  // of each tensor in its buffer

std::size_t bytes_of(const Tensor& x) { return std::size_t(x.numel()) * size_of(x.dtype()); }

}  // namespace

// Buffers go round: at most ahead + 2 are with batches that have been started, and then the oldest is used
// again.
struct TransferQueue {
    struct Sent {
        std::unique_ptr<StagingBuffer> buffer;
        Tensors targets;  // held until finished: their memory must not be used for anything else before
    };
    Device device;
    std::size_t capacity;
    std::deque<Sent> sent;
    std::size_t finished = 0;  // of `sent`, from the front

    void give_back_oldest() {
        give_staging(device, std::move(sent.front().buffer));
        sent.pop_front();
        --finished;
    }
    // With copies done the buffer can serve the next batch; too far ahead of the device the host waits.
    void reuse() {
        while (finished > 0 && sent.front().buffer->idle()) give_back_oldest();
        if (finished == 0 || sent.size() < capacity + 2) return;
        sent.front().buffer->wait();
        give_back_oldest();
    }
    bool start(std::span<Tensor* const> batch);
    void drop() noexcept;
};

bool TransferQueue::start(std::span<Tensor* const> batch) {
    Tensors values, targets;
    std::vector<StagingBuffer::Part> parts;
    std::size_t bytes = 0;
    for (const Tensor* x : batch) {
        if (!x->defined() || x->device() != cpu_device) continue;
        values.push_back(x->detach().contiguous());
        targets.push_back(empty(x->shape(), {.dtype = x->dtype(), .device = device}));
        parts.push_back({raw(targets.back()), bytes, bytes_of(*x)});
        bytes += (bytes_of(*x) + alignment - 1) / alignment * alignment;
    }
    reuse();
    std::unique_ptr<StagingBuffer> buffer = take_staging(device, bytes);
    if (buffer == nullptr) return false;
    for (std::size_t i = 0; i < parts.size(); ++i)
        if (parts[i].bytes != 0)
            std::memcpy(static_cast<char*>(buffer->memory()) + parts[i].offset, raw(values[i]),
                        parts[i].bytes);
    sent.push_back({std::move(buffer), targets});
    try {
        sent.back().buffer->send(parts);
    } catch (...) {
        sent.pop_back();
        throw;
    }
    for (std::size_t i = 0, next = 0; i < batch.size(); ++i)
        if (batch[i]->defined() && batch[i]->device() == cpu_device) *batch[i] = targets[next++];
    return true;
}

// Nobody waits for these copies, but the memory they write to is about to be free for other tensors.
void TransferQueue::drop() noexcept {
    for (std::size_t i = 0; i < sent.size(); ++i) {
        try {
            if (i >= finished) sent[i].buffer->drop();
        } catch (const Error&) {  // the device is lost, and with it the copies
        }
        give_staging(device, std::move(sent[i].buffer));
    }
}

Transfers::Transfers(Device device, int ahead) : queue_(nullptr) {
    check(ahead >= 0, ErrorKind::value, "prefetch: ahead is ", ahead, "; it must not be negative");
    const bool beside = backend_of("prefetch", device).make_staging != nullptr;
    if (beside && ahead > 0) queue_ = new TransferQueue{device, static_cast<std::size_t>(ahead), {}, 0};
}

Transfers::~Transfers() {
    if (queue_ != nullptr) queue_->drop();
    delete queue_;
}

int Transfers::capacity() const { return queue_ != nullptr ? static_cast<int>(queue_->capacity) : 0; }

bool Transfers::start(std::span<Tensor* const> batch) {
    if (StepGraph::recording() != nullptr) return false;
    try {
        return queue_->start(batch);
    } catch (const Error&) {  // says the same again when its turn comes, if it is still true then
        return false;
    }
}

void Transfers::finish() {
    refuse_in_capture("prefetch", queue_->device, "take a batch from the host; pass it as an input");
    queue_->sent[queue_->finished].buffer->receive();
    queue_->sent[queue_->finished].targets.clear();
    ++queue_->finished;
}

Tensor arrived(const Tensor& x, Device device) {
    if (!x.defined()) return x;
    return x.detach().to(device);
}

}  // namespace mezzo::data::detail
