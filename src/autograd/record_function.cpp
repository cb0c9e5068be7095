#include "mezzo/record_function.h"

#include "autograd/op_observer.h"

namespace mezzo::insight {

RecordFunction::RecordFunction(std::string_view name) noexcept {
    Observers::notify([&](OpObserver& one) { one.range_begins(name); });
}
RecordFunction::~RecordFunction() {
    Observers::notify([](OpObserver& one) { one.range_ends(); });
}

}  // namespace mezzo::insight
