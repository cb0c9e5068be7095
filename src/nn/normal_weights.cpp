// The initial weights of language models.
#include "nn/normal_weights.h"

#include "mezzo/autograd.h"

namespace mezzo::nn {

namespace {

class Initializer : public FieldVisitor {
public:
    explicit Initializer(double stddev) : stddev_(stddev) {}
    void parameter(const std::string&, Parameter& p) override {
        if (!p.defined()) return;
        if (p.dim() == 2) {
            p.normal_(0, stddev_);
        } else {
            p.zero_();
        }
    }
    void module(const std::string&, Module& child) override {
        if (!child.is_normalization()) child.visit_fields(*this);
    }

private:
    double stddev_;
};

}  // namespace

void normal_weights(Module& module, double stddev) {
    NoGrad plain;
    Initializer initializer(stddev);
    module.visit_fields(initializer);
}

}  // namespace mezzo::nn
