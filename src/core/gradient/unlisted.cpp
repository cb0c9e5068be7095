#include "core/gradient/unlisted.h"

#include "core/system/log_line.h"
#include "mezzo/error.h"

namespace mezzo {

void UnlistedParameters::note(const Tensor& x, std::string_view op, std::string_view module) {
    if (!is_unlisted(x) || !known_.insert(x.impl()).second) return;
    std::string& text = texts_.emplace_back(name(x.dtype()));
    text.append(" ").append(detail::text_of(x.shape())).append(", read by ").append(op);
    if (!module.empty()) text.append(" in ").append(module);
}

void UnlistedParameters::warn(std::string_view where) const {
    if (texts_.empty()) return;
    std::string line(where);
    for (std::size_t i = 0; i < texts_.size(); ++i)
        line.append(i == 0 ? ": no module lists a parameter, " : "; nor one, ").append(texts_[i]);
    log_line(line + "; a field that MEZZO_MODULE does not name is neither trained nor saved");
}

}  // namespace mezzo
