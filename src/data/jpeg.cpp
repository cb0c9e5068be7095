// Decodes JPEG by libjpeg-turbo.
#include "data/image_codec.h"

#ifdef MEZZO_HAVE_JPEG
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

// After <cstdio>, which it needs.
#include <jpeglib.h>

namespace mezzo::data {

namespace {

// No member has a destructor that a longjmp would skip; ~Reader releases the library's memory.
struct Job {
    jpeg_decompress_struct jpeg = {};
    jpeg_error_mgr errors = {};
    jpeg_progress_mgr progress = {};
    std::jmp_buf back;
    char message[JMSG_LENGTH_MAX + 1] = {};
};

[[noreturn]] void jump(j_common_ptr jpeg) { std::longjmp(static_cast<Job*>(jpeg->client_data)->back, 1); }
void keep_message(j_common_ptr jpeg) {
    jpeg->err->format_message(jpeg, static_cast<Job*>(jpeg->client_data)->message);
    jump(jpeg);
}
void say(j_common_ptr jpeg, const char* text) {
    Job* const job = static_cast<Job*>(jpeg->client_data);
    std::snprintf(job->message, sizeof job->message, "%s", text);
    jump(jpeg);
}
void ignore(j_common_ptr) {}
// As in PIL: damaged coefficients decode to arbitrary pixels.
void ignore_warning(j_common_ptr, int) {}

// Refuses truncated files, whose end the library would make up.
::boolean no_more(j_decompress_ptr jpeg) {
    say(reinterpret_cast<j_common_ptr>(jpeg), "it is truncated");
    return FALSE;
}
// A small file may have thousands of scans, each as expensive as the whole image.
void limit_scans(j_common_ptr jpeg) {
    if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > 500) say(jpeg, "it has over 500 scans");
}

// Part of its size at which the image is decoded: 8, 4, 2 or 1.
unsigned denominator(const jpeg_decompress_struct& jpeg, std::int64_t least_side) {
    unsigned result = 8;
    while (result > 1 &&
           (least_side == 0 || std::min(jpeg.image_height, jpeg.image_width) / result < least_side))
        result /= 2;
    return result;
}

// Each of these returns false after an error, whose text is in the job.
bool read_header(Job& job, const unsigned char* bytes, std::size_t size) {
    if (setjmp(job.back)) return false;
    jpeg_create_decompress(&job.jpeg);
    job.jpeg.progress = &job.progress;
    job.progress.progress_monitor = limit_scans;
    jpeg_mem_src(&job.jpeg, bytes, static_cast<unsigned long>(size));
    job.jpeg.src->fill_input_buffer = no_more;
    jpeg_save_markers(&job.jpeg, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&job.jpeg, TRUE);
    switch (job.jpeg.jpeg_color_space) {
        case JCS_GRAYSCALE:
            job.jpeg.out_color_space = JCS_GRAYSCALE;
            break;
        case JCS_CMYK:
        case JCS_YCCK:
            job.jpeg.out_color_space = JCS_CMYK;
            break;
        default:
            job.jpeg.out_color_space = JCS_RGB;
    }
    return true;
}
bool read_rows(Job& job, unsigned char* to, std::size_t row) {
    if (setjmp(job.back)) return false;
    while (job.jpeg.output_scanline < job.jpeg.output_height) {
        JSAMPROW line = to + job.jpeg.output_scanline * row;
        jpeg_read_scanlines(&job.jpeg, &line, 1);
    }
    return true;
}
bool start(Job& job) {
    if (setjmp(job.back)) return false;
    jpeg_start_decompress(&job.jpeg);
    return true;
}

// Reads what follows the rows, and so finds a marker that no file has: the decoder stopped there, and made up
// the rest of the rows.
bool finish(Job& job) {
    if (setjmp(job.back)) return false;
    jpeg_finish_decompress(&job.jpeg);
    return true;
}

class Reader {
public:
    explicit Reader(const ImageBytes& file) : name_(file.name) {
        job.jpeg.err = jpeg_std_error(&job.errors);
        job.jpeg.client_data = &job;
        job.errors.error_exit = keep_message;
        job.errors.output_message = ignore;
        job.errors.emit_message = ignore_warning;
    }
    ~Reader() { jpeg_destroy_decompress(&job.jpeg); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    void expect(bool worked) const { check(worked, ErrorKind::io, name_, " is damaged: ", job.message); }
    Job job;

private:
    const std::string& name_;
};

int orientation_of(const jpeg_decompress_struct& jpeg) {
    for (const jpeg_marker_struct* marker = jpeg.marker_list; marker != nullptr; marker = marker->next)
        if (marker->data_length > 6 && std::memcmp(marker->data, "Exif\0\0", 6) == 0)
            return exif_orientation({marker->data + 6, marker->data_length - 6});
    return 1;
}

// Converts CMYK to RGB. Files hold 255 - ink, as Adobe's programs store it; Pillow and torchvision read files
// without Adobe's marker the same way.
Pixels rgb_of_cmyk(const Pixels& inks) {
    Pixels result = new_pixels(inks.height, inks.width, 3);
    const std::uint8_t* from = inks.at(0, 0);
    std::uint8_t* to = result.at(0, 0);
    for (std::int64_t i = 0; i < inks.height * inks.width; ++i, from += 4)
        for (int c = 0; c < 3; ++c) *to++ = std::uint8_t((from[c] * from[3] + 127) / 255);
    return result;
}

}  // namespace

DecodedImage decode_jpeg(const ImageBytes& file) {
    Reader reader(file);
    Job& job = reader.job;
    reader.expect(read_header(job, file.bytes.data(), file.bytes.size()));
    const jpeg_decompress_struct& jpeg = job.jpeg;
    const std::int64_t height = jpeg.image_height, width = jpeg.image_width;
    check_sizes(file, height, width);
    // A Huffman code has at least one bit for each 8 by 8 block of a component, and the largest component has
    // at least a sixteenth of the image's pixels.
    check(jpeg.arith_code || height * width / 8192 <= std::int64_t(file.bytes.size()), ErrorKind::io,
          file.name, " is damaged: ", width, " by ", height, " pixels cannot be in its ", file.bytes.size(),
          " bytes");
    job.jpeg.scale_num = 1;  // 8 in libjpeg since version 7
    job.jpeg.scale_denom = denominator(jpeg, file.options.least_side);
    reader.expect(start(job));
    DecodedImage result{new_pixels(jpeg.output_height, jpeg.output_width, jpeg.output_components)};
    reader.expect(
        read_rows(job, result.pixels.at(0, 0), std::size_t(jpeg.output_width) * jpeg.output_components));
    if (jpeg.out_color_space == JCS_CMYK) result.pixels = rgb_of_cmyk(result.pixels);
    result.orientation = orientation_of(jpeg);
    reader.expect(finish(job));
    return result;
}

}  // namespace mezzo::data

#else

namespace mezzo::data {

DecodedImage decode_jpeg(const ImageBytes& file) {
    fail(
        ErrorKind::io, file.name,
        " is a JPEG file, and this build of mezzo reads none; install libjpeg62-turbo-dev and configure with "
        "-Djpeg=enabled");
}

}  // namespace mezzo::data

#endif
