// Models as files of the ONNX format, which onnxruntime and other programs run.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::io {

struct OnnxOptions {
    // As many names as there are inputs and outputs. By default "input", or "input_0", "input_1", ... if
    // there are several; and so for outputs.
    std::vector<std::string> input_names = {}, output_names = {};
    // Dimension 0 of every input and of what is computed from it may have another size in each run
    // ("batch" in the file). The model is run with batches of 2 and of 3 then, made of copies of the
    // first item of the inputs, and all that differs must be sizes that are multiples of the batch: of
    // views, and of tensors that forward makes, such as zeros({x.size(0), 8}) and arange(x.size(0)).
    // false: all shapes are those of the inputs.
    bool dynamic_batch = true;
    // Tensors of 1 KiB or more are in a file of their own, path + ".data", which has to lie beside the
    // model's under this name. Models of more than 2^31 - 1 bytes, which the format allows in one file,
    // always are.
    bool external_data = false;
};

// Runs a model: its results for these inputs.
using OnnxForward = autograd::Callback<Tensors(const Tensors&)>;

// Writes what the model computes from the inputs, in eval mode, to a file of ONNX opset 17. The ops of a
// forward call are noted as they run. So what the program decides on the host is in the file as it was
// decided then: sizes but for the batch, branches, numbers of iterations, random numbers, and tensors that
// the model holds without listing them in MEZZO_MODULE. What other threads compute cannot be noted; a tensor
// that one of them has made meanwhile is an error where the model reads it. Parameters and buffers keep their
// state_dict() names and layouts. Parameters and inputs are on any one device; floating ones must be float32.
// The model is as before afterwards, its training flags included.
//
// Replaces `path` in one step, as save_safetensors() does, and before it the file of weights, if there is
// one. Throws Error(dtype) for other floating dtypes, and Error(value), naming the op and the module, for an
// op without a form in ONNX, for a tensor that has been written in place or that another thread has made, and
// where the batch cannot be of any size; Error(value) for names of another number than there are tensors, or
// which are used twice, also by a parameter or buffer, or no UTF-8; and for models of more than 2^31 - 1
// bytes without the weights; Error(io) as save_safetensors(). Then the model's file is as before.
void export_onnx(nn::Module& model, const Tensors& inputs, const std::string& path,
                 const OnnxForward& forward, const OnnxOptions& options = {});

namespace detail {

inline Tensors results_of(const Tensor& result) { return {result}; }
inline Tensors results_of(const Tensors& results) { return results; }

template <class M, std::size_t... i>
Tensors run_model(M& model, const Tensors& in, std::index_sequence<0, i...>) {
    if constexpr (requires { results_of(model(in[0], in[i]...)); })
        return results_of(model(in[0], in[i]...));
    else if constexpr (requires { results_of(model(in[0], {in[i]...})); })
        return results_of(model(in[0], {in[i]...}));
    else
        fail(ErrorKind::value, "export_onnx: ", model.type_name(), " does not take ", in.size(),
             " tensors for a tensor or a list of them; pass a function that calls it");
}

}  // namespace detail

// The same of model(inputs[0], inputs[1], ...), or of model(inputs[0], {inputs[1], ...}), as Bert's classes
// are called: of up to four inputs. Throws Error(value) as well where the model has no such operator().
template <class M>
requires(std::is_base_of_v<nn::Module, M>) void export_onnx(M& model, const Tensors& inputs,
                                                            const std::string& path,
                                                            const OnnxOptions& options = {}) {
    const auto forward = [&model](const Tensors& in) -> Tensors {
        if (in.size() == 1) return detail::run_model(model, in, std::make_index_sequence<1>());
        if (in.size() == 2) return detail::run_model(model, in, std::make_index_sequence<2>());
        if (in.size() == 3) return detail::run_model(model, in, std::make_index_sequence<3>());
        if (in.size() == 4) return detail::run_model(model, in, std::make_index_sequence<4>());
        fail(ErrorKind::value, "export_onnx: ", in.size(),
             " inputs; pass a function that calls the model unless there are one to four");
    };
    export_onnx(model, inputs, path, OnnxForward(forward), options);
}

}  // namespace mezzo::io

#pragma GCC visibility pop
