// Options from a file (--config FILE): TOML or INI, with the names of the options as keys.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <istream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace program {

// Reads the file for CLI11, and remembers which options have their values from it. What the command line gives wins.
class ConfigFile : public CLI::ConfigTOML {
public:
    explicit ConfigFile(CLI::App& app) : app_(app) {}

    // Throws CLI::ConfigError for lines that are no name = value, keys that are no options of the program or come twice, and sections.
    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
        std::stringstream text;
        text << input.rdbuf();
        check_lines(text);
        text.clear();
        text.seekg(0);
        std::vector<CLI::ConfigItem> entries = CLI::ConfigTOML::from_config(text);
        std::set<std::string> seen;
        for (const CLI::ConfigItem& item : entries) {
            const std::string key = item.fullname();
            if (!item.parents.empty())
                throw CLI::ConfigError(
                    fmt::format("{}: [{}]: there are no sections", path(), item.parents.front()));
            const CLI::Option* const option = option_of(key);
            if (option == nullptr || !option->get_configurable())
                throw CLI::ConfigError(fmt::format("{}: {}: there is no such option", path(), key));
            if (!seen.insert(option->get_name()).second)
                throw CLI::ConfigError(fmt::format("{}: {}: is given twice", path(), key));
            if (option->empty()) taken_.insert(option->get_name());  // else the command line has it
        }
        return entries;
    }

    // What is wrong, with the file's name in front where the value came from there.
    std::string text_of(const CLI::ParseError& error) const {
        const std::string text = error.what();
        if (dynamic_cast<const CLI::FileError*>(&error) != nullptr)
            return fmt::format("--config: {}: cannot be read: {}", path(), reason());
        const bool from_here = std::any_of(taken_.begin(), taken_.end(), [&](const std::string& name) {
            return text.starts_with(name + ":") || text.starts_with(name + " ") ||
                   text.find(": " + name + " ") != std::string::npos;  // "Could not convert: --flag = x"
        });
        return from_here ? path() + ": " + text : text;
    }

private:
    // CLI11 passes over lines of one or two characters, takes what follows a list without an end for a part of it, and ends a
    // value at a # inside of quotes.
    void check_lines(std::istream& text) const {
        std::string line;
        for (int number = 1; std::getline(text, line); ++number) {
            CLI::detail::trim(line);
            if (line.empty() || line[0] == '#' || line[0] == ';') continue;
            const auto refuse = [&, first = number](const std::string& why) {
                throw CLI::ConfigError(fmt::format("{}: line {}: \"{}\": {}", path(), first, line, why));
            };
            if (line.front() == '[' && line.back() == ']')
                throw CLI::ConfigError(fmt::format("{}: {}: there are no sections", path(), line));
            const std::size_t equals = line.find('=');
            std::string value = equals == 0 || equals == line.npos ? "" : line.substr(equals + 1);
            value.erase(std::min(value.find('#'), value.size()));
            if (CLI::detail::trim(value).empty()) refuse("is not name = value");
            for (std::string more; value[0] == '[' && value.back() != ']'; ++number) {
                if (!std::getline(text, more)) refuse("the list has no end");
                value += CLI::detail::trim(more);
            }
            for (const char quote : {'"', '\''})
                if (value[0] == quote && (value.size() == 1 || value.back() != quote))
                    refuse("the quotes have no end; a # ends every value");
        }
    }
    std::string path() const { return app_.get_config_ptr()->as<std::string>(); }
    std::string reason() const {
        std::error_code unknown;
        if (std::filesystem::is_directory(path(), unknown)) return "it is a folder";
        return std::filesystem::exists(path(), unknown) ? "it is no regular file, or not readable"
                                                        : std::strerror(ENOENT);
    }
    const CLI::Option* option_of(const std::string& key) const {
        const CLI::Option* const named = app_.get_option_no_throw("--" + key);
        return named != nullptr ? named : app_.get_option_no_throw(key);
    }

    CLI::App& app_;
    mutable std::set<std::string> taken_;
};

// Gives the program the option. The result lives as long as the command line.
inline std::shared_ptr<const ConfigFile> add_config_file(CLI::App& app) {
    const auto file = std::make_shared<ConfigFile>(app);
    app.set_config("--config", "", "file of further options, a line for each: name = value")
        ->type_name("FILE")
        ->check(CLI::Validator(
            [](const std::string& name) { return name.empty() ? "no file is named" : std::string(); }, ""));
    app.allow_config_extras(CLI::config_extras_mode::error);
    app.config_formatter(file);
    return file;
}

}  // namespace program
