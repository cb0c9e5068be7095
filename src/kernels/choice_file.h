// Choices between kernels: the results of checks, and a cache of choices in the user's cache folder, such as
// which fast paths have passed their self-check and which kernels of matrix products are the fastest. There
// is one file per family and identity, such as that of a device: "<family>-<hash>.txt" has the identity, a
// line "key: choice" each, and a checksum. A file that is damaged or belongs to another identity counts as
// empty. Several processes may use the folder at once. Without a folder nothing is stored. Throws only
// std::bad_alloc, and what a check throws.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace mezzo {

// Result of a comparison of a kernel with a plain one.
struct CheckResult {
    enum State : std::uint8_t { open, good, bad };
    State state = open;
    std::string reason = {};  // why the result is bad or still open; one line
};
// "passed", "not used; " or "not checked yet; " with the reason. Other texts are open results.
std::string text_of(const CheckResult& result);
CheckResult check_result_of(std::string_view text);

using Choices = std::map<std::string, std::string>;  // by key

class ChoiceFile {
public:
    // identity: one line. A choice holds for this build, hardware and driver, as far as they are in it.
    ChoiceFile(std::string family, std::string identity);
    Choices load() const;
    // Adds a choice to the file, or replaces it. The key has no ": ".
    void save(const std::string& key, const std::string& choice) const;

    // Returns the stored result of a check, or runs it and stores its result unless that is open. again: runs
    // it even if it has a result, or has ended a process.
    CheckResult check(const std::string& key, bool again, const std::function<CheckResult()>& run) const;

    // A mark that an attempt has begun, which may end the process. While the object lives the mark is locked,
    // so that a mark without a lock is that of a process that died.
    class Mark {
    public:
        Mark(const ChoiceFile& file, const std::string& key);
        ~Mark();  // the attempt has ended, in whichever way
        Mark(const Mark&) = delete;
        Mark& operator=(const Mark&) = delete;
        // Whether an earlier process began this attempt and died before it ended.
        bool found() const { return found_; }

    private:
        std::string path_;
        int file_ = -1;
        bool found_ = false;
    };

private:
    std::string file_name() const;
    std::string mark_path(const std::string& key) const;

    const std::string family_, identity_;
};

}  // namespace mezzo
