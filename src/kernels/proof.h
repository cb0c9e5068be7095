// Proof on first use. A fast path whose choice is `automatic` (mezzo/fast_path.h) is used on a device once it has
// given there what the plain path gives, on a small problem of odd sizes. Backends list their proofs
// (BackendParts::proofs). A proof runs when a thread first asks for its fast path; the others wait for it. It has
// memory and inputs of its own: random numbers, statistics, gradients and memory limits of the program stay as
// they are.
//
// Verdicts are kept in the user's cache folder (kernels/verdict_file.h), so that the next process need not prove
// them again. A process that dies in a proof leaves a mark there; the next one then keeps to the plain path.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mezzo/device.h"
#include "mezzo/dtype.h"

namespace mezzo {

enum class FastPathId : std::uint8_t {
    flash_attention,
    flash_attention_grad,
    implicit_convolution,
    implicit_convolution_input_grad,
    implicit_convolution_weight_grad,
    bias_gradients,  // kernels::ActivationGrad as one kernel
    layers,          // kernels::LinearInputGrad as a product and one kernel
    relu_masks,      // made and read
    prefetch         // copies beside the device's work
};
inline constexpr int fast_path_count = 9;

// What is proven at a time. Each has its own verdict on each device.
struct Proof {
    FastPathId path;
    Dtype dtype = float32;  // of the operands; float32 where it makes no difference
    int size = 0;           // dim of attention: 32, 64 or 128; 0 where it makes no difference
};
// Such as "flash_attention bfloat16 64".
std::string text_of(const Proof& proof);

// The proofs of a backend.
struct ProofList {
    std::span<const Proof> all;
    // What a verdict depends on: the model of the device, and the versions of driver and libraries. One line.
    std::string (*identity)(int device);
    // Whether the calling thread may give the device work of its own now. No work belongs to a graph that is
    // being captured, by whichever thread.
    bool (*ready)(int device);
    // Runs the fast path and the plain one on the device. Throws Error(value) that says how they differ, or
    // whatever the fast path throws. Error(memory) and Error(state) leave the verdict open.
    void (*run)(const Proof& proof, int device);
};

// For what happens when proofs cannot be run (yet), and in a step that is being captured, false is the answer:
// the plain path. Does not throw.
bool proven(FastPathId path, Device device, Dtype dtype = float32, int size = 0) noexcept;

inline bool uses_fast_path(FastPath choice, FastPathId path, Device device, Dtype dtype = float32,
                           int size = 0) noexcept {
    if (choice == FastPath::automatic) return proven(path, device, dtype, size);
    return choice == FastPath::on;
}

// Whether this thread runs a proof. Matrix products then keep to mezzo's own kernels: the library would take a
// workspace, and keep plans.
bool proving() noexcept;

struct Verdict {
    enum State : std::uint8_t { open, good, bad };
    State state = open;
    std::string reason = {};  // why a verdict is bad or still open; one line
};
struct ListedVerdict {
    Proof proof;
    Verdict verdict;
};
// All proofs of a device with the verdicts that are known, here or from an earlier process. Runs none.
std::vector<ListedVerdict> verdicts_of(Device device);
// Runs all proofs of a device, known or not, and keeps the verdicts. For users whose device has been mended.
void prove_all(Device device);
// Forgets what this process knows: files are read again, and what they do not have is proven again.
void forget_verdicts();

}  // namespace mezzo
