#include "interchange/npy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "io/elements.h"
#include "io/file.h"
#include "io/json.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"
#include "mezzo/interchange/numpy.h"
#include "mezzo/ops.h"

namespace mezzo::io {

namespace {

constexpr std::size_t most_header = 10000;  // NumPy's own limit

// Names of an element type. NumPy writes the code with a byte order, "<f8", and reads all of them.
struct NumpyType {
    const char *code, *letter, *name;
};
constexpr NumpyType types[] = {
    {"f2", "e", "float16"}, {"f4", "f", "float32"}, {"f8", "d", "float64"}, {"i1", "b", "int8"},
    {"i2", "h", "int16"},   {"i4", "i", "int32"},   {"i8", "q", "int64"},   {"i8", "l", "int"},
    {"u1", "B", "uint8"},   {"u2", "H", "uint16"},  {"u4", "I", "uint32"},  {"u8", "Q", "uint64"},
    {"u8", "L", "uint"},    {"b1", "?", "bool"},
};

// Reads the Python literal of a header: a dict of strings, True, False and a tuple of whole numbers.
class Literal {
public:
    Literal(const std::string& where, const std::string& text) : where_(where), text_(text) {}

    void read(NpyHeader& header) {
        bool descr = false, order = false, shape = false;
        expect('{');
        while (!accept('}')) {
            const std::string key = string();
            expect(':');
            if (key == "descr" && !std::exchange(descr, true))
                read_dtype(header);
            else if (key == "fortran_order" && !std::exchange(order, true))
                header.fortran = flag();
            else if (key == "shape" && !std::exchange(shape, true))
                read_shape(header.shape);
            else
                fail_with("the key " + shown(key));
            if (!accept(',')) {
                expect('}');
                break;
            }
        }
        skip_space();
        check(at_ == text_.size() && descr && order && shape, ErrorKind::io, where_,
              ": the header is not a dict of descr, fortran_order and shape");
    }

private:
    [[noreturn]] void fail_with(const std::string& found) const {
        fail(ErrorKind::io, where_, ": the header has ", found, " at byte ", at_, ", which is not expected");
    }
    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
    }
    bool accept(char c) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    void expect(char c) {
        if (!accept(c)) fail_with(at_ < text_.size() ? shown(text_.substr(at_, 1)) : std::string("its end"));
    }
    std::string string() {
        skip_space();
        if (at_ < text_.size() && text_[at_] == 'u') ++at_;  // Python 2 writes u'descr'
        const char quote = at_ < text_.size() ? text_[at_] : '\0';
        const std::size_t end =
            quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string::npos;
        if (end == std::string::npos) fail_with("no string");
        const std::string result = text_.substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return result;
    }
    bool flag() {
        skip_space();
        for (const auto& [word, value] : {std::pair("True", true), std::pair("False", false)})
            if (text_.compare(at_, std::strlen(word), word) == 0) {
                at_ += std::strlen(word);
                return value;
            }
        fail_with("neither True nor False");
    }
    std::int64_t natural() {
        skip_space();
        std::int64_t value = 0;
        const std::size_t begin = at_;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
            if (__builtin_mul_overflow(value, 10, &value) ||
                __builtin_add_overflow(value, text_[at_] - '0', &value))
                fail_with("a number beyond 63 bits");
        if (at_ == begin) fail_with("no number");
        if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2 writes (3L,)
        return value;
    }
    void read_shape(Shape& shape) {
        expect('(');
        while (!accept(')')) {
            check(shape.size() < max_dims, ErrorKind::io, where_, ": the array has more than ", max_dims,
                  " dimensions");
            shape.push_back(natural());
            if (!accept(',')) {
                expect(')');
                break;
            }
        }
    }
    void read_dtype(NpyHeader& header) {
        skip_space();
        const bool plain =
            at_ < text_.size() && std::string_view("'\"u").find(text_[at_]) != std::string_view::npos;
        check(plain, ErrorKind::dtype, where_,
              ": the array has structured elements; save its fields one by one");
        const std::string descr = string();
        const bool ordered =
            !descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string_view::npos;
        const std::string type = descr.substr(ordered ? 1 : 0);
        const auto known = std::find_if(std::begin(types), std::end(types), [&](const NumpyType& t) {
            return type == t.code || type == t.letter || (!ordered && type == t.name);
        });
        check(known != std::end(types), ErrorKind::dtype, where_, ": elements are ", shown(descr),
              "; mezzo reads floating numbers of 2, 4 and 8 bytes, integers and booleans");
        header.kind = known->code[0];
        header.bytes = known->code[1] - '0';
        header.big_endian = descr[0] == '>' && header.bytes > 1;
    }
    const std::string& where_;
    const std::string& text_;
    std::size_t at_ = 0;
};

Dtype dtype_of(const NpyHeader& header) {
    if (header.kind == 'b') return boolean;
    if (header.kind == 'f') return header.bytes == 2 ? float16 : header.bytes == 4 ? float32 : float64;
    if (header.bytes == 1) return header.kind == 'u' ? uint8 : int8;
    const bool wide = header.bytes == 8 || (header.kind == 'u' && header.bytes == 4);
    return wide ? int64 : int32;
}

void swap_bytes(char* data, std::size_t bytes, int size) {
    for (std::size_t i = 0; i < bytes; i += std::size_t(size)) std::reverse(data + i, data + i + size);
}

// Replaces bytes that are not 0 by 1.
void tidy_booleans(const Elements& elements) {
    auto* const bytes = static_cast<unsigned char*>(elements.data);
    for (std::size_t i = 0; i < elements.bytes; ++i) bytes[i] = bytes[i] != 0;
}

}  // namespace

NpyHeader read_npy_header(const std::string& where, const NpySource& next) {
    unsigned char begin[8], length[4] = {};
    next(begin, sizeof begin);
    check(std::memcmp(begin, "\x93NUMPY", 6) == 0, ErrorKind::io, where,
          ": it does not begin as a .npy file");
    const int major = begin[6];
    check(major >= 1 && major <= 3 && begin[7] == 0, ErrorKind::io, where, ": version ", major, ".",
          int(begin[7]), " of the format; 1.0, 2.0 and 3.0 are read");
    const std::size_t length_bytes = major == 1 ? 2 : 4;
    next(length, length_bytes);
    const std::uint32_t size = length[0] | std::uint32_t(length[1]) << 8 | std::uint32_t(length[2]) << 16 |
                               std::uint32_t(length[3]) << 24;
    check(size <= most_header, ErrorKind::io, where, ": the header claims ", size, " bytes; at most ",
          most_header, " are read");
    std::string text(size, '\0');
    next(text.data(), size);
    NpyHeader header;
    Literal(where, text).read(header);
    header.data_begin = sizeof begin + length_bytes + size;
    header.data_bytes = std::uint64_t(checked_numel(where.c_str(), header.shape, std::size_t(header.bytes))) *
                        std::uint64_t(header.bytes);
    return header;
}

Tensor read_npy_elements(const std::string& where, const NpyHeader& header, const NpySource& next) {
    const NoGrad plain;
    const Dtype dtype = dtype_of(header);
    Shape stored;
    for (int d = 0; d < header.shape.size(); ++d)
        stored.push_back(header.shape[header.fortran ? header.shape.size() - 1 - d : d]);
    const Tensor result = empty(stored, {.dtype = dtype});
    const Elements elements = elements_of(result);
    if (elements.bytes != header.data_bytes || (header.kind == 'u' && header.bytes == 8)) {
        std::vector<char> raw(std::size_t(header.data_bytes));
        next(raw.data(), raw.size());
        if (header.big_endian) swap_bytes(raw.data(), raw.size(), header.bytes);
        widen_integers(where, raw, header.kind == 'i', header.bytes, result);
    } else if (elements.bytes != 0) {
        next(elements.data, elements.bytes);
        if (header.big_endian) swap_bytes(static_cast<char*>(elements.data), elements.bytes, header.bytes);
        if (dtype == boolean) tidy_booleans(elements);
    }
    if (!header.fortran || stored.size() < 2) return result;
    Axes reversed;
    for (int d = stored.size() - 1; d >= 0; --d) reversed.push_back(d);
    return result.permute(reversed).contiguous();
}

Tensor npy_tensor(const char* op, const Tensor& tensor) {
    const NoGrad plain;
    check(tensor.defined(), ErrorKind::value, op, ": the tensor is undefined");
    const Tensor own = tensor.detach().to(cpu_device);
    const bool lacking = own.dtype() == bfloat16 || (is_storage_only(own.dtype()) && own.dtype() != int8);
    return (lacking ? own.to(float32) : own).contiguous();
}

std::string npy_header(const Tensor& tensor) {
    const char* const kind = tensor.dtype() == float16   ? "<f2"
                             : tensor.dtype() == float32 ? "<f4"
                             : tensor.dtype() == float64 ? "<f8"
                             : tensor.dtype() == int32   ? "<i4"
                             : tensor.dtype() == int64   ? "<i8"
                             : tensor.dtype() == uint8   ? "|u1"
                             : tensor.dtype() == int8    ? "|i1"
                                                         : "|b1";
    std::string shape;
    for (int d = 0; d < tensor.dim(); ++d) shape += (d == 0 ? "" : ", ") + std::to_string(tensor.size(d));
    if (tensor.dim() == 1) shape += ",";
    std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", kind, shape);
    // Aligns the elements to a multiple of 64 bytes, as NumPy does.
    const std::size_t unpadded = 10 + text.size() + 1;
    text.append((64 - unpadded % 64) % 64, ' ');
    text += '\n';
    return std::string("\x93NUMPY\x01\x00", 8) + char(text.size() & 0xff) + char(text.size() >> 8) + text;
}

Tensor load_npy(const std::string& path) {
    const InputFile file("load_npy", path);
    const std::string where = "load_npy: " + path;
    refuse_other_kind(where, file, "\x93NUMPY", ".npy");
    std::uint64_t at = 0;
    const NpySource next = [&](void* to, std::size_t bytes) {
        check(bytes <= file.size() - at, ErrorKind::io, where, ": it has ", file.size(), " bytes, ",
              at + bytes, " are needed");
        file.read(at, to, bytes);
        at += bytes;
    };
    const NpyHeader header = read_npy_header(where, next);
    check(header.data_bytes <= file.size() - at, ErrorKind::io, where, ": the header promises ",
          header.data_bytes, " bytes of elements, ", file.size() - at, " are there");
    return read_npy_elements(where, header, next);
}

void save_npy(const std::string& path, const Tensor& tensor) {
    const Tensor own = npy_tensor("save_npy", tensor);
    const Elements elements = elements_of(own);
    ReplacedFile file("save_npy", path);
    file.write(npy_header(own));
    file.write(elements.data, elements.bytes);
    file.commit();
}

}  // namespace mezzo::io
