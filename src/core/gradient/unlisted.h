// Detection of parameters that no module lists: fields that MEZZO_MODULE does not name. nn::Parameter marks
// the tensor that it makes. The first list of a module or an optimizer that has the tensor removes the mark,
// because parameters of other models and of other optimizers are no forgotten fields.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/internal.h"
#include "core/tensor_impl.h"

namespace mezzo {

// Threads may list a module that they share, so the mark is only written if it is there.
inline void mark_listed(const Tensor& parameter) {
    GradMeta* const meta = parameter->grad_meta;
    if (meta != nullptr && meta->unlisted.load(std::memory_order_relaxed))
        meta->unlisted.store(false, std::memory_order_relaxed);
}

// True for parameters that require grad and still have the mark.
inline bool is_unlisted(const Tensor& x) {
    return tracked(x) && x->grad_meta->unlisted.load(std::memory_order_relaxed);
}

// Unlisted parameters that ops read, each once.
class MEZZO_INTERNAL UnlistedParameters {
public:
    // An op, such as "mul", reads x. `module` is the path of the module to which it belongs, if that is
    // known.
    void note(const Tensor& x, std::string_view op, std::string_view module = {});
    // One line per parameter, such as "float32 [3], read by mul in head".
    const std::vector<std::string>& texts() const { return texts_; }
    // Writes a line to the log sink if there are any. `where` is what has run, such as "nn::summary".
    void warn(std::string_view where) const;

private:
    std::unordered_set<const TensorImpl*> known_ = {};
    std::vector<std::string> texts_ = {};
};

}  // namespace mezzo
