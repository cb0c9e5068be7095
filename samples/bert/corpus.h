// Labelled texts, and where they come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bert {

struct Corpus {
    std::vector<std::string> texts;
    std::vector<std::int64_t> labels;  // per text, an index into the classes
};

struct Corpora {
    Corpus train, validation;
    std::vector<std::string> classes;
};

// The lines of a text file, without line ends. Throws std::runtime_error when it cannot be read to its end.
std::vector<std::string> read_lines(const std::string& path);

// TweetEval's layout: train_text.txt, train_labels.txt, val_text.txt, val_labels.txt, one text or label a
// line, and mapping.txt with "label<TAB>name" lines (without it, classes are called by their numbers).
Corpora read_text_folder(const std::string& folder);

// Short descriptions of the packages that this Debian machine knows, with their section as class: sections
// with fewer than 200 packages are left out, every tenth text is for validation. At most `limit` texts for
// training, all if it is 0.
Corpora read_package_descriptions(std::size_t limit);

}  // namespace bert
