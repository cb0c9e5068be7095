// Gradients that wait to be multiplied by a factor which only the device knows. Nobody may see them before:
// Tensor::grad() and the engine call settle() first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ref.h"
#include "mezzo/tensor.h"

namespace mezzo {

struct TensorImpl;

// The leaves whose gradients wait for one factor. Each leaf holds it (GradMeta::pending), and it knows the
// leaves without holding them.
class PendingScale {
public:
    PendingScale();
    virtual ~PendingScale() = default;
    PendingScale(const PendingScale&) = delete;
    PendingScale& operator=(const PendingScale&) = delete;

    // Multiplies all gradients that still wait.
    virtual void settle() = 0;

    // The leaf's gradient waits from now on. In a captured step it does so after each replay, too.
    void attach(TensorImpl& leaf);
    // The leaf's gradient is dropped or replaced, or has got its factor.
    void detach(TensorImpl& leaf) noexcept;
    // The leaves whose gradients wait.
    std::vector<TensorImpl*> waiting() const;
    // To be called where it has an effect on device work: a captured step in which gradients wait that come
    // from before it cannot be replayed.
    void note_use() const;

    std::atomic<std::uint32_t> refs{0};

private:
    // What waits at the end of a captured step.
    struct Replayed {
        struct Place {
            Tensor leaf;
            const void* gradient;  // its memory
        };
        Ref<PendingScale> pending;  // null once no leaf is left: what the step is done with, it releases
        std::vector<Place> places;
        std::size_t waiting = 0;
    };
    void attach_again(const Replayed& replayed);
    void forget_in_replays(std::uint32_t place) noexcept;

    std::vector<TensorImpl*> leaves_;  // null: no longer
    std::uint64_t graph_ = 0;          // the captured step that made it; 0: none
    std::weak_ptr<Replayed> replayed_;
};
inline void dispose(PendingScale* pending) noexcept { delete pending; }

// The leaf's gradient gets its factor now, if it waits for one.
void settle_gradient(TensorImpl& leaf);
// The leaf's gradient will not be looked at any more.
void forget_pending(TensorImpl& leaf) noexcept;

}  // namespace mezzo
