// Maps ops to modules of a model, by path.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/op.h"
#include "core/internal.h"
#include "mezzo/module.h"
#include "nn/running_modules.h"

namespace mezzo::nn {

// Paths of a model's modules and names of its parameters. An op that reads a parameter belongs to the
// parameter's module; any other op to the innermost module that is running (nn::ModuleScope).
class MEZZO_INTERNAL Places {
public:
    explicit Places(const nn::Module* model);  // null: every path is ""

    // Returns the index of the path of an op with these inputs; path() returns the path of an index.
    int of_call(In given);
    const std::string& path(int place) const { return *paths_[std::size_t(place)]; }
    // Returns the name of a parameter, or "".
    std::string parameter(const Tensor& x) const;

    // note() records the module of a node in forward, and of_node() looks it up in backward; it returns -1 if
    // the node is unknown. The oldest nodes are dropped beyond a million.
    void note(const Node& node, int place);
    int of_node(const Node& node) const;

private:
    class [[gnu::visibility("hidden")]] Lister;
    using Copy =
        std::pair<std::string, const TensorImpl*>;  // type and first parameter, alike in copies of a module
    int number_of(const std::string& path);
    int of_running();
    int joint_path(int a, int b);
    struct Owned {
        int place;
        std::string name;
    };
    nn::ModuleScopesWanted scopes_;
    std::unordered_map<std::string, int> numbers_;
    std::vector<const std::string*> paths_;
    std::unordered_map<const nn::Module*, int> modules_;
    std::map<Copy, int> copies_;
    std::unordered_map<const TensorImpl*, Owned> parameters_;
    std::vector<std::pair<std::uint64_t, int>> nodes_;  // by sequence, growing
};

}  // namespace mezzo::nn
