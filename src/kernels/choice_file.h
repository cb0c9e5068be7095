// Cache of choices between kernels in the user's cache folder: which fast paths have passed their self-check,
// and which kernels of matrix products are the fastest. There is one file per family and identity, such as
// that of a device: "<family>-<hash>.txt" has the identity, a line "key: choice" each, and a checksum. A file
// that is damaged or belongs to another identity counts as empty. Several processes may use the folder at
// once. Without a folder nothing is stored. Throws only std::bad_alloc.
#pragma once

#include <map>
#include <string>

namespace mezzo {

using Choices = std::map<std::string, std::string>;  // by key

class ChoiceFile {
public:
    // identity: one line. A choice holds for this build, hardware and driver, as far as they are in it.
    ChoiceFile(std::string family, std::string identity);
    Choices load() const;
    // Adds a choice to the file, or replaces it. The key has no ": ".
    void save(const std::string& key, const std::string& choice) const;

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
