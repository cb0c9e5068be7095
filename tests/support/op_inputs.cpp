#include "tests/support/op_inputs.h"

#include <string>

namespace mezzo::test {

char kind(const OpCase& c, std::size_t i) { return i < std::string(c.kinds).size() ? c.kinds[i] : 'f'; }

namespace {

// Class indices below `classes`; the first is -100 if ignore_one.
Tensor class_indices(const Shape& shape, std::int64_t classes, bool ignore_one, Device device) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        values.push_back(ignore_one && i == 0 && shape.numel() > 1 ? -100 : (5 * i + 2) % classes);
    return Tensor::from(values, shape).to(device);
}

// The same values with other strides.
Tensor laid_out(const Tensor& x, Placement layout) {
    if (layout == Placement::transposed && x.dim() >= 2)
        return x.transpose(-2, -1).contiguous().transpose(-2, -1);
    if (layout == Placement::sliced && x.dim() >= 1)
        return stack({x, x}, -1).flatten(-2).slice(-1, 1, 2 * x.size(-1), 2);
    if (layout == Placement::shifted)
        return cat({x.flatten().slice(0, 0, 1), x.flatten()}).slice(0, 1, x.numel() + 1).reshape(x.shape());
    return x;
}

}  // namespace

Tensors make_inputs(const OpCase& c, const std::vector<Shape>& shapes, Dtype dtype, Device device,
                    Placement layout) {
    Tensors inputs;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        const Shape& shape = shapes[i];
        Tensor x;
        if (kind(c, i) == 'i' || kind(c, i) == 'c')
            x = class_indices(shape, shapes[0].back(), kind(c, i) == 'i', device);
        else if (kind(c, i) == 'b')
            x = gt(tensor_of(random_values(shape.numel(), 40 + i, Domain::any), shape, float64, device), 0.0);
        else
            x = tensor_of(random_values(shape.numel(), i, c.domain), shape, dtype, device);
        inputs.push_back(laid_out(x, layout));
    }
    return inputs;
}

Tensors exact(const Tensors& inputs) {
    Tensors result;
    for (const Tensor& x : inputs) {
        const Tensor host = x.detach().to(cpu_device);
        result.push_back(is_floating(x.dtype()) ? host.to(float64) : host);
    }
    return result;
}

}  // namespace mezzo::test
