// Dropouts of whole channels, and those for SELU, as layers. They are the identity after eval(); nn::Dropout is
// in nn.h.
//
//   const nn::Dropout2d drop(0.2);
//   y = drop(x);  // x [32, 56, 56, 64]: about 13 of each image's channels are 0
//   const nn::AlphaDropout after_selu(0.1);
#pragma once

#include <string>

#include "mezzo/image_ops.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// Calls the function of its name in image_ops.h. Error(value) unless the probability is in [0, 1].
#define MEZZO_DROPOUT(Class, function)                                                                \
    class Class : public Module {                                                                     \
    public:                                                                                           \
        explicit Class(double probability = 0.5);                                                     \
        [[nodiscard]] Tensor operator()(const Tensor& x) const { return function(x, p, training()); } \
        std::string describe() const override;                                                        \
                                                                                                      \
        double p;                                                                                     \
        MEZZO_MODULE(Class)                                                                           \
    };
MEZZO_DROPOUT(Dropout1d, dropout1d)
MEZZO_DROPOUT(Dropout2d, dropout2d)
MEZZO_DROPOUT(Dropout3d, dropout3d)
MEZZO_DROPOUT(AlphaDropout, alpha_dropout)
MEZZO_DROPOUT(FeatureAlphaDropout, feature_alpha_dropout)
#undef MEZZO_DROPOUT

}  // namespace mezzo::nn

#pragma GCC visibility pop
