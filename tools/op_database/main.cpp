// Runs samples of PyTorch's operator database, which tools/op_database.py has written, and writes results and
// gradients.
//
//   op_database FOLDER  reads cases.jsonl ({"id", "op", "args", "kwargs", "layout", "tensors"} per line, {"t": "name"} for a tensor;
//                       "tensors" says which have gradients)
//                       and inputs.safetensors; writes results.safetensors ("id.y0", ..., gradients by the
//                       input's name with ".g") and errors.jsonl ({"id", "here", "message"})
//   op_database --list  prints the names of the functions it knows
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "samples/program.h"
#include "tools/op_database/call.h"

namespace database {

namespace {

const Table& table() {
    static const Table all = [] {
        Table joined;
        for (const Table& family : {elementwise(), reductions(), shapes(), indexing(), networks(), images(),
                                    layers(), optimizers()})
            joined.insert(family.begin(), family.end());
        return joined;
    }();
    return all;
}

// Returns the same elements in another layout: "t" with the first and last dimension swapped in memory, "s"
// every second element of a longer row.
Tensor laid_out(const Tensor& x, const std::string& layout) {
    if (layout == "t" && x.dim() >= 2) return x.transpose(0, -1).contiguous().transpose(0, -1);
    if (layout == "s" && x.dim() >= 1 && x.dim() < 8)
        return mz::stack({x, x}, -1).flatten(-2).slice(-1, 0, 2 * x.size(-1), 2);
    return x.clone();
}

// The same as in op_database.py: weights of the elements in the objective whose gradients are compared.
Tensor waves(const Tensor& y) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < y.numel(); ++i) values.push_back(std::sin(1.3 * double(i) + 0.25));
    return Tensor::from(values, y.shape()).to(y.dtype());
}

// Adds them by the names of the weights' tensors. state_dict() shows parameters in PyTorch's order, so each
// gradient takes the role of its parameter.
void add_parameter_gradients(const Json& line, mz::nn::Module& module, mz::StateDict& results) {
    const mz::NoGrad no_grad;
    std::map<std::string, bool> has;
    for (const auto& [name, p] : module.named_parameters()) {
        has[name] = p.grad().defined();
        if (has[name]) p.copy_(p.grad());
    }
    for (const auto& [name, tensor] : module.state_dict())
        if (has[name])
            results.emplace_back(line.at("state").at(name).get<std::string>() + ".g",
                                 tensor.detach().contiguous().clone());
}

void run(const Json& line, const std::map<std::string, Tensor>& given, mz::StateDict& results) {
    const std::string id = line.at("id");
    std::map<std::string, Tensor> inputs;
    for (const auto& [name, gradient] : line.at("tensors").items())
        inputs[name] = laid_out(given.at(name), line.at("layout")).set_requires_grad(gradient.get<bool>());
    if (line.contains("state"))
        for (const auto& [name, tensor] : line.at("state").items()) inputs[tensor] = given.at(tensor);
    const Call call(line, inputs);
    const Tensors y = table().at(line.at("op"))(call);
    mz::StateDict own;
    Tensor total;
    for (std::size_t i = 0; i < y.size(); ++i) {
        own.emplace_back(id + ".y" + std::to_string(i), y[i].detach().contiguous());
        if (!y[i].requires_grad()) continue;
        const Tensor part = mz::sum((y[i] * waves(y[i])).to(mz::float64));
        total = total.defined() ? total + part : part;
    }
    if (total.defined()) {
        total.backward();
        for (const auto& [name, x] : inputs)
            if (x.grad().defined()) own.emplace_back(name + ".g", x.grad().contiguous());
        if (call.module()) add_parameter_gradients(line, *call.module(), own);
    }
    results.insert(results.end(), own.begin(), own.end());
}

void run_all(const std::string& folder) {
    std::map<std::string, Tensor> inputs;
    for (const auto& [name, tensor] : mz::io::load_state_dict_file(folder + "/inputs.safetensors"))
        inputs[name] = tensor;
    std::ifstream cases(folder + "/cases.jsonl");
    std::ofstream errors(folder + "/errors.jsonl");
    mz::StateDict results;
    for (std::string text; std::getline(cases, text);) {
        const Json line = Json::parse(text);
        const auto note = [&](bool here, const char* message) {
            errors << Json{{"id", line.at("id")}, {"here", here}, {"message", message}}.dump(
                          -1, ' ', false, Json::error_handler_t::replace)
                   << '\n';
        };
        try {
            run(line, inputs, results);
        } catch (const NotHere& e) {
            note(false, e.what());
        } catch (const std::exception& e) {
            note(true, e.what());
        }
    }
    mz::io::save_safetensors(folder + "/results.safetensors", results);
}

int parse_and_run(int argc, char** argv) {
    std::string folder;
    bool list = false;
    CLI::App app{"Runs samples of PyTorch's operator database, which tools/op_database.py has written."};
    auto* const flag = app.add_flag("--list", list, "print the names of the functions");
    app.add_option("folder", folder, "where the files are")->check(CLI::ExistingDirectory)->excludes(flag);
    if (const int code = program::parse(app, argc, argv); code >= 0) return code;
    if (folder.empty() && !list) throw std::runtime_error("name a folder, or use --list");
    if (list)
        for (const auto& [name, run] : table()) std::puts(name.c_str());
    else
        run_all(folder);
    return 0;
}

}  // namespace

}  // namespace database

int main(int argc, char** argv) {
    return program::run("op_database", [&] { return database::parse_and_run(argc, argv); });
}
