// Makes a layer of torch.nn with PyTorch's weights.
#pragma once

#include <memory>

#include "tools/op_database/call.h"

namespace database {

namespace nn = mezzo::nn;

// Makes the layer, with the weights of the line and in its mode, and stores it in the call for gradients of
// its parameters.
template <class M, class... A> M& layer(const Call& c, const A&... arguments) {
    auto made = std::make_shared<M>(arguments...);
    made->to(mz::float64);
    mz::io::load_weights(*made, c.state(), {.strict = true});
    made->train(c.training());
    c.keep(made);
    return *made;
}

}  // namespace database

// A line of a table of layers: in it, c makes the layer and f is its call.
#define LAYER(name, ...)                           \
    {                                              \
        "nn." name, [](const Call& c) -> Tensors { \
            const Call f = c.forward();            \
            static_cast<void>(f);                  \
            return {__VA_ARGS__};                  \
        }                                          \
    }
