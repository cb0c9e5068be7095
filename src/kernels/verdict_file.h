// Verdicts of proofs in the user's cache folder. One file per identity of a device: "fast-paths-<hash>.txt" has
// the identity, a line per verdict, and a checksum. A file that is damaged or belongs to another identity counts
// as empty. Several processes may use the folder at once. Without a folder nothing is kept. Nothing throws but
// std::bad_alloc.
#pragma once

#include <map>
#include <string>

#include "kernels/proof.h"

namespace mezzo {

using Verdicts = std::map<std::string, Verdict>;  // by text_of(proof)

class VerdictFile {
public:
    // identity: one line.
    explicit VerdictFile(std::string identity);
    Verdicts load() const;
    // Adds one verdict to those in the file.
    void save(const std::string& proof, const Verdict& verdict) const;

    // A mark that a proof has begun. While the object lives the mark is locked, so that a mark without a lock is
    // that of a process that died.
    class Mark {
    public:
        Mark(const VerdictFile& file, const std::string& proof);
        ~Mark();  // the proof has ended, in whichever way
        Mark(const Mark&) = delete;
        Mark& operator=(const Mark&) = delete;
        // Whether an earlier process began this proof and died before it ended.
        bool found() const { return found_; }

    private:
        std::string path_;
        int file_ = -1;
        bool found_ = false;
    };

private:
    std::string file_name() const;
    std::string mark_path(const std::string& proof) const;

    const std::string identity_;
};

}  // namespace mezzo
