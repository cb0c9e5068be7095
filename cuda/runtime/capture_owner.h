// Registry of the thread that is capturing on each device. Work that another thread queues on the same stream
// would become a part of its graph, and run again at every replay. Calls that begin while a capture is on are
// refused; a call that is under way when the capture begins may still be captured.
#pragma once

#include <atomic>

#include "mezzo/error.h"

namespace mezzo::cuda {

class CaptureOwner {
public:
    static void begin(int device) { owner(device).store(this_thread(), std::memory_order_release); }
    static void end(int device) { owner(device).store(nullptr, std::memory_order_release); }
    // Whether any thread is capturing on the device.
    static bool any(int device) { return owner(device).load(std::memory_order_acquire) != nullptr; }
    // Throws Error(state) if another thread is capturing on the device.
    static void require_own(int device) {
        const void* const capturing = owner(device).load(std::memory_order_acquire);
        check(
            capturing == nullptr || capturing == this_thread(), ErrorKind::state, "cuda:", device,
            ": another thread is capturing a step on this device, which would take this work into its graph; "
            "wait until its call has returned");
    }

private:
    static constexpr int devices = 64;
    static std::atomic<const void*>& owner(int device) {
        static std::atomic<const void*> owners[devices];
        check(device >= 0 && device < devices, ErrorKind::device, "cuda:", device, ": there is room for ",
              devices, " devices");
        return owners[device];
    }
    static const void* this_thread() {
        thread_local const char id = 0;
        return &id;
    }
};

}  // namespace mezzo::cuda
