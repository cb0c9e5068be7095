#include "train/checkpoint_header.h"

#include <charconv>

#include <fmt/ranges.h>

namespace mezzo::training {

namespace {

constexpr std::string_view own = "training.", step_name = "training.step", parts_name = "training.parts",
                           metric_prefix = "training.metric.", setting_prefix = "training.setting.";

// Parses the whole text as a number.
template <class T> bool parse(std::string_view text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string> words(std::string_view text) {
    std::vector<std::string> result;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(' '), text.size());
        if (end > 0) result.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return result;
}

void check_info(const CheckpointInfo& info) {
    check(info.step >= 0, ErrorKind::value, "Checkpoint: step is ", info.step, "; it must not be negative");
    for (std::size_t i = 0; i < info.metrics.size(); ++i) {
        check(!info.metrics[i].first.empty(), ErrorKind::value, "Checkpoint: a metric has no name");
        for (std::size_t j = 0; j < i; ++j)
            check(info.metrics[i].first != info.metrics[j].first, ErrorKind::value,
                  "Checkpoint: two metrics are named \"", info.metrics[i].first, "\"");
    }
    for (const auto& [name, value] : info.metadata)
        check(!name.starts_with(own), ErrorKind::value, "Checkpoint: metadata has \"", name,
              "\"; names that begin with \"", own, "\" are the checkpoint's");
}

// Takes one of the checkpoint's own entries; returns false for an unknown one.
bool take(CheckpointHeader& header, std::string_view name, const std::string& value) {
    if (name == step_name) return parse(value, header.info.step) && header.info.step >= 0;
    if (name == parts_name) {
        header.parts = words(value);
    } else if (name.starts_with(metric_prefix)) {
        double number = 0;
        if (!parse(value, number)) return false;
        header.info.metrics.emplace_back(name.substr(metric_prefix.size()), number);
    } else if (name.starts_with(setting_prefix)) {
        header.settings.emplace_back(name.substr(setting_prefix.size()), value);
    } else {
        return false;
    }
    return true;
}

}  // namespace

io::Metadata header_of(const CheckpointInfo& info, const std::vector<std::string>& parts,
                       const io::Metadata& settings) {
    check_info(info);
    io::Metadata result{{std::string(step_name), std::to_string(info.step)},
                        {std::string(parts_name), fmt::format("{}", fmt::join(parts, " "))}};
    for (const auto& [name, value] : info.metrics)
        result.emplace_back(std::string(metric_prefix) + name, fmt::format("{}", value));
    for (const auto& [name, value] : settings) result.emplace_back(std::string(setting_prefix) + name, value);
    result.insert(result.end(), info.metadata.begin(), info.metadata.end());
    return result;
}

CheckpointHeader parse_header(const std::string& path, const io::Metadata& metadata) {
    CheckpointHeader header;
    bool has_step = false;
    for (const auto& [name, value] : metadata) {
        if (name.starts_with(own)) {
            check(take(header, name, value), ErrorKind::io, "Checkpoint: ", path, ": ", name, " is \"", value,
                  "\", which this mezzo cannot read");
            has_step = has_step || name == step_name;
        } else if (name != "format" && !name.starts_with("mezzo.")) {
            header.info.metadata.emplace_back(name, value);
        }
    }
    check(has_step, ErrorKind::io, "Checkpoint: ", path,
          ": was not saved by training::Checkpoint; io::load_checkpoint() may read it");
    return header;
}

}  // namespace mezzo::training
