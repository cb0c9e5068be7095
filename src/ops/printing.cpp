// Printing of tensors, in the words and columns of PyTorch's _tensor_str.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "autograd/op.h"
#include "core/values.h"

namespace mezzo {
namespace {

constexpr std::int64_t full_limit = 1000;  // elements printed without shortening
constexpr std::int64_t edge = 3;           // elements printed at each end of a shortened dimension
constexpr std::size_t line_width = 80;
constexpr const char* prefix = "tensor(";
constexpr std::size_t indent = 7;  // of what follows it

// Format of all numbers of one tensor.
enum class Form : std::uint8_t { flag, integer, whole, decimal, scientific };

class Printer {
public:
    explicit Printer(const Tensor& x) : x_(x), values_(x, "to_string"), shorten_(x.numel() > full_limit) {
        choose_form();
        visit(0, 0, [this](std::int64_t offset) {
            // Zeros and numbers that are not finite do not widen the columns of floating numbers.
            if (has_exponent(x_.dtype()) && (!std::isfinite(real(offset)) || real(offset) == 0)) return;
            width_ = std::max(width_, text_of(offset).size());
        });
    }

    std::string text() const { return text_of_dim(0, 0); }

private:
    double real(std::int64_t offset) const {
        return visit_dtype<Dtypes::all>(x_.dtype(), [&](auto type) {
            return convert_value<double>(values_.get<typename decltype(type)::type>(offset));
        });
    }

    std::int64_t integer(std::int64_t offset) const {
        return visit_dtype<Dtypes::all>(x_.dtype(), [&](auto type) {
            return convert_value<std::int64_t>(values_.get<typename decltype(type)::type>(offset));
        });
    }

    bool skips(int dim) const { return shorten_ && x_.shape()[dim] > 2 * edge; }
    // The index printed after i.
    std::int64_t next(int dim, std::int64_t i) const {
        return skips(dim) && i == edge - 1 ? x_.shape()[dim] - edge : i + 1;
    }

    // Calls f for every element that is printed.
    template <class F> void visit(int dim, std::int64_t offset, const F& f) const {
        if (dim == x_.dim()) return f(offset);
        for (std::int64_t i = 0; i < x_.shape()[dim]; i = next(dim, i))
            visit(dim + 1, offset + i * x_.strides()[dim], f);
    }

    // Scientific where some value is huge or tiny, or the largest is over 1000 times the smallest.
    void choose_form() {
        if (!has_exponent(x_.dtype())) {
            form_ = x_.dtype() == boolean ? Form::flag : Form::integer;
            return;
        }
        double smallest = HUGE_VAL, largest = 0;
        bool whole = true;
        visit(0, 0, [&](std::int64_t offset) {
            const double value = std::fabs(real(offset));
            if (!std::isfinite(value) || value == 0) return;
            whole = whole && value == std::floor(value);
            smallest = std::min(smallest, value);
            largest = std::max(largest, value);
        });
        const bool spread = largest / smallest > 1000 || largest > 1e8 || smallest < 1e-4;
        form_ = spread && largest > 0 ? Form::scientific : whole ? Form::whole : Form::decimal;
    }

    std::string text_of(std::int64_t offset) const {
        if (form_ == Form::flag) return integer(offset) != 0 ? "True" : "False";
        if (form_ == Form::integer) return fmt::format("{}", integer(offset));
        const double value = real(offset);
        if (std::isnan(value)) return "nan";
        if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
        if (form_ == Form::whole) return fmt::format("{:.0f}.", value);
        return form_ == Form::decimal ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
    }

    std::string column(std::int64_t offset) const { return fmt::format("{:>{}}", text_of(offset), width_); }

    std::string text_of_row(int dim, std::int64_t offset) const {
        const std::size_t left = line_width - std::min(line_width, indent + std::size_t(dim));
        const std::size_t per_line = std::max<std::size_t>(1, left / (width_ + 2));  // with ", "
        std::vector<std::string> columns;
        for (std::int64_t i = 0; i < x_.shape()[dim];) {
            columns.push_back(column(offset + i * x_.strides()[dim]));
            const std::int64_t following = next(dim, i);
            if (following != i + 1) columns.emplace_back(" ...");
            i = following;
        }
        std::string out = "[";
        for (std::size_t i = 0; i < columns.size(); ++i) {
            if (i > 0)
                out += i % per_line == 0 ? ",\n" + std::string(indent + std::size_t(dim) + 1, ' ') : ", ";
            out += columns[i];
        }
        return out + "]";
    }

    std::string text_of_dim(int dim, std::int64_t offset) const {
        if (dim == x_.dim()) return column(offset);
        if (dim == x_.dim() - 1) return text_of_row(dim, offset);
        const std::string gap = "," + std::string(std::size_t(x_.dim() - dim) - 1, '\n') +
                                std::string(indent + std::size_t(dim) + 1, ' ');
        std::string out = "[";
        for (std::int64_t i = 0; i < x_.shape()[dim];) {
            if (i > 0) out += gap;
            out += text_of_dim(dim + 1, offset + i * x_.strides()[dim]);
            const std::int64_t following = next(dim, i);
            if (following != i + 1) out += gap + "...";
            i = following;
        }
        return out + "]";
    }

    const Tensor& x_;
    HostValues values_;
    bool shorten_;
    Form form_ = Form::decimal;
    std::size_t width_ = 1;
};

// Properties that differ from the default: the device, the size of an empty tensor, the dtype, the history.
std::vector<std::string> suffixes(const Tensor& x) {
    std::vector<std::string> result;
    const bool usual =
        x.dtype() == float32 || (x.numel() > 0 && (x.dtype() == int64 || x.dtype() == boolean));
    if (x.device().type() != DeviceType::cpu)
        result.push_back(fmt::format("device='{}:{}'", name(x.device().type()), int(x.device().index)));
    if (x.numel() == 0 && x.dim() != 1) {
        std::string size = detail::text_of(x.shape());
        size.front() = '(';
        size.back() = ')';
        result.push_back("size=" + size);
    }
    if (!usual) result.push_back(fmt::format("dtype={}", name(x.dtype())));
    if (x->grad_meta != nullptr && x->grad_meta->node)
        result.push_back(fmt::format("grad_fn=<{}>", x->grad_meta->node->op->name()));
    else if (x.requires_grad())
        result.emplace_back("requires_grad=True");
    return result;
}

}  // namespace

std::string detail::text_of(const Shape& shape) {
    std::string out;
    Item(shape).append_to(out);
    return out;
}

std::string detail::text_of(Device device) {
    std::string out;
    Item(device).append_to(out);
    return out;
}

std::string Tensor::to_string() const {
    if (!defined()) return "undefined tensor";
    std::string out = prefix + (numel() == 0 ? "[]" : Printer(*this).text());
    // PyTorch counts the last line like this.
    const std::size_t line_end = out.rfind('\n');
    std::size_t length = line_end == std::string::npos ? out.size() + 2 : out.size() - line_end + 1;
    for (const std::string& suffix : suffixes(*this)) {
        const bool fits = length + suffix.size() + 2 <= line_width;
        length = fits ? length + suffix.size() + 2 : indent + suffix.size();
        out += (fits ? ", " : ",\n" + std::string(indent, ' ')) + suffix;
    }
    return out + ")";
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << x.to_string(); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << detail::text_of(shape); }
std::ostream& operator<<(std::ostream& out, Dtype dtype) { return out << name(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << detail::text_of(device); }
std::ostream& operator<<(std::ostream& out, const TensorOptions& options) {
    return out << fmt::format("TensorOptions(dtype={}, device={}, requires_grad={})", name(options.dtype),
                              detail::text_of(options.device), options.requires_grad);
}

}  // namespace mezzo
