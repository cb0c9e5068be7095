// Ports of the three PyTorch programs in tools/port_parity.py, line by line: trains a model from the weights
// and on the batches of a folder in float64, and prints the losses as a JSON list.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <vector>

#include "mezzo/averaged_model.h"
#include "tools/parity.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

using Batch = std::map<std::string, mz::Tensor>;

// PyTorch's images and signals have their channels second.
mz::Tensor channels_last(mz::Tensor x) {
    for (int i = 1; i + 1 < x.dim(); ++i) x = x.transpose(i, i + 1);
    return x;
}

struct Block : nn::Sequential {
    Block(std::int64_t before, std::int64_t after)
        : Sequential(
              nn::Conv2d(before, after, 3,
                         {.padding = mz::same_padding, .bias = false, .padding_mode = mz::PadMode::reflect}),
              nn::BatchNorm2d(after), nn::LeakyReLU(0.1),
              nn::Conv2d(after, after, 3, {.padding = 1, .bias = false}),
              nn::InstanceNorm2d(after, {.affine = true}), nn::ReLU6()) {}
};

struct UNet : nn::Module {
    Block down1{1, 8}, down2{8, 16}, bottom{16, 32};
    nn::ConvTranspose2d up2{32, 16, 2, {.stride = 2}};
    nn::Sequential up1{nn::Upsample({.scale_factor = 2}), nn::Conv2d(16, 8, 1)};
    Block join2{32, 16}, join1{16, 8};
    nn::Conv2d head{8, 1, 1};

    mz::Tensor operator()(const mz::Tensor& x) const {
        const mz::Tensor a = down1(x);
        const mz::Tensor b = down2(mz::max_pool2d(a, {.kernel_size = 2}));
        const mz::Tensor c = bottom(mz::max_pool2d(b, {.kernel_size = 2}));
        mz::Tensor y = join2(mz::cat({up2(c), b}, -1));
        y = join1(mz::cat({up1(y), a}, -1));
        return head(y);
    }
    MEZZO_MODULE(UNet, down1, down2, bottom, up2, up1, join2, join1, head)
};

struct ViT : nn::Module {
    nn::Conv2d patches{3, 48, 4, {.stride = 4}};
    nn::Parameter token{mz::randn({1, 1, 48}) * 0.02}, positions{mz::randn({1, 17, 48}) * 0.02};
    nn::TransformerEncoder encoder{48,
                                   4,
                                   {.num_layers = 3,
                                    .layer = {.dim_feedforward = 96,
                                              .dropout = 0,
                                              .activation = mz::LinearActivation::gelu,
                                              .norm_first = true}}};
    nn::LayerNorm norm{48};
    nn::Linear head{48, 10};

    mz::Tensor operator()(const mz::Tensor& x) const {
        mz::Tensor y = patches(x).flatten(1, 2);
        y = mz::cat({token.expand({x.size(0), 1, 48}), y}, 1) + positions;
        return head(norm(encoder(y)).select(1, 0));
    }
    MEZZO_MODULE(ViT, patches, token, positions, encoder, norm, head)
};

struct Speech : nn::Module {
    nn::Sequential front{nn::Conv1d(16, 32, 5, {.stride = 2, .padding = 2}), nn::GELU(),
                         nn::GroupNorm(4, 32)};
    nn::LSTM rnn{32, 24, {.num_layers = 2, .bidirectional = true}};
    nn::Linear head{48, 12};

    mz::Tensor operator()(const mz::Tensor& x) const {  // [N, T, 16] -> [T / 2, N, 12]
        const mz::Tensor y = front(x).permute({1, 0, 2});
        return mz::log_softmax(head(rnn(y).output), -1);
    }
    MEZZO_MODULE(Speech, front, rnn, head)
};

// 1 - Dice's coefficient of each image.
mz::Tensor dice(const mz::Tensor& logits, const mz::Tensor& y) {
    const mz::Tensor p = mz::sigmoid(logits);
    return 1.0 -
           (2.0 * mz::sum(p * y, {1, 2, 3}) + 1.0) / (mz::sum(p, {1, 2, 3}) + mz::sum(y, {1, 2, 3}) + 1.0);
}

std::vector<double> train_unet(UNet& net, const std::vector<Batch>& batches) {
    mz::optim::RAdam optimizer(net.parameters(),
                               {.lr = 3e-3, .weight_decay = 1e-4, .decoupled_weight_decay = true});
    mz::optim::LinearLR schedule(optimizer, {.start_factor = 0.2, .total_iters = 4});
    std::vector<double> losses;
    for (const Batch& batch : batches) {
        const mz::Tensor logits = net(channels_last(batch.at("x"))), y = channels_last(batch.at("y"));
        const mz::Tensor loss = mz::binary_cross_entropy_with_logits(
                                    logits, y, {.pos_weight = mz::full({1}, 3, {.dtype = mz::float64})}) +
                                mz::mean(dice(logits, y));
        optimizer.zero_grad();
        loss.backward();
        nn::clip_grad_norm_(net.parameters(), 1.0);
        optimizer.step();
        schedule.step();
        losses.push_back(loss.item<double>());
    }
    return losses;
}

std::vector<double> train_vit(ViT& net, const std::vector<Batch>& batches) {
    mz::Tensors matrices, others;
    for (const auto& [name, p] : net.named_parameters())
        (p.dim() == 2 && name.starts_with("encoder") ? matrices : others).push_back(p);
    mz::optim::Muon muon(matrices, {.lr = 0.02, .weight_decay = 0.01, .momentum = 0.95});
    mz::optim::AdamW adamw(others, {.lr = 1e-3, .weight_decay = 0.05});
    mz::optim::AveragedModel average(net, {.average = mz::optim::ema_average(0.9)});
    ViT averaged = nn::clone(net);  // a copy would share the parameters
    std::vector<double> losses;
    for (const Batch& batch : batches) {
        const mz::Tensor x = channels_last(batch.at("x"));
        const mz::Tensor loss = mz::cross_entropy(net(x), batch.at("y"), {.label_smoothing = 0.1});
        loss.backward();
        muon.step();
        adamw.step();
        muon.zero_grad();
        adamw.zero_grad();
        average.update_parameters(net);
        average.copy_to(averaged);
        const mz::NoGrad no_grad;
        losses.push_back(loss.item<double>());
        losses.push_back(mz::cross_entropy(averaged(x), batch.at("y")).item<double>());
    }
    return losses;
}

std::vector<double> train_ctc(Speech& net, const std::vector<Batch>& batches) {
    mz::optim::NAdam optimizer(net.parameters(), {.lr = 0x1p-8});
    std::vector<double> losses;
    for (const Batch& batch : batches) {
        const mz::Tensor loss =
            mz::ctc_loss(net(channels_last(batch.at("x"))), batch.at("y"), batch.at("input_lengths"),
                         batch.at("target_lengths"), {.zero_infinity = true});
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
        losses.push_back(loss.item<double>());
    }
    return losses;
}

template <class Net, class Train> void run(const parity::Settings& s, const Train& train) {
    Net net;
    net.to(mz::float64);
    mz::io::load_weights(net, mz::io::load_state_dict_file(s.path("weights.safetensors")), {.strict = true});
    std::map<std::int64_t, Batch> steps;
    for (const auto& [name, tensor] : mz::io::load_state_dict_file(s.path("batches.safetensors")))
        steps[std::stoll(name)][name.substr(name.find('.') + 1)] = tensor;
    std::vector<Batch> batches;
    for (const auto& [step, batch] : steps) batches.push_back(batch);
    fmt::print("[{}]\n", fmt::join(train(net, batches), ", "));
}

}  // namespace

int main(int argc, char** argv) {
    parity::Settings s;
    std::string model = "unet";
    return parity::run_program(
        "port_parity", "Trains a port of a PyTorch program and prints its losses.", s, argc, argv,
        [&](CLI::App& app) {
            app.add_option("--model", model)->check(CLI::IsMember({"unet", "vit", "ctc"}));
        },
        [&] {
            if (model == "unet") run<UNet>(s, train_unet);
            if (model == "vit") run<ViT>(s, train_vit);
            if (model == "ctc") run<Speech>(s, train_ctc);
        });
}
