// Initializers that stay in the external data of a model.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>

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

}  // namespace steep
