// State that decides how this thread runs ops. It is one struct, so that a debugger can print it:
//
//   (gdb) print mezzo::thread_state
//
// Guards set a member and put it back: NoGrad, AutocastGuard, MemoryHook, OpObserver ... The destructor is
// trivial, so the state is valid while the thread ends, too.
#pragma once

#include <optional>

#include "core/internal.h"
#include "mezzo/device.h"
#include "mezzo/dtype.h"
#include "mezzo/matmul_precision.h"

namespace mezzo {

class Engine;
class MemoryHook;
class OpObserver;
class PendingHooks;
class StepRecorder;

// Autocast of a thread as a value. Nodes of user-defined functions and checkpoints store it, and restore it
// around their backward.
struct AutocastState {
    bool enabled[device_type_count] = {};
    Dtype dtype[device_type_count] = {float16, float16, float16};
    bool cache = true;
    std::optional<amp::Fp8> fp8[device_type_count] = {};

    bool open() const {  // on any device
        bool any = false;
        for (const bool one : enabled) any = any || one;
        return any;
    }
};

struct ThreadState {
    bool record_history = true;  // ops record nodes: NoGrad, EnableGrad
    bool pack_weights = false;   // products of few rows may read packed copies of weights: InferenceMode
    bool recomputing = false;    // a checkpoint runs its segment for the second time: no side effects again
    bool prefer_decomposition = false;  // ops run their decompositions although there is a kernel: tests
    AutocastState autocast;
    int autocast_scopes = 0;                // open ones; the outermost clears the cast cache when it closes
    Engine* engine = nullptr;               // the innermost backward pass that runs
    OpObserver* observers = nullptr;        // the innermost, which has a pointer to the next one
    const char* composite_op = nullptr;     // the public function whose ops run, for observers
    StepRecorder* recorder = nullptr;       // of the step that is captured
    MemoryHook* memory_hook = nullptr;      // serves allocations instead of the caching allocator
    PendingHooks* pending_hooks = nullptr;  // collects hooks on gradients that have something pending
};

MEZZO_INTERNAL inline constinit thread_local ThreadState thread_state{};

}  // namespace mezzo
