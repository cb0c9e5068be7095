// ImageFolder: a data set from a folder of images per class.
#include <algorithm>
#include <filesystem>
#include <string_view>

#include "mezzo/data/images.h"

namespace mezzo::data {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_read(const std::string& folder, const std::error_code& error) {
    fail(ErrorKind::io, "ImageFolder: cannot read ", folder, ": ", error.message());
}

struct Entries {
    std::vector<std::string> folders, files;  // names, sorted
};

Entries list(const std::string& folder) {
    Entries entries;
    std::error_code error;
    fs::directory_iterator it(folder, error);
    if (error) cannot_read(folder, error);
    for (; it != fs::directory_iterator(); it.increment(error)) {
        std::error_code ignored;  // for a link that leads nowhere
        if (it->is_directory(ignored)) entries.folders.push_back(it->path().filename().string());
        if (it->is_regular_file(ignored)) entries.files.push_back(it->path().filename().string());
        if (error) break;
    }
    if (error) cannot_read(folder, error);
    std::sort(entries.folders.begin(), entries.folders.end());
    std::sort(entries.files.begin(), entries.files.end());
    return entries;
}

bool is_image(std::string name) {
    for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    const std::string_view view = name;
    return view.ends_with(".jpg") || view.ends_with(".jpeg") || view.ends_with(".png");
}

// `above` are the parent folders with links resolved: a folder that occurs again would never end.
void collect(const std::string& folder, std::vector<std::string>& above, std::vector<std::string>& files) {
    std::error_code error;
    const std::string real = fs::canonical(folder, error).string();
    if (error) cannot_read(folder, error);
    if (std::find(above.begin(), above.end(), real) != above.end()) return;
    above.push_back(real);
    const Entries entries = list(folder);
    for (const std::string& name : entries.files)
        if (is_image(name)) files.push_back(folder + "/" + name);
    for (const std::string& name : entries.folders) collect(folder + "/" + name, above, files);
    above.pop_back();
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, const ReadImageOptions& options)
    : lists_(new Lists), options_(options) {
    lists_->classes = list(root).folders;
    check(!lists_->classes.empty(), ErrorKind::io, "ImageFolder: ", root,
          " has no sub-folder; there must be one for each class");
    for (std::size_t i = 0; i < lists_->classes.size(); ++i) {
        std::vector<std::string> above;
        collect(root + "/" + lists_->classes[i], above, lists_->files);
        check(lists_->files.size() > lists_->labels.size(), ErrorKind::io, "ImageFolder: ", root,
              " has no .jpg, .jpeg or .png file for class ", lists_->classes[i]);
        lists_->labels.resize(lists_->files.size(), std::int64_t(i));
    }
}

std::int64_t ImageFolder::size() const { return std::int64_t(lists_->files.size()); }

const std::vector<std::string>& ImageFolder::classes() const { return lists_->classes; }

std::int64_t ImageFolder::class_to_index(const std::string& name) const {
    const auto found = std::lower_bound(lists_->classes.begin(), lists_->classes.end(), name);
    check(found != lists_->classes.end() && *found == name, ErrorKind::value, "ImageFolder: no class ", name);
    return found - lists_->classes.begin();
}

const std::vector<std::string>& ImageFolder::files() const { return lists_->files; }

std::int64_t ImageFolder::label(std::int64_t index) const {
    check(index >= 0 && index < size(), ErrorKind::value, "ImageFolder: no image ", index, ", there are ",
          size());
    return lists_->labels[std::size_t(index)];
}

Tensor ImageFolder::image(std::int64_t index) const {
    check(index >= 0 && index < size(), ErrorKind::value, "ImageFolder: no image ", index, ", there are ",
          size());
    return read_image(lists_->files[std::size_t(index)], options_);
}

}  // namespace mezzo::data
