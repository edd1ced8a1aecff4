# Writes report.html, report.css and the scripts of FOLDER, joined in the order of SCRIPTS, as one C++ source, OUTPUT,
# with the hashes that the content security policy names. Run by cmake -P.
function(embed name text)
  if(text MATCHES "\\)report\"")
    message(FATAL_ERROR "${name} ends its own raw string")
  endif()
  set(rows "${rows}constexpr std::string_view ${name} = R\"report(${text})report\";\n" PARENT_SCOPE)
endfunction()

set(rows "")
file(READ ${FOLDER}/report.html page)
file(READ ${FOLDER}/report.css style)
set(script "")
foreach(name IN LISTS SCRIPTS)
  file(READ ${FOLDER}/${name} text)
  string(APPEND script "${text}")
endforeach()
embed(kPage "${page}")
embed(kStyle "${style}")
embed(kScript "${script}")
string(SHA256 style_hash "${style}")
string(SHA256 script_hash "${script}")
file(WRITE ${OUTPUT} "#include \"traces/report/report_assets.h\"

namespace sluice::traces {
namespace {

${rows}
}  // namespace

ReportAssets report_assets() { return {kPage, kStyle, kScript, \"${style_hash}\", \"${script_hash}\"}; }

}  // namespace sluice::traces
")
