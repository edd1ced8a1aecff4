#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/cost/kernel_times.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "sim/calibration/log_fit.h"
#include "tools/calibrate/calibrate_catalogue.h"

namespace sluice::tools {
namespace {

// Adds the times of a file. Throws InputError if they are of another GPU or library, or if both have a kernel.
void merge(KernelTimes& all, const KernelTimes& more, const std::string& file, const std::string& first) {
  const auto agree = [&](const char* key, const std::string& has, const std::string& expected) {
    if (has == expected) return;
    throw InputError(
        fmt::format("{}: /{}: expected {}, as in {}, got {}: times of one GPU and one version of the "
                    "libraries belong together",
                    file, key, expected, first, has));
  };
  agree("gpu", more.gpu, all.gpu);
  agree("device", more.device, all.device);
  agree("library", more.library, all.library);
  for (const auto& [shape, time] : more.times) {
    if (!all.times.emplace(shape, time).second) {
      throw InputError(fmt::format("{}: /kernels: an earlier file has the kernel {}", file, to_string(shape)));
    }
  }
}

struct Compared {
  std::vector<double> predicted;
  std::vector<double> measured;
};

}  // namespace

std::string calibrate_kernel_times(const CatalogueRequest& request) {
  if (!request.constants.empty()) throw InputError("calibrate: --constants needs measured iterations");
  if (!request.ignored.empty()) throw InputError("calibrate: --ignore-columns needs measured iterations");
  const std::string& first = request.tables.front();
  KernelTimes all = read_kernel_times(first);
  for (std::size_t i = 1; i < request.tables.size(); ++i) {
    merge(all, read_kernel_times(request.tables[i]), request.tables[i], first);
  }
  if (!request.output.empty()) write_file_whole(request.output, to_json_text(all));
  if (request.json) return to_json_text(all);
  std::map<std::string, Compared> classes;
  for (const auto& [shape, time] : all.times) {
    Compared& of = classes[class_of(shape)];
    of.measured.push_back(time.seconds);
    if (time.predicted_s > 0) of.predicted.push_back(time.predicted_s);
  }
  std::string out;
  fmt::format_to(std::back_inserter(out),
                 "{}, {} ({})\n\n{:<34} {:>7}  error of the prediction: mean   median    worst\n", all.gpu, all.library,
                 all.device, "", "kernels");
  for (const auto& [name, of] : classes) {
    fmt::format_to(std::back_inserter(out), "{:<34} {:>7}", name, of.measured.size());
    if (of.predicted.size() == of.measured.size()) {
      const FitErrors errors = fit_errors(of.predicted, of.measured);
      fmt::format_to(std::back_inserter(out), "  {:>27.1f} %  {:>5.1f} %  {:>5.1f} %", 100 * errors.mean,
                     100 * errors.median, 100 * errors.worst);
    }
    out += '\n';
  }
  if (!request.output.empty())
    fmt::format_to(std::back_inserter(out), "\nsluice simulate SCENARIO --kernel-times {}\n", request.output);
  return out;
}

}  // namespace sluice::tools
