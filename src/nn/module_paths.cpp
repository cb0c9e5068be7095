#include "nn/module_paths.h"

#include <algorithm>

#include "autograd/extra.h"
#include "core/tensor_impl.h"

namespace mezzo::nn {

namespace {

constexpr std::size_t most_nodes = std::size_t(1) << 20;

const TensorImpl* first_parameter(const nn::Module& module) {
    const Tensors all = module.parameters();
    return all.empty() ? nullptr : all[0].impl();
}

bool inside(const std::string& path, const std::string& outer) {
    return outer.empty() || path == outer || path.starts_with(outer + ".");
}

}  // namespace

class Places::Lister : public nn::FieldVisitor {
public:
    Lister(Places& places, std::string path) : places_(places), path_(std::move(path)) {}
    void parameter(const std::string& name, nn::Parameter& p) override {
        if (p.defined())
            places_.parameters_.try_emplace(p.impl(), Owned{places_.number_of(path_), joined(name)});
    }
    void module(const std::string& name, nn::Module& child) override {
        Lister(places_, joined(name)).list(child);
    }
    void list(nn::Module& module) {
        const int place = places_.number_of(path_);
        places_.modules_.try_emplace(&module, place);
        if (const TensorImpl* const first = first_parameter(module))
            places_.copies_.try_emplace({module.type_name(), first}, place);
        module.visit_fields(*this);
    }

private:
    std::string joined(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }
    Places& places_;
    std::string path_;
};

Places::Places(const nn::Module* model) {
    number_of("");
    // Listing changes nothing; visit_fields() is not const because other visitors do.
    if (model != nullptr) Lister(*this, "").list(const_cast<nn::Module&>(*model));
}

int Places::number_of(const std::string& path) {
    const auto [entry, fresh] = numbers_.try_emplace(path, int(paths_.size()));
    if (fresh) paths_.push_back(&entry->first);
    return entry->second;
}

// Returns the index of the innermost running module that the model has. Checkpoints run copies of modules.
int Places::of_running() {
    const std::vector<const nn::Module*>& running = nn::running_modules();
    for (auto module = running.rbegin(); module != running.rend(); ++module) {
        if (const auto known = modules_.find(*module); known != modules_.end()) return known->second;
        const auto copy = copies_.find({(*module)->type_name(), first_parameter(**module)});
        if (copy != copies_.end()) return copy->second;
    }
    return 0;
}

int Places::joint_path(int a, int b) {
    const std::string &x = path(a), &y = path(b);
    std::size_t end = 0;
    for (std::size_t i = 0; i <= std::min(x.size(), y.size()); ++i) {
        const bool x_ends = i == x.size() || x[i] == '.', y_ends = i == y.size() || y[i] == '.';
        if (x_ends && y_ends) end = i;
        if (i == x.size() || i == y.size() || x[i] != y[i]) break;
    }
    return number_of(x.substr(0, end));
}

int Places::of_call(In given) {
    const int running = of_running();
    int owner = -1;
    for (const Tensor& x : given) {
        const auto known = x.defined() ? parameters_.find(x.impl()) : parameters_.end();
        if (known == parameters_.end() || !inside(path(known->second.place), path(running))) continue;
        const int place = known->second.place;
        owner = owner < 0 || owner == place ? place : joint_path(owner, place);
    }
    return owner < 0 ? running : owner;
}

std::string Places::parameter(const Tensor& x) const {
    const auto known = parameters_.find(x.impl());
    return known == parameters_.end() ? std::string() : known->second.name;
}

void Places::note(const Node& node, int place) {
    if (nodes_.size() >= most_nodes)
        nodes_.erase(nodes_.begin(), nodes_.begin() + std::ptrdiff_t(most_nodes / 2));
    if (nodes_.empty() || nodes_.back().first < node.sequence) nodes_.emplace_back(node.sequence, place);
}

int Places::of_node(const Node& node) const {
    const auto found = std::lower_bound(nodes_.begin(), nodes_.end(), std::pair(node.sequence, -1));
    return found != nodes_.end() && found->first == node.sequence ? found->second : -1;
}

}  // namespace mezzo::nn
