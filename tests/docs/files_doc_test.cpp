// The code of docs/guide/files.md: each block there is a case here.
#include <catch2/catch.hpp>

#include "mezzo/mezzo.h"
#include "mezzo/models/bert.h"
#include "mezzo/models/bert_config.h"
#include "tests/support/folder.h"

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

struct Bert : mz::nn::Module {
    mz::nn::Linear pooler{2, 2};
    MEZZO_MODULE(Bert, pooler)
};

}  // namespace

TEST_CASE("files document: weights", "[io]") {
    const InFolder here;
    mz::nn::Linear net(2, 3);
    const std::vector<float> before = net.weight.to_vector<float>();
    // begin
    mz::io::save_safetensors("model.safetensors", net.state_dict());
    net.load_state_dict(
        mz::io::load_state_dict_file("model.safetensors"));  // or model.safetensors.index.json
    // end
    CHECK(net.weight.to_vector<float>() == before);
    CHECK(here.folder.listing() == "model.safetensors ");
}

TEST_CASE("files document: a checkpoint", "[io]") {
    const InFolder here;
    mz::nn::Linear net(2, 3);
    mz::optim::Adam optimizer(net.parameters());
    mz::amp::GradScaler scaler;
    const std::int64_t epoch = 3;
    mz::set_random_state({.seed = 5, .offset = 7});
    // begin
    mz::io::save_checkpoint("run.ckpt", {.model = net.state_dict(),
                                         .optimizer = optimizer.state_dict(),
                                         .scaler = scaler.state_dict(),
                                         .extra = {{"epoch", mz::scalar(epoch, {.dtype = mz::int64})}}});

    const mz::io::Checkpoint saved = mz::io::load_checkpoint("run.ckpt");
    net.load_state_dict(saved.model);
    optimizer.load_state_dict(saved.optimizer);  // schedules count its applied steps, and have no state
    scaler.load_state_dict(saved.scaler);
    mz::set_random_state(saved.random);
    // end
    CHECK(mz::random_state().offset == 7);
    CHECK(saved.extra.at(0).second.item<int>() == 3);
}

TEST_CASE("files document: a BERT", "[io]") {
    const InFolder here;
    std::filesystem::create_directory("bert");
    here.folder.write("bert/config.json", "{}");
    mz::io::save_safetensors("bert/model.safetensors", {{"bert.pooler.weight", mz::full({2, 2}, 3)}});
    Bert bert;
    // begin
    const mz::nn::BertConfig config = mz::io::load_bert_config("bert/config.json");
    const auto rename = [](const std::string& name) { return mz::io::bert_name(name); };
    const mz::StateDict state = mz::io::load_state_dict_file("bert/model.safetensors");
    const mz::io::LoadReport report = mz::io::load_weights(bert, state, {.rename = rename});
    // end
    CHECK(config.hidden_size == 768);
    CHECK(report.missing == std::vector<std::string>{"pooler.bias"});
    CHECK(bert.pooler.weight.to_vector<float>() == std::vector<float>(4, 3.f));
}
