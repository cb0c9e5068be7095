// State of float8 products next to a weight: its codes, made once for each change of the weight, and with
// Recipe::delayed the largest elements of the operands in the last steps.
//
// A history is a row of float32 numbers for each operand:
//
//     [largest element of the running step, largest of the last steps, the last steps one by one ...]
//
// The products raise the first number. The optimizer's step moves it to the others, for all its weights
// at once, and sets it to 0. Numbers that are 0 or not finite are not moved.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/gradient/leaf_state.h"
#include "mezzo/matmul_precision.h"
#include "mezzo/tensor.h"
#include "ops/gemm/fp8_product.h"

namespace mezzo {

enum class Fp8Operand : std::uint8_t { input, weight, gradient, count };
inline constexpr std::int64_t fp8_operands = std::int64_t(Fp8Operand::count);
inline constexpr const char* fp8_operand_names[] = {"input", "weight", "gradient"};
// The numbers of a history before those of the last steps.
inline constexpr std::int64_t fp8_running = 0, fp8_largest = 1, fp8_steps = 2;

// Key of the codes of a weight: all that decides them.
struct Fp8WeightKey {
    std::uint64_t version = 0;  // of the weight
    std::uint64_t run = 0;      // MemoryHook::number_of(): a captured step makes its own
    Dtype low = bfloat16;       // the weight is rounded to it first
    amp::Recipe recipe = amp::Recipe::current;
    Granularity granularity = Granularity::tensor;
    bool exact_scale = false;
    double margin = 0;
    friend bool operator==(const Fp8WeightKey&, const Fp8WeightKey&) = default;
};

// Several threads may use it at once.
class Fp8Weight final : public LeafState {
public:
    // The state of a leaf, made if there is none; null for other tensors.
    static Ref<Fp8Weight> of(const Tensor& weight);
    // The state of a leaf if there is one.
    static Ref<Fp8Weight> existing(const Tensor& weight);

    // The wanted codes under this key, of earlier calls or of `make`, and perhaps others. steps > 0: the
    // weight's largest element goes into the history of this length, once for all calls under the key.
    QuantizedBoth codes(const Fp8WeightKey& key, Wanted wanted, int steps,
                        const std::function<Fp8Codes()>& make);

    // The largest element for which an operand is scaled: that of the history, or `current` if the history is
    // empty. Of current's shape.
    Tensor largest(Fp8Operand operand, const Tensor& current);
    // Adds the largest element of an operand to the running step of a history of this length.
    void record(Fp8Operand operand, const Tensor& largest, int steps);
    // Makes the history, unless there is one on this device and of this length.
    void prepare(Device device, int steps);
    // The history [fp8_operands, fp8_steps + n], undefined if there is none.
    Tensor history() const;
    // Replaces it; undefined: begins anew.
    void set_history(const Tensor& history);

    // LeafState::step_ended: drops the codes, and moves the histories on.
    static void end_step(const Tensors& parameters, ReducedStates ranks,
                         const std::function<void(const Tensor&)>& reduce_max);
    [[nodiscard]] bool reduced() const override { return history().defined(); }
    // Drops the codes; the history goes to the device.
    void moved(Device device) override;
    // It has the history, and makes codes of its own.
    [[nodiscard]] Ref<LeafState> copy() const override;

private:
    void drop_codes();
    void require_same_history();

    mutable std::recursive_mutex mutex_;
    Fp8WeightKey key_;
    Fp8Codes codes_;         // under key_; undefined: not made yet
    bool recorded_ = false;  // the history has codes_.largest
    Tensor history_;         // after a step a part of `all`
    // Histories of all parameters of the optimizer [parameters, fp8_operands, fp8_steps + n]. The window is 1
    // for the steps of a parameter's own history [parameters, 1, n].
    struct OfOptimizer {
        Tensor all, window;
    } optimizer_;
    static void prepare_as_others(const Tensors& parameters,
                                  const std::function<void(const Tensor&)>& reduce_max);
    static OfOptimizer gather(const std::vector<Fp8Weight*>& states);
};

}  // namespace mezzo
