// StateDict: look-up by name.
#include "mezzo/state_dict.h"

#include <algorithm>

#include "core/sorting.h"

namespace mezzo {

namespace {

// Letters that are equal from the beginning plus those from the end: good enough to find a misspelled name.
std::size_t likeness(std::string_view a, std::string_view b) {
    const std::size_t most = std::min(a.size(), b.size());
    std::size_t front = 0, back = 0;
    while (front < most && a[front] == b[front]) ++front;
    while (front + back < most && a[a.size() - 1 - back] == b[b.size() - 1 - back]) ++back;
    return front + back;
}

// Up to three names that are most alike.
std::string suggestions(const StateDict& state, std::string_view name) {
    std::vector<std::string> names = state.names();
    sort_by(names, [&](const std::string& a, const std::string& b) {
        return likeness(a, name) > likeness(b, name);
    });
    std::string text;
    for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i)
        text += (i == 0 ? "" : ", ") + names[i];
    return names.size() > 3 ? text + ", ..." : text;
}

}  // namespace

const Tensor* StateDict::find(std::string_view name) const& {
    for (const auto& [own, tensor] : *this)
        if (own == name) return &tensor;
    return nullptr;
}

const Tensor& StateDict::at(std::string_view name) const& {
    const Tensor* const found = find(name);
    check(found != nullptr, ErrorKind::value, "StateDict: no \"", name, "\" among ", size(), " names",
          empty() ? "" : ": ", suggestions(*this, name));
    return *found;
}

std::vector<std::string> StateDict::names() const {
    std::vector<std::string> result;
    result.reserve(size());
    for (const auto& entry : *this) result.push_back(entry.first);
    return result;
}

StateDict StateDict::clone() const {
    StateDict result;
    result.reserve(size());
    for (const auto& [name, tensor] : *this)
        result.emplace_back(name, tensor.defined() ? tensor.detach().clone() : Tensor());
    return result;
}

}  // namespace mezzo
