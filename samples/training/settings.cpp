#include "training/settings.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace mz = mezzo;

namespace training {

namespace {

constexpr std::int64_t longest = 1 << 20;  // stored settings may have so many bytes

// One line each; values have no line ends.
std::string joined(const Settings& settings) {
    std::string text;
    for (const auto& [name, value] : settings) text += name + "\t" + value + "\n";
    return text;
}

Settings parsed(const std::string& text, const std::string& path) {
    Settings settings;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at), tab = text.find('\t', at);
        if (end == text.npos || tab >= end) throw std::runtime_error(path + ": its settings are damaged");
        settings.emplace_back(text.substr(at, tab - at), text.substr(tab + 1, end - tab - 1));
        at = end + 1;
    }
    return settings;
}

const std::string* find(const Settings& settings, const std::string& name) {
    const auto found = std::find_if(settings.begin(), settings.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    return found == settings.end() ? nullptr : &found->second;
}

}  // namespace

void Digest::add_bytes(std::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
}
void Digest::add(std::string_view text) {
    const std::uint64_t size = text.size();
    add_bytes({reinterpret_cast<const char*>(&size), sizeof size});
    add_bytes(text);
}
std::string Digest::text() const { return fmt::format("{:016x}", value_); }

std::string digest_of(const mz::StateDict& state) {
    if (state.empty()) return "none";
    Digest digest;
    for (const auto& [name, tensor] : state) {
        digest.add(name);
        digest.add(fmt::format("{} {}", mz::name(tensor.dtype()), tensor.dim()));
        const std::vector<double> values = tensor.to_vector<double>();
        digest.add({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
    }
    return fmt::format("{} tensors, digest {}", state.size(), digest.text());
}

mz::Tensor to_tensor(const Settings& settings) {
    const std::string text = joined(settings);
    return mz::Tensor::from(std::vector<std::uint8_t>(text.begin(), text.end()), {std::int64_t(text.size())});
}

void check_same_settings(const mz::Tensor& then, const Settings& now, const std::string& path) {
    if (then.dtype() != mz::uint8 || then.dim() != 1 || then.numel() > longest)
        throw std::runtime_error(path + ": its settings are damaged");
    const std::vector<std::uint8_t> bytes = then.to_vector<std::uint8_t>();
    const Settings before = parsed(std::string(bytes.begin(), bytes.end()), path);
    std::string list;
    for (const auto& [name, value] : now) {
        const std::string* const old = find(before, name);
        if (!old || *old != value)
            list += fmt::format("\n  {}: {}, now {}", name, old ? *old : "not stored", value);
    }
    for (const auto& [name, value] : before)
        if (!find(now, name)) list += fmt::format("\n  {}: {}, now unknown", name, value);
    if (!list.empty())
        throw std::runtime_error(fmt::format(
            "{}: cannot be resumed, because the training would be another one. Give the same settings, "
            "or another --checkpoint:{}",
            path, list));
}

const mz::Tensor& entry(const mz::io::Checkpoint& checkpoint, const std::string& path, const char* name) {
    for (const auto& [key, value] : checkpoint.extra)
        if (key == name) return value;
    throw std::runtime_error(
        fmt::format("{}: has no \"{}\"; it is no checkpoint of this version of the program", path, name));
}

}  // namespace training
