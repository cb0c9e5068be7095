// DataLoader: order, rows or samples of a batch, transforms, normalisation.
#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "core/tensor_impl.h"
#include "cpu/parallel.h"
#include "data/epoch_order.h"
#include "data/normalize.h"
#include "data/pixels.h"
#include "mezzo/autograd.h"
#include "mezzo/data/loader.h"

namespace mezzo::data {

namespace {

// Copies rows order[first], order[first + 1], ... of a contiguous tensor; without an order, `count` rows from
// `first` on as a view.
Tensor gather_rows(const Tensor& x, const Tensor& order, std::int64_t first, std::int64_t count) {
    if (!order.defined()) return x.slice(0, first, first + count);
    Shape shape = x.shape();
    shape[0] = count;
    const Tensor result = empty(shape, {.dtype = x.dtype()});
    const std::size_t bytes = x.size(0) == 0 ? 0 : std::size_t(x.numel() / x.size(0)) * size_of(x.dtype());
    const std::int64_t* const rows = order.data<std::int64_t>() + first;
    for (std::int64_t i = 0; i < count && bytes > 0; ++i)
        std::memcpy(static_cast<char*>(raw(result)) + std::size_t(i) * bytes,
                    static_cast<const char*>(raw(x)) + std::size_t(rows[i]) * bytes, bytes);
    return result;
}

NormalizeOptions normalization(const DataLoaderOptions& options) {
    return {.mean = options.mean, .stddev = options.stddev, .dtype = options.dtype};
}

bool only(const PerChannel& values, double value) {
    return std::all_of(values.values().begin(), values.values().end(), [&](double v) { return v == value; });
}

bool normalizes_nothing(const DataLoaderOptions& options) {
    return only(options.mean, 0) && only(options.stddev, 1);
}

Tensor normalized(const Tensor& x, const DataLoaderOptions& options) {
    if (x.dtype() == uint8) return normalize(x, normalization(options));
    if (normalizes_nothing(options)) return x;
    const Tensor result = x.clone();
    const auto values = [&](const PerChannel& given, auto&& f) {
        std::vector<double> numbers;
        for (const double v : given.values()) numbers.push_back(f(v));
        const auto n = std::int64_t(numbers.size());
        return Tensor::from<double>(numbers, n == 1 ? Shape{} : Shape{n}, {.dtype = x.dtype()});
    };
    result.add_(values(options.mean, [](double v) { return -v; }));
    if (options.stddev.values().size() == 1) return result.mul_(1 / options.stddev[0]);
    return result.mul_(values(options.stddev, [](double v) { return 1 / v; }));
}

// Samples in memory.
struct Stored final : detail::Samples {
    explicit Stored(const Dataset& dataset) : x(dataset.x) {}
    std::int64_t size() const override { return x.size(0); }
    Tensor image(std::int64_t index) const override { return x.select(0, index); }
    std::int64_t label(std::int64_t) const override { return 0; }  // labels are gathered like x
    Tensor x;
};

Dataset checked(const Dataset& dataset) {
    check(dataset.x.defined() && dataset.y.defined(), ErrorKind::value,
          "DataLoader: ", dataset.x.defined() ? "y" : "x", " is undefined");
    check(dataset.x.dim() >= 1 && dataset.y.dim() >= 1 && dataset.x.size(0) == dataset.y.size(0),
          ErrorKind::shape, "DataLoader: x ", dataset.x.shape(), " and y ", dataset.y.shape(),
          " differ in their first sizes; each row of x needs one of y");
    check(dataset.x.device() == cpu_device && dataset.y.device() == cpu_device, ErrorKind::device,
          "DataLoader: the dataset is on ", dataset.x.device(),
          "; keep it on the CPU, options.device is where batches go");
    return {dataset.x.detach().contiguous(), dataset.y.detach().contiguous()};
}

// The x of a batch whose images are made in several threads. The first image that is ready sets the size of
// all.
class ImageBatch {
public:
    ImageBatch(std::int64_t count, const NormalizeOptions& options)
        : count_(count), options_(options), table_(options) {}
    void put(std::int64_t i, const Pixels& image) {
        std::call_once(made_, [&] {
            check_channels("DataLoader", options_, image.channels);
            x_ = empty({count_, image.height, image.width, image.channels}, {.dtype = options_.dtype});
        });
        check(x_.size(1) == image.height && x_.size(2) == image.width && x_.size(3) == image.channels,
              ErrorKind::shape, "DataLoader: images ", image.image.shape(), " and ",
              Shape{x_.size(1), x_.size(2), x_.size(3)},
              " cannot be in one batch; the transforms must make them equal, as RandomResizedCrop does, or "
              "Resize with CenterCrop");
        table_.write(image.at(0, 0), image.count(), x_, i * image.count());
    }
    const Tensor& x() const { return x_; }

private:
    std::int64_t count_;
    NormalizeOptions options_;
    Normalizer table_;
    std::once_flag made_;
    Tensor x_;
};

// Returns the sample at row i of an epoch.
std::int64_t sample_at(const Tensor& order, std::int64_t i) {
    return order.defined() ? order.data<std::int64_t>()[i] : i;
}

// Random streams other than those of samples: of batches, and of positions in a sampler's order.
constexpr std::uint64_t batch_stream = 1, place_stream = 2;

// A sampler may draw a sample several times in an epoch, so the position identifies the transforms' random
// numbers.
TransformRandom random_of(const DataLoaderOptions& options, std::int64_t epoch, std::int64_t sample,
                          std::int64_t place) {
    if (!options.sampler) return {options.seed, epoch, sample};
    return {options.seed, epoch, place, place_stream};
}

}  // namespace

void DataLoader::check_options() const {
    check(options_.batch_size >= 1, ErrorKind::value, "DataLoader: batch_size is ", options_.batch_size);
    check_normalization("DataLoader", normalization(options_));
    static_cast<void>(options_.shard.slice(0));
    check(!(options_.shuffle && options_.sampler), ErrorKind::value,
          "DataLoader: shuffle and a sampler; the sampler says the order");
    check(options_.num_workers >= 0 && options_.num_workers <= 1024 && options_.prefetch_factor >= 1,
          ErrorKind::value, "DataLoader: num_workers is ", options_.num_workers, ", prefetch_factor ",
          options_.prefetch_factor, "; they must be 0 to 1024, and at least 1");
    check(options_.prefetch >= automatic_prefetch, ErrorKind::value, "DataLoader: prefetch is ",
          options_.prefetch, "; it must be automatic_prefetch or a number of batches");
}

DataLoader::DataLoader(Lazy samples, const DataLoaderOptions& options)
    : samples_(std::move(samples)), options_(options) {
    check_options();
}

DataLoader::DataLoader(const Dataset& dataset, const DataLoaderOptions& options)
    : dataset_(checked(dataset)), samples_(new Stored(dataset_)), options_(options) {
    check_options();
    const Tensor& x = dataset_.x;
    if (options.transforms.empty()) {
        if (x.dtype() == uint8 || is_floating(x.dtype()))
            check_channels("DataLoader", normalization(options), x.dim() > 1 ? x.size(-1) : 1);
        else
            check(normalizes_nothing(options), ErrorKind::dtype,
                  "DataLoader: mean and stddev are for uint8 and floating samples, x is ", x.dtype(),
                  "; convert it with to(float32)");
        return;
    }
    check(x.dtype() == uint8, ErrorKind::dtype, "DataLoader: transforms take uint8 images, x is ", x.dtype());
    check(x.dim() == 4, ErrorKind::shape, "DataLoader: transforms take images, and x ", x.shape(),
          " is not [n, height, width, channels]",
          x.dim() == 3 ? "; unsqueeze(-1) makes one channel of it" : "");
}

const Dataset& DataLoader::dataset() const {
    check(dataset_.x.defined(), ErrorKind::state,
          "DataLoader: its samples are made when they are asked for; "
          "there is no dataset() in memory");
    return dataset_;
}

std::int64_t DataLoader::samples() const {
    const std::int64_t n = options_.sampler ? options_.sampler->size() : samples_->size();
    check(n >= 0, ErrorKind::value, "DataLoader: size() of its ", options_.sampler ? "sampler" : "data set",
          " is ", n);
    return n;
}

std::int64_t DataLoader::size() const {
    const std::int64_t n = samples(), b = options_.batch_size;
    return options_.drop_last ? n / b : n / b + (n % b != 0);
}

std::int64_t DataLoader::rows_at(std::int64_t first) const {
    const std::int64_t left = samples() - first;
    if (left >= options_.batch_size) return options_.batch_size;
    return options_.drop_last ? 0 : std::max<std::int64_t>(left, 0);
}

std::int64_t DataLoader::behind(std::int64_t first) const {
    return first + std::min(options_.batch_size, std::max<std::int64_t>(samples() - first, 0));
}

void DataLoader::set_position(const LoaderPosition& position) {
    check_position("DataLoader", position, samples());
    progress_->next = progress_->position = position;
}

Tensor DataLoader::order_of(std::int64_t epoch) const {
    return epoch_order("DataLoader", samples_->size(), options_.sampler, options_.shuffle, options_.seed,
                       epoch);
}

// Makes the batches of an epoch for worker threads.
struct DataLoader::Worker final : detail::BatchSource {
    Worker(const Shared& l, Tensor o, const LoaderPosition& from)
        : loader(l), order(std::move(o)), epoch(from.epoch), first(from.samples) {}
    detail::SharedObject* claim() override {
        if (loader->value.rows_at(first) == 0) return nullptr;
        return new detail::Box<std::int64_t>(std::exchange(first, loader->value.behind(first)));
    }
    detail::SharedObject* make(detail::SharedObject& claimed) const override {
        const std::int64_t row = static_cast<detail::Box<std::int64_t>&>(claimed).value;
        return new detail::Box<Batch>(loader->value.batch(order, epoch, row));
    }
    Shared loader;
    Tensor order;
    std::int64_t epoch, first;
};

DataLoader::BatchPosition::BatchPosition(const Shared& loader, Tensor order, const LoaderPosition& from)
    : loader_(loader),
      order_(std::move(order)),
      epoch_(from.epoch),
      start_(from.samples),
      first_(from.samples) {
    const DataLoaderOptions& options = loader->value.options_;
    if (options.num_workers == 0 || at_end()) return;
    queue_.emplace(new detail::BatchQueue(new Worker(loader, order_, from), options.num_workers,
                                          std::int64_t(options.num_workers) * options.prefetch_factor));
}

Batch DataLoader::BatchPosition::operator*() const {
    if (queue_) {
        const std::int64_t index = (first_ - start_) / loader_->value.options_.batch_size;
        const std::unique_ptr<detail::SharedObject> made((*queue_)->take(index));
        if (made) return std::move(static_cast<detail::Box<Batch>&>(*made).value);
    }
    return loader_->value.batch(order_, epoch_, first_);
}

DataLoader::Iterator::Iterator(const DataLoader& loader, Tensor order, const LoaderPosition& from)
    : loader_(new detail::Box<DataLoader>(loader)),
      progress_(loader.progress_.shared()),
      at_(from),
      batches_(BatchPosition(loader_, std::move(order), from), {},
               {.device = loader.options_.device, .ahead = loader.options_.prefetch}) {}

Batch DataLoader::Iterator::operator*() {
    Batch batch = *batches_;
    reach({.epoch = at_.epoch, .samples = at_.samples + loader_->value.rows_at(at_.samples)});
    return batch;
}

DataLoader::Iterator& DataLoader::Iterator::operator++() {
    ++batches_;
    at_.samples = loader_->value.behind(at_.samples);
    if (batches_ == std::default_sentinel) reach({.epoch = at_.epoch + 1});
    return *this;
}

DataLoader::Iterator DataLoader::begin() {
    const LoaderPosition from = progress_->next;
    Iterator first(*this, order_of(from.epoch), from);
    progress_->next = {.epoch = from.epoch + 1};
    progress_->position = rows_at(from.samples) > 0 ? from : progress_->next;
    return first;
}

// Updates the position of the training, unless this loop's epoch was begun before the last one.
void DataLoader::Iterator::reach(const LoaderPosition& position) const {
    if (at_.epoch == progress_->next.epoch - 1) progress_->position = position;
}

// Returns normalised rows of a data set in memory, without transforms.
Tensor DataLoader::stored(const Tensor& order, std::int64_t first, std::int64_t count) const {
    return normalized(gather_rows(dataset_.x, order, first, count), options_);
}

Tensor DataLoader::transformed(const Tensor& order, std::int64_t epoch, std::int64_t first,
                               std::int64_t count) const {
    ImageBatch batch(count, normalization(options_));
    const std::int64_t grain = dataset_.x.defined() ? 8 : 1;  // decoding a file is expensive
    cpu::parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        const NoGrad no_grad;
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t sample = sample_at(order, first + i);
            TransformRandom random = random_of(options_, epoch, sample, first + i);
            Tensor image = samples_->image(sample);
            for (const Transform& transform : options_.transforms) image = transform(image, random);
            batch.put(i, pixels_of("DataLoader", image));
        }
    });
    return batch.x();
}

Tensor DataLoader::labels(const Tensor& order, std::int64_t first, std::int64_t count) const {
    if (dataset_.y.defined()) return gather_rows(dataset_.y, order, first, count).contiguous();
    std::vector<std::int64_t> labels;
    for (std::int64_t i = first; i < first + count; ++i)
        labels.push_back(samples_->label(sample_at(order, i)));
    return Tensor::from(labels, {count});
}

Batch DataLoader::batch(const Tensor& order, std::int64_t epoch, std::int64_t first) const {
    const std::int64_t rows = rows_at(first);
    check(rows > 0, ErrorKind::value, "DataLoader: no batch at sample ", first, " of ", samples());
    const ShardRows mine = options_.shard.slice(rows);
    const std::int64_t row = first + mine.first;
    const bool plain = dataset_.x.defined() && options_.transforms.empty();
    Batch batch{plain ? stored(order, row, mine.count) : transformed(order, epoch, row, mine.count),
                labels(order, row, mine.count)};
    TransformRandom random(options_.seed, epoch, first / options_.batch_size, batch_stream);
    for (const BatchTransform& transform : options_.batch_transforms) batch = transform(batch, random);
    batch.weight = mine.weight;  // even if a transform has changed it
    return batch;
}

}  // namespace mezzo::data
