#include "resnet/images.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>

#include "program.h"

namespace mz = mezzo;
namespace fs = std::filesystem;

namespace resnet {

namespace {

using Transforms = std::vector<mz::data::Transform>;

mz::data::DataLoaderOptions loader_options(const Options& o, const mz::data::Shard& shard,
                                           const ImageFormat& format, bool train, Transforms transforms) {
    return {.batch_size = train ? o.batch : std::max<std::int64_t>(o.batch, 100),
            .shuffle = train,
            .seed = o.seed,
            .shard = shard,
            .transforms = std::move(transforms),
            .mean = format.mean,
            .stddev = format.stddev,
            .device = *o.device};
}

Transforms small_crops(const Options& o, const ImageFormat& format) {
    if (!o.augment) return {};
    return {mz::data::RandomCrop{.size = format.size, .padding = 4}, mz::data::RandomHorizontalFlip{}};
}

// Scales the image and crops its central square.
Transforms central(const ImageFormat& format) {
    return {mz::data::Resize{.size = format.size * 8 / 7}, mz::data::CenterCrop{.size = format.size}};
}

std::string description_of(const mz::data::Dataset& set) {
    const std::vector<std::uint8_t> pixels = set.x.to_vector<std::uint8_t>();
    std::uint64_t digest = program::digest_of({reinterpret_cast<const char*>(pixels.data()), pixels.size()});
    for (const std::int64_t label : set.y.to_vector<std::int64_t>())
        digest = program::digest_of(std::to_string(label) + " ", digest);
    return fmt::format("{} images, digest {:016x}", set.size(), digest);
}

Images from_sets(const Options& o, const mz::data::Shard& shard, std::string name, const ImageFormat& format,
                 mz::data::Dataset train, const mz::data::Dataset& test) {
    if (o.image_size != 0 && o.image_size != format.size)
        throw std::runtime_error(
            fmt::format("--image-size: {} has images of {} x {}", name, format.size, format.size));
    if (o.limit > 0) train = {train.x.slice(0, 0, o.limit), train.y.slice(0, 0, o.limit)};
    return {
        .name = std::move(name),
        .format = format,
        .description = description_of(train),
        .train_count = train.size(),
        .test_count = test.size(),
        .train = mz::data::DataLoader(train, loader_options(o, shard, format, true, small_crops(o, format))),
        .test = mz::data::DataLoader(test, loader_options(o, shard, format, false, {}))};
}

// Returns the sorted paths of the folder's files that begin with one of the words and end in .bin.
std::vector<std::string> binaries(const fs::path& folder, std::initializer_list<const char*> words) {
    std::vector<std::string> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        const auto begins = [&](const char* word) { return name.starts_with(word); };
        if (name.ends_with(".bin") && std::any_of(words.begin(), words.end(), begins))
            files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    return files;
}

Images cifar(const Options& o, const mz::data::Shard& shard, const std::vector<std::string>& train,
             const std::vector<std::string>& test) {
    const ImageFormat format{
        .classes = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"},
        .mean = {0.4914, 0.4822, 0.4465},
        .stddev = {0.2023, 0.1994, 0.2010}};
    return from_sets(o, shard, "CIFAR-10", format, mz::data::cifar10({.files = train}),
                     mz::data::cifar10({.files = test}));
}

// Puts 28 x 28 images into the middle of 32 x 32, with one channel.
mz::data::Dataset padded(const mz::data::Dataset& set) {
    const mz::Tensor images = mz::zeros({set.size(), 32, 32, 1}, {.dtype = mz::uint8});
    images.slice(1, 2, 30).slice(2, 2, 30).copy_(set.x.unsqueeze(3));
    return {images, set.y};
}

Images fashion(const Options& o, const mz::data::Shard& shard) {
    const ImageFormat format{.classes = {"T-shirt", "trousers", "pullover", "dress", "coat", "sandal",
                                         "shirt", "sneaker", "bag", "ankle boot"},
                             .channels = 1,
                             .mean = {0.2860},
                             .stddev = {0.3530}};
    return from_sets(o, shard, "Fashion-MNIST", format, padded(mz::data::fashion_mnist({.train = true})),
                     padded(mz::data::fashion_mnist({.train = false})));
}

// Evenly spread images of a folder, so that all of its classes occur.
struct Subset {
    mz::data::ImageFolder folder;
    std::int64_t count;

    std::int64_t size() const { return count; }
    std::int64_t index(std::int64_t i) const { return i * folder.size() / count; }
    mz::Tensor image(std::int64_t i) const { return folder.image(index(i)); }
    std::int64_t label(std::int64_t i) const { return folder.label(index(i)); }
};

Images folder(const Options& o, const mz::data::Shard& shard, const fs::path& root) {
    const fs::path test_root = fs::is_directory(root / "val") ? root / "val" : root / "test";
    if (!fs::is_directory(test_root))
        throw std::runtime_error(
            fmt::format("--data: {} has a folder train, but neither val nor test", root.string()));
    const mz::data::ImageFolder train((root / "train").string()), test(test_root.string());
    if (train.classes() != test.classes())
        throw std::runtime_error(fmt::format("--data: {} and {} have other folders of classes",
                                             (root / "train").string(), test_root.string()));
    const ImageFormat format{.classes = train.classes(),
                             .size = o.image_size > 0 ? o.image_size : 224,
                             .mean = {0.485, 0.456, 0.406},
                             .stddev = {0.229, 0.224, 0.225}};
    std::uint64_t digest = program::digest_of("");
    for (const std::string& file : train.files())  // independent of the folder's path
        digest = program::digest_of(fs::path(file).lexically_relative(root / "train").generic_string() + "\n",
                                    digest);
    const Subset subset{train, o.limit > 0 ? std::min(o.limit, train.size()) : train.size()};
    const Transforms crops{mz::data::RandomResizedCrop{.size = format.size},
                           mz::data::RandomHorizontalFlip{}};
    return {.name = root.string(),
            .format = format,
            .description = fmt::format("{} files, digest of their names {:016x}", subset.size(), digest),
            .train_count = subset.size(),
            .test_count = test.size(),
            .train = mz::data::DataLoader(
                subset, loader_options(o, shard, format, true, o.augment ? crops : central(format))),
            .test = mz::data::DataLoader(test, loader_options(o, shard, format, false, central(format)))};
}

std::string joined(const std::vector<double>& values) { return fmt::format("{}", fmt::join(values, " ")); }

std::vector<double> numbers(const std::string& text) {
    std::vector<double> values;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        double value = 0;
        if (!program::parse_number(std::string_view(text).substr(at, end - at), value)) return {};
        values.push_back(value);
        at = end + 1;
    }
    return values;
}

}  // namespace

Images load_images(const Options& o, const mz::data::Shard& shard) {
    if (o.data.empty()) return fashion(o, shard);
    const fs::path root = o.data;
    if (!fs::is_directory(root)) throw std::runtime_error("--data: " + o.data + ": there is no such folder");
    if (fs::is_directory(root / "train")) return folder(o, shard, root);
    const fs::path inner = root / "cifar-10-batches-bin";
    const fs::path files = fs::is_directory(inner) ? inner : root;
    const auto train = binaries(files, {"train", "data_batch"}), test = binaries(files, {"test"});
    if (train.empty() || test.empty())
        throw std::runtime_error("--data: " + o.data +
                                 ": has neither a folder train nor the files of CIFAR-10 (train*.bin or "
                                 "data_batch*.bin, and test*.bin)");
    return cifar(o, shard, train, test);
}

mz::Tensor read_one(const std::string& file, const ImageFormat& format) {
    mz::Tensor image = mz::data::read_image(
        file, {.mode = format.channels == 1 ? mz::data::ImageMode::gray : mz::data::ImageMode::rgb});
    mz::data::TransformRandom unused(0, 0, 0);
    // An image of the right size, such as one of CIFAR-10, is used as it is.
    if (image.size(0) != format.size || image.size(1) != format.size)
        for (const mz::data::Transform& transform : central(format)) image = transform(image, unused);
    return mz::data::normalize(image, {.mean = format.mean, .stddev = format.stddev}).unsqueeze(0);
}

mz::io::Metadata metadata_of(const ImageFormat& format) {
    return {{"format", "pt"},
            {"classes", fmt::format("{}", fmt::join(format.classes, "\n"))},
            {"image_size", std::to_string(format.size)},
            {"mean", joined(format.mean)},
            {"stddev", joined(format.stddev)}};
}

ImageFormat format_of(const mz::io::Metadata& metadata) {
    ImageFormat format;
    for (const auto& [name, text] : metadata) {
        if (name == "classes") format.classes = program::lines_of(text);
        if (name == "image_size" && !program::parse_number(std::string_view(text), format.size))
            format.size = 0;
        if (name == "mean") format.mean = numbers(text);
        if (name == "stddev") format.stddev = numbers(text);
    }
    format.channels = std::int64_t(format.mean.size());
    const bool whole = format.size > 0 && format.size <= 4096 && format.channels > 0 &&
                       format.channels <= 3 && format.stddev.size() == format.mean.size();
    if (!whole) format.classes.clear();
    return format;
}

}  // namespace resnet
