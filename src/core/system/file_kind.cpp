#include "core/system/file_kind.h"

#include <algorithm>

#include "mezzo/error.h"

namespace mezzo {

namespace {

using namespace std::string_view_literals;

struct Magic {
    std::string_view begin;
    const char* kind;
};

constexpr Magic magics[] = {
    {"\x93NUMPY"sv, "a NumPy array (.npy); io::load_npy() reads it"},
    {"\x89PNG\r\n\x1a\n"sv, "a PNG image; read_image() reads it"},
    {"\xff\xd8\xff"sv, "a JPEG image; read_image() reads it"},
    {"\x89HDF\r\n\x1a\n"sv,
     "an HDF5 file, as Keras and h5py write; in Python convert it with safetensors.numpy.save_file()"},
    {"GGUF"sv, "a GGUF file of llama.cpp; use the model's safetensors files"},
    {"\x1f\x8b"sv, "compressed by gzip; unpack it with gunzip"},
    {"BZh"sv, "compressed by bzip2; unpack it with bunzip2"},
    {"\xfd"
     "7zXZ\0"sv,
     "compressed by xz; unpack it with unxz"},
    {"\x28\xb5\x2f\xfd"sv, "compressed by zstd; unpack it with unzstd"},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive; unpack it"},
    {"Rar!\x1a\x07"sv, "a RAR archive; unpack it"},
    {"GIF8"sv, "a GIF image; convert it to PNG"},
    {"II*\0"sv, "a TIFF image; convert it to PNG"},
    {"MM\0*"sv, "a TIFF image; convert it to PNG"},
    {"%PDF-"sv, "a PDF document"},
    {"PAR1"sv, "a Parquet file; in Python pandas.read_parquet() reads it"},
    {"SQLite format 3\0"sv, "an SQLite database"},
    {"\x7f"
     "ELF"sv,
     "a program or shared library"},
    {"<?xml"sv, "an XML text, such as a server's error message; download the file again"},
};

constexpr const char* torch_hint = "written by torch.save(); io::load_pytorch() reads it";

std::string zip_kind(std::string_view begin) {
    const auto holds = [&](std::string_view text) { return begin.find(text) != begin.npos; };
    if (holds("/data.pkl") || holds("/version") || holds("/byteorder") || holds("/.format_version"))
        return std::string("a PyTorch file (.pt, .pth, .bin), ") + torch_hint;
    if (holds(".npy")) return "an archive of NumPy arrays (.npz); io::load_npz() reads it";
    return "a zip archive; unpack it";
}

// A pickle, protocol 2 to 5. torch.save() wrote plain ones before PyTorch 1.6.
bool is_pickle(std::string_view begin) {
    return begin.size() >= 4 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5 && begin.find('\0') != 2;
}

bool is_safetensors(std::string_view begin) {
    return begin.size() > 9 && begin[8] == '{' && (begin[9] == '"' || begin[9] == '}') &&
           begin.substr(4, 4) == "\0\0\0\0"sv;
}

std::string_view without_blanks(std::string_view text) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    return first == text.npos ? ""sv : text.substr(first);
}

bool is_html(std::string_view text) {
    std::string lower(without_blanks(text).substr(0, 15));
    for (char& c : lower)
        if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    return lower.starts_with("<!doctype html") || lower.starts_with("<html") || lower.starts_with("<head>");
}

// The first line of a text, such as "Entry not found"; "" if the bytes are no text.
std::string first_line(std::string_view begin) {
    const std::string_view text = without_blanks(begin.substr(0, 200));
    const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
    const bool printable = std::all_of(begin.begin(), begin.end(), [](char c) {
        return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
    });
    return printable ? std::string(line.substr(0, 60)) : std::string();
}

}  // namespace

std::string failed_download(std::string_view begin) {
    if (begin.starts_with("version https://git-lfs") || begin.starts_with("version https://hawser"))
        return "a Git LFS pointer, not the file itself; fetch the file with: git lfs pull";
    if (is_html(begin))
        return "an HTML page, such as a log-in or error page, not the file itself; download the file again";
    return {};
}

std::string file_kind(std::string_view begin) {
    begin = begin.substr(0, file_kind_bytes);
    if (std::string failed = failed_download(begin); !failed.empty()) return failed;
    if (begin.starts_with("PK\3\4")) return zip_kind(begin);
    if (is_pickle(begin)) return std::string("a Python pickle, such as an old PyTorch file ") + torch_hint;
    for (const Magic& magic : magics)
        if (begin.starts_with(magic.begin)) return magic.kind;
    if (begin.size() >= 262 && begin.substr(257, 5) == "ustar") return "a tar archive; unpack it";
    if (is_safetensors(begin)) return "a safetensors file; io::SafeTensors reads it";
    if (begin.size() >= 8 && begin.find_first_not_of('\0') == begin.npos)
        return "filled with zeros where it begins, as an unfinished download is; download it again";
    if (const std::string_view text = without_blanks(begin); text.starts_with('{') || text.starts_with('['))
        return "a JSON text; load_state_dict_file() reads the index of a model in several files";
    if (const std::string line = first_line(begin); !line.empty())
        return "a text that begins with \"" + line + "\"";
    return {};
}

void refuse_failed_download(const std::string& where, std::string_view begin) {
    const std::string failed = failed_download(begin);
    check(failed.empty(), ErrorKind::io, where, ": it is ", failed);
}

}  // namespace mezzo
