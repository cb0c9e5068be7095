// Labelled texts, and functions that read them.
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

// Returns the lines of a text file, without line ends. Throws std::runtime_error if it cannot be read
// completely.
std::vector<std::string> read_lines(const std::string& path);

// Reads TweetEval's layout: train_text.txt, train_labels.txt, val_text.txt, val_labels.txt, one text or label
// per line, and mapping.txt with "label<TAB>name" lines (without it, classes have their numbers as names).
Corpora read_text_folder(const std::string& folder);

// Returns short descriptions of the packages in this Debian machine's lists, with their section as class.
// Sections with fewer than 200 packages are left out; every tenth text is for validation. At most `limit`
// texts for training, all if it is 0.
Corpora read_package_descriptions(std::size_t limit);

}  // namespace bert
