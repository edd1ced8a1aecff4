# Writes the JSON files under FOLDER as one C++ source, OUTPUT. Run by cmake -P.
file(GLOB files RELATIVE ${FOLDER} ${FOLDER}/*/*.json)
list(SORT files)
set(rows "")
foreach(name IN LISTS files)
  file(READ ${FOLDER}/${name} text)
  string(REGEX REPLACE "\\.json$" "" key "${name}")
  string(APPEND rows "    {\"${key}\", R\"json(${text})json\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"model/cluster/catalogue.h\"

namespace sluice::model {
namespace {

constexpr CatalogueFile kFiles[] = {
${rows}};

}  // namespace

std::span<const CatalogueFile> catalogue_files() { return kFiles; }

}  // namespace sluice::model
")
