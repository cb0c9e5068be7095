// Cache of self-check results in the user's cache folder. There is one file per identity of a device:
// "fast-paths-<hash>.txt" has the identity, a line per result, and a checksum. A file that is damaged or
// belongs to another identity counts as empty. Several processes may use the folder at once. Without a folder
// nothing is stored. Throws only std::bad_alloc.
#pragma once

#include <map>
#include <string>

#include "kernels/self_check.h"

namespace mezzo {

using CheckResults = std::map<std::string, CheckResult>;  // by text_of(self_check)

class SelfCheckFile {
public:
    // identity: one line.
    explicit SelfCheckFile(std::string identity);
    CheckResults load() const;
    // Adds a result to the file, or replaces it.
    void save(const std::string& self_check, const CheckResult& result) const;

    // A mark that a self-check has begun. While the object lives the mark is locked, so that a mark without a
    // lock is that of a process that died.
    class Mark {
    public:
        Mark(const SelfCheckFile& file, const std::string& self_check);
        ~Mark();  // the check has ended, in whichever way
        Mark(const Mark&) = delete;
        Mark& operator=(const Mark&) = delete;
        // Whether an earlier process began this self-check and died before it ended.
        bool found() const { return found_; }

    private:
        std::string path_;
        int file_ = -1;
        bool found_ = false;
    };

private:
    std::string file_name() const;
    std::string mark_path(const std::string& self_check) const;

    const std::string identity_;
};

}  // namespace mezzo
