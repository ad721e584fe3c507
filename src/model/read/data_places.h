// Initializers that stay in the external data of a model.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "data/file_places.h"
#include "model/read/external_data.h"
#include "steep/tensor.h"

namespace steep {

/// An initializer in a file.
struct PlacedTensor {
  Tensor place;  ///< data/file_places.h
  Tensor type;   ///< its type, without bytes
};

/// Those of the initializers `names` that are external data of at least a page, without reading
/// them. Adds their files to *files. `model`: bytes that passed parse_model(), or that Steep wrote.
/// Throws as ExternalData.
std::map<std::string, PlacedTensor> place_initializers(std::span<const std::byte> model,
                                                       const std::filesystem::path& folder,
                                                       const std::set<std::string>& names,
                                                       FileMarks* files);

/// Opens a file of external data as ExternalData does, with its checks. `name`: of a tensor.
std::shared_ptr<const DataFile> open_data_file(const std::filesystem::path& folder,
                                               const std::string& name,
                                               const std::string& location);

}  // namespace steep
