#include "mezzo/batch_loader.h"

#include <numeric>

#include "data/order.h"

namespace mezzo::data::detail {

void check_options(const BatchLoaderOptions& options, bool stream) {
    check(options.batch_size >= 1 && options.prefetch_factor >= 1, ErrorKind::value,
          "BatchLoader: batch_size is ", options.batch_size, ", prefetch_factor ", options.prefetch_factor);
    check(options.num_workers >= 0 && options.num_workers <= 1024, ErrorKind::value,
          "BatchLoader: num_workers is ", options.num_workers, "; it must be 0 to 1024");
    check(!(options.shuffle && options.sampler), ErrorKind::value,
          "BatchLoader: shuffle and a sampler; the sampler says the order");
    check(!stream || (!options.shuffle && !options.sampler), ErrorKind::value,
          "BatchLoader: a stream says its order itself; shuffle and sampler are for data sets with an index");
}

void check_position(const LoaderPosition& position, std::int64_t samples) {
    check(position.epoch >= 0 && position.samples >= 0 && (samples < 0 || position.samples <= samples),
          ErrorKind::value, "BatchLoader: position is epoch ", position.epoch, ", sample ", position.samples,
          "; an epoch has ", samples, " samples");
}

Tensor order_of(const BatchLoaderOptions& options, std::int64_t samples, std::int64_t epoch) {
    const Tensor order =
        epoch_order("BatchLoader", samples, options.sampler, options.shuffle, options.seed, epoch);
    if (order.defined()) return order;
    std::vector<std::int64_t> all(static_cast<std::size_t>(samples));
    std::iota(all.begin(), all.end(), std::int64_t{0});
    return Tensor::from(all, {samples});
}

}  // namespace mezzo::data::detail
