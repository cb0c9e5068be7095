// Writes metrics, texts, images and histograms to TensorBoard event files.
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>

#include <fmt/format.h>

#include "io/appended_file.h"
#include "io/json.h"
#include "mezzo/autograd.h"
#include "mezzo/error.h"
#include "mezzo/ops.h"
#include "mezzo/train/metrics.h"
#include "train/event_record.h"

namespace mezzo::io {

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string new_path(const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    check(!error, ErrorKind::io, "SummaryWriter: ", folder, " cannot be created: ", error.message());
    static std::atomic<int> number{0};
    char host[256] = "host";
    if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    return (std::filesystem::path(folder) /
            fmt::format("events.out.tfevents.{}.{}.{}.{}", std::int64_t(now()), host, getpid(), number++))
        .string();
}

// Returns the bytes of an image, rounded to nearest and clamped to 0 to 255.
std::vector<std::uint8_t> pixels_of(const Tensor& image) {
    const NoGrad plain;
    check(image.defined() && image.dim() == 3 &&
              (image.size(2) == 1 || image.size(2) == 3 || image.size(2) == 4) && image.numel() > 0,
          ErrorKind::shape, "SummaryWriter.add_image: the image is ",
          image.defined() ? image.shape() : Shape{},
          "; it must be [height, width, channels] with 1, 3 or 4 channels");
    check(image.dtype() == uint8 || is_floating(image.dtype()), ErrorKind::dtype,
          "SummaryWriter.add_image: the image is ", image.dtype(),
          "; it must be uint8, or floating from 0 to 1");
    if (image.dtype() == uint8) return image.detach().to_vector<std::uint8_t>();
    std::vector<std::uint8_t> result;
    for (const float x : image.detach().to(float32).to_vector<float>())
        result.push_back(!(x > 0) ? 0 : x >= 1 ? 255 : std::uint8_t(x * 255 + 0.5f));
    return result;
}

// Readers refuse a file with text that is not UTF-8.
void check_text(const std::string& text) {
    check(first_invalid_utf8(text) == text.size(), ErrorKind::value, "SummaryWriter: ", shown(text),
          " is not valid UTF-8");
}

}  // namespace

struct SummaryWriter::Impl {
    explicit Impl(const std::string& folder) : file("SummaryWriter", new_path(folder), true) {
        file.append(tf_record(version_event(now())));
        file.flush();
    }
    void add(const WallTime& wall_time, std::int64_t step, const std::vector<Message>& values) {
        const double when = wall_time.value_or(now());
        std::string records;
        for (const Message& value : values) records += tf_record(summary_event(when, step, value));
        const std::lock_guard lock(mutex);
        file.append(records);
    }
    std::mutex mutex;
    AppendedFile file;
};

SummaryWriter::SummaryWriter(const std::string& folder) : impl_(new Impl(folder)) {}
SummaryWriter::~SummaryWriter() { delete impl_; }

void SummaryWriter::add_scalar(const std::string& tag, double value, std::int64_t step, WallTime wall_time) {
    check_text(tag);
    impl_->add(wall_time, step, {scalar_value(tag, value)});
}

void SummaryWriter::add_histogram(const std::string& tag, const Tensor& values, std::int64_t step,
                                  WallTime wall_time) {
    check(values.defined(), ErrorKind::value, "SummaryWriter.add_histogram: the tensor is undefined");
    check_text(tag);
    const NoGrad plain;
    std::int64_t nonfinite = 0;
    std::vector<Message> messages{
        histogram_value(tag, values.detach().to(float64).to_vector<double>(), nonfinite)};
    if (nonfinite != 0) messages.push_back(scalar_value(tag + "/nonfinite", double(nonfinite)));
    impl_->add(wall_time, step, messages);
}

void SummaryWriter::add_text(const std::string& tag, const std::string& text, std::int64_t step,
                             WallTime wall_time) {
    check_text(tag);
    check_text(text);
    impl_->add(wall_time, step, {text_value(tag, text)});
}

void SummaryWriter::add_image(const std::string& tag, const Tensor& image, std::int64_t step,
                              WallTime wall_time) {
    check_text(tag);
    const std::vector<std::uint8_t> pixels = pixels_of(image);
    const int height = int(image.size(0)), width = int(image.size(1)), channels = int(image.size(2));
    const std::string png = png_of(pixels.data(), height, width, channels);
    impl_->add(wall_time, step, {image_value(tag, height, width, channels, png)});
}

void SummaryWriter::log(std::int64_t step, const Metrics& metrics) {
    std::vector<Message> values;
    for (const auto& [name, value] : metrics) {
        check_text(name);
        values.push_back(scalar_value(name, value));
    }
    impl_->add({}, step, values);
}

void SummaryWriter::flush() {
    const std::lock_guard lock(impl_->mutex);
    impl_->file.flush();
}

const std::string& SummaryWriter::path() const { return impl_->file.path(); }

}  // namespace mezzo::io
