#include "mezzo/data/prefetch.h"

#include <cstring>

#include "core/backend.h"
#include "core/memory/staging.h"
#include "core/step_recorder.h"
#include "core/tensor_impl.h"
#include "kernels/self_check.h"

namespace mezzo::data::detail {

namespace {

constexpr std::size_t alignment = 256;  // of each tensor in the buffer

// Returns the offset of each tensor in the buffer.
std::vector<StagingBuffer::Copy> parts_of(const Tensors& values) {
    std::vector<StagingBuffer::Copy> parts;
    std::size_t offset = 0;
    for (const Tensor& x : values) {
        const std::size_t bytes = std::size_t(x.numel()) * size_of(x.dtype());
        parts.push_back({nullptr, offset, bytes});
        offset += (bytes + alignment - 1) / alignment * alignment;
    }
    return parts;
}

}  // namespace

// Batches whose copies have started, oldest first. At most ahead + 2 of them have a buffer; then the oldest
// buffer is reused.
struct TransferQueue {
    struct Sent {
        std::unique_ptr<StagingBuffer> buffer;
        Tensors targets;  // held until finish(), so that their memory is not reused before
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
    // Releases the buffers of finished batches whose copies are done. If too many remain, the host is too far
    // ahead of the device and waits for the oldest.
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
    std::vector<Tensor*> places;
    Tensors values;
    for (Tensor* x : batch) {
        if (!x->defined() || x->device() != cpu_device) continue;
        places.push_back(x);
        values.push_back(x->detach().contiguous());
    }
    std::vector<StagingBuffer::Copy> parts = parts_of(values);
    const std::size_t bytes = parts.empty() ? 0 : parts.back().offset + parts.back().bytes;
    reuse();
    sent.push_back({take_staging(device, bytes), {}});
    Sent& now = sent.back();
    if (now.buffer == nullptr) {
        sent.pop_back();
        return false;
    }
    try {
        for (std::size_t i = 0; i < values.size(); ++i) {
            const Tensor& x = values[i];
            now.targets.push_back(empty(x.shape(), {.dtype = x.dtype(), .device = device}));
            parts[i].to = raw(now.targets[i]);
            if (parts[i].bytes != 0)
                std::memcpy(static_cast<char*>(now.buffer->memory()) + parts[i].offset, raw(x),
                            parts[i].bytes);
        }
        now.buffer->send(parts);
    } catch (...) {
        give_staging(device, std::move(now.buffer));
        sent.pop_back();
        throw;
    }
    for (std::size_t i = 0; i < places.size(); ++i) *places[i] = now.targets[i];
    return true;
}

// The batches that are not finished will not be read, but their copies may still be running, and the memory
// that they write to is about to be released.
void TransferQueue::drop() noexcept {
    for (std::size_t i = 0; i < sent.size(); ++i) {
        try {
            if (i >= finished) sent[i].buffer->drop();
        } catch (...) {  // the device is lost, and with it the copies
        }
        give_staging(device, std::move(sent[i].buffer));
    }
}

Transfers::Transfers(Device device, int ahead) : queue_(nullptr) {
    check(ahead >= automatic_prefetch, ErrorKind::value, "prefetch: ahead is ", ahead,
          "; it must be automatic_prefetch or a number of batches");
    const bool beside = backend_of("prefetch", device).make_staging != nullptr;
    if (beside && ahead == automatic_prefetch)
        ahead = passes_self_check(FastPathId::prefetch, device) ? 2 : 0;
    if (beside && ahead > 0) queue_ = new TransferQueue{device, static_cast<std::size_t>(ahead), {}, 0};
}

Transfers::~Transfers() {
    if (queue_ != nullptr) queue_->drop();
    delete queue_;
}

int Transfers::capacity() const { return queue_ != nullptr ? static_cast<int>(queue_->capacity) : 0; }

bool Transfers::start(std::span<Tensor* const> batch) {
    if (thread_state.recorder != nullptr) return false;
    try {
        return queue_->start(batch);
        // the batch is copied when it is next, and throws then if it still must
    } catch (const Error&) {
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
