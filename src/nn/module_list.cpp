#include "mezzo/module_list.h"

namespace mezzo::nn {

const AnyModule& ModuleList::operator[](std::size_t i) const {
    check(i < modules_.size(), ErrorKind::value, "ModuleList: no module ", i, ", it has ", modules_.size());
    return modules_[i];
}

void ModuleList::visit_fields(FieldVisitor& visitor) {
    for (std::size_t i = 0; i < modules_.size(); ++i) visitor.module(std::to_string(i), modules_[i].module());
}

void ModuleList::own_copies(detail::OwnCopies& made) {
    for (AnyModule& module : modules_) module = module.own_copy(made);
}

void ModuleDict::add(std::string name, AnyModule module) {
    check(!name.empty() && name.find('.') == std::string::npos, ErrorKind::value, "ModuleDict: the name \"",
          name, "\" is empty or holds a dot");
    check(!contains(name), ErrorKind::value, "ModuleDict: there is a module \"", name, "\" already");
    modules_.emplace_back(std::move(name), std::move(module));
}

bool ModuleDict::contains(std::string_view name) const {
    for (const auto& entry : modules_)
        if (entry.first == name) return true;
    return false;
}

const AnyModule& ModuleDict::operator[](std::string_view name) const {
    std::string names;
    for (const auto& [own, module] : modules_) {
        if (own == name) return module;
        names += " " + own;
    }
    fail(ErrorKind::value, "ModuleDict: no module \"", name,
         "\"; there are:", names.empty() ? " none" : names);
}

void ModuleDict::visit_fields(FieldVisitor& visitor) {
    for (const auto& [name, module] : modules_) visitor.module(name, module.module());
}

void ModuleDict::own_copies(detail::OwnCopies& made) {
    for (auto& entry : modules_) entry.second = entry.second.own_copy(made);
}

}  // namespace mezzo::nn
