// The code of docs/guide/interchange.md: each block there is a case here.
#include <catch2/catch.hpp>

#include "mezzo/interchange/onnx.h"
#include "mezzo/interchange/pytorch.h"
#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/bert_config.h"
#include "tests/support/folder.h"
#include "tests/support/torch_files.h"

namespace mz = mezzo;

namespace {

// Makes short file names in the document those of a temporary folder.
struct InFolder {
    InFolder() { std::filesystem::current_path(folder.path); }
    ~InFolder() { std::filesystem::current_path(before); }
    InFolder(const InFolder&) = delete;
    InFolder& operator=(const InFolder&) = delete;
    std::filesystem::path before = std::filesystem::current_path();
    mz::test::Folder folder;
};

mz::nn::BertConfig small() {
    mz::nn::BertConfig config;
    config.vocab_size = 20;
    config.hidden_size = 8;
    config.num_hidden_layers = 1;
    config.num_attention_heads = 2;
    config.intermediate_size = 16;
    return config;
}

}  // namespace

TEST_CASE("onnx document: an MLP", "[io]") {
    const InFolder here;
    // begin
    mz::nn::Sequential net(mz::nn::Linear(784, 128), mz::nn::ReLU(), mz::nn::Linear(128, 10));
    mz::io::export_onnx(net, {mz::randn({1, 784})}, "mlp.onnx");  // a batch of any size
    // end
    CHECK(here.folder.listing() == "mlp.onnx ");
    CHECK(std::filesystem::file_size("mlp.onnx") > 4 * (785 * 128 + 129 * 10));
}

TEST_CASE("onnx document: several inputs, and a function", "[io]") {
    const InFolder here;
    mz::nn::BertForSequenceClassification bert(small());
    mz::nn::Bert encoder(small());
    // begin
    const mz::Tensor ids = mz::zeros({1, 16}, {.dtype = mz::int64});
    const mz::Tensor real = mz::ones({1, 16}, {.dtype = mz::boolean});  // true for tokens, false for padding
    mz::io::export_onnx(bert, {ids, real}, "bert.onnx",
                        {.input_names = {"input_ids", "attention_mask"}, .output_names = {"logits"}});
    // end
    // begin
    mz::io::export_onnx(encoder, {ids}, "encoder.onnx", [&](const mz::Tensors& in) {
        const mz::nn::BertOutput y = encoder(in[0]);
        return mz::Tensors{y.last_hidden_state, y.pooler_output};
    });
    // end
    CHECK(here.folder.listing() == "bert.onnx encoder.onnx ");
}

TEST_CASE("onnx document: a recurrent layer whose batch is not dimension 0", "[io]") {
    const InFolder here;
    mz::nn::LSTM lstm(3, 4, {.num_layers = 2});
    const mz::Tensor steps = mz::randn({1, 5, 3}), h0 = mz::zeros({1, 2, 4}), c0 = mz::zeros({1, 2, 4});
    // begin
    const auto turned = [](const mz::Tensor& x) { return x.transpose(0, 1); };
    mz::io::export_onnx(lstm, {steps, h0, c0}, "lstm.onnx", [&](const mz::Tensors& in) {
        const mz::nn::LSTMResult y = lstm(turned(in[0]), {turned(in[1]), turned(in[2])});
        return mz::Tensors{turned(y.output), turned(y.h_n), turned(y.c_n)};
    });
    // end
    CHECK(here.folder.listing() == "lstm.onnx ");
}

TEST_CASE("interchange document: PyTorch's files", "[io]") {
    const InFolder here;
    const auto weights = [](mz::test::Pickle& pickle) {
        pickle.op("}(").text("weight").tensor("torch.FloatStorage", "0", 2, 0, {1, 2}, {2, 1});
        pickle.text("bias").tensor("torch.FloatStorage", "0", 2, 1, {1}, {1}).op("u");
    };
    const mz::test::Members storages = {{"0", mz::test::bytes_of<float>({3, 4})}};
    mz::test::Pickle model, checkpoint;
    weights(model);
    here.folder.write("model.pth", mz::test::torch_archive(model.str(), storages));
    weights(checkpoint.op("}(").text("model"));
    checkpoint.text("optimizer")
        .op("}")
        .text("state")
        .op("}K")
        .op(std::string(1, '\0'))
        .op("}")
        .text("momentum_buffer");
    checkpoint.tensor("torch.FloatStorage", "0", 2, 0, {2}, {1}).op("sss").text("epoch").op("K\x03u");
    here.folder.write("run.pt", mz::test::torch_archive(checkpoint.str(), storages));
    mz::nn::Linear net(2, 1);
    // begin
    net.load_state_dict(mz::io::load_pytorch("model.pth").state_dict());

    // {"model": {...}, "optimizer": {...}, "epoch": 3}
    const mz::io::PytorchValue run = mz::io::load_pytorch("run.pt");
    mz::io::load_weights(net, run["model"].state_dict());
    const std::int64_t epoch = run["epoch"].integer();
    const mz::Tensor momentum = run["optimizer"]["state"][0]["momentum_buffer"].tensor();
    const std::string overview = run.to_string();  // names, dtypes, shapes and numbers
    // end
    CHECK(net.weight.to_vector<float>() == std::vector<float>{3, 4});
    CHECK(epoch == 3);
    CHECK(momentum.numel() == 2);
    CHECK(overview.find("weight: float32 [1, 2]") != overview.npos);
}
