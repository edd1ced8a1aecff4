# Writes report.html, report.css and the scripts of FOLDER, joined in the order of SCRIPTS, and live.html, live.css and
# LIVE_SCRIPTS, as one C++ source, OUTPUT, with the hashes that the content security policy names. Run by cmake -P.
function(embed name text)
  if(text MATCHES "\\)report\"")
    message(FATAL_ERROR "${name} ends its own raw string")
  endif()
  set(rows "${rows}constexpr std::string_view ${name} = R\"report(${text})report\";\n" PARENT_SCOPE)
endfunction()

set(rows "")
foreach(part report live)
  file(READ ${FOLDER}/${part}.html page)
  file(READ ${FOLDER}/${part}.css style)
  set(script "")
  set(names ${SCRIPTS})
  if(part STREQUAL live)
    set(names ${LIVE_SCRIPTS})
  endif()
  foreach(name IN LISTS names)
    file(READ ${FOLDER}/${name} text)
    string(APPEND script "${text}")
  endforeach()
  embed(${part}_page "${page}")
  embed(${part}_style "${style}")
  embed(${part}_script "${script}")
  string(SHA256 ${part}_style_hash "${style}")
  string(SHA256 ${part}_script_hash "${script}")
endforeach()
file(WRITE ${OUTPUT} "#include \"traces/report/report_assets.h\"

namespace sluice::traces {
namespace {

${rows}
}  // namespace

ReportAssets report_assets() {
  return {report_page, report_style, report_script, \"${report_style_hash}\", \"${report_script_hash}\",
          live_page, live_style, live_script, \"${live_style_hash}\", \"${live_script_hash}\"};
}

}  // namespace sluice::traces
")
