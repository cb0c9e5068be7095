#include "mezzo/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "core/enumerators.h"

namespace mezzo::training {

namespace {

constexpr const char *red = "\x1b[31m", *green = "\x1b[32m", *plain = "\x1b[0m", *clear = "\r\x1b[K";

bool is_set(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
}

bool shows_bars(std::FILE* to) {
    const char* const terminal = std::getenv("TERM");
    return to != nullptr && isatty(fileno(to)) == 1 &&
           (terminal == nullptr || std::strcmp(terminal, "dumb") != 0);
}

// Returns the columns of the terminal, or 80 if they are unknown.
std::size_t columns(std::FILE* to) {
    winsize size{};
    return ioctl(fileno(to), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Returns the part of `whole` that corresponds to the steps done, in [0, whole], rounded down.
std::int64_t part_of(double whole, const TrainingStatus& status) {
    return std::int64_t(std::clamp(whole * double(status.step) / double(status.steps), 0.0, whole));
}

void put(std::FILE* to, const std::string& text) {
    std::fputs(text.c_str(), to);
    std::fflush(to);
}

}  // namespace

std::string clock_time(double seconds) {
    if (!(seconds >= 0 && seconds < 1e9)) return "?";
    const auto s = static_cast<std::int64_t>(std::llround(seconds));
    if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
    return fmt::format("{}:{:02}", s / 60, s % 60);
}

ProgressBar::ProgressBar(std::FILE* to, const ProgressBarOptions& options)
    : to_(to),
      options_(options),
      bar_(options.style == ProgressStyle::bar ||
           (options.style == ProgressStyle::automatic && shows_bars(to))),
      colours_(bar_ && !is_set("NO_COLOR")) {
    check(to != nullptr, ErrorKind::value, "ProgressBar: the stream is null");
    check_enumerator("ProgressBar", "style", options.style, ProgressStyle::lines);
    if (options_.interval < 0) options_.interval = bar_ ? 0.1 : 10;
}

double ProgressBar::now() const {
    if (options_.clock) return (*options_.clock)();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string ProgressBar::bar_of(const TrainingStatus& status) const {
    constexpr std::int64_t width = 20;
    const std::int64_t filled = part_of(double(width), status);
    std::string bar(std::size_t(filled), '=');
    if (filled < width) bar += '>' + std::string(std::size_t(width - filled - 1), ' ');
    return "[" + bar + "] ";
}

std::string ProgressBar::text_of(const TrainingStatus& status, double seconds) const {
    std::string text = options_.label.empty() ? "" : options_.label + " ";
    if (status.epochs > 0)
        text += fmt::format("epoch {}/{} ", std::min(status.epoch, status.epochs - 1) + 1, status.epochs);
    if (status.steps > 0) {
        if (bar_) text += bar_of(status);
        text += fmt::format("{:3} % {}/{}", part_of(100, status), status.step, status.steps);
    } else {
        text += fmt::format("step {}", status.step);
    }
    const auto done = double(status.step - first_step_);  // the first report starts the clock
    if (done > 0 && seconds > first_time_) {
        const double rate = done / (seconds - first_time_);
        text += rate >= 1 ? fmt::format("  {:.1f} steps/s", rate) : fmt::format("  {:.1f} s/step", 1 / rate);
        if (status.steps > 0)
            text +=
                "  ETA " + clock_time(double(std::max<std::int64_t>(status.steps - status.step, 0)) / rate);
    }
    text += fmt::format("  loss {:.4g}  lr {:.1e}", status.loss, status.lr);
    if (status.scale) text += fmt::format("  scale {:g}  skipped {}", *status.scale, status.skipped);
    for (const auto& [name, value] : status.metrics) text += fmt::format("  {} {:.4g}", name, value);
    return text;
}

void ProgressBar::clear_line() {
    if (open_) std::fputs(clear, to_);
    open_ = false;
}

void ProgressBar::show(const TrainingStatus& status) {
    const double seconds = now();
    if (first_step_ < 0 || status.step < last_step_) {  // another training begins
        first_step_ = status.step;
        first_time_ = seconds;
        last_step_ = -1;
    }
    const bool last = status.steps > 0 && status.step >= status.steps && status.step != last_step_;
    if (last_step_ >= 0 && !last && seconds - last_time_ < options_.interval) return;
    last_step_ = status.step;
    last_time_ = seconds;
    std::string text = text_of(status, seconds);
    if (!bar_) return put(to_, text + "\n");
    text.resize(
        std::min(text.size(), std::max<std::size_t>(columns(to_), 2) - 1));  // a longer line would wrap
    if (colours_) text = (std::isfinite(status.loss) ? green : red) + text + plain;
    clear_line();
    put(to_, "\r" + text + "\x1b[K");
    open_ = true;
}

void ProgressBar::print(const std::string& line) {
    clear_line();
    put(to_, line + "\n");
}

void ProgressBar::end_line() {
    if (open_) put(to_, "\n");
    open_ = false;
}

}  // namespace mezzo::training
