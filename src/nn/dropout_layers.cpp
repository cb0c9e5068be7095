#include "mezzo/dropout_layers.h"

#include <fmt/format.h>

namespace mezzo::nn {

namespace {

double checked(const char* module, double p) {
    check(p >= 0 && p <= 1, ErrorKind::value, module, ": p ", p, " is outside [0, 1]");
    return p;
}

}  // namespace

#define MEZZO_DROPOUT(Class)                                              \
    Class::Class(double probability) : p(checked(#Class, probability)) {} \
    std::string Class::describe() const { return fmt::format("p={}", p); }
MEZZO_DROPOUT(Dropout1d)
MEZZO_DROPOUT(Dropout2d)
MEZZO_DROPOUT(Dropout3d)
MEZZO_DROPOUT(AlphaDropout)
MEZZO_DROPOUT(FeatureAlphaDropout)
#undef MEZZO_DROPOUT

}  // namespace mezzo::nn
