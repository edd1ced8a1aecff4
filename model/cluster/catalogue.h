#pragma once

#include <span>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// A file of model/cluster/catalogue/, embedded in the library: its name, such as "gpus/a100-80gb", and its text.
struct CatalogueFile {
  std::string_view name;
  std::string_view text;
};

std::span<const CatalogueFile> catalogue_files();  // sorted by name
// The files of examples/models/, also embedded, by the model's name, such as "llama3-8b".
std::span<const CatalogueFile> model_files();

}  // namespace sluice::model
