// Trains small models for three steps in every way that mezzo has, and prints a hash of all parameters per
// case. Two trees whose lines are equal compute the same bits:
//
//   parameter_hashes                   on the CPU
//   parameter_hashes --device cuda     also captured; tests/emulation/parameter_hashes-emulated and
//                                      tests/ptx/parameter_hashes-ptx need no GPU, but --divide 8
//   mezzo-run -n 2 parameter_hashes    DataParallel, and with ZeRO-1; each rank has its own batch
//
// The CPU times kinds of matrix products against each other, and their results differ in the last bits;
// MEZZO_ISA=avx2 leaves one kind.
#include <fmt/format.h>
#include <mezzo/distributed/data_parallel.h>
#include <mezzo/distributed/group.h>
#include <mezzo/mezzo.h>
#include <mezzo/models/bert.h>
#include <mezzo/models/bert_config.h>
#include <mezzo/models/gpt.h>
#include <mezzo/models/gpt_config.h>
#include <mezzo/models/resnet.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "samples/program.h"

namespace mz = mezzo;

namespace {

struct Setting {
    std::string model, mode;
    mz::Dtype dtype;
    mz::Device device;
    std::int64_t divide;  // of the models' sizes
};

struct Training {
    std::shared_ptr<mz::nn::Module> model;
    std::shared_ptr<mz::optim::Optimizer> optimizer;
    std::function<mz::Tensor()> loss;
};

// Draws the batch of this rank.
void seed_batch(const mz::distributed::Group& group) { mz::manual_seed(std::uint64_t(1 + group.rank())); }

Training make_mlp(const Setting& s, const mz::distributed::Group& group) {
    const std::int64_t width = 1024 / s.divide, rows = 256 / s.divide;
    auto net = std::make_shared<mz::nn::Sequential>(mz::nn::Linear(width, width), mz::nn::ReLU(),
                                                    mz::nn::Linear(width, width), mz::nn::ReLU(),
                                                    mz::nn::Linear(width, width));
    net->to(s.device);
    seed_batch(group);
    const mz::Tensor x = mz::randn({rows, width}, {.device = s.device}),
                     y = mz::randn({rows, width}, {.device = s.device});
    return {net, std::make_shared<mz::optim::SGD>(net->named_parameters(), mz::optim::SGDOptions{.lr = 0.1}),
            [=] { return mz::mse_loss((*net)(x), y); }};
}

Training make_bert(const Setting& s, const mz::distributed::Group& group) {
    auto net = std::make_shared<mz::nn::BertForSequenceClassification>(
        mz::nn::BertConfig{.vocab_size = 30522 / s.divide,
                           .hidden_size = 384 / s.divide,
                           .num_hidden_layers = s.divide > 1 ? 2 : 6,
                           .num_attention_heads = s.divide > 1 ? 2 : 12,
                           .intermediate_size = 1536 / s.divide});
    net->to(s.device);
    seed_batch(group);
    const mz::TensorOptions options{.dtype = mz::int64, .device = s.device};
    const mz::Tensor ids = mz::randint(1, 30522 / s.divide, {16 / s.divide, 64}, options),
                     labels = mz::randint(0, 2, {16 / s.divide}, options);
    return {net,
            std::make_shared<mz::optim::AdamW>(net->named_parameters(), mz::optim::AdamWOptions{.lr = 1e-4}),
            [=] { return mz::cross_entropy((*net)(ids), labels); }};
}

Training make_resnet(const Setting& s, const mz::distributed::Group& group) {
    mz::nn::ResNetConfig config = mz::nn::resnet_config(20);
    config.stem = mz::nn::ResNetStem::cifar;
    config.num_classes = 10;
    auto net = std::make_shared<mz::nn::ResNet>(config);
    net->to(s.device);
    seed_batch(group);
    const mz::Tensor images = mz::randn({32 / s.divide, 32, 32, 3}, {.device = s.device}),
                     labels = mz::randint(0, 10, {32 / s.divide}, {.dtype = mz::int64, .device = s.device});
    const mz::optim::SGDOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4};
    return {net, std::make_shared<mz::optim::SGD>(net->named_parameters(), options),
            [=] { return mz::cross_entropy((*net)(images), labels); }};
}

Training make_gpt(const Setting& s, const mz::distributed::Group& group) {
    auto net = std::make_shared<mz::nn::Gpt>(mz::nn::GptConfig{.vocab_size = 2048 / s.divide,
                                                               .n_positions = 128,
                                                               .n_embd = 256 / s.divide,
                                                               .n_layer = 2,
                                                               .n_head = s.divide > 1 ? 2 : 4});
    net->to(s.device);
    seed_batch(group);
    const mz::TensorOptions options{.dtype = mz::int64, .device = s.device};
    const mz::Tensor ids = mz::randint(0, 2048 / s.divide, {4, 64}, options),
                     targets = mz::randint(0, 2048 / s.divide, {4, 64}, options);
    return {net,
            std::make_shared<mz::optim::AdamW>(net->named_parameters(), mz::optim::AdamWOptions{.lr = 1e-3}),
            [=] { return net->loss(ids, targets); }};
}

// FNV-1a of the parameters' bits, in the order of their names in the model.
std::uint64_t hash(const mz::nn::Module& model) {
    std::uint64_t value = 14695981039346656037u;
    for (const mz::Tensor& parameter : model.parameters())
        for (const float x : parameter.detach().to(mz::cpu_device).to_vector<float>()) {
            unsigned char bytes[sizeof x];
            std::memcpy(bytes, &x, sizeof x);
            for (const unsigned char byte : bytes) value = (value ^ byte) * 1099511628211u;
        }
    return value;
}

// Trains for three steps; the scaler's scale grows at the second. Only losses in float16 are scaled.
std::uint64_t train(const Setting& s, const mz::distributed::Group& group) {
    mz::manual_seed(0);
    const Training t = s.model == "mlp1024"    ? make_mlp(s, group)
                       : s.model == "bert6"    ? make_bert(s, group)
                       : s.model == "resnet20" ? make_resnet(s, group)
                                               : make_gpt(s, group);
    std::unique_ptr<mz::distributed::DataParallel> parallel;
    if (group.size() > 1) parallel = std::make_unique<mz::distributed::DataParallel>(*t.model, group);
    if (s.mode == "zero1") mz::distributed::shard(*t.optimizer, *parallel);
    const bool mixed = s.dtype != mz::float32;
    mz::amp::GradScaler scaler({.init_scale = 1024, .growth_interval = 2, .enabled = s.dtype == mz::float16});
    const int parts = s.mode == "accumulated" ? 2 : 1;
    const auto step = [&] {
        for (int part = 0; part < parts; ++part) {
            mz::Tensor loss;
            {
                const mz::amp::Autocast scope({.dtype = mixed ? s.dtype : mz::float16, .enabled = mixed});
                loss = t.loss() / double(parts);
            }
            scaler.scale(loss).backward();
        }
        if (s.mode == "clipped") {
            scaler.unscale_(*t.optimizer);
            mz::nn::clip_grad_norm_(t.model->parameters(), 0.01);
        }
        scaler.step(*t.optimizer);
        scaler.update();
        t.optimizer->zero_grad();
    };
    if (s.mode == "captured") {
        // Two eager steps, because only the first makes 16-bit copies, and a graph.
        mz::cuda::CapturedStep captured([&](const mz::Tensors&) { return step(), mz::Tensors(); },
                                        mz::cuda::CaptureOptions{.warmup = 2, .device = s.device});
        for (int i = 0; i < 3; ++i) captured({});
    } else {
        for (int i = 0; i < 3; ++i) step();
    }
    mz::synchronize(s.device);
    return hash(*t.model);
}

void run(const mz::Device& device, std::int64_t divide) {
    const mz::distributed::Group group = mz::distributed::init();
    std::vector<std::string> modes = {"plain", "clipped", "accumulated"};
    if (group.size() > 1)
        modes = {"data_parallel", "zero1"};
    else if (device.type() != mz::DeviceType::cpu)
        modes.emplace_back("captured");
    const struct {
        const char* name;
        mz::Dtype dtype;
    } precisions[] = {{"float32", mz::float32}, {"bfloat16", mz::bfloat16}, {"float16", mz::float16}};
    for (const char* model : {"mlp1024", "bert6", "resnet20", "gpt"})
        for (const auto& [precision, dtype] : precisions)
            for (const std::string& mode : modes) {
                const std::uint64_t value = train({model, mode, dtype, device, divide}, group);
                if (!group.leader()) continue;
                fmt::print("{:8} {:8} {:13} {:016x}\n", model, precision, mode, value);
                std::fflush(stdout);
            }
}

int parse_and_run(int argc, char** argv) {
    std::string device = "cpu";
    std::int64_t divide = 1;
    CLI::App app{"Prints a hash of the parameters after three steps, per model, precision and way to train."};
    app.option_defaults()->always_capture_default();
    app.add_option("--device", device, "cpu, cuda or cuda:N");
    app.add_option("--divide", divide, "sizes by this number, for an emulated device")
        ->transform(program::in_range<std::int64_t>(1, 8));
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    run(mz::parse_device(device.c_str()), divide);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("parameter_hashes", [&] { return parse_and_run(argc, argv); });
}
