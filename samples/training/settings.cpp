#include "training/settings.h"

#include <fmt/format.h>

namespace mz = mezzo;

namespace training {

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

}  // namespace training
