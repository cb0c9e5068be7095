#include "cuda/runtime/staging.h"

#include "cuda/elementwise/copies.h"
#include "cuda/runtime/capture_owner.h"
#include "cuda/runtime/on_device.h"
#include "cuda/runtime/runtime.h"

namespace mezzo::cuda {
namespace {

class PinnedBuffer final : public StagingBuffer {
public:
    PinnedBuffer(int device, void* pinned, std::size_t bytes)
        : StagingBuffer(pinned, bytes), device_(device) {}
    ~PinnedBuffer() override {
        const OnDevice scope(device_);
        pinned_free(memory());
    }

    void send(std::span<const Copy> parts) override {
        const OnDevice scope(device_);
        queued_.record(StreamKind::compute);
        queued_.hold(StreamKind::copy);
        for (const Copy& part : parts)
            copy_beside(part.to, static_cast<const char*>(memory()) + part.offset, part.bytes);
        copied_.record(StreamKind::copy);
    }
    void send_in_order(const Copy& part) override {
        const OnDevice scope(device_);
        copy_from_pinned(part.to, static_cast<const char*>(memory()) + part.offset, part.bytes);
        copied_.record(StreamKind::compute);
    }
    void receive() override {
        const OnDevice scope(device_);
        copied_.hold(StreamKind::compute);
    }
    void drop() override {
        const OnDevice scope(device_);
        // A graph that is being captured, by whichever thread, must not wait for copies.
        CaptureOwner::any(device_) || stream_is_capturing() ? copied_.wait()
                                                            : copied_.hold(StreamKind::compute);
    }
    bool idle() const override {
        const OnDevice scope(device_);
        return copied_.passed();
    }
    void wait() override {
        const OnDevice scope(device_);
        copied_.wait();
    }

private:
    const int device_;
    Marker queued_, copied_;  // the device's work before the copies; the end of the copies
};

}  // namespace

std::unique_ptr<StagingBuffer> make_staging(int index, std::size_t bytes) {
    const OnDevice scope(index);
    void* const pinned = pinned_malloc(bytes);
    if (pinned == nullptr) return nullptr;
    try {
        return std::make_unique<PinnedBuffer>(index, pinned, bytes);
    } catch (...) {
        pinned_free(pinned);
        throw;
    }
}

}  // namespace mezzo::cuda
