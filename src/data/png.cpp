// Decodes and encodes PNG by libpng.
#include <cstdio>
#include <cstring>
#include <exception>

#include "data/image_codec.h"
#include "io/file.h"

#ifdef MEZZO_HAVE_PNG
#include <png.h>

namespace mezzo::data {

namespace {

// No member has a destructor that a longjmp would skip; ~Reader releases libpng's structures.
struct Job {
    png_structp png = nullptr;
    png_infop info = nullptr;
    const unsigned char* bytes = nullptr;
    std::size_t size = 0, done = 0;
    char message[200] = {};
    png_uint_32 width = 0, height = 0;
    std::uint64_t packed_bytes = 0;  // of all rows in the file's pixel format, uncompressed
    int passes = 1, channels = 0;
};

void keep_message(png_structp png, png_const_charp text) {
    auto* const job = static_cast<Job*>(png_get_error_ptr(png));
    std::snprintf(job->message, sizeof job->message, "%s", text);
    png_longjmp(png, 1);
}
void ignore(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, png_size_t size) {
    auto* const job = static_cast<Job*>(png_get_io_ptr(png));
    if (size > job->size - job->done) png_error(png, "it is truncated");
    std::memcpy(to, job->bytes + job->done, size);
    job->done += size;
}

// Each of these functions returns false after an error, with its message in the job.
bool read_header(Job& job) {
    if (setjmp(png_jmpbuf(job.png))) return false;
    png_set_read_fn(job.png, &job, read_bytes);
    png_set_user_limits(job.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_read_info(job.png, job.info);
    job.width = png_get_image_width(job.png, job.info);
    job.height = png_get_image_height(job.png, job.info);
    job.packed_bytes = std::uint64_t(png_get_rowbytes(job.png, job.info)) * job.height;
    png_set_expand(job.png);  // palettes, fewer than 8 bits, and a transparent colour as alpha
    png_set_scale_16(job.png);
    return true;
}
bool start_rows(Job& job) {
    if (setjmp(png_jmpbuf(job.png))) return false;
    job.passes = png_set_interlace_handling(job.png);
    png_read_update_info(job.png, job.info);
    job.channels = png_get_channels(job.png, job.info);
    return true;
}
bool read_rows(Job& job, unsigned char* to) {
    if (setjmp(png_jmpbuf(job.png))) return false;
    const std::size_t row = std::size_t(job.width) * std::size_t(job.channels);
    for (int pass = 0; pass < job.passes; ++pass)
        for (png_uint_32 y = 0; y < job.height; ++y) png_read_row(job.png, to + y * row, nullptr);
    png_read_end(job.png, job.info);
    return true;
}
bool find_exif(Job& job, unsigned char** exif, png_uint_32* bytes) {
    if (setjmp(png_jmpbuf(job.png))) return false;
    if (png_get_eXIf_1(job.png, job.info, bytes, exif) == 0) *bytes = 0;
    return true;
}

class Reader {
public:
    explicit Reader(const ImageBytes& file) : name_(file.name) {
        job.bytes = file.bytes.data();
        job.size = file.bytes.size();
        job.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &job, keep_message, ignore);
        if (job.png != nullptr) job.info = png_create_info_struct(job.png);
        if (job.info != nullptr) return;
        png_destroy_read_struct(&job.png, nullptr, nullptr);
        fail(ErrorKind::memory, name_, ": no memory for libpng");
    }
    ~Reader() { png_destroy_read_struct(&job.png, &job.info, nullptr); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    void expect(bool worked) const { check(worked, ErrorKind::io, name_, " is damaged: ", job.message); }
    Job job;

private:
    const std::string& name_;
};

struct Writer {
    explicit Writer(const std::string& path) : file("write_png", path) {}
    ~Writer() { png_destroy_write_struct(&job.png, &job.info); }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;
    Job job;
    io::ReplacedFile file;
    std::exception_ptr error;  // from the file; must not cross libpng
};

bool write_part(Writer& writer, const void* from, std::size_t bytes) noexcept {
    try {
        writer.file.write(from, bytes);
        return true;
    } catch (...) {
        writer.error = std::current_exception();
        return false;
    }
}
void write_bytes(png_structp png, png_bytep from, png_size_t bytes) {
    if (!write_part(*static_cast<Writer*>(png_get_io_ptr(png)), from, bytes)) png_error(png, "it failed");
}
void flush_nothing(png_structp) {}

bool write_rows(Writer& writer, const unsigned char* from) {
    Job& job = writer.job;
    if (setjmp(png_jmpbuf(job.png))) return false;
    constexpr int types[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                             PNG_COLOR_TYPE_RGB_ALPHA};
    png_set_write_fn(job.png, &writer, write_bytes, flush_nothing);
    png_set_user_limits(job.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_IHDR(job.png, job.info, job.width, job.height, 8, types[job.channels - 1], PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(job.png, job.info);
    const std::size_t row = std::size_t(job.width) * std::size_t(job.channels);
    for (png_uint_32 y = 0; y < job.height; ++y) png_write_row(job.png, from + y * row);
    png_write_end(job.png, job.info);
    return true;
}

}  // namespace

DecodedImage decode_png(const ImageBytes& file) {
    Reader reader(file);
    Job& job = reader.job;
    reader.expect(read_header(job));
    check_sizes(file, job.height, job.width);
    // Deflate makes at most 1032 bytes of one.
    check(job.packed_bytes / 1032 <= job.size, ErrorKind::io, file.name, " is damaged: ", job.width, " by ",
          job.height, " pixels cannot be in its ", job.size, " bytes");
    reader.expect(start_rows(job));
    DecodedImage result{new_pixels(job.height, job.width, job.channels)};
    reader.expect(read_rows(job, result.pixels.at(0, 0)));
    unsigned char* exif = nullptr;
    png_uint_32 bytes = 0;
    reader.expect(find_exif(job, &exif, &bytes));
    result.orientation = exif_orientation({exif, bytes});
    return result;
}

void write_png(const std::string& path, const Tensor& image) {
    check(image.defined(), ErrorKind::value, "write_png: the image is undefined");
    const Pixels pixels = pixels_of("write_png", image.dim() == 2 ? image.unsqueeze(2) : image);
    check(pixels.channels <= 4, ErrorKind::shape, "write_png: image ", image.shape(),
          " has more than 4 channels");
    check(pixels.height < 1 << 30 && pixels.width < 1 << 30, ErrorKind::shape, "write_png: image ",
          image.shape(), " is too large");
    Writer writer(path);
    Job& job = writer.job;
    job.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &job, keep_message, ignore);
    if (job.png != nullptr) job.info = png_create_info_struct(job.png);
    check(job.info != nullptr, ErrorKind::memory, "write_png: no memory for libpng");
    job.width = png_uint_32(pixels.width);
    job.height = png_uint_32(pixels.height);
    job.channels = int(pixels.channels);
    const bool written = write_rows(writer, pixels.at(0, 0));
    if (writer.error) std::rethrow_exception(writer.error);
    check(written, ErrorKind::io, "write_png: cannot write ", path, ": ", job.message);
    writer.file.commit();
}

}  // namespace mezzo::data

#else

namespace mezzo::data {

DecodedImage decode_png(const ImageBytes& file) {
    fail(ErrorKind::io, file.name,
         " is a PNG file, and this build of mezzo reads none; install libpng-dev and configure with "
         "-Dpng=enabled");
}

void write_png(const std::string&, const Tensor&) {
    fail(ErrorKind::io,
         "write_png: this build of mezzo writes none; install libpng-dev and configure with -Dpng=enabled");
}

}  // namespace mezzo::data

#endif
