// The Python module `mezzo`: trained models on NumPy's arrays.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "arrays.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/version.h"
#include "models.h"

namespace py = pybind11;

namespace mezzo::python {

namespace {

// Several threads may call a model at once: without the lock of the interpreter, and a call changes nothing.
py::array call(const Model& model, const py::array& x, const std::optional<py::array>& mask,
               const std::optional<py::array>& types) {
    const Tensor input = tensor_of(x), mask_input = mask ? tensor_of(*mask) : Tensor(),
                 type_input = types ? tensor_of(*types) : Tensor();
    Tensor result;
    {
        const py::gil_scoped_release unlocked;
        const NoGrad plain;
        result = model.run(input, mask_input, type_input);
    }
    return array_of(result);
}

py::dict dict_of(const StateDict& state) {
    py::dict result;
    for (const auto& [name, value] : state) result[py::str(name)] = array_of(value);
    return result;
}

StateDict state_of(const py::dict& arrays) {
    StateDict state;
    for (const auto& [name, value] : arrays)
        state.emplace_back(py::cast<std::string>(name), tensor_of(py::array::ensure(value)));
    return state;
}

void save(const std::string& path, const py::dict& arrays, const py::dict& texts) {
    io::Metadata metadata{{"format", "pt"}};
    for (const auto& [name, text] : texts)
        metadata.emplace_back(py::cast<std::string>(name), py::cast<std::string>(text));
    io::save_safetensors(path, state_of(arrays), metadata);
}

}  // namespace

}  // namespace mezzo::python

PYBIND11_MODULE(mezzo, m) {
    using namespace mezzo::python;
    m.doc() = "Trained models of mezzo on NumPy's arrays.";
    m.attr("__version__") = mezzo::version();
    py::register_exception<mezzo::Error>(m, "Error", PyExc_RuntimeError);
    py::class_<Model>(m, "Model", "A trained model. model(x) computes its results for a batch.")
        .def(
            "__call__", call, py::arg("x"), py::arg("attention_mask") = py::none(),
            py::arg("token_type_ids") = py::none(),
            "The results for a batch: rows of numbers, images [batch, height, width, channels], or token ids "
            "[batch, length].")
        .def(
            "state_dict", [](Model& model) { return dict_of(model.module().state_dict()); },
            "Parameters and buffers by name. Arrays of the model's own memory where the layouts agree.")
        .def("__repr__", [](Model& model) { return model.module().to_string(); });
    m.def("load", load_model, py::arg("path"), py::kw_only(), py::arg("config") = "",
          py::arg("activation") = "relu", py::call_guard<py::gil_scoped_release>(),
          "The model of a safetensors file, or of a folder with a model.safetensors.");
    m.def(
        "load_safetensors",
        [](const std::string& path) { return dict_of(mezzo::io::load_state_dict_file(path)); },
        py::arg("path"), "All arrays of a safetensors file by name.");
    m.def("save_safetensors", save, py::arg("path"), py::arg("arrays"), py::arg("metadata") = py::dict(),
          "Writes arrays by name, and texts by name beside them.");
    m.def("set_num_threads", mezzo::set_num_threads, py::arg("count"),
          "Threads that one call computes with.");
}
