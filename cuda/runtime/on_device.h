// A scope in which another device is current.
#pragma once

#include "cuda/runtime/runtime.h"
#include "mezzo/error.h"

namespace mezzo::cuda {

// Makes a device current, and the previous one again at the end.
class OnDevice {
public:
    explicit OnDevice(int device) : previous_(current_device()), changed_(device != previous_) {
        if (changed_) set_device(device);
    }
    ~OnDevice() {
        try {
            if (changed_ && previous_ >= 0) set_device(previous_);
        } catch (const Error&) {  // the device is lost, and the call inside the scope has said so
        }
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

private:
    int previous_;
    bool changed_;
};

}  // namespace mezzo::cuda
