#include "mezzo/error.h"

#include <fmt/format.h>

#include <memory>

#include "core/live_error.h"
#include "mezzo/device.h"
#include "mezzo/shape.h"

namespace mezzo {

Error::Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}

namespace detail {
namespace {

void append_shape(std::string& out, const Shape& shape) {
    out += '[';
    for (int i = 0; i < shape.size(); ++i) {
        if (i > 0) out += ", ";
        out += fmt::format("{}", shape[i]);
    }
    out += ']';
}

void append_device(std::string& out, const Device& device) {
    out += name(device.type());
    if (device.type() != DeviceType::cpu) out += fmt::format(":{}", int(device.index));
}

using Words = std::shared_ptr<const std::string>;
thread_local std::weak_ptr<const std::string> latest;

// The text is freed with the last copy of the exception.
struct ThrownError final : Error {
    ThrownError(ErrorKind kind, const Words& text) : Error(kind, *text), words(text) {}
    Words words;
};

}  // namespace

void Item::append_to(std::string& out) const {
    switch (kind_) {
        case Type::text:
            out.append(value_.text.data, value_.text.size);
            break;
        case Type::flag:
            out += value_.integer != 0 ? "true" : "false";
            break;
        case Type::integer:
            out += fmt::format("{}", value_.integer);
            break;
        case Type::real:
            out += fmt::format("{}", value_.real);
            break;
        case Type::dtype:
            out += name(value_.dtype);
            break;
        case Type::shape:
            append_shape(out, *value_.shape);
            break;
        case Type::device:
            append_device(out, *value_.device);
            break;
    }
}

void fail(ErrorKind kind, std::initializer_list<Item> items) {
    std::string text;
    for (const Item& item : items) item.append_to(text);
    const Words words = std::make_shared<const std::string>(std::move(text));
    latest = words;
    throw ThrownError(kind, words);
}

}  // namespace detail

std::string live_error() {
    const detail::Words words = detail::latest.lock();
    return words ? *words : "";
}

}  // namespace mezzo
