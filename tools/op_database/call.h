// Arguments of a call of a function of PyTorch's operator database, and the tables of mezzo's expressions for
// the functions.
#pragma once

#include <mezzo/mezzo.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace database {

namespace mz = mezzo;
using mz::Tensor, mz::Tensors;
using Json = nlohmann::json;

// Thrown for arguments that the expressions here do not take. Such samples are not compared.
struct NotHere : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Looks an argument up by its keyword, then by its position; the input is number 0.
class Call {
public:
    Call(const Json& line, const std::map<std::string, Tensor>& tensors) : line_(line), tensors_(tensors) {}

    // Of a layer: its call, its weights by name, whether it trains, and the layer itself, once it is made.
    [[nodiscard]] Call forward() const { return {line_.at("forward"), tensors_}; }
    [[nodiscard]] mz::StateDict state() const;
    [[nodiscard]] bool training() const { return line_.at("training"); }
    void keep(const std::shared_ptr<mz::nn::Module>& module) const { module_ = module; }
    [[nodiscard]] const std::shared_ptr<mz::nn::Module>& module() const { return module_; }

    [[nodiscard]] std::string name() const { return line_.at("op"); }
    // Null where the argument is missing or None.
    [[nodiscard]] const Json* find(const std::string& name, std::size_t position) const;
    [[nodiscard]] bool has(const std::string& name, std::size_t position) const {
        return find(name, position);
    }
    [[nodiscard]] std::size_t positional() const { return line_.at("args").size(); }
    [[nodiscard]] bool is_tensor(const std::string& name, std::size_t position) const;
    [[nodiscard]] bool is_null(const std::string& name, std::size_t position) const;  // None, said so
    [[nodiscard]] bool is_list(const std::string& name, std::size_t position) const;

    // The functions below throw NotHere for an argument of another kind.
    [[nodiscard]] Tensor tensor(const std::string& name,
                                std::size_t position) const;  // undefined where missing
    [[nodiscard]] Tensors tensors(const std::string& name, std::size_t position) const;  // a list of them
    [[nodiscard]] Tensor x() const { return tensor("input", 0); }
    [[nodiscard]] Tensor x(std::size_t position) const;  // there must be one
    [[nodiscard]] double number(const std::string& name, std::size_t position, double otherwise) const;
    [[nodiscard]] mz::Scalar scalar(const std::string& name, std::size_t position,
                                    mz::Scalar otherwise) const;
    [[nodiscard]] std::int64_t integer(const std::string& name, std::size_t position,
                                       std::int64_t otherwise) const;
    [[nodiscard]] bool flag(const std::string& name, std::size_t position, bool otherwise = false) const;
    [[nodiscard]] std::string text(const std::string& name, std::size_t position,
                                   const std::string& otherwise) const;
    [[nodiscard]] std::optional<mz::Dtype> dtype(const std::string& name, std::size_t position) const;
    // A whole number is a list of one.
    [[nodiscard]] std::vector<std::int64_t> integers(const std::string& name, std::size_t position) const;
    [[nodiscard]] mz::Axes axes(const std::string& name, std::size_t position) const;
    // Sizes that are arguments of their own, as in x.view(2, 3), or one list.
    [[nodiscard]] mz::Shape sizes(const std::string& name, std::size_t position) const;
    [[nodiscard]] mz::Size2d pair(const std::string& name, std::size_t position, mz::Size2d otherwise) const;
    [[nodiscard]] mz::Reduction reduction(std::size_t position = 99) const;
    [[nodiscard]] const Json& json(const std::string& name, std::size_t position) const;

    [[nodiscard]] Tensor tensor(const Json& value) const;

private:
    const Json& line_;
    const std::map<std::string, Tensor>& tensors_;
    mutable std::shared_ptr<mz::nn::Module> module_;
};

using Run = std::function<Tensors(const Call&)>;
using Table = std::map<std::string, Run>;

// By PyTorch's name, without "nn.functional.".
[[nodiscard]] Table elementwise();
[[nodiscard]] Table reductions();
[[nodiscard]] Table shapes();
[[nodiscard]] Table indexing();
[[nodiscard]] Table networks();
[[nodiscard]] Table images();
[[nodiscard]] Table layers();  // by "nn." and their names
[[nodiscard]] Table sequence_layers();
[[nodiscard]] Table optimizers();  // by "optim." and their names

// PyTorch has channels and classes in dimension 1, mezzo in the last.
[[nodiscard]] Tensor channels_last(Tensor x);
[[nodiscard]] Tensor channels_first(Tensor x);

}  // namespace database

// A line of a table: PyTorch's name and mezzo's expression, in which c is the call.
#define OP(name, ...)                                              \
    {                                                              \
        name, [](const Call& c) -> Tensors { return __VA_ARGS__; } \
    }
