// Trains a ResNet on CIFAR-10, on folders of images or on Fashion-MNIST, in float32, with mezzo's mixed
// precision or with a preset O0 to O3; under mezzo-run on several ranks. samples/resnet holds its parts.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "program.h"
#include "resnet/architecture.h"
#include "resnet/images.h"
#include "resnet/trainer.h"
#include "training/places.h"
#include "training/ranks.h"

namespace mz = mezzo;
using namespace resnet;

namespace {

void check_places(const Options& o) {
    if (!o.save.empty()) training::check_file("--save", o.save);
    if (!o.checkpoint.empty()) training::check_file("--checkpoint", o.checkpoint);
    if (!o.log.empty()) training::check_file("--log", o.log);
    if (!o.profile.empty()) training::check_file("--profile", o.profile);
    if (o.resume && std::filesystem::exists(o.checkpoint)) mz::io::SafeTensors header(o.checkpoint);
}

// If a training follows, weights for other classes leave the last layer as it is.
void load_weights(const Options& o, mz::nn::ResNet& model) {
    const mz::io::LoadReport report =
        mz::io::load_weights(model, mz::io::load_state_dict_file(o.weights),
                             {.rename = [](const std::string& name) { return mz::io::resnet_name(name); },
                              .strict = o.epochs == 0,
                              .ignore_mismatched = o.epochs > 0});
    fmt::print("{}\n{}\n", o.weights, report.to_string());
    if (report.loaded.empty()) throw std::runtime_error(o.weights + ": holds no weights of this model");
}

void print_header(const Options& o, const mz::distributed::Group& group, const Images& images,
                  const mz::nn::ResNet& model) {
    std::int64_t parameters = 0;
    for (const mz::Tensor& p : model.parameters()) parameters += p.numel();
    fmt::print("{} on {}: {} images of {} x {}, {} for tests, {} classes\n", o.model, images.name,
               images.train_count, images.format.size, images.format.size, images.test_count,
               images.format.classes.size());
    fmt::print("{:.2f} M parameters, {}, batch {}, seed {}\n{}\n", double(parameters) * 1e-6, o.arithmetic(),
               o.batch, o.seed, mz::hardware_name(o.device));
    if (group.size() > 1) fmt::print("{} ranks share each batch\n", group.size());
    std::fflush(stdout);
}

void predict(const Options& o, const ImageFormat& format, mz::nn::ResNet& model) {
    for (const std::string& file : o.predict) {
        const mz::Tensor logits = logits_of(o, model, read_one(file, format).to(o.device));
        const std::vector<double> p = mz::softmax(logits).to_vector<double>();
        const auto best = std::max_element(p.begin(), p.end());
        fmt::print("{}\t{:.4f}\t{}\n", format.classes[std::size_t(best - p.begin())], *best, file);
    }
}

// Reads the images of --predict before the training, so that errors come early.
void check_readable(const Options& o, const ImageFormat& format) {
    for (const std::string& file : o.predict) static_cast<void>(read_one(file, format));
}

// Returns the metadata of the file of weights.
mz::io::Metadata stored_metadata(const Options& o) {
    if (o.weights.empty()) return {};
    return mz::io::SafeTensors(o.weights).metadata();
}

void save(const Options& o, const ImageFormat& format, const mz::nn::ResNet& model) {
    mz::io::Metadata metadata = metadata_of(format);
    for (const auto& entry : metadata_of(o.model, model.config)) metadata.push_back(entry);
    mz::io::save_safetensors(o.save, model.state_dict(), metadata);
}

// Returns the exit code.
int run(Options o) {
    const mz::distributed::Group group = training::join_ranks(o.threads);
    if (!o.device_given) o.device = group.device();
    o.progress = o.progress && group.leader();
    mz::distributed::manual_seed(group, o.seed);
    if (group.leader()) check_places(o);
    const mz::io::Metadata stored = stored_metadata(o);
    take_stored(o, stored);
    ImageFormat format = format_of(stored);
    if (o.epochs == 0 && !o.weights.empty() && format.classes.empty() && o.data.empty())
        throw std::runtime_error("--weights: " + o.weights + " has no names of classes; pass --data");
    std::optional<Images> images;
    if (o.epochs > 0 || format.classes.empty()) {
        images = load_images(o, group.shard());
        format = images->format;
    }
    check_readable(o, format);
    mz::nn::ResNet model(config_of(o, format));
    if (!o.weights.empty()) load_weights(o, model);
    model.to(o.device);
    if (o.sync_bn) mz::distributed::convert_sync_batchnorm(model, group);
    if (o.epochs > 0) {
        print_header(o, group, *images, model);
        if (!train(o, group, settings_of(o, *images, model), *images, model))
            return training::exit_code_when_stopped();
    }
    if (!group.leader()) return 0;
    if (!o.save.empty()) save(o, format, model);
    predict(o, format, model);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("resnet", [&] {
        Options options;
        const int code = parse_options(argc, argv, options);
        return code < 0 ? run(options) : code;
    });
}
