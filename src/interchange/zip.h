// Zip archives, as far as NumPy's and PyTorch's files need them: stored and deflated members, ZIP64,
// checksums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file.h"

namespace mezzo::io {

struct ZipMember {
    std::string name;
    int method = 0;  // 0 stored, 8 deflated
    std::uint32_t crc = 0;
    std::uint64_t packed = 0, size = 0;  // bytes in the file, and unpacked
    std::uint64_t header = 0;            // offset of its local header
    std::uint64_t end = 0;               // offset of the next member or the directory
    bool has_crc = true;                 // false: the checksum is not verified
};

// Returns the members in the directory at the end of the file. Error messages begin with `where`.
std::vector<ZipMember> zip_members(const std::string& where, const InputFile& file);

// Throws Error(io) if a member claims more bytes than its packed bytes can hold.
void check_packed_bytes(const std::string& where, const ZipMember& member);

// Unpacks a member piece by piece.
class ZipReader {
public:
    ZipReader(const std::string& where, const InputFile& file, const ZipMember& member);
    ~ZipReader();
    ZipReader(const ZipReader&) = delete;
    ZipReader& operator=(const ZipReader&) = delete;
    void read(void* to, std::size_t bytes);
    // Throws unless everything was read and has the directory's checksum.
    void finish();

private:
    struct State;
    State* state_;
};

// Writes an archive, member by member.
class ZipWriter {
public:
    ZipWriter(const char* op, const std::string& path, bool compressed);
    ~ZipWriter();
    ZipWriter(const ZipWriter&) = delete;
    ZipWriter& operator=(const ZipWriter&) = delete;
    void begin(const std::string& name);
    void write(const void* from, std::size_t bytes);
    void end();
    void commit();  // writes the directory and renames the file to its path

private:
    struct State;
    State* state_;
};

}  // namespace mezzo::io
