# Writes the JSON files under the folders FOLDER and MODELS as one C++ source, OUTPUT. Run by cmake -P.

# Sets OUT to one row per file of `folder` that matches a pattern: its name without the pattern's ending, and its text.
function(embedded_rows out folder)
  file(GLOB files RELATIVE ${folder} ${ARGN})
  list(SORT files)
  set(rows "")
  foreach(name IN LISTS files)
    file(READ ${folder}/${name} text)
    string(REGEX REPLACE "(/config)?\\.json$" "" key "${name}")
    string(APPEND rows "    {\"${key}\", R\"json(${text})json\"},\n")
  endforeach()
  set(${out} "${rows}" PARENT_SCOPE)
endfunction()

embedded_rows(rows ${FOLDER} ${FOLDER}/*/*.json)
embedded_rows(models ${MODELS} ${MODELS}/*.json ${MODELS}/*/config.json)
file(WRITE ${OUTPUT} "#include \"model/cluster/catalogue.h\"

namespace sluice::model {
namespace {

constexpr CatalogueFile kFiles[] = {
${rows}};

constexpr CatalogueFile kModels[] = {
${models}};

}  // namespace

std::span<const CatalogueFile> catalogue_files() { return kFiles; }
std::span<const CatalogueFile> model_files() { return kModels; }

}  // namespace sluice::model
")
