// Arguments of one call of a function of PyTorch's operator database, and the tables of mezzo's expressions for
// its functions.
#pragma once

#include <mezzo/mezzo.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace database {

namespace mz = mezzo;
using mz::Tensor, mz::Tensors;
using Json = nlohmann::json;

// What the expressions here do not take, as opposed to what mezzo refuses: such samples are not compared.
struct NotHere : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An argument is looked up by its keyword, then by its place among the positional ones; the input is number 0.
class Call {
public:
    Call(const Json& line, const std::map<std::string, Tensor>& tensors) : line_(line), tensors_(tensors) {}

    // Null where the argument is missing or None.
    [[nodiscard]] const Json* find(const std::string& name, std::size_t place) const;
    [[nodiscard]] bool has(const std::string& name, std::size_t place) const { return find(name, place); }
    [[nodiscard]] std::size_t positional() const { return line_.at("args").size(); }
    [[nodiscard]] bool is_tensor(const std::string& name, std::size_t place) const;
    [[nodiscard]] bool is_list(const std::string& name, std::size_t place) const;

    // The functions below throw NotHere for an argument of another kind.
    [[nodiscard]] Tensor tensor(const std::string& name, std::size_t place) const;  // undefined where missing
    [[nodiscard]] Tensors tensors(const std::string& name, std::size_t place) const;  // a list of them
    [[nodiscard]] Tensor x() const { return tensor("input", 0); }
    [[nodiscard]] Tensor x(std::size_t place) const;  // there must be one
    [[nodiscard]] double number(const std::string& name, std::size_t place, double otherwise) const;
    [[nodiscard]] mz::Scalar scalar(const std::string& name, std::size_t place, mz::Scalar otherwise) const;
    [[nodiscard]] std::int64_t integer(const std::string& name, std::size_t place,
                                       std::int64_t otherwise) const;
    [[nodiscard]] bool flag(const std::string& name, std::size_t place, bool otherwise = false) const;
    [[nodiscard]] std::string text(const std::string& name, std::size_t place,
                                   const std::string& otherwise) const;
    [[nodiscard]] std::optional<mz::Dtype> dtype(const std::string& name, std::size_t place) const;
    // A whole number is a list of one.
    [[nodiscard]] std::vector<std::int64_t> integers(const std::string& name, std::size_t place) const;
    [[nodiscard]] mz::Axes axes(const std::string& name, std::size_t place) const;
    // Sizes that are arguments of their own, as in x.view(2, 3), or one list.
    [[nodiscard]] mz::Shape sizes(const std::string& name, std::size_t place) const;
    [[nodiscard]] mz::Size2d pair(const std::string& name, std::size_t place, mz::Size2d otherwise) const;
    [[nodiscard]] mz::Reduction reduction(std::size_t place = 99) const;
    [[nodiscard]] const Json& json(const std::string& name, std::size_t place) const;

    [[nodiscard]] Tensor tensor(const Json& value) const;

private:
    const Json& line_;
    const std::map<std::string, Tensor>& tensors_;
};

using Run = std::function<Tensors(const Call&)>;
using Table = std::map<std::string, Run>;

// By PyTorch's name, without "nn.functional.".
[[nodiscard]] Table elementwise();
[[nodiscard]] Table reductions();
[[nodiscard]] Table shapes();
[[nodiscard]] Table indexing();
[[nodiscard]] Table networks();

}  // namespace database

// A line of a table: PyTorch's name and mezzo's expression, in which c is the call.
#define OP(name, ...)                                              \
    {                                                              \
        name, [](const Call& c) -> Tensors { return __VA_ARGS__; } \
    }
