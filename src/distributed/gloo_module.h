// Interface between the library and the module that links Gloo, which is opened when a group of several ranks
// is made (gloo_library.h). It needs no symbol of the other side.
#pragma once

#include <stdexcept>
#include <string>

#include "distributed/collectives.h"

namespace mezzo::distributed {

// Key-value store through which the ranks exchange texts.
class KeyValues {
public:
    virtual ~KeyValues() = default;
    virtual void set(const std::string& key, const std::string& value) = 0;
    virtual std::string get(const std::string& key) = 0;  // waits until a rank has set it
};

struct GlooOptions {
    RankInfo place;
    std::string address;                      // of this machine, numeric
    std::string interface;                    // the name of a network interface; empty: that of the address
    double timeout = 0, connect_timeout = 0;  // s
};

// Thrown when an operation has waited for the other ranks for the whole timeout.
class TimedOut : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};
inline TimedOut no_answer_within(double seconds) {
    std::string text = std::to_string(seconds);  // six decimals
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return TimedOut("no answer of the other ranks within " + text + " s");
}

// Connects all ranks. The function and the engine throw std::exception, never Error.
using ConnectGloo = Collectives*(KeyValues& store, const GlooOptions& options);

}  // namespace mezzo::distributed
