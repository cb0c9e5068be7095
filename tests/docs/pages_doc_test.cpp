// The code of pages in docs/ that have few blocks: each is a case here, and tests/docs/docs_test.py compares
// them.
#include <catch2/catch.hpp>

#include <fstream>
#include <sstream>
#include <thread>

#include "mezzo/mezzo.h"
#include "mezzo/text/pretrained_tokenizer.h"
#include "mezzo/text/tokenizer.h"
#include "tests/support/folder.h"

namespace mz = mezzo;
namespace nn = mezzo::nn;

TEST_CASE("pages: numerics", "[pages]") {
    // begin
    const mz::Tensor a = mz::rand({64, 64}), b = mz::rand({64, 64});
    const mz::amp::Autocast scope({.dtype = mz::float16});
    const mz::Tensor product = mz::matmul(a, b);           // float16: summed in float32, rounded once
    const mz::Tensor weights = mz::softmax(product, 1);    // float32: exp() spans a range
    const mz::Tensor sum = product.to(mz::float16).sum();  // added up in float32
    // end
    CHECK(product.dtype() == mz::float16);
    CHECK(weights.dtype() == mz::float32);
    CHECK(sum.item<float>() > 0);
}

TEST_CASE("pages: text, a pretrained tokenizer", "[pages]") {
    const mz::test::Folder files;
    const std::string folder = files.path;
    std::ofstream(files.file("tokenizer.json"))
        << R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "more": 1}},
        "pre_tokenizer": {"type": "Whitespace"}})";
    // begin
    const mz::data::Tokenizer tokenizer(folder);  // or the path of a tokenizer.json
    const auto encodings = tokenizer.encode_batch({"Hello, world!", "and more"}, {.max_length = 128});
    const auto batch = mz::data::pad(encodings, tokenizer.pad_options());
    const std::string text = tokenizer.decode(encodings[0].ids);
    // end
    CHECK(encodings[1].ids == std::vector<std::int64_t>{0, 1});
    CHECK(batch.input_ids.shape() == mz::Shape{2, 4});
    CHECK(text == "? ? ? ?");
}

TEST_CASE("pages: ops", "[pages]") {
    // begin
    const mz::Tensor x = mz::arange(12).reshape({3, 4}).to(mz::float32);
    const mz::Tensor centred = x - x.mean(1, {.keepdim = true});  // a method; broadcast over the columns
    const mz::Tensor row = x[{1, mz::Slice(0, 2)}];               // Python's x[1, 0:2]: a view
    const auto [values, indices] = mz::topk(x, 2, 1);             // results of several tensors
    const mz::Tensor gram = mz::einsum("ij,kj->ik", {x, x});
    // end
    CHECK(centred.sum().item<float>() == 0);
    CHECK(row.to_vector<float>() == std::vector<float>{4, 5});
    CHECK(values.to_vector<float>() == std::vector<float>{3, 2, 7, 6, 11, 10});
    CHECK(indices.size(1) == 2);
    CHECK(gram.shape() == mz::Shape{3, 3});
}

TEST_CASE("pages: raw memory", "[pages]") {
    // begin
    const mz::Tensor x = mz::zeros({2, 3});
    float* const out = x.mutable_data<float>();  // for writing: counts as an in-place write
    for (std::int64_t i = 0; i < x.numel(); ++i) out[i] = float(i);
    const mz::Tensor column = x.t().select(0, 1);  // a view: elements 1 and 4
    const float* const in = column.data<float>();  // for reading
    const float last = in[1 * column.strides()[0]];
    // end
    CHECK(x.version() == 1);
    CHECK(last == 4);
}

TEST_CASE("pages: threads", "[pages]") {
    const nn::Linear net(4, 2);
    const std::vector<mz::Tensor> batches{mz::ones({3, 4}), mz::zeros({3, 4})};
    std::vector<mz::Tensor> results(2);
    // begin
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < batches.size(); ++i)
        threads.emplace_back([&, i] {
            const mz::NoGrad plain;  // of this thread
            const mz::amp::Autocast scope({.dtype = mz::bfloat16});
            results[i] = net(batches[i]);  // one model, shared
        });
    for (std::thread& thread : threads) thread.join();
    // end
    CHECK(results[0].dtype() == mz::bfloat16);
    CHECK(results[1].size(0) == 3);
}

TEST_CASE("pages: what is not here", "[pages]") {
    const mz::Tensor x = mz::arange(6).to(mz::float32);
    // begin
    const mz::Tensor reversed = mz::flip(x, {0});        // for x[::-1]
    const mz::Tensor written = x.index_put({x > 2}, 0);  // for x[x > 2] = 0, in a graph, too
    const mz::Tensor half_as_much = x * 0.5;             // for x.mul_(0.5) in a graph
    // end
    CHECK(reversed.to_vector<float>()[0] == 5);
    CHECK(written.sum().item<float>() == 3);
    CHECK(half_as_much.to_vector<float>()[4] == 2);
}

TEST_CASE("pages: changes", "[pages]") {
    std::ostringstream out;
    // begin
    static_assert(MEZZO_VERSION_MAJOR == 0 && MEZZO_VERSION_MINOR >= 1);  // the headers
    out << "mezzo " << mz::version() << '\n';                             // the library
    // end
    CHECK(out.str().starts_with("mezzo 0."));
}

TEST_CASE("pages: design", "[pages]") {
    const nn::Linear net(4, 2);
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    mz::amp::GradScaler scaler;
    const mz::Tensor x = mz::ones({3, 4}), y = mz::zeros({3, 2});
    for (int step = 0; step < 2; ++step) {  // the loop's lines may stand in a loop
        const std::vector<float> before = net.weight.to_vector<float>();
        // begin
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope;   // src/autograd: what call() converts
            loss = mz::mse_loss(net(x), y);  // src/ops: op schemas; src/cpu or cuda: their kernels
        }
        optimizer.zero_grad();          // src/optim: drops the gradients of the step before
        scaler.scale(loss).backward();  // src/autograd: the engine runs the ops' gradients
        scaler.step(optimizer);         // src/amp, src/optim: two kernels, no wait for the device
        scaler.update();
        // end
        CHECK(net.weight.to_vector<float>() != before);
    }
}

TEST_CASE("pages: CUDA", "[pages]") {
    // begin
    const mz::Device device = mz::best_device();  // cuda:0 if there is one, else the CPU
    const mz::Tensor x = mz::randn({64, 32}, {.device = device});
    nn::Linear net(32, 8);
    net.to(device);
    const mz::Tensor y = net(x);                                   // queued; nothing waits
    const std::vector<float> values = y.to_vector<float>();        // waits for the device
    const std::size_t bytes = mz::memory_stats(device).allocated;  // of tensors, on that device
    // end
    CHECK(values.size() == 512);
    CHECK(bytes > 0);
}

TEST_CASE("pages: plans of matrix products", "[pages]") {
    const mz::test::Folder folder;
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path);
    const auto train = [] {};
    // begin
    mz::cuda::set_gemm_options({.autotune = true});  // off by default
    if (std::filesystem::exists("plans.json"))       // what an earlier run has found
        mz::cuda::load_gemm_plans("plans.json");
    train();
    mz::cuda::save_gemm_plans("plans.json");
    // end
    std::filesystem::current_path(before);
    mz::cuda::set_gemm_options({});
    CHECK(!mz::cuda::gemm_options().autotune);
}

TEST_CASE("pages: text", "[pages]") {
    const mz::test::Folder folder;
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path);
    folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\na\nword\n.\n,\n!\n");
    // begin
    const mz::data::WordPiece tokenizer("vocab.txt");
    const auto encodings = tokenizer.encode_batch({"Hello, world!", "A [MASK] word."}, {.max_length = 128});
    const auto batch = mz::data::pad(encodings, {.pad_id = tokenizer.pad_id(), .multiple_of = 8});
    // batch.input_ids, batch.token_type_ids: int64 [2, length]
    // batch.attention_mask: boolean, true where a token is
    // end
    std::filesystem::current_path(before);
    CHECK(batch.input_ids.shape() == mz::Shape{2, 8});
}

TEST_CASE("pages: a program says what it ran on", "[pages]") {
    std::ostringstream out;
    const mz::Tensor a = mz::rand({256, 256}, {.dtype = mz::bfloat16});
    mz::set_num_threads(1);  // the tables have one and two
    mz::Tensor b = mz::matmul(a, a);
    out << mz::hardware_name(b.device()) << ", " << mz::num_threads() << " threads\n";
    CHECK(out.str().find("1 thread") != std::string::npos);
}

TEST_CASE("pages: errors", "[pages]") {
    nn::Linear net(2, 2);
    const std::string path = "there is no such file";
    std::ostringstream log;
    // begin
    try {
        net.load_state_dict(mz::io::load_state_dict_file(path));
    } catch (const mz::Error& error) {
        if (error.kind() != mz::ErrorKind::io) throw;  // damaged, or of another model
        log << error.what() << "; starting anew\n";    // the path, and what is wrong with the file
    }
    // end
    CHECK(log.str().find(path) != std::string::npos);
}
