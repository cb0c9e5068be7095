#include "interchange/zip.h"

#include <algorithm>

#include <zlib.h>

#include "io/crc.h"
#include "io/json.h"
#include "mezzo/error.h"

namespace mezzo::io {

namespace {

constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50,
                        end64_mark = 0x06064b50, locator64_mark = 0x07064b50;
constexpr std::uint64_t most_directory = std::uint64_t(64) << 20, wide = 0xffffffff;
constexpr std::size_t piece = 1 << 16;

// Reads little-endian numbers of a header.
class Fields {
public:
    explicit Fields(std::string_view bytes) : bytes_(bytes) {}
    std::uint64_t number(std::size_t at, std::size_t size) const {
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < size; ++i)
            value |= std::uint64_t(static_cast<unsigned char>(bytes_[at + i])) << 8 * i;
        return value;
    }

private:
    std::string_view bytes_;
};

void put(std::string& out, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += char(value >> 8 * i & 0xff);
}

std::string read_at(const std::string& where, const InputFile& file, std::uint64_t at, std::uint64_t bytes) {
    check(at <= file.size() && bytes <= file.size() - at, ErrorKind::io, where,
          ": the archive is damaged: it points beyond its end");
    std::string text(std::size_t(bytes), '\0');
    file.read(at, text.data(), text.size());
    return text;
}

struct Directory {
    std::uint64_t begin = 0, bytes = 0, count = 0;
};

// Finds the directory's offset in the record at the end of the file, which a comment of up to 64 KiB may
// follow.
Directory find_directory(const std::string& where, const InputFile& file) {
    const std::uint64_t tail_bytes = std::min<std::uint64_t>(file.size(), 22 + 65535);
    const std::uint64_t tail_begin = file.size() - tail_bytes;
    const std::string tail = read_at(where, file, tail_begin, tail_bytes);
    const std::size_t at = tail.size() < 22 ? std::string::npos : tail.rfind("PK\x05\x06", tail.size() - 22);
    check(at != std::string::npos, ErrorKind::io, where, ": it is no zip archive, or its end is missing");
    const Fields end(std::string_view(tail).substr(at));
    Directory found{end.number(16, 4), end.number(12, 4), end.number(10, 2)};
    if (found.begin != wide && found.bytes != wide && found.count != 0xffff) return found;
    const std::uint64_t end_at = tail_begin + at;
    check(end_at >= 20, ErrorKind::io, where, ": the archive's ZIP64 locator is missing");
    const std::string locator = read_at(where, file, end_at - 20, 20);
    check(Fields(locator).number(0, 4) == locator64_mark, ErrorKind::io, where,
          ": the archive's ZIP64 locator is missing");
    const std::string end64 = read_at(where, file, Fields(locator).number(8, 8), 56);
    check(Fields(end64).number(0, 4) == end64_mark, ErrorKind::io, where,
          ": the archive's ZIP64 end is damaged");
    return {Fields(end64).number(48, 8), Fields(end64).number(40, 8), Fields(end64).number(32, 8)};
}

// Reads sizes beyond 4 GiB from an extra field, which has, in this order, only those that do not fit.
void read_wide(const std::string& where, std::string_view extra, ZipMember& member) {
    for (std::size_t at = 0; at + 4 <= extra.size();) {
        const std::uint64_t id = Fields(extra).number(at, 2), size = Fields(extra).number(at + 2, 2);
        check(at + 4 + size <= extra.size(), ErrorKind::io, where, ": an extra field is damaged");
        if (id == 1) {
            std::size_t from = at + 4;
            const std::size_t end = from + std::size_t(size);
            for (std::uint64_t* const value : {&member.size, &member.packed, &member.header}) {
                if (*value != wide) continue;
                check(from + 8 <= end, ErrorKind::io, where, ": a ZIP64 field is damaged");
                *value = Fields(extra).number(from, 8);
                from += 8;
            }
        }
        at += 4 + std::size_t(size);
    }
}

// Sets the ends of the members, for the check that they do not overlap: a small file could claim the same
// bytes many times.
void find_ends(std::vector<ZipMember>& members) {
    std::vector<ZipMember*> sorted;
    for (ZipMember& member : members) sorted.push_back(&member);
    std::sort(sorted.begin(), sorted.end(),
              [](const ZipMember* a, const ZipMember* b) { return a->header < b->header; });
    for (std::size_t i = 1; i < sorted.size(); ++i) sorted[i - 1]->end = sorted[i]->header;
}

}  // namespace

std::vector<ZipMember> zip_members(const std::string& where, const InputFile& file) {
    const Directory directory = find_directory(where, file);
    check(directory.bytes <= most_directory, ErrorKind::io, where, ": the archive's directory claims ",
          directory.bytes, " bytes");
    const std::string text = read_at(where, file, directory.begin, directory.bytes);
    std::vector<ZipMember> members;
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < directory.count; ++i) {
        check(at + 46 <= text.size() && Fields(text).number(at, 4) == entry_mark, ErrorKind::io, where,
              ": entry ", i, " of the archive's directory is damaged");
        const Fields entry(std::string_view(text).substr(at));
        const std::size_t name = entry.number(28, 2), extra = entry.number(30, 2),
                          comment = entry.number(32, 2);
        check(at + 46 + name + extra + comment <= text.size(), ErrorKind::io, where, ": entry ", i,
              " of the archive's directory is damaged");
        ZipMember member{text.substr(at + 46, name),
                         int(entry.number(10, 2)),
                         std::uint32_t(entry.number(16, 4)),
                         entry.number(20, 4),
                         entry.number(24, 4),
                         entry.number(42, 4),
                         directory.begin};
        check((entry.number(8, 2) & 1) == 0, ErrorKind::io, where, ": ", shown(member.name), " is encrypted");
        check(member.method == 0 || member.method == 8, ErrorKind::io, where, ": ", shown(member.name),
              " is packed with method ", member.method, "; stored and deflated members are read");
        read_wide(where, std::string_view(text).substr(at + 46 + name, extra), member);
        members.push_back(std::move(member));
        at += 46 + name + extra + comment;
    }
    find_ends(members);
    return members;
}

void check_packed_bytes(const std::string& where, const ZipMember& member) {
    // Deflate compresses to a thousandth at best.
    const bool fits = member.method == 8 ? member.size / 1100 <= member.packed : member.size == member.packed;
    check(fits, ErrorKind::io, where, ": ", member.packed, " packed bytes cannot hold ", member.size);
}

struct ZipReader::State {
    State(const std::string& w, const InputFile& f, const ZipMember& m) : where(w), file(f), member(m) {
        const std::string local = read_at(where, file, m.header, 30);
        check(Fields(local).number(0, 4) == local_mark, ErrorKind::io, where,
              ": its local header is damaged");
        const std::uint64_t name_bytes = Fields(local).number(26, 2);
        const std::string name = read_at(where, file, m.header + 30, name_bytes);
        check(name == m.name, ErrorKind::io, where, ": its local header has the name ", shown(name),
              "; the archive is damaged");
        at = m.header + 30 + Fields(local).number(26, 2) + Fields(local).number(28, 2);
        check(at <= file.size() && m.packed <= file.size() - at, ErrorKind::io, where,
              ": the archive ends before its data does");
        check(at <= m.end && m.packed <= m.end - at, ErrorKind::io, where,
              ": its data overlap with what follows in the archive");
        left = m.packed;
        if (m.method == 8)
            check(inflateInit2(&stream, -MAX_WBITS) == Z_OK, ErrorKind::memory, where,
                  ": no memory for zlib");
    }
    ~State() {
        if (member.method == 8) inflateEnd(&stream);
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    void fill() {
        packed.resize(std::size_t(std::min<std::uint64_t>(left, piece)));
        file.read(at, packed.data(), packed.size());
        at += packed.size();
        left -= packed.size();
        stream.next_in = reinterpret_cast<Bytef*>(packed.data());
        stream.avail_in = uInt(packed.size());
    }
    // Unpacks up to `bytes`, and returns how many there were.
    std::size_t unpack(char* to, std::size_t bytes) {
        std::size_t got = 0;
        while (got < bytes && !ended) {
            if (stream.avail_in == 0 && left != 0) fill();
            const auto room = uInt(std::min<std::size_t>(bytes - got, std::size_t(1) << 30));
            stream.next_out = reinterpret_cast<Bytef*>(to + got);
            stream.avail_out = room;
            const int status = inflate(&stream, Z_NO_FLUSH);
            got += room - stream.avail_out;
            ended = status == Z_STREAM_END;
            check(ended || status == Z_OK, ErrorKind::io, where, ": its deflated data is damaged");
        }
        return got;
    }

    std::string where;
    const InputFile& file;
    ZipMember member;
    z_stream stream{};
    std::string packed;
    std::uint64_t at = 0, left = 0, done = 0;
    std::uint32_t crc = 0;
    bool ended = false;
};

ZipReader::ZipReader(const std::string& where, const InputFile& file, const ZipMember& member)
    : state_(new State(where + ": " + shown(member.name), file, member)) {}
ZipReader::~ZipReader() { delete state_; }

void ZipReader::read(void* to, std::size_t bytes) {
    State& s = *state_;
    if (bytes == 0) return;
    if (s.member.method == 0) {
        check(bytes <= s.left, ErrorKind::io, s.where, ": it ends after ", s.done + s.left, " bytes");
        s.file.read(s.at, to, bytes);
        s.at += bytes;
        s.left -= bytes;
    } else {
        const std::size_t got = s.unpack(static_cast<char*>(to), bytes);
        check(got == bytes, ErrorKind::io, s.where, ": it ends after ", s.done + got, " bytes");
    }
    s.crc = crc32(s.crc, to, bytes);
    s.done += bytes;
}

void ZipReader::finish() {
    State& s = *state_;
    char more = 0;
    const bool rest = s.member.method == 0 ? s.left != 0 : s.unpack(&more, 1) != 0;
    check(!rest && s.done == s.member.size, ErrorKind::io, s.where, ": the archive says that it has ",
          s.member.size, " bytes, ", s.done, " are used");
    check(s.crc == s.member.crc || !s.member.has_crc, ErrorKind::io, s.where,
          ": its checksum is wrong; the file is damaged");
}

struct ZipWriter::State {
    State(const char* op, const std::string& path, bool pack) : file(op, path), compressed(pack) {}
    ~State() {
        if (packing) deflateEnd(&stream);
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    void out(const void* from, std::size_t bytes) {
        file.write(from, bytes);
        at += bytes;
    }
    void out(const std::string& text) { out(text.data(), text.size()); }
    void pack(const void* from, std::size_t bytes, int flush) {
        char buffer[piece];
        stream.next_in = static_cast<Bytef*>(const_cast<void*>(from));
        stream.avail_in = uInt(bytes);
        do {
            stream.next_out = reinterpret_cast<Bytef*>(buffer);
            stream.avail_out = piece;
            deflate(&stream, flush);
            out(buffer, piece - stream.avail_out);
        } while (stream.avail_out == 0);
    }

    ReplacedFile file;
    bool compressed, packing = false;
    z_stream stream{};
    std::uint64_t at = 0, begin = 0;
    std::vector<ZipMember> members;
};

ZipWriter::ZipWriter(const char* op, const std::string& path, bool compressed)
    : state_(new State(op, path, compressed)) {}
ZipWriter::~ZipWriter() { delete state_; }

namespace {

// Returns the fields that local header and directory share; always ZIP64, as NumPy writes it. Date
// 1980-01-01, UTF-8 names.
std::string common_fields(const ZipMember& m) {
    std::string text;
    put(text, 45, 2);
    put(text, 0x800, 2);
    put(text, std::uint64_t(m.method), 2);
    put(text, 0, 2);
    put(text, 33, 2);
    put(text, m.crc, 4);
    put(text, wide, 4);
    put(text, wide, 4);
    put(text, m.name.size(), 2);
    return text;
}

std::string local_header(const ZipMember& m) {
    std::string text;
    put(text, local_mark, 4);
    text += common_fields(m);
    put(text, 20, 2);
    text += m.name;
    put(text, 1, 2);
    put(text, 16, 2);
    put(text, m.size, 8);
    put(text, m.packed, 8);
    return text;
}

std::string directory_entry(const ZipMember& m) {
    std::string text;
    put(text, entry_mark, 4);
    put(text, 45, 2);
    text += common_fields(m);
    put(text, 28, 2);  // of the extra field
    put(text, 0, 2);
    put(text, 0, 2);
    put(text, 0, 2);
    put(text, 0, 4);
    put(text, wide, 4);
    text += m.name;
    put(text, 1, 2);
    put(text, 24, 2);
    put(text, m.size, 8);
    put(text, m.packed, 8);
    put(text, m.header, 8);
    return text;
}

}  // namespace

void ZipWriter::begin(const std::string& name) {
    State& s = *state_;
    s.members.push_back({.name = name, .method = s.compressed ? 8 : 0, .header = s.at});
    s.out(local_header(s.members.back()));  // sizes and checksum follow at its end
    s.begin = s.at;
    if (!s.compressed) return;
    s.stream = {};
    const int status =
        deflateInit2(&s.stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
    check(status == Z_OK, ErrorKind::memory, "save_npz: no memory for zlib");
    s.packing = true;
}

void ZipWriter::write(const void* from, std::size_t bytes) {
    State& s = *state_;
    if (bytes == 0) return;
    ZipMember& member = s.members.back();
    member.crc = crc32(member.crc, from, bytes);
    member.size += bytes;
    if (!s.compressed) return s.out(from, bytes);
    const char* const data = static_cast<const char*>(from);
    constexpr std::size_t most = std::size_t(1) << 30;
    for (std::size_t done = 0; done < bytes; done += most)
        s.pack(data + done, std::min(most, bytes - done), Z_NO_FLUSH);
}

void ZipWriter::end() {
    State& s = *state_;
    if (s.packing) {
        s.pack(nullptr, 0, Z_FINISH);
        deflateEnd(&s.stream);
        s.packing = false;
    }
    ZipMember& member = s.members.back();
    member.packed = s.at - s.begin;
    s.file.rewrite(member.header, local_header(member));
}

void ZipWriter::commit() {
    State& s = *state_;
    const std::uint64_t directory = s.at, count = s.members.size();
    for (const ZipMember& member : s.members) s.out(directory_entry(member));
    const std::uint64_t bytes = s.at - directory, end64 = s.at;
    std::string text;
    put(text, end64_mark, 4);
    put(text, 44, 8);
    put(text, 45, 2);
    put(text, 45, 2);
    put(text, 0, 4);
    put(text, 0, 4);
    for (const std::uint64_t value : {count, count, bytes, directory}) put(text, value, 8);
    put(text, locator64_mark, 4);
    put(text, 0, 4);
    put(text, end64, 8);
    put(text, 1, 4);
    put(text, end_mark, 4);
    put(text, 0, 4);
    put(text, std::min<std::uint64_t>(count, 0xffff), 2);
    put(text, std::min<std::uint64_t>(count, 0xffff), 2);
    put(text, std::min(bytes, wide), 4);
    put(text, std::min(directory, wide), 4);
    put(text, 0, 2);
    s.out(text);
    s.file.commit();
}

}  // namespace mezzo::io
