#include "io/header.h"

#include <algorithm>
#include <limits>

#include "core/sorting.h"
#include "io/json.h"

namespace mezzo::io {

namespace {

constexpr FileDtype file_dtype(const char* name, int bits) {
    for (const Dtype dtype : all_dtypes)
        if (std::string_view(dtype_info(dtype).file_name) == name) return {name, bits, dtype};
    return {name, bits};
}

// In the order of the reference implementation, which writes tensors of the last dtypes first.
constexpr FileDtype dtypes[] = {
    file_dtype("BOOL", 8),        file_dtype("F4", 4),          file_dtype("F6_E2M3", 6),
    file_dtype("F6_E3M2", 6),     file_dtype("U8", 8),          file_dtype("I8", 8),
    file_dtype("F8_E5M2", 8),     file_dtype("F8_E4M3", 8),     file_dtype("F8_E8M0", 8),
    file_dtype("F8_E4M3FNUZ", 8), file_dtype("F8_E5M2FNUZ", 8), file_dtype("I16", 16),
    file_dtype("U16", 16),        file_dtype("F16", 16),        file_dtype("BF16", 16),
    file_dtype("I32", 32),        file_dtype("U32", 32),        file_dtype("F32", 32),
    file_dtype("C64", 64),        file_dtype("F64", 64),        file_dtype("I64", 64),
    file_dtype("U64", 64),
};

constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();

// Reads and checks the header's entries one by one. Checks across entries follow afterwards.
class HeaderReader : public JsonHandler {
public:
    explicit HeaderReader(const std::string& where) : where_(where) {}

    void begin(JsonKind kind) override {
        if (place_ == State::start) {
            if (kind != JsonKind::object) unexpected(name(kind));
            place_ = State::top;
        } else if (place_ == State::top) {
            if (kind != JsonKind::object) unexpected(name(kind));
            place_ = info_.name == metadata_key ? State::metadata : State::tensor;
            if (place_ == State::metadata) {
                check(!had_metadata_, ErrorKind::io, where_, ": \"__metadata__\" occurs twice");
                had_metadata_ = true;
            }
        } else if (place_ == State::tensor && kind == JsonKind::array && field_ != Field::dtype) {
            place_ = field_ == Field::shape ? State::shape : State::offsets;
        } else {
            unexpected(name(kind));
        }
    }

    void end() override {
        switch (place_) {
            case State::shape:
            case State::offsets:
                if (place_ == State::offsets && offset_count_ != 2)
                    fail_tensor(": data_offsets has ", offset_count_, " numbers, not 2");
                place_ = State::tensor;
                break;
            case State::tensor:
                finish_tensor();
                place_ = State::top;
                break;
            case State::metadata:
                place_ = State::top;
                break;
            default:
                place_ = State::done;
        }
    }

    void key(std::string& text) override {
        if (place_ == State::top) {
            info_ = TensorInfo{.name = std::move(text), .dtype = {}, .shape = {}};
            seen_ = 0;
            offset_count_ = 0;
        } else if (place_ == State::metadata) {
            header.metadata.emplace_back(std::move(text), std::string());
        } else {
            field_ = text == "dtype"          ? Field::dtype
                     : text == "shape"        ? Field::shape
                     : text == "data_offsets" ? Field::offsets
                                              : Field::none;
            if (field_ == Field::none)
                fail_tensor(": ", shown(text), " is not one of dtype, shape and data_offsets");
            const unsigned bit = 1u << int(field_);
            if ((seen_ & bit) != 0) fail_tensor(": ", shown(text), " occurs twice");
            seen_ |= bit;
        }
    }

    void scalar(JsonScalar& value) override {
        if (place_ == State::metadata) {
            if (value.kind != JsonKind::string) unexpected(name(value.kind));
            header.metadata.back().second = std::move(value.text);
        } else if (place_ == State::tensor && field_ == Field::dtype && value.kind == JsonKind::string) {
            if (!find_file_dtype(value.text)) fail_tensor(": unknown dtype ", shown(value.text));
            info_.dtype = std::move(value.text);
        } else if ((place_ == State::shape || place_ == State::offsets) && value.kind == JsonKind::natural) {
            add_number(value.natural);
        } else {
            unexpected(name(value.kind));
        }
    }
    Header header;

private:
    enum class State : std::uint8_t { start, top, metadata, tensor, shape, offsets, done };
    enum class Field : std::uint8_t { dtype, shape, offsets, none };
    static constexpr const char* metadata_key = "__metadata__";

    template <class... Items> [[noreturn]] void fail_tensor(const Items&... items) const {
        fail(ErrorKind::io, where_, ": tensor ", shown(info_.name), items...);
    }

    [[noreturn]] void unexpected(const char* what) const {
        static constexpr const char* fields[] = {"dtype", "shape", "data_offsets", "an entry"};
        static constexpr const char* wanted[] = {"a string", "an array of whole numbers",
                                                 "an array of two whole numbers", "an object"};
        if (place_ == State::start) fail(ErrorKind::io, where_, ": the header is ", what, ", not an object");
        if (place_ == State::top)
            fail(ErrorKind::io, where_, ": ", shown(info_.name), " is ", what, ", not an object");
        if (place_ == State::metadata)
            fail(ErrorKind::io, where_, ": metadata ", shown(header.metadata.back().first), " is ", what,
                 ", not a string");
        const char* const holds = place_ == State::tensor ? " is " : " holds ";
        fail(ErrorKind::io, where_, ": tensor ", shown(info_.name), ": ", fields[int(field_)], holds, what,
             ", not ", wanted[int(field_)]);
    }

    void add_number(std::uint64_t number) {
        if (number > largest)
            fail_tensor(": ", std::to_string(number), " in ",
                        place_ == State::shape ? "shape" : "data_offsets", " overflows 63 bits");
        if (place_ == State::shape) {
            if (info_.shape.size() == max_dims)
                fail_tensor(" has more than ", max_dims, " dimensions, which mezzo does not read");
            info_.shape.push_back(std::int64_t(number));
            return;
        }
        if (offset_count_ == 0) info_.offset = number;
        if (offset_count_ == 1) end_ = number;
        ++offset_count_;
    }

    void finish_tensor() {
        const auto has = [&](Field field) { return (seen_ & 1u << int(field)) != 0; };
        if (!has(Field::dtype)) fail_tensor(" has no dtype");
        if (!has(Field::shape)) fail_tensor(" has no shape");
        if (!has(Field::offsets)) fail_tensor(" has no data_offsets");
        if (end_ < info_.offset)
            fail_tensor(": data_offsets end at ", end_, ", before they begin at ", info_.offset);
        info_.bytes = end_ - info_.offset;
        header.tensors.push_back(std::move(info_));
    }

    const std::string& where_;
    State place_ = State::start;
    Field field_ = Field::none;
    TensorInfo info_ = {};
    std::uint64_t end_ = 0;
    int offset_count_ = 0;
    unsigned seen_ = 0;
    bool had_metadata_ = false;
};

// Checks that each tensor has as many bytes as its shape and dtype need, and begins where the previous one
// ends.
class LayoutCheck {
public:
    LayoutCheck(std::uint64_t data_bytes, const std::string& where)
        : data_bytes_(data_bytes), where_(where) {}

    void add(const TensorInfo& info) {
        check_bytes(info);
        if (info.offset != end_)
            fail_tensor(info, " begins at byte ", info.offset,
                        info.offset < end_ ? ", which another tensor holds" : ", which leaves a hole",
                        "; the one before it ends at ", end_);
        if (info.bytes > data_bytes_ - end_)
            fail_tensor(info, " ends at byte ", end_ + info.bytes, ", the data have ", data_bytes_,
                        "; the file is truncated or damaged");
        end_ += info.bytes;
    }
    void finish() const {
        check(end_ == data_bytes_, ErrorKind::io, where_, ": ", data_bytes_ - end_,
              " bytes follow the last tensor, which ends at ", end_);
    }

private:
    template <class... Items>
    [[noreturn]] void fail_tensor(const TensorInfo& info, const Items&... items) const {
        fail(ErrorKind::io, where_, ": tensor ", shown(info.name), items...);
    }
    void check_bytes(const TensorInfo& info) const {
        const auto element_bits = std::size_t(find_file_dtype(info.dtype)->bits);
        const std::int64_t count = count_elements(info.shape, element_bits);
        if (count < 0)
            fail_tensor(info, ": the size of shape ", info.shape, " in ", info.dtype, " overflows 63 bits");
        const std::uint64_t bits = std::uint64_t(count) * element_bits;
        if (bits % 8 != 0)
            fail_tensor(info, ": shape ", info.shape, " of ", info.dtype, " is ", bits,
                        " bits, no whole number of bytes");
        if (bits / 8 != info.bytes)
            fail_tensor(info, ": shape ", info.shape, " of ", info.dtype, " needs ", bits / 8,
                        " bytes, data_offsets [", info.offset, ", ", info.offset + info.bytes, "] hold ",
                        info.bytes);
    }

    std::uint64_t data_bytes_, end_ = 0;
    const std::string& where_;
};

template <class List, class Name>
void check_unique(const List& list, const Name& name_of, const char* what, const std::string& where) {
    std::vector<std::string_view> names;
    names.reserve(list.size());
    for (const auto& entry : list) names.push_back(name_of(entry));
    if (const std::string_view twice = repeated(names); twice.data() != nullptr)
        fail(ErrorKind::io, where, ": ", what, " ", shown(twice), " occurs twice");
}

}  // namespace

const FileDtype* find_file_dtype(std::string_view name) {
    const auto found = std::find_if(std::begin(dtypes), std::end(dtypes),
                                    [&](const FileDtype& d) { return d.name == name; });
    return found == std::end(dtypes) ? nullptr : found;
}

int file_dtype_rank(Dtype dtype) {
    const auto found = std::find_if(std::begin(dtypes), std::end(dtypes),
                                    [&](const FileDtype& d) { return d.dtype == dtype; });
    return int(found - std::begin(dtypes));
}

const char* file_dtype_name(Dtype dtype) { return dtypes[file_dtype_rank(dtype)].name; }

void sort_by_place(std::vector<TensorInfo>& tensors) {
    sort_by(tensors, [](const TensorInfo& a, const TensorInfo& b) {
        if (a.offset != b.offset) return a.offset < b.offset;
        return a.bytes != b.bytes ? a.bytes < b.bytes : a.name < b.name;
    });
}

Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& where) {
    HeaderReader reader(where);
    parse_json(text, where, reader);
    Header header = std::move(reader.header);
    check_unique(
        header.tensors, [](const TensorInfo& t) -> std::string_view { return t.name; }, "tensor", where);
    check_unique(
        header.metadata, [](const auto& m) -> std::string_view { return m.first; }, "metadata", where);
    sort_by_place(header.tensors);
    LayoutCheck layout(data_bytes, where);
    for (const TensorInfo& info : header.tensors) layout.add(info);
    layout.finish();
    return header;
}

std::string header_text(const Header& header) {
    std::string text = "{";
    const auto comma = [&] {
        if (text.back() != '{' && text.back() != '[') text += ',';
    };
    if (!header.metadata.empty()) {
        text += "\"__metadata__\":{";
        for (const auto& [key, value] : header.metadata) {
            comma();
            append_quoted(text, key);
            text += ':';
            append_quoted(text, value);
        }
        text += '}';
    }
    for (const TensorInfo& info : header.tensors) {
        comma();
        append_quoted(text, info.name);
        text += ":{\"dtype\":\"" + info.dtype + "\",\"shape\":[";
        for (const std::int64_t size : info.shape) {
            comma();
            text += std::to_string(size);
        }
        text += "],\"data_offsets\":[" + std::to_string(info.offset) + "," +
                std::to_string(info.offset + info.bytes) + "]}";
    }
    text += '}';
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
}

}  // namespace mezzo::io
