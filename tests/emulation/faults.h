// A device that computes wrongly: what chosen work leaves in its memory is changed, or the work fails.
#pragma once

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "mezzo/error.h"
#include "tests/emulation/engine.h"

namespace mezzo::emulation {

enum class Fault { none, value, nan, launch };

// While it exists, every kernel that `hits` says has the fault, and so have copies from pinned memory if
// `copies`.
class PlantedFault {
public:
    PlantedFault(Fault fault, std::function<bool(const void* kernel)> hits, bool copies)
        : fault_(fault), hits_(std::move(hits)), copies_(copies) {
        on_work = [this](const Work& work) { begin(work); };
        on_run = [this](const DeviceMemory& memory, bool done) { run(memory, done); };
        on_copy_beside = [this](void* to, std::size_t bytes, bool done) { copy(to, bytes, done); };
    }
    ~PlantedFault() {
        on_work = nullptr;
        on_run = nullptr;
        on_copy_beside = nullptr;
    }
    PlantedFault(const PlantedFault&) = delete;
    PlantedFault& operator=(const PlantedFault&) = delete;

private:
    [[noreturn]] static void fail_launch() {
        fail(ErrorKind::backend, "cuda: kernel launch failed with cudaErrorLaunchOutOfResources (701)");
    }
    void begin(const Work& work) {
        struck_ = work.kernel != nullptr && hits_(work.kernel);
        if (struck_ && fault_ == Fault::launch) fail_launch();
    }
    void run(const DeviceMemory& memory, bool done) {
        if (!struck_ || fault_ == Fault::none) return;
        if (!done) {
            before_.clear();
            for (const auto& [address, bytes] : memory) before_.emplace_back(address, address + bytes);
            return;
        }
        std::size_t i = 0;
        for (const auto& [address, bytes] : memory) spoil_first_change(address, bytes, before_[i++]);
    }
    void copy(void* to, std::size_t bytes, bool done) {
        if (!copies_ || fault_ == Fault::none) return;
        if (fault_ == Fault::launch) fail_launch();
        if (!done || bytes < 4) return;
        Engine::get().open_device_memory();
        spoil(static_cast<char*>(to));
        Engine::get().close_device_memory();
    }
    // The first aligned four bytes that the kernel has changed.
    void spoil_first_change(char* memory, std::size_t bytes, const std::vector<char>& before) {
        for (std::size_t at = 0; at + 4 <= bytes; at += 4)
            if (std::memcmp(memory + at, before.data() + at, 4) != 0) return spoil(memory + at);
    }
    // NaN in every floating dtype of up to 32 bit; or another exponent.
    void spoil(char* word) const {
        if (fault_ == Fault::nan)
            std::memset(word, 0xFF, 4);
        else
            word[3] = static_cast<char>(word[3] ^ 0x40);
    }

    const Fault fault_;
    const std::function<bool(const void*)> hits_;
    const bool copies_;
    bool struck_ = false;
    std::vector<std::vector<char>> before_;
};

}  // namespace mezzo::emulation
