// Printing, in the manner of PyTorch: aligned columns, four decimals, long dimensions shortened to their
// edges.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/values.h"

namespace mezzo {
namespace {

constexpr std::int64_t full_limit = 1000;  // elements printed without shortening
constexpr std::int64_t edge = 3;           // elements kept at each end of a shortened dimension
constexpr int line_width = 80;

// How the numbers of one tensor are written, so that all have the same form.
enum class Form : std::uint8_t { flag, integer, whole, decimal, scientific };

class Printer {
public:
    explicit Printer(const Tensor& x) : x_(x), values_(x, "to_string"), shorten_(x.numel() > full_limit) {
        choose_form();
        visit(0, 0, [this](std::int64_t offset) { width_ = std::max(width_, text_of(offset).size()); });
    }

    void print(std::string& out) const { print_dim(out, 0, 0); }

private:
    double real(std::int64_t offset) const {
        return visit_dtype(x_.dtype(), [&](auto type) {
            return convert_value<double>(values_.get<typename decltype(type)::type>(offset));
        });
    }

    std::int64_t integer(std::int64_t offset) const {
        return visit_dtype(x_.dtype(), [&](auto type) {
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
        if (x_.numel() == 0) return;
        if (dim == x_.dim()) return f(offset);
        for (std::int64_t i = 0; i < x_.shape()[dim]; i = next(dim, i))
            visit(dim + 1, offset + i * x_.strides()[dim], f);
    }

    // Scientific as in PyTorch: when some value is huge or tiny, or the largest is over 1000 times the
    // smallest.
    void choose_form() {
        if (!is_floating(x_.dtype())) {
            form_ = x_.dtype() == boolean ? Form::flag : Form::integer;
            return;
        }
        double smallest = HUGE_VAL, largest = 0;
        bool whole = true;
        visit(0, 0, [&](std::int64_t offset) {
            const double value = std::fabs(real(offset));
            if (!std::isfinite(value)) return;
            whole = whole && value == std::floor(value);
            if (value != 0) smallest = std::min(smallest, value);
            largest = std::max(largest, value);
        });
        if (largest == 0) smallest = 0;
        if (whole)
            form_ =
                largest > 1e8 || (smallest > 0 && largest / smallest > 1e8) ? Form::scientific : Form::whole;
        else
            form_ = largest / smallest > 1000 || largest > 1e8 || smallest < 1e-4 ? Form::scientific
                                                                                  : Form::decimal;
    }

    std::string text_of(std::int64_t offset) const {
        if (form_ == Form::flag) return integer(offset) != 0 ? "true" : "false";
        if (form_ == Form::integer) return fmt::format("{}", integer(offset));
        const double value = real(offset);
        if (std::isnan(value)) return "nan";
        if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
        if (form_ == Form::whole) return fmt::format("{:.0f}.", value);
        return form_ == Form::decimal ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
    }

    void print_row(std::string& out, int dim, std::int64_t offset) const {
        const auto column = width_ + 2;  // with ", "
        const std::size_t per_line =
            std::max<std::size_t>(1, static_cast<std::size_t>(line_width - dim - 1) / column);
        std::size_t on_line = 0;
        const auto place = [&](const std::string& text) {
            if (on_line == per_line) {
                out.pop_back();  // the blank after the comma
                out += '\n';
                out.append(static_cast<std::size_t>(dim) + 1, ' ');
                on_line = 0;
            }
            out += fmt::format("{:>{}}", text, width_);
            ++on_line;
        };
        for (std::int64_t i = 0; i < x_.shape()[dim];) {
            place(text_of(offset + i * x_.strides()[dim]));
            const std::int64_t following = next(dim, i);
            if (following < x_.shape()[dim]) out += ", ";
            if (following != i + 1) {
                place("...");
                out += ", ";
            }
            i = following;
        }
    }

    void print_dim(std::string& out, int dim, std::int64_t offset) const {
        if (dim == x_.dim()) {
            out += text_of(offset);
            return;
        }
        out += '[';
        if (dim == x_.dim() - 1) {
            print_row(out, dim, offset);
        } else {
            const auto gap = ",\n" + std::string(static_cast<std::size_t>(x_.dim() - dim) - 2, '\n') +
                             std::string(static_cast<std::size_t>(dim) + 1, ' ');
            for (std::int64_t i = 0; i < x_.shape()[dim];) {
                print_dim(out, dim + 1, offset + i * x_.strides()[dim]);
                const std::int64_t following = next(dim, i);
                if (following < x_.shape()[dim]) out += gap;
                if (following != i + 1) out += "..." + gap;
                i = following;
            }
        }
        out += ']';
    }

    const Tensor& x_;
    HostValues values_;
    bool shorten_;
    Form form_ = Form::decimal;
    std::size_t width_ = 0;
};

}  // namespace

std::string Tensor::to_string() const {
    if (!defined()) return "undefined tensor";
    std::string out;
    if (numel() == 0)
        out = "[]";
    else
        Printer(*this).print(out);
    for (const detail::Item& item : {detail::Item(", shape "), detail::Item(shape()), detail::Item(", "),
                                     detail::Item(dtype()), detail::Item(", ")})
        item.append_to(out);
    detail::Item(device()).append_to(out);
    return out;
}

}  // namespace mezzo
