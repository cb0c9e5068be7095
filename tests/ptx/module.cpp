#include <algorithm>
#include <cstring>

#include "tests/ptx/decoder.h"
#include "tests/ptx/text.h"

namespace mezzo::ptx {

// Statements outside of functions begin at the start of a line.
Module::Module(std::string text) : text_(std::move(text)) {
    const auto starts = [&](std::size_t at, const char* word) {
        return text_.compare(at, std::strlen(word), word) == 0;
    };
    for (std::size_t line = 0; line < text_.size();
         line = std::min(text_.find('\n', line), text_.size()) + 1) {
        std::size_t first = line;
        for (const char* const linkage : {".visible ", ".weak "})
            if (starts(first, linkage)) first += std::strlen(linkage);
        const auto statement = [&] { return text_.substr(first, text_.find(';', first) - first); };
        if (starts(first, ".global .align "))
            add_global(statement());
        else if (starts(first, ".extern .shared "))
            dynamic_shared_ = read_declaration(statement()).name;
        else if (starts(first, ".shared "))  // in functions, too: their own variables are found first
            shared_[read_declaration(statement()).name] = statement();
        else if (starts(first, ".entry ") || starts(first, ".func "))
            add_function(first, starts(first, ".entry "));
    }
}

void Module::add_global(const std::string& statement) {
    const auto equals = statement.find('=');
    const Declaration d = read_declaration(statement.substr(0, equals));
    std::vector<char> bytes(d.size);
    if (equals != std::string::npos) {
        const auto open = statement.find('{'), close = statement.find('}');
        if (open == std::string::npos || d.type != "b8") refuse("initial values", statement);
        const auto values = split_arguments(statement.substr(open + 1, close - open - 1));
        for (std::size_t k = 0; k < values.size(); ++k) bytes.at(k) = char(std::stoi(values[k]));
    }
    globals_[d.name].initial = std::move(bytes);
}

void Module::add_function(std::size_t first, bool entry) {
    std::size_t name = first + std::strlen(entry ? ".entry " : ".func ");
    if (!entry && text_[name] == '(') name = text_.find(')', name) + 1;
    name = text_.find_first_not_of(" \t\r\n", name);
    std::size_t end = name;
    while (is_name_character(text_[end])) ++end;
    const auto body = text_.find_first_of("{;", end);
    if (text_[body] == ';') return;  // declared only
    (entry ? entries_ : functions_)[text_.substr(name, end - name)] = {entry ? end : first, body};
}

const Kernel& Module::kernel(const std::string& name) {
    std::unique_ptr<Kernel>& found = kernels_[name];
    if (found) return *found;
    const auto it = entries_.find(name);
    if (it == entries_.end()) refuse("no kernel", name);
    auto made = std::make_unique<Kernel>();
    made->name = name;
    Decoder(*this, *made).decode(it->second);
    found = std::move(made);
    return *found;
}

std::vector<std::string> Module::names() const {
    std::vector<std::string> all;
    for (const auto& [name, text] : entries_) all.push_back(name);
    return all;
}

}  // namespace mezzo::ptx
