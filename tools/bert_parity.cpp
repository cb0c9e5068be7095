// Writes the data that tools/torch_bert.py compares with PyTorch: random weights, batches, and mezzo's hidden
// states, gradients and training losses on them. tools/bert_parity.py runs both sides and prints a table.
#include <string>
#include <vector>

#include "mezzo/models/bert.h"
#include "tools/parity.h"

namespace mz = mezzo;

namespace {

struct Settings : parity::Settings {
    mz::nn::BertConfig config;
    std::int64_t batch = 4, length = 64, steps = 1;
    double lr = 1e-4;
    bool gradients = true;
};

// Texts of different lengths, two token types, and labels that a model can learn: whether the id after [CLS]
// is odd.
mz::StateDict make_batches(const Settings& s) {
    const mz::Shape shape{s.steps, s.batch, s.length};
    const mz::Tensor columns = mz::arange(s.length);
    const mz::Tensor lengths = mz::randint((s.length + 1) / 2, s.length + 1, {s.steps, s.batch, 1});
    const mz::Tensor mask = mz::lt(columns, lengths);
    const mz::Tensor random = mz::randint(1, s.config.vocab_size, shape);
    const mz::Tensor ids = mz::where(mask, random, mz::zeros(shape, {.dtype = mz::int64}));
    const mz::Tensor types =
        mz::cast(mz::logical_and(mask, mz::ge(columns, double(s.length / 3))), mz::int64);
    std::vector<std::int64_t> labels;
    for (const std::int64_t id : ids.select(2, 1).to_vector<std::int64_t>()) labels.push_back(id % 2);
    return {{"input_ids", ids},
            {"attention_mask", mask},
            {"token_type_ids", types},
            {"labels", mz::Tensor::from(labels, {s.steps, s.batch})}};
}

struct Batch {
    mz::Tensor ids, labels;
    mz::nn::BertInputs inputs;
};

Batch batch_of(const Settings& s, const mz::StateDict& batches, std::int64_t step) {
    const auto at = [&](const std::string& wanted) {
        return parity::entry(batches, wanted)[step].contiguous().to(s.device);
    };
    return {at("input_ids"), at("labels"), {at("attention_mask"), at("token_type_ids")}};
}

// Returns hidden states, logits, loss and gradients of the first batch, without dropout.
mz::StateDict values(const Settings& s, mz::nn::BertForSequenceClassification& net, const Batch& batch) {
    net.eval();
    mz::StateDict results;
    mz::Tensor loss;
    {
        const mz::amp::Autocast scope(s.autocast());
        const mz::nn::BertOutput output = net.bert(batch.ids, batch.inputs);
        const mz::Tensor logits = net.classifier(output.pooler_output);
        loss = mz::cross_entropy(logits, batch.labels);
        results = {{"last_hidden_state", output.last_hidden_state.detach()},
                   {"logits", logits.detach()},
                   {"loss", loss.detach()}};
    }
    if (!s.gradients) return results;
    // A scale that float16 needs and float32 is not affected by.
    const double scale = 1024;
    (loss * scale).backward();
    for (const auto& [name, p] : net.named_parameters())
        results.emplace_back("grad." + name, (p.grad() / scale).detach());
    net.zero_grad();
    return results;
}

// Returns the loss of every step of training on the batches, without dropout.
mz::Tensor train(const Settings& s, mz::nn::BertForSequenceClassification& net,
                 const mz::StateDict& batches) {
    mz::optim::AdamW optimizer(net.named_parameters(), {.lr = s.lr, .weight_decay = 0.01});
    mz::amp::GradScaler scaler({.enabled = s.precision == "fp16"});
    std::vector<double> losses;
    for (std::int64_t step = 0; step < s.steps; ++step) {
        const Batch batch = batch_of(s, batches, step);
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope(s.autocast());
            loss = mz::cross_entropy(net(batch.ids, batch.inputs), batch.labels);
        }
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
        losses.push_back(loss.item<double>());
    }
    return mz::Tensor::from(losses, {s.steps});
}

void run(const Settings& s) {
    mz::manual_seed(1);
    mz::nn::BertForSequenceClassification net(s.config);
    const mz::StateDict batches = parity::weights_and_batches(s, net, [&] {
        parity::write_text(s.path("config.json"), mz::io::to_json(s.config));
        return make_batches(s);
    });
    net.to(s.device);
    mz::StateDict results = values(s, net, batch_of(s, batches, 0));
    if (s.steps > 1) results.emplace_back("losses", train(s, net, batches));
    mz::io::save_safetensors(s.path("mezzo_" + s.precision + ".safetensors"), results);
}

void add_options(CLI::App& app, Settings& s) {
    program::add_precision(app, s.precision)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
    const auto size = program::in_range<std::int64_t>(1, 1 << 20);
    app.add_option("--layers", s.config.num_hidden_layers)->transform(size);
    app.add_option("--hidden", s.config.hidden_size)->transform(size);
    app.add_option("--heads", s.config.num_attention_heads)->transform(size);
    app.add_option("--intermediate", s.config.intermediate_size)->transform(size);
    app.add_option("--vocabulary", s.config.vocab_size)->transform(size);
    app.add_option("--activation", s.config.hidden_act);
    app.add_option("--batch", s.batch)->transform(size);
    app.add_option("--length", s.length, "tokens a text")
        ->transform(program::in_range<std::int64_t>(2, 1 << 20));
    app.add_option("--steps", s.steps, "batches to make; more than one are trained on")->transform(size);
    app.add_option("--lr", s.lr, "of training")->transform(program::in_range(0.0, 1.0));
    app.add_option("--gradients", s.gradients, "write the gradients of the first batch");
    app.add_option("--device", s.device_name, "cpu, cuda or cuda:N");
}

}  // namespace

int main(int argc, char** argv) {
    Settings s;
    s.config.hidden_dropout_prob = s.config.attention_probs_dropout_prob = 0;
    return parity::run_program(
        "bert_parity", "Writes weights, batches and results of BERT for a comparison with PyTorch.", s, argc,
        argv, [&](CLI::App& app) { add_options(app, s); }, [&] { run(s); });
}
