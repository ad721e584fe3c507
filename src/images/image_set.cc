#include "images/image_set.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include "images/exif.h"
#include "images/image.h"
#include "images/resize.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/disk.h"
#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {
namespace {

namespace fs = std::filesystem;

std::string ending_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

/// Images that torchvision or Pillow would read: to leave them out would change the data.
bool has_foreign_name(const fs::path& path) {
  constexpr const char* kEndings[] = {".webp", ".bmp", ".gif", ".tif",  ".tiff", ".ppm",
                                      ".pgm",  ".jxl", ".jp2", ".avif", ".heic"};
  const std::string ending = ending_of(path);
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](const char* other) { return ending == other; });
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// The entries of a folder, sorted by name.
std::vector<fs::path> entries_of(const fs::path& folder, size_t most) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
    if (entries.size() > most) {
      throw DataError(ErrorParts{.what = folder.string() + " has too many files.",
                                 .expected = fmt::format("at most {}", most),
                                 .remedy = "Raise --max-bytes, which their names count for."});
    }
  }
  if (error) throw_io("read the folder", folder, error.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// Collects the files of folders.
class Finder {
 public:
  Finder(const std::vector<std::string>& classes, const Limits& limits)
      : limits_(limits), room_(limits.max_bytes / kShare) {
    for (const std::string& name : classes) classes_.emplace(name, std::vector<std::string>());
    given_ = !classes.empty();
  }

  void add(const std::string& path) {
    const size_t before = files_.size();
    if (!is_folder(path)) return add_file(path, &files_);
    std::vector<fs::path> folders;
    const std::string* first = nullptr;
    for (const fs::path& entry : entries_of(path, most_names())) {
      if (is_hidden(entry)) {
        ++set_.others;
      } else if (is_folder(entry)) {
        folders.push_back(entry);
      } else {
        add_file(entry, &files_);
      }
    }
    if (files_.size() > before) first = &files_[before];
    if (first != nullptr && !folders.empty()) {
      throw DataError(ErrorParts{.what = path + " has images beside folders.",
                                 .node = *first,
                                 .expected = "images in folders, one for each class, or no folders",
                                 .received = folders[0].string(),
                                 .remedy = "Move these images into the folders of their classes."});
    }
    for (const fs::path& folder : folders) add_class(folder);
  }

  ImageSet finish(const std::vector<std::string>& order) {
    if (!files_.empty() && !has_folders_) {
      set_.files = std::move(files_);
    } else if (!files_.empty()) {
      throw DataError(
          ErrorParts{.what = "Some images have classes, and some have none.",
                     .node = files_[0],
                     .expected = "images in folders, one for each class, or no folders"});
    } else {
      take_classes(order);
    }
    if (set_.files.empty()) {
      throw DataError(ErrorParts{.what = "There are no images.",
                                 .expected = "files in .jpg, .jpeg or .png",
                                 .received = counted(set_.others, "other file")});
    }
    for (const std::string& file : set_.files) {
      const FileSource source(file);
      image_size(source, limits_);
      if (exif_orientation(source) != 1 && set_.turned++ == 0) set_.first_turned = file;
      poll();
    }
    return std::move(set_);
  }

 private:
  static constexpr uint64_t kShare = 4;       // names take at most 1/kShare of the memory
  static constexpr uint64_t kEntry = 80;      // bytes of an entry without its name, about
  static constexpr size_t kMostFolders = 32;  // inside of each other

  size_t most_names() const { return static_cast<size_t>(room_ / kEntry); }

  void add_file(const fs::path& path, std::vector<std::string>* files) {
    if (has_foreign_name(path)) {
      throw DataError(ErrorParts{.what = path.string() + " is an image that is not read.",
                                 .expected = "names in .jpg, .jpeg or .png",
                                 .remedy = "Convert the file, or move it out of the folder."});
    }
    if (!has_image_name(path.string())) {
      ++set_.others;
      return;
    }
    const uint64_t bytes = path.string().size() + kEntry;
    if (bytes > room_) {
      throw DataError(ErrorParts{.what = "There are too many images.",
                                 .node = path.string(),
                                 .expected = fmt::format("names of at most {} bytes, a quarter of "
                                                         "the memory limit of this process",
                                                         limits_.max_bytes / kShare),
                                 .remedy = "Raise --max-bytes (Limits::max_bytes)."});
    }
    room_ -= bytes;
    files->push_back(path.string());
  }

  void add_class(const fs::path& folder) {
    has_folders_ = true;
    const std::string name = folder.filename().string();
    if (given_ && classes_.count(name) == 0) {
      std::vector<std::string> names;
      for (const auto& [known, files] : classes_) names.push_back(known);
      throw DataError(ErrorParts{
          .what = folder.string() + " is none of the classes.",
          .expected = fmt::format("a folder for some of {} classes", names.size()),
          .received = name,
          .remedy = "Rename the folder, or give all names with --image-classes, in the order of "
                    "the labels."});
    }
    std::vector<std::string>& files = classes_[name];
    const size_t before = files.size();
    walk(folder, &files);
    if (files.size() > before) return;
    throw DataError(ErrorParts{.what = folder.string() + " is a class without images.",
                               .expected = "files in .jpg, .jpeg or .png",
                               .remedy = "Remove the folder: it counts as a class."});
  }

  /// Adds the files of a folder, then those of the folders in it.
  void walk(const fs::path& folder, std::vector<std::string>* files) {
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (error) throw_io("read the folder", folder, error.value());
    if (std::find(around_.begin(), around_.end(), real) != around_.end() ||
        around_.size() == kMostFolders) {
      throw DataError(ErrorParts{
          .what = folder.string() + " is too deep, or inside of itself.",
          .expected = fmt::format("at most {} folders inside of each other", kMostFolders),
          .received = real.string(),
          .remedy = "Remove the link, or move the images up."});
    }
    around_.push_back(real);
    std::vector<fs::path> folders;
    for (const fs::path& entry : entries_of(folder, most_names())) {
      if (is_hidden(entry)) {
        ++set_.others;
      } else if (is_folder(entry)) {
        folders.push_back(entry);
      } else {
        add_file(entry, files);
      }
    }
    for (const fs::path& inner : folders) walk(inner, files);
    around_.pop_back();
    poll();
  }

  void take_classes(const std::vector<std::string>& order) {
    set_.classes = order;
    for (const auto& [name, files] : classes_) {
      if (!given_) set_.classes.push_back(name);
    }
    for (size_t i = 0; i < set_.classes.size(); ++i) {
      std::vector<std::string>& files = classes_[set_.classes[i]];
      set_.labels.insert(set_.labels.end(), files.size(), static_cast<int64_t>(i));
      std::move(files.begin(), files.end(), std::back_inserter(set_.files));
    }
  }

  const Limits& limits_;
  uint64_t room_;  // bytes that names may still take
  ImageSet set_;
  std::vector<std::string> files_;                           // without classes
  std::map<std::string, std::vector<std::string>> classes_;  // files of each class
  std::vector<fs::path> around_;                             // folders that walk() is in
  bool given_ = false;
  bool has_folders_ = false;
};

/// What each of the 256 numbers becomes, for each channel.
std::array<std::vector<float>, 3> tables_for(const ImageForm& form) {
  std::array<std::vector<float>, 3> tables;
  const auto of = [](const std::vector<double>& values, size_t channel, double other) {
    if (values.empty()) return static_cast<float>(other);
    return static_cast<float>(values.size() == 1 ? values[0] : values[channel]);
  };
  for (size_t c = 0; c < static_cast<size_t>(form.channels); ++c) {
    const float mean = of(form.mean, c, 0), stddev = of(form.stddev, c, 1);
    for (int i = 0; i < 256; ++i)
      tables[c].push_back((static_cast<float>(i) / 255.0F - mean) / stddev);
  }
  return tables;
}

/// Writes an image in its form to `to`.
template <typename T, typename Number>
void place(const Image& image, const ImageForm& form, T* to, Number&& number) {
  const int64_t count = image.width * image.height, channels = form.channels;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t at = form.channels_last ? i * channels + c : c * count + i;
      to[at] = number(image.pixels[static_cast<size_t>(i * channels + c)], static_cast<size_t>(c));
    }
  }
}

}  // namespace

bool has_image_name(const std::string& path) {
  const std::string ending = ending_of(path);
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

bool has_images(const std::string& folder) {
  const auto any_image = [](const fs::path& place) {
    std::error_code error;
    for (fs::directory_iterator entry(place, error), end; !error && entry != end;
         entry.increment(error)) {
      if (has_image_name(entry->path().string()) || has_foreign_name(entry->path())) return true;
    }
    return false;
  };
  if (any_image(folder)) return true;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (size_t seen = 0; !error && entry != end && seen < 100'000; entry.increment(error), ++seen) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (is_folder(entry->path()) && any_image(entry->path())) {
      return true;
    }
  }
  return false;
}

ImageSet find_images(std::span<const std::string> paths, const std::vector<std::string>& classes,
                     const Limits& limits) {
  Finder finder(classes, limits);
  for (const std::string& path : paths) finder.add(path);
  return finder.finish(classes);
}

Tensor load_images(std::span<const std::string> files, const ImageForm& form,
                   const Limits& limits) {
  const auto count = static_cast<int64_t>(files.size());
  const int64_t channels = form.channels;
  Tensor result =
      Tensor::empty(form.whole ? DType::u8 : DType::f32,
                    form.channels_last ? Dims{count, form.height, form.width, channels}
                                       : Dims{count, channels, form.height, form.width});
  const auto tables = tables_for(form);
  const int64_t size = form.height * form.width * channels;
  const auto load = [&](int64_t i) {
    const FileSource source(files[static_cast<size_t>(i)]);
    const Image image =
        resize(decode_image(source, form.channels, limits), form.width, form.height);
    if (form.whole) {
      place(image, form, result.data<uint8_t>() + i * size, [](uint8_t p, size_t) { return p; });
    } else {
      place(image, form, result.data<float>() + i * size,
            [&](uint8_t p, size_t c) { return tables[c][p]; });
    }
  };
  std::exception_ptr failure;
  std::atomic<int64_t> failed{count};
  settle_threads(0);
  const auto threads = static_cast<int>(std::min<int64_t>(omp_get_max_threads(), count));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    if (failed < i) continue;
    try {
      load(i);
      poll();  // in the caller's thread, which alone has a budget
    } catch (...) {
#pragma omp critical(steep_load_images)
      if (i < failed) {
        failed = i;
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
  return result;
}

}  // namespace steep
