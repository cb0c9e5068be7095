// The Python module `mezzo`: trained models on NumPy's arrays.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>

#include "arrays.h"
#include "mezzo/autograd.h"
#include "mezzo/device.h"
#include "mezzo/version.h"
#include "models.h"

namespace py = pybind11;

namespace mezzo::python {

namespace {

// Several threads may call a model at once: the call releases the interpreter's lock and changes nothing.
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

std::string text_of(const py::handle& given, const char* what) {
    try {
        return py::cast<std::string>(given);
    } catch (const py::cast_error&) {
        throw py::type_error(std::string("save_safetensors: the ") + what + " " +
                             std::string(py::repr(given)) + " is no text");
    }
}

StateDict state_of(const py::dict& arrays) {
    StateDict state;
    for (const auto& [key, value] : arrays) {
        const std::string name = text_of(key, "name");
        const py::array array = py::array::ensure(value);
        if (!array) throw py::type_error("save_safetensors: NumPy makes no array of \"" + name + "\"");
        state.emplace_back(name, tensor_of(array));
    }
    return state;
}

void save(const std::filesystem::path& path, const py::dict& arrays, const std::optional<py::dict>& texts) {
    io::Metadata metadata{{"format", "pt"}};
    for (const auto& [name, text] : texts.value_or(py::dict())) {
        const std::string key = text_of(name, "metadata's name"), value = text_of(text, "metadata");
        if (key == "format")
            metadata[0].second = value;
        else
            metadata.emplace_back(key, value);
    }
    io::save_safetensors(path.string(), state_of(arrays), metadata);
}

// Decodes the message of an error, which may contain a file name that is not UTF-8.
void raise(const py::object& type, const mezzo::Error& error) {
    const char* const text = error.what();
    const auto decoded = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(text, py::ssize_t(std::strlen(text)), "replace"));
    PyErr_SetObject(type.ptr(), decoded.ptr());
}

}  // namespace

}  // namespace mezzo::python

PYBIND11_MODULE(mezzo, m) {
    using namespace mezzo::python;
    m.doc() = "Trained models of mezzo on NumPy's arrays.";
    m.attr("__version__") = mezzo::version();
    static const py::object error_type = py::exception<mezzo::Error>(m, "Error", PyExc_RuntimeError);
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) std::rethrow_exception(thrown);
        } catch (const mezzo::Error& error) {
            raise(error_type, error);
        }
    });
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
        [](const std::filesystem::path& path) {
            return dict_of(mezzo::io::load_state_dict_file(path.string()));
        },
        py::arg("path"), "All arrays of a safetensors file by name.");
    m.def("save_safetensors", save, py::arg("path"), py::arg("arrays"), py::arg("metadata") = py::none(),
          "Writes arrays by name, and texts by name beside them.");
    m.def("set_num_threads", mezzo::set_num_threads, py::arg("count"),
          "Threads that one call computes with.");
}
