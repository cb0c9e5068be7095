// Computes the orders of epochs.
#include "data/epoch_order.h"

#include <numeric>
#include <string>

#include "core/philox.h"
#include "core/tensor_impl.h"
#include "mezzo/error.h"

namespace mezzo::data {

Tensor permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch) {
    const Tensor result = empty({n}, {.dtype = int64});
    auto* const order = static_cast<std::int64_t*>(raw(result));
    std::iota(order, order + n, std::int64_t{0});
    for (std::uint64_t i = std::uint64_t(n); i > 1; --i) {
        const PhiloxWords words = philox(seed, i, std::uint64_t(epoch));
        const std::uint64_t random = std::uint64_t(words.v[0]) << 32 | words.v[1];
        std::swap(order[i - 1], order[random % i]);  // bias below i / 2^64
    }
    return result;
}

void check_position(const char* op, const LoaderPosition& position, std::int64_t samples) {
    const bool known = samples >= 0;
    check(position.epoch >= 0 && position.epoch < std::int64_t(1) << 62 && position.samples >= 0 &&
              (!known || position.samples <= samples),
          ErrorKind::value, op, ": position is epoch ", position.epoch, ", sample ", position.samples,
          "; an epoch has ", known ? std::to_string(samples) : std::string("unknown many"),
          " samples, and epochs are in [0, 2^62)");
}

Tensor epoch_order(const char* op, std::int64_t samples, const std::optional<Sampler>& sampler, bool shuffle,
                   std::uint64_t seed, std::int64_t epoch) {
    if (!sampler) return shuffle ? permutation(samples, seed, epoch) : Tensor();
    const Tensor order = sampler->order(epoch);
    check(order.defined() && order.dtype() == int64, ErrorKind::dtype, op, ": the sampler's order is ",
          order.defined() ? name(order.dtype()) : "undefined", "; it must be int64");
    check(order.shape() == Shape{sampler->size()} && order.device() == cpu_device, ErrorKind::value, op,
          ": the sampler's order is ", order.shape(), " on ", order.device(), "; its size() is ",
          sampler->size(), ", and it must be on the CPU");
    const Tensor rows = order.contiguous();
    const auto* const first = rows.data<std::int64_t>();
    for (std::int64_t i = 0; i < rows.numel(); ++i)
        check(first[i] >= 0 && first[i] < samples, ErrorKind::value, op, ": place ", i,
              " of the sampler's order is sample ", first[i], ", and there are ", samples);
    return rows;
}

}  // namespace mezzo::data
