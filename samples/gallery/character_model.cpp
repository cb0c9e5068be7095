// A character language model: a small Transformer memorises a text in float16 with a loss scaler, and
// continues a prompt.
#include <mezzo/mezzo.h>

#include <iostream>
#include <string>

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

constexpr std::int64_t width = 32, context = 24;
const std::string text =
    "the quick brown fox jumps over the lazy dog. half precision is enough for products, and single "
    "precision "
    "keeps the sums. the quick brown fox jumps over the lazy dog again. ";

struct CharacterModel : nn::Module {
    nn::Embedding token{128, width}, place{context, width};
    nn::TransformerEncoder layers{width,
                                  2,
                                  {.num_layers = 2,
                                   .layer = {.dim_feedforward = 64, .dropout = 0, .norm_first = true},
                                   .final_norm = true}};
    nn::Linear head{width, 128};
    mz::Tensor operator()(const mz::Tensor& ids) const {  // [batch, length] -> [batch, length, 128]
        const mz::Tensor x = token(ids) + place(mz::arange(ids.size(1)));
        return head(layers(x, {.causal = true}));  // no character sees those after it
    }
    MEZZO_MODULE(CharacterModel, token, place, layers, head)
};

mz::Tensor ids_of(const std::string& words) {
    std::vector<std::int64_t> ids(words.begin(), words.end());
    return mz::Tensor::from(ids, ids.size());
}

struct Batch {
    mz::Tensor input, target;
};

Batch draw(const mz::Tensor& ids, std::int64_t rows) {
    const mz::Tensor begin = mz::randint(0, ids.size(0) - context, {rows, 1});
    const mz::Tensor places = begin + mz::arange(context + 1);
    const mz::Tensor piece = ids.index_select(0, places.reshape(-1)).reshape(places.shape());
    return {piece[{mz::ellipsis, mz::Slice(0, -1)}], piece[{mz::ellipsis, mz::Slice(1)}]};
}

std::string continued(const CharacterModel& model, std::string words, int more) {
    const mz::NoGrad plain;
    for (int i = 0; i < more; ++i) {
        const mz::Tensor recent = ids_of(words)[mz::Slice(-context)].unsqueeze(0);
        const mz::Tensor next = model(recent)[{0, -1}].argmax();  // or multinomial(softmax(logits / t), 1)
        words += char(next.item<int>());
    }
    return words;
}

}  // namespace

int main() {
    mz::manual_seed(7);
    const mz::Tensor ids = ids_of(text);
    CharacterModel model;
    mz::optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
    mz::amp::GradScaler scaler;
    double loss = 0;
    for (int step = 0; step < 250; ++step) {
        const Batch batch = draw(ids, 16);
        mz::Tensor mean;
        {
            const mz::amp::Autocast scope({.dtype = mz::float16});
            mean = mz::cross_entropy(model(batch.input), batch.target);
        }
        optimizer.zero_grad();
        scaler.scale(mean).backward();
        scaler.unscale_(optimizer);
        nn::clip_grad_norm_(model.parameters(), 1.0);
        scaler.step(optimizer);
        scaler.update();
        loss = mean.item<double>();
    }
    model.eval();
    const std::string result = continued(model, "the quick br", 60);
    std::cout << "loss " << loss << "\n" << result << '\n';
    return loss < 0.5 && result.starts_with("the quick brown fox") ? 0 : 1;
}
