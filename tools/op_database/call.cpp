// Reads arguments of a call from its line.
#include "tools/op_database/call.h"

#include <limits>

namespace database {

namespace {

// Infinities and NaN are texts within {"f": ...}, because JSON has none.
double number_of(const Json& value) {
    if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
    if (value.is_number()) return value.get<double>();
    if (value.is_object() && value.contains("f")) {
        const std::string text = value.at("f");
        return text == "nan" ? std::numeric_limits<double>::quiet_NaN()
                             : (text == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
    }
    throw NotHere("not a number: " + value.dump());
}

std::int64_t integer_of(const Json& value) {
    if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
    if (!value.is_number_integer()) throw NotHere("not a whole number: " + value.dump());
    return value.get<std::int64_t>();
}

}  // namespace

const Json* Call::find(const std::string& name, std::size_t position) const {
    const Json &keywords = line_.at("kwargs"), &args = line_.at("args");
    const Json* found = nullptr;
    if (const auto keyword = keywords.find(name); keyword != keywords.end())
        found = &*keyword;
    else if (position < args.size())
        found = &args[position];
    return found && !found->is_null() ? found : nullptr;
}

const Json& Call::json(const std::string& name, std::size_t position) const {
    const Json* const found = find(name, position);
    if (!found) throw NotHere("no argument " + name);
    return *found;
}

bool Call::is_tensor(const std::string& name, std::size_t position) const {
    const Json* const found = find(name, position);
    return found && found->is_object() && found->contains("t");
}

bool Call::is_null(const std::string& name, std::size_t position) const {
    const Json &keywords = line_.at("kwargs"), &args = line_.at("args");
    return keywords.contains(name) ? keywords.at(name).is_null()
                                   : position < args.size() && args[position].is_null();
}

mz::StateDict Call::state() const {
    mz::StateDict result;
    for (const auto& [name, tensor] : line_.at("state").items())
        result.emplace_back(name, tensors_.at(tensor));
    return result;
}

bool Call::is_list(const std::string& name, std::size_t position) const {
    const Json* const found = find(name, position);
    return found && found->is_array();
}

Tensor Call::tensor(const Json& value) const {
    if (!value.is_object() || !value.contains("t")) throw NotHere("not a tensor: " + value.dump());
    return tensors_.at(value.at("t"));
}

Tensor Call::tensor(const std::string& name, std::size_t position) const {
    const Json* const found = find(name, position);
    return found ? tensor(*found) : Tensor();
}

Tensor Call::x(std::size_t position) const { return tensor(json("", position)); }

Tensors Call::tensors(const std::string& name, std::size_t position) const {
    const Json& list = json(name, position);
    if (!list.is_array()) {  // tensors as arguments of their own
        Tensors result;
        for (std::size_t i = position; i < positional(); ++i) result.push_back(x(i));
        return result;
    }
    Tensors result;
    for (const Json& value : list) result.push_back(tensor(value));
    return result;
}

double Call::number(const std::string& name, std::size_t position, double otherwise) const {
    const Json* const found = find(name, position);
    return found ? number_of(*found) : otherwise;
}

mz::Scalar Call::scalar(const std::string& name, std::size_t position, mz::Scalar otherwise) const {
    const Json* const found = find(name, position);
    if (!found) return otherwise;
    if (found->is_number_integer()) return found->get<std::int64_t>();
    return number_of(*found);
}

std::int64_t Call::integer(const std::string& name, std::size_t position, std::int64_t otherwise) const {
    const Json* const found = find(name, position);
    return found ? integer_of(*found) : otherwise;
}

bool Call::flag(const std::string& name, std::size_t position, bool otherwise) const {
    const Json* const found = find(name, position);
    return found ? number_of(*found) != 0 : otherwise;
}

std::string Call::text(const std::string& name, std::size_t position, const std::string& otherwise) const {
    const Json* const found = find(name, position);
    if (found && !found->is_string()) throw NotHere("not a text: " + found->dump());
    return found ? found->get<std::string>() : otherwise;
}

std::optional<mz::Dtype> Call::dtype(const std::string& name, std::size_t position) const {
    const Json* const found = find(name, position);
    if (!found) return {};
    if (found->is_object() && found->contains("dtype"))
        for (const mz::Dtype dtype : mz::all_dtypes)
            if (!mz::is_storage_only(dtype) && found->at("dtype") == mz::name(dtype)) return dtype;
    throw NotHere("dtype " + found->dump());
}

std::vector<std::int64_t> Call::integers(const std::string& name, std::size_t position) const {
    const Json* const found = find(name, position);
    std::vector<std::int64_t> result;
    if (found && !found->is_array()) return {integer_of(*found)};
    if (found)
        for (const Json& value : *found) result.push_back(integer_of(value));
    return result;
}

mz::Axes Call::axes(const std::string& name, std::size_t position) const {
    mz::Axes result;
    for (const std::int64_t axis : integers(name, position)) result.push_back(axis);
    return result;
}

mz::Shape Call::sizes(const std::string& name, std::size_t position) const {
    if (is_list(name, position) || positional() <= position + 1) return axes(name, position);
    mz::Shape result;
    for (std::size_t i = position; i < positional(); ++i) result.push_back(integer("", i, 0));
    return result;
}

mz::Size2d Call::pair(const std::string& name, std::size_t position, mz::Size2d otherwise) const {
    const auto list = integers(name, position);
    if (list.empty()) return otherwise;
    return list.size() == 1 ? mz::Size2d(list[0]) : mz::Size2d{list.at(0), list.at(1)};
}

mz::Reduction Call::reduction(std::size_t position) const {
    const std::string word = text("reduction", position, "mean");
    if (word == "none") return mz::Reduction::none;
    if (word == "sum") return mz::Reduction::sum;
    if (word == "mean") return mz::Reduction::mean;
    throw NotHere("reduction " + word);
}

Tensor channels_last(Tensor x) {
    for (int i = 1; i + 1 < x.dim(); ++i) x = x.transpose(i, i + 1);
    return x;
}
Tensor channels_first(Tensor x) {
    for (int i = x.dim() - 1; i > 1; --i) x = x.transpose(i - 1, i);
    return x;
}

}  // namespace database
