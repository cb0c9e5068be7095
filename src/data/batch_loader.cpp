#include "mezzo/data/batch_loader.h"

#include "data/epoch_order.h"

namespace mezzo::data::detail {

void check_options(const BatchLoaderOptions& options, bool stream) {
    check(options.batch_size >= 1 && options.prefetch_factor >= 1, ErrorKind::value,
          "BatchLoader: batch_size is ", options.batch_size, ", prefetch_factor ", options.prefetch_factor);
    check(options.num_workers >= 0 && options.num_workers <= 1024, ErrorKind::value,
          "BatchLoader: num_workers is ", options.num_workers, "; it must be 0 to 1024");
    static_cast<void>(options.shard.slice(0));
    check(!(options.shuffle && options.sampler), ErrorKind::value,
          "BatchLoader: shuffle and a sampler; the sampler says the order");
    check(!stream || (!options.shuffle && !options.sampler), ErrorKind::value,
          "BatchLoader: a stream says its order itself; shuffle and sampler are for data sets with an index");
}

void check_position(const LoaderPosition& position, std::int64_t samples) {
    data::check_position("BatchLoader", position, samples);
}

std::int64_t checked_size(std::int64_t samples) {
    check(samples >= 0, ErrorKind::value, "BatchLoader: size() of its data set or sampler is ", samples);
    return samples;
}

Tensor order_of(const BatchLoaderOptions& options, std::int64_t samples, std::int64_t epoch) {
    return epoch_order("BatchLoader", samples, options.sampler, options.shuffle, options.seed, epoch);
}

}  // namespace mezzo::data::detail
