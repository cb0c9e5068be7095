// Times ops and whole training steps. One case per process, so that peak memory belongs to it; prints one
// JSON object. tools/torch_bench.py runs the same cases in PyTorch, tools/compare.py both of them in turn.
#include <fmt/format.h>
#include <mezzo/mezzo.h>
#include <mezzo/models/bert.h>
#include <mezzo/models/bert_config.h>
#include <mezzo/models/generate.h>
#include <mezzo/models/gpt.h>
#include <mezzo/models/resnet.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "samples/program.h"
#include "tools/bench_device.h"
#include "tools/step_profile.h"

namespace mz = mezzo;

namespace {

struct Settings {
    std::string name = "mlp1024", precision = "float32";
    mz::Device device;
    double seconds = 2;       // of measurement
    int least = 10;           // steps to measure
    int profile = 0;          // steps to trace instead of timing
    std::int64_t divide = 1;  // divisor of the sizes of the recipe and BERT-base
    bool feed = false;        // the batch is copied from host memory in each step
    bool capture = false;

    // Steps that are not measured; for a captured step this includes the capture and some replays.
    int warmup() const { return capture ? mz::cuda::CaptureOptions().warmup + 5 : 3; }
    mz::Device batch_device() const { return feed ? mz::cpu_device : device; }
    bool mixed() const { return precision != "float32"; }
    mz::Dtype dtype() const {
        return precision == "float16" ? mz::float16 : precision == "bfloat16" ? mz::bfloat16 : mz::float32;
    }
};

using Step = std::function<void()>;

// One training step: forward under autocast when the case is 16 bit, backward, update. Gradients are dropped
// at its end, so that a captured step finds none.
Step training_step(const Settings& s, const std::shared_ptr<mz::optim::Optimizer>& optimizer, bool scaled,
                   const std::function<mz::Tensor()>& loss_of) {
    auto scaler = std::make_shared<mz::amp::GradScaler>(mz::amp::GradScalerOptions{.enabled = scaled});
    return [=, &s] {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope(
                {.dtype = s.mixed() ? s.dtype() : mz::float16, .enabled = s.mixed()});
            loss = loss_of();
        }
        scaler->scale(loss).backward();
        scaler->step(*optimizer);
        scaler->update();
        optimizer->zero_grad();
    };
}

// layers x Linear(width, width), with a ReLU after each or only between them; mean squared error, SGD. 16 bit
// means autocast and a gradient scaler.
Step mlp_step(const Settings& s, std::int64_t layers, std::int64_t width, std::int64_t batch,
              bool last_relu = true) {
    mz::manual_seed(0);
    mz::nn::Sequential net;
    for (std::int64_t i = 0; i < layers; ++i) {
        net.push_back(mz::nn::Linear(width, width));
        if (last_relu || i + 1 < layers) net.push_back(mz::nn::ReLU());
    }
    net.to(s.device);
    auto optimizer = std::make_shared<mz::optim::SGD>(net.parameters(), mz::optim::SGDOptions{.lr = 1e-3});
    const mz::Tensor x = mz::randn({batch, width}, {.device = s.batch_device()});
    const mz::Tensor y = mz::randn({batch, width}, {.device = s.batch_device()});
    return training_step(s, optimizer, s.mixed(),
                         [=, &s] { return mz::mse_loss(net(x.to(s.device)), y.to(s.device)); });
}

// BERT with a classifier of two labels on full texts, dropout 0.1, cross-entropy, AdamW. Autocast in 16 bit;
// a gradient scaler in float16 alone.
Step bert_step(const Settings& s, const mz::nn::BertConfig& config, std::int64_t batch, std::int64_t length) {
    mz::manual_seed(0);
    mz::nn::BertForSequenceClassification net(config);
    net.to(s.device);
    auto optimizer =
        std::make_shared<mz::optim::AdamW>(net.parameters(), mz::optim::AdamWOptions{.lr = 1e-4});
    const mz::TensorOptions options{.dtype = mz::int64, .device = s.batch_device()};
    const mz::Tensor ids = mz::randint(1, config.vocab_size, {batch, length}, options);
    const mz::Tensor labels = mz::randint(0, 2, {batch}, options);
    return training_step(s, optimizer, s.dtype() == mz::float16,
                         [=, &s] { return mz::cross_entropy(net(ids.to(s.device)), labels.to(s.device)); });
}

// A ResNet for 10 classes on random images, cross-entropy, SGD with momentum and weight decay. Autocast in 16
// bit; a gradient scaler in float16 alone.
Step resnet_step(const Settings& s, std::int64_t depth, mz::nn::ResNetStem stem, std::int64_t batch,
                 std::int64_t size) {
    mz::manual_seed(0);
    mz::nn::ResNetConfig config = mz::nn::resnet_config(depth);
    config.stem = stem;
    config.num_classes = 10;
    mz::nn::ResNet net(config);
    net.to(s.device);
    auto optimizer = std::make_shared<mz::optim::SGD>(
        net.parameters(), mz::optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4});
    const mz::Tensor images = mz::randn({batch, size, size, 3}, {.device = s.batch_device()});
    const mz::Tensor labels = mz::randint(0, 10, {batch}, {.dtype = mz::int64, .device = s.batch_device()});
    return training_step(s, optimizer, s.dtype() == mz::float16, [=, &s] {
        return mz::cross_entropy(net(images.to(s.device)), labels.to(s.device));
    });
}

// ResNet50 in inference, its batch norms folded, on images of 224 x 224. Autocast in 16 bit.
Step resnet_inference(const Settings& s, std::int64_t batch) {
    mz::manual_seed(0);
    mz::nn::ResNet net(mz::nn::resnet_config(50));
    net.eval();
    net.to(s.device);
    const mz::Tensor images = mz::randn({batch, 224, 224, 3}, {.device = s.device});
    mz::nn::fuse_batch_norms(net, [&] { return mz::Tensors{net(images.slice(0, 0, 1))}; });
    return [=, &s] {
        const mz::InferenceMode inference;
        const mz::amp::Autocast scope({.dtype = s.mixed() ? s.dtype() : mz::float16, .enabled = s.mixed()});
        (void)net(images);
    };
}

// An LSTM of two layers on random sequences, mean squared error, SGD. Autocast in 16 bit; a gradient scaler
// in float16 alone.
Step lstm_step(const Settings& s, std::int64_t hidden, std::int64_t batch, std::int64_t time) {
    mz::manual_seed(0);
    mz::nn::LSTM net(hidden, hidden, {.num_layers = 2});
    net.to(s.device);
    auto optimizer = std::make_shared<mz::optim::SGD>(net.parameters(), mz::optim::SGDOptions{.lr = 1e-3});
    const mz::Tensor x = mz::randn({time, batch, hidden}, {.device = s.batch_device()});
    const mz::Tensor y = mz::randn({time, batch, hidden}, {.device = s.batch_device()});
    return training_step(s, optimizer, s.dtype() == mz::float16,
                         [=, &s] { return mz::mse_loss(net(x.to(s.device)).output, y.to(s.device)); });
}

// One token of a text of GPT-2 small, which begins anew after 96 tokens. 16 bit means a model of that dtype;
// its weights may have 8 bits.
Step generation_step(const Settings& s, bool quantize) {
    mz::manual_seed(0);
    auto model = std::make_shared<mz::nn::Gpt>(mz::nn::GptConfig{});
    model->eval();
    model->to(s.device);
    model->to(s.dtype());
    if (quantize) mz::nn::quantize_weights(*model);
    auto cache = std::make_shared<mz::nn::KeyValueCache>(128);
    auto token = std::make_shared<std::int64_t>(0);
    return [=, &s] {
        const mz::InferenceMode scope;
        if (cache->length() == cache->max_length()) cache->truncate(32);
        const mz::Tensor ids = mz::full({1, 1}, *token, {.dtype = mz::int64, .device = s.device});
        const mz::Tensor logits = model->next_logits(ids, {.cache = cache.get()});
        *token = mz::nn::sample_token(logits.to_vector<float>(), {}, {.temperature = 0});
    };
}

// An op on tensors of the given shapes in the case's dtype, without gradients.
Step op_step(const Settings& s, const std::vector<mz::Shape>& shapes,
             const std::function<mz::Tensor(const mz::Tensors&)>& op) {
    mz::manual_seed(0);
    mz::Tensors inputs;
    for (const mz::Shape& shape : shapes)
        inputs.push_back(mz::randn(shape, {.device = s.device}).to(s.dtype()));
    return [inputs, op] {
        const mz::NoGrad no_grad;
        op(inputs);
    };
}

// The PyTorch AMP recipe's network: 3 x Linear(4096, 4096), ReLU between.
Step recipe_step(const Settings& s, std::int64_t more_rows) {
    return mlp_step(s, 3, 4096 / s.divide, 512 / s.divide + more_rows, false);
}

// BERT-base; divided sizes keep its 12 heads.
Step bert_base_step(const Settings& s, std::int64_t length) {
    const mz::nn::BertConfig config{.hidden_size = 768 / s.divide, .intermediate_size = 3072 / s.divide};
    return bert_step(s, config, 16, length / s.divide);
}

using Make = std::function<Step(const Settings&)>;

Make op_case(const std::vector<mz::Shape>& shapes, const std::function<mz::Tensor(const mz::Tensors&)>& op) {
    return [=](const Settings& s) { return op_step(s, shapes, op); };
}

// Forward and backward of a layer of n x n weights on n rows, under autocast. The gradients of input and
// weight are dropped at the step's end. With `fp8` operands have scales of that granularity, and the scope is
// in bfloat16 if the precision is float32.
Step layer_step(const Settings& s, std::int64_t n, std::optional<mz::Granularity> fp8) {
    mz::manual_seed(0);
    const auto matrix = [&] { return mz::randn({n, n}, {.device = s.device}); };
    const mz::Dtype low = s.mixed() ? s.dtype() : mz::bfloat16, of_result = fp8 ? low : s.dtype();
    const mz::Tensor x = matrix().to(s.dtype()).set_requires_grad(), w = matrix().set_requires_grad();
    const mz::Tensor gradient = matrix().to(of_result);
    mz::amp::AutocastOptions options{.dtype = low, .enabled = fp8.has_value() || s.mixed()};
    if (fp8) options.fp8 = mz::amp::Fp8{.granularity = *fp8, .least_size = 16};
    return [=] {
        mz::Tensor y;
        {
            const mz::amp::Autocast scope(options);
            y = mz::linear(x, w);
        }
        y.backward({.gradient = gradient});
        x.set_grad({}), w.set_grad({});
    };
}

Make layer_case(std::int64_t n, std::optional<mz::Granularity> fp8 = {}) {
    return [=](const Settings& s) { return layer_step(s, n, fp8); };
}

const std::map<std::string, Make>& cases() {
    using In = const mz::Tensors&;
    static constexpr auto cifar = mz::nn::ResNetStem::cifar;
    static const std::map<std::string, Make> table = {
        {"mlp1024", [](const Settings& s) { return mlp_step(s, 3, 1024, 256); }},
        {"mlp64", [](const Settings& s) { return mlp_step(s, 3, 64, 32); }},
        {"recipe512", [](const Settings& s) { return recipe_step(s, 0); }},
        {"recipe513", [](const Settings& s) { return recipe_step(s, 1); }},
        {"bert_base128", [](const Settings& s) { return bert_base_step(s, 128); }},
        {"bert_base512", [](const Settings& s) { return bert_base_step(s, 512); }},
        {"bert6",
         [](const Settings& s) {
             return bert_step(s,
                              {.hidden_size = 384,
                               .num_hidden_layers = 6,
                               .num_attention_heads = 12,
                               .intermediate_size = 1536},
                              16, 64);
         }},
        {"resnet50", [](const Settings& s) { return resnet_step(s, 50, cifar, 16, 32); }},
        {"resnet50_32", [](const Settings& s) { return resnet_step(s, 50, cifar, 32, 32); }},
        {"resnet50_128", [](const Settings& s) { return resnet_step(s, 50, cifar, 128, 32); }},
        {"resnet50_imagenet",
         [](const Settings& s) { return resnet_step(s, 50, mz::nn::ResNetStem::imagenet, 8, 224); }},
        {"resnet50_infer", [](const Settings& s) { return resnet_inference(s, 1); }},
        {"resnet50_infer8", [](const Settings& s) { return resnet_inference(s, 8); }},
        {"gpt2_token", [](const Settings& s) { return generation_step(s, false); }},
        {"gpt2_token_int8", [](const Settings& s) { return generation_step(s, true); }},
        {"lstm512", [](const Settings& s) { return lstm_step(s, 512, 32, 64); }},
        {"resnet20", [](const Settings& s) { return resnet_step(s, 20, cifar, 128, 32); }},
        {"matmul", op_case({{1024, 1024}, {1024, 1024}}, [](In x) { return mz::matmul(x[0], x[1]); })},
        {"matmul8192", op_case({{8192, 8192}, {8192, 8192}}, [](In x) { return mz::matmul(x[0], x[1]); })},
        {"copy", op_case({{512, 1 << 20}}, [](In x) { return x[0].clone(); })},
        {"linear",
         op_case({{256, 1024}, {1024, 1024}, {1024}}, [](In x) { return mz::linear(x[0], x[1], x[2]); })},
        {"linear256", layer_case(256)},
        {"linear256_fp8", layer_case(256, mz::Granularity::tensor)},
        {"linear512", layer_case(512)},
        {"linear512_fp8", layer_case(512, mz::Granularity::tensor)},
        {"linear1024", layer_case(1024)},
        {"linear1024_fp8", layer_case(1024, mz::Granularity::tensor)},
        {"linear1024_mxfp8", layer_case(1024, mz::Granularity::block32)},
        {"linear4096", layer_case(4096)},
        {"linear4096_fp8", layer_case(4096, mz::Granularity::tensor)},
        {"linear4096_mxfp8", layer_case(4096, mz::Granularity::block32)},
        {"linear8192", layer_case(8192)},
        {"linear8192_fp8", layer_case(8192, mz::Granularity::tensor)},
        {"linear8192_mxfp8", layer_case(8192, mz::Granularity::block32)},
        {"gemv",
         op_case({{1, 1024}, {1024, 1024}, {1024}}, [](In x) { return mz::linear(x[0], x[1], x[2]); })},
        {"add", op_case({{1024, 1024}, {1024, 1024}}, [](In x) { return x[0] + x[1]; })},
        {"add_small", op_case({{32, 64}, {32, 64}}, [](In x) { return x[0] + x[1]; })},
        {"relu", op_case({{1024, 1024}}, [](In x) { return mz::relu(x[0]); })},
        {"gelu", op_case({{1024, 1024}}, [](In x) { return mz::gelu(x[0]); })},
        {"exp", op_case({{1024, 1024}}, [](In x) { return mz::exp(x[0]); })},
        {"sum", op_case({{1024, 1024}}, [](In x) { return mz::sum(x[0]); })},
        {"softmax", op_case({{1024, 1024}}, [](In x) { return mz::softmax(x[0]); })},
    };
    return table;
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs the step as a CUDA graph: one launch.
Step captured(const Settings& s, const Step& step) {
    auto graph = std::make_shared<mz::cuda::CapturedStep>(
        [step](const mz::Tensors&) {
            step();
            return mz::Tensors();
        },
        mz::cuda::CaptureOptions{.device = s.device});
    return [graph] { (*graph)({}); };
}

struct Measurement {
    std::vector<double> seconds;  // of each step, the device's work included; ascending
    // per step, if the host waits for the device only after many steps
    double queued_seconds = 0;
    Asked asked;  // counters of the device, per step
};

Measurement measure(const Settings& s, const Step& step) {
    for (int i = 0; i < s.warmup(); ++i) step();
    mz::synchronize(s.device);
    Measurement m;
    const double end = now() + s.seconds;
    for (double begin = now(); begin < end || m.seconds.size() < std::size_t(s.least);) {
        step();
        mz::synchronize(s.device);
        const double done = now();
        m.seconds.push_back(done - begin);
        begin = done;
    }
    const std::size_t steps = m.seconds.size();
    if (s.device.type() != mz::DeviceType::cpu) {  // on the CPU the work is done when the step returns
        const Asked before = asked();
        const double begin = now();
        for (std::size_t i = 0; i < steps; ++i) step();
        m.asked = per_step(before, asked(), double(steps));
        mz::synchronize(s.device);
        m.queued_seconds = (now() - begin) / double(steps);
    }
    std::sort(m.seconds.begin(), m.seconds.end());
    return m;
}

void run(const Settings& s) {
    Step step = cases().at(s.name)(s);
    if (s.capture) step = captured(s, step);
    if (s.profile > 0) {
        fmt::print("{{\"framework\": \"mezzo\", \"case\": \"{}\", \"precision\": \"{}\", \"profile\": {}}}\n",
                   s.name, s.precision, profile_steps(step, s.device, s.warmup(), s.profile));
        return;
    }
    const Measurement m = measure(s, step);
    const Fallbacks without = fallbacks();
    const double median = m.seconds[m.seconds.size() / 2];
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const Asked& a = m.asked;
    fmt::print(
        "{{\"framework\": \"mezzo\", \"case\": \"{}\", \"precision\": \"{}\", \"threads\": {}, \"device\": "
        "\"{}\", \"median_ms\": {:.6f}, \"min_ms\": {:.6f}, \"queued_ms\": {:.6f}, \"steps\": {}, "
        "\"launches\": {:.1f}, \"host_syncs\": {:.1f}, ",
        s.name, s.precision, mz::num_threads(), mz::hardware_name(s.device), 1e3 * median, 1e3 * m.seconds[0],
        1e3 * (m.queued_seconds > 0 ? m.queued_seconds : median), m.seconds.size(), a.launches, a.host_syncs);
    fmt::print(
        "\"pinned_copies\": {:.1f}, \"pinned_mb\": {:.3f}, \"pageable_copies\": {:.1f}, "
        "\"pageable_mb\": {:.3f}, \"copies_to_host\": {:.1f}, \"mb_to_host\": {:.3f}, "
        "\"peak_rss_mb\": {:.1f}, \"peak_device_mb\": {:.1f}, "
        "\"gemm_fallbacks\": {}, \"gemm_invalid\": {}, \"gemm_last\": \"{}\"}}\n",
        a.pinned, a.pinned_bytes / 1e6, a.pageable, a.pageable_bytes / 1e6, a.to_host, a.to_host_bytes / 1e6,
        double(usage.ru_maxrss) * 1024 / 1e6, double(mz::memory_stats(s.device).max_allocated) / 1e6,
        without.products, without.invalid, without.last);
}

// Settings of CUDA's fast paths from the command line; "": not set.
struct FastPaths {
    std::string others = "automatic", flash, implicit_convolution, fuse_bias_gradients, fuse_layers,
                relu_masks;

    mz::FastPath choice(const std::string& own) const {
        const std::string& text = own.empty() ? others : own;
        return text == "on" ? mz::FastPath::on : text == "off" ? mz::FastPath::off : mz::FastPath::automatic;
    }
};

void add_fast_paths(CLI::App& app, FastPaths& paths) {
    const std::vector<std::string> choices = {"automatic", "on", "off"};
    app.add_option("--fast-paths", paths.others, "CUDA: the choice for those that are not named")
        ->check(CLI::IsMember(choices));
    // --name means on; --name=off and --name=automatic are the other settings.
    const auto add = [&](const char* name, std::string& choice, const char* what) {
        return app.add_flag(std::string(name) + "{on}", choice, what)->check(CLI::IsMember(choices));
    };
    add("--flash", paths.flash, "CUDA: attention on Tensor Cores");
    add("--implicit-convolution", paths.implicit_convolution,
        "CUDA: convolutions on Tensor Cores that read images in place");
    add("--fuse-bias-gradients", paths.fuse_bias_gradients,
        "CUDA: gradients of activation and bias in one kernel");
    add("--fuse-layers", paths.fuse_layers, "CUDA: activation gradients in the products of the layers above");
    add("--relu-masks", paths.relu_masks, "CUDA: with --fuse-layers, a mask per ReLU layer");
}

int parse_and_run(int argc, char** argv) {
    Settings s;
    std::string device = "cpu";
    int threads = mz::num_threads();
    std::string matmul_precision = "highest";
    bool autotune = false;
    FastPaths paths;
    std::vector<std::string> names;
    for (const auto& [name, make] : cases()) names.push_back(name);
    CLI::App app{"Times one case and prints a JSON object."};
    app.option_defaults()->always_capture_default();
    app.add_option("--case", s.name, "what to time")->check(CLI::IsMember(names));
    app.add_option("--precision", s.precision,
                   "16 bit means autocast and scaler for steps, the inputs' dtype for ops")
        ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
    app.add_option("--threads", threads, "CPU threads")->transform(program::thread_count());
    app.add_option("--seconds", s.seconds, "of measuring")->transform(program::in_range(1e-3, 1e6));
    app.add_option("--device", device, "cpu, cuda or cuda:N");
    app.add_option("--profile", s.profile, "CUDA: trace so many steps and print the device's work in one")
        ->transform(program::in_range(1, 1000));
    app.add_option("--divide", s.divide, "sizes of the recipe and BERT-base by this number, for a trial")
        ->transform(program::in_range(1, 64));
    CLI::Option* const feed =
        app.add_flag("--feed", s.feed, "training steps: copy the batch from the host's memory in each step");
    app.add_flag("--capture", s.capture, "CUDA: the step as a graph")->excludes(feed);
    add_fast_paths(app, paths);
    app.add_option("--float32-matmul-precision", matmul_precision, "of float32 products")
        ->check(CLI::IsMember({"highest", "high", "medium"}));
    app.add_flag("--autotune", autotune, "CUDA: time the algorithms of matrix products");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    s.device = mz::parse_device(device.c_str());
    mz::set_num_threads(threads);
    mz::set_flash_attention(paths.choice(paths.flash));
    mz::cuda::set_implicit_convolution(paths.choice(paths.implicit_convolution));
    mz::cuda::set_gemm_options({.autotune = autotune,
                                .fuse_bias_gradients = paths.choice(paths.fuse_bias_gradients),
                                .fuse_layers = paths.choice(paths.fuse_layers),
                                .relu_masks = paths.choice(paths.relu_masks)});
    mz::set_float32_matmul_precision(matmul_precision == "highest" ? mz::Float32MatmulPrecision::highest
                                     : matmul_precision == "high"  ? mz::Float32MatmulPrecision::high
                                                                   : mz::Float32MatmulPrecision::medium);
    run(s);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench", [&] { return parse_and_run(argc, argv); });
}
