// Export of models to the ONNX format, for onnxruntime and other programs.
//
//   io::export_onnx(net, {x}, "net.onnx", {.input_names = {"pixels"}, .output_names = {"logits"}});
//   io::export_onnx(net, {x}, "one.onnx", {.dynamic_batch = false});
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
    // One name for each input and output. Default: "input", or "input_0", "input_1", ... if there are
    // several; "output" likewise.
    std::vector<std::string> input_names = {}, output_names = {};
    // true: dimension 0 of every input, and of results that depend on it, may have another size in each run
    // ("batch" in the file). The exporter then runs the model with batches of 2 and of 3 copies of the first
    // item of the inputs. The two runs may differ only in sizes that are multiples of the batch: of views,
    // and of tensors that forward makes, such as zeros({x.size(0), 8}) and arange(x.size(0)). false: all
    // shapes are those of the inputs.
    bool dynamic_batch = true;
    // true: tensors of 1 KiB or more go to a second file, path + ".data", which must stay in the folder of
    // the model's file under this name. Models of more than 2^31 - 1 bytes, the limit of one file, always
    // have it.
    bool external_data = false;
};

// Runs a model and returns its results for the inputs.
using OnnxForward = autograd::Callback<Tensors(const Tensors&)>;

// Exports a model in eval mode to a file of ONNX opset 17, by tracing: it records the ops of a forward call
// with the inputs. Decisions of the host are fixed in the file as in that call: sizes (except the batch),
// branches, numbers of iterations, random numbers, and tensors that the model holds without listing them in
// MEZZO_MODULE. Ops of other threads are not recorded; it is an error if the model reads a tensor that
// another thread has made meanwhile. Parameters and buffers have their state_dict() names and layouts.
// Parameters and inputs must be on one device; floating ones must be float32. The model is unchanged
// afterwards, its training flags included.
//
// Replaces `path` atomically, as save_safetensors() does, and before it the file of weights, if there is one.
// Throws Error(dtype) for other floating dtypes; Error(value), with the names of op and module, for an op
// that ONNX cannot express, for a tensor that was written in place or that another thread has made, and if
// the batch size cannot vary; Error(value) for a number of names that differs from the number of tensors, for
// names that are used twice, also by a parameter or buffer, or are not UTF-8, and for models of more than
// 2^31 - 1 bytes without the weights; Error(io) as save_safetensors(). After an error the model's file is
// unchanged.
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

// Exports model(inputs[0], inputs[1], ...), or model(inputs[0], {inputs[1], ...}) as for Bert's classes, with
// up to four inputs. Also throws Error(value) if the model has no such operator().
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
