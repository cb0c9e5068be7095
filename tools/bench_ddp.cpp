// Measures data-parallel training of an MLP or a small BERT: CPU time and clock time of a step, and the peak
// memory of a rank. A single process is the reference for the efficiency; under mezzo-run every rank has its
// own batch of the same size. tools/torch_ddp.py does the same in PyTorch, and tools/compare_ddp.py runs
// both. Rank 0 prints one JSON object.
#include <fmt/format.h>
#include <mezzo/distributed/data_parallel.h>
#include <mezzo/distributed/group.h>
#include <mezzo/mezzo.h>
#include <mezzo/models/bert.h>
#include <mezzo/models/bert_config.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "samples/program.h"

namespace mz = mezzo;

namespace {

struct Settings {
    std::string model = "mlp", precision = "fp32";
    std::int64_t rows = 0, length = 128;  // of a rank's batch; 0 rows: 1024 for the MLP, 16 for BERT
    int steps = 20, warmup = 3, threads = 1;
    double bucket_mib = 0;
    bool overlap = true, homes = true, shard = false;
    // O2: 16-bit parameters with master weights. They are cast after the seed's float32 values are drawn.
    bool is_16bit_model() const { return precision == "O2"; }
};

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double peak_megabytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return double(usage.ru_maxrss) / 1024;
}

double clock_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

struct Training {
    std::optional<mz::nn::Sequential> mlp;
    std::optional<mz::nn::BertForSequenceClassification> bert;
    mz::nn::Module* model = nullptr;
    std::function<mz::Tensor()> loss;
};

void make_mlp(const Settings& s, Training& training) {
    training.mlp.emplace(mz::nn::Linear(784, 1024), mz::nn::ReLU(), mz::nn::Linear(1024, 1024),
                         mz::nn::ReLU(), mz::nn::Linear(1024, 10));
    training.model = &*training.mlp;
    const mz::Tensor x = mz::randn({s.rows, 784}).to(s.is_16bit_model() ? mz::bfloat16 : mz::float32),
                     y = mz::randint(0, 10, {s.rows});
    training.loss = [&training, x, y] { return mz::cross_entropy((*training.mlp)(x), y); };
}

void make_bert(const Settings& s, Training& training) {
    mz::nn::BertConfig config{.hidden_dropout_prob = 0, .attention_probs_dropout_prob = 0};  // BERT-base
    if (s.model == "bert") {
        config.vocab_size = 8000;
        config.hidden_size = 256;
        config.num_hidden_layers = config.num_attention_heads = 4;
        config.intermediate_size = 1024;
    }
    training.bert.emplace(config);
    training.model = &*training.bert;
    const mz::Tensor ids = mz::randint(0, 8000, {s.rows, s.length}), y = mz::randint(0, 2, {s.rows});
    training.loss = [&training, ids, y] { return mz::cross_entropy((*training.bert)(ids), y); };
}

struct Cost {
    std::vector<double> cpu, clock;  // seconds of each step
    double allocated = 0;            // MB of parameters, gradients and state, between two steps
};

std::int64_t parameters_of(const mz::nn::Module& model) {
    std::int64_t count = 0;
    for (const mz::Tensor& p : model.parameters()) count += p.numel();
    return count;
}

Cost measure(const Settings& s, const mz::distributed::Group& group, Training& training) {
    if (s.is_16bit_model()) training.model->to(mz::bfloat16);
    mz::distributed::DataParallelOptions options{.overlap = s.overlap, .gradients_in_buckets = s.homes};
    if (s.bucket_mib > 0) options.bucket_bytes = std::int64_t(s.bucket_mib * (1 << 20));
    mz::distributed::DataParallel parallel(*training.model, group, options);
    mz::optim::AdamW optimizer(training.model->named_parameters(), {.lr = 1e-4});
    if (s.shard) mz::distributed::shard(optimizer, parallel);
    if (s.is_16bit_model()) optimizer.use_master_weights();
    Cost cost;
    for (int i = 0; i < s.warmup + s.steps; ++i) {
        const double cpu = cpu_seconds(), clock = clock_seconds();
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope({.dtype = mz::bfloat16, .enabled = s.precision == "bf16"});
            loss = training.loss();
        }
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        if (i < s.warmup) continue;
        cost.cpu.push_back(cpu_seconds() - cpu);
        cost.clock.push_back(clock_seconds() - clock);
    }
    cost.allocated = double(mz::memory_stats(mz::cpu_device).allocated) * 1e-6;
    return cost;
}

void run(const Settings& s, const mz::distributed::Group& group) {
    mz::set_num_threads(s.threads);
    mz::manual_seed(std::uint64_t(group.rank()));
    const double before = peak_megabytes();
    Training training;
    if (s.model == "mlp")
        make_mlp(s, training);
    else
        make_bert(s, training);
    const Cost cost = measure(s, group, training);
    const std::vector<double> mine{median(cost.cpu), median(cost.clock), peak_megabytes(), before,
                                   cost.allocated};
    const std::size_t n = mine.size();
    const auto all = group.all_gather(mz::Tensor::from(mine, {std::int64_t(n)})).to_vector<double>();
    std::vector<double> sums(n, 0), most(n, 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
        sums[i % n] += all[i] / group.size();
        most[i % n] = std::max(most[i % n], all[i]);
    }
    if (group.leader())
        fmt::print(
            "{{\"peer\": \"mezzo\", \"ranks\": {}, \"cpu_ms\": {:.3f}, \"clock_ms\": {:.3f}, \"peak_mb\": "
            "{:.1f}, "
            "\"before_mb\": {:.1f}, \"allocated_mb\": {:.1f}, \"parameters\": {}}}\n",
            group.size(), 1e3 * sums[0], 1e3 * sums[1], most[2], most[3], most[4],
            parameters_of(*training.model));
}

int parse_and_run(int argc, char** argv) {
    Settings s;
    CLI::App app{"Costs of a data-parallel training step."};
    app.option_defaults()->always_capture_default();
    app.add_option("--model", s.model,
                   "mlp: 784-1024-1024-10; bert: 4 layers of width 256; bert-base: 12 of width 768")
        ->check(CLI::IsMember({"mlp", "bert", "bert-base"}));
    app.add_option("--precision", s.precision,
                   "fp32, bf16 autocast, or O2: bfloat16 parameters with float32 masters")
        ->check(CLI::IsMember({"fp32", "bf16", "O2"}));
    app.add_option("--rows", s.rows, "of a rank's batch; 0: 1024 for the MLP, 16 for BERT")
        ->transform(program::not_negative());
    app.add_option("--length", s.length, "tokens of a row")
        ->transform(program::in_range<std::int64_t>(1, 512));
    app.add_option("--steps", s.steps, "that are measured; medians are printed")
        ->transform(program::in_range(1, 1 << 20));
    app.add_option("--warmup", s.warmup, "steps before them")->transform(program::in_range(0, 1 << 20));
    app.add_option("--threads", s.threads, "CPU threads of a rank")->transform(program::thread_count());
    app.add_option("--bucket-mib", s.bucket_mib, "of a bucket of gradients; 0: mezzo's choice")
        ->transform(program::in_range(0.0, 1e6));
    app.add_flag("--overlap,!--no-overlap", s.overlap, "reduce while backward runs");
    app.add_flag("--homes,!--no-homes", s.homes, "gradients are made in their buckets");
    app.add_flag("--shard", s.shard, "each rank keeps a part of the optimizer's state only");
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    if (s.rows == 0) s.rows = s.model == "mlp" ? 1024 : 16;
    run(s, mz::distributed::init());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return program::run("bench_ddp", [&] { return parse_and_run(argc, argv); });
}
