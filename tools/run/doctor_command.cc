// `sluice doctor`: reports the hardware, libraries and launcher of this machine.

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exec/device/cudnn.h"
#include "exec/device/dynamic_library.h"
#include "exec/device/provider.h"
#include "exec/measure/link_bench.h"
#include "exec/plan/host_memory.h"
#include "exec/transport/launcher.h"
#include "exec/transport/nccl_functions.h"
#include "exec/transport/threads.h"
#include "kernels/cpu/gemm.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/version.h"
#include "tools/run/run_flags.h"
#ifdef SLUICE_HAVE_MPI
#include <mpi.h>
#endif

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

struct Cpu {
  std::string model;
  int cores = 0;      // available to this process
  int all_cores = 0;  // on the machine
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;
  std::string blas;
  std::string faster_kernels;  // for OPENBLAS_CORETYPE; empty: those in use
};

// What is available, and the reasons why something is not.
struct Findings {
  Cpu cpu;
  std::string mpi;  // version; empty: none
  std::string why_no_mpi;
  std::string architectures;  // of the compiled kernels; empty: none
  std::vector<SoftwareFacts> software;
  std::vector<std::string> searched;  // folders of libraries, after those of the loader
  std::vector<DeviceFacts> devices;
  std::string why_no_devices;
  std::optional<LaunchedRank> rank;
  std::string launcher_error;
  std::vector<std::string> variables;
  std::vector<CopyRate> links;
  std::string why_no_links;  // between devices, if there are devices
};

Cpu this_cpu() {
  Cpu cpu{.model = "unknown", .all_cores = static_cast<int>(std::thread::hardware_concurrency())};
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    cpu.model = line.substr(colon + 2);
    break;
  }
  cpu_set_t mask;
  cpu.cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : cpu.all_cores;
  cpu.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  cpu.available_bytes = std::min(available_memory_bytes(), cpu.memory_bytes);
  cpu.blas = cpu::blas_name();
  cpu.faster_kernels = cpu::faster_blas_kernels();
  return cpu;
}

#ifdef SLUICE_HAVE_MPI
std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown version";
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}
#endif

SoftwareFacts cudnn_facts() {
  try {
    return {"cuDNN", cudnn().text, cudnn().path};
  } catch (const std::exception& error) {
    return {"cuDNN", "", error.what()};
  }
}

// The flag that selects a library of SoftwareFacts without which everything else works; empty for the others.
std::string optional_flag(const std::string& library) { return library == "cuDNN" ? "--attention cudnn" : ""; }

// Measures messages between two threads.
CopyRate rate_between_threads() {
  constexpr std::int64_t kBytes = 1 << 20;
  constexpr std::int64_t kFewBytes = 64;
  CopyRate rate{.from = "thread", .to = "thread"};
  on_threads(2, [&](Transport& transport) {
    const auto bench = make_link_bench({.most_bytes = kBytes}, transport, {});
    const std::vector<double> many = bench->time_messages(kBytes);
    const std::vector<double> few = bench->time_messages(kFewBytes);
    if (transport.rank() != 0) return;
    rate.bytes_per_s = static_cast<double>(kBytes) / *std::min_element(many.begin(), many.end());
    rate.seconds = *std::min_element(few.begin(), few.end());
  });
  return rate;
}

Findings examine() {
  Findings found{.cpu = this_cpu()};
#ifdef SLUICE_HAVE_MPI
  found.mpi = mpi_version();
#else
  found.why_no_mpi = "this build has no MPI: ranks are threads of one process, or processes with NCCL";
#endif
  found.variables = launcher_variables();
  try {
    found.rank = launched_rank();
  } catch (const std::exception& error) {
    found.launcher_error = error.what();
  }
  found.why_no_devices = why_no_devices();
  if (const DeviceProvider* const provider = device_provider(); provider != nullptr) {
    found.architectures = provider->architectures();
    found.software = provider->software();
    found.software.push_back(cudnn_facts());
    try {
      found.software.push_back({"NCCL", nccl().version, nccl().path});
    } catch (const std::exception& error) {
      found.software.push_back({"NCCL", "", error.what()});
    }
    found.searched.assign(cuda_library_folders().begin(), cuda_library_folders().end());
    try {
      found.devices = provider->devices();
      if (!found.devices.empty()) found.links = measured_copies(provider->open({.kind = DeviceRequest::gpu}));
    } catch (const std::exception& error) {
      found.why_no_links = error.what();
    }
  }
  found.links.push_back(rate_between_threads());
  return found;
}

OrderedJson findings_json(const Findings& found) {
  const auto or_null = [](const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); };
  OrderedJson software = OrderedJson::array();
  for (const SoftwareFacts& each : found.software) {
    software.push_back({{"name", each.name},
                        {"version", or_null(each.version)},
                        {"detail", each.detail},
                        {"optional", or_null(optional_flag(each.name))}});
  }
  OrderedJson devices = OrderedJson::array();
  for (const DeviceFacts& each : found.devices) {
    devices.push_back({{"name", each.name},
                       {"ordinal", each.ordinal},
                       {"bus", or_null(each.bus)},
                       {"compute_capability", each.compute_capability},
                       {"multiprocessors", each.multiprocessors},
                       {"memory_bytes", each.memory_bytes},
                       {"free_bytes", each.free_bytes},
                       {"clock_hz", each.clock_hz},
                       {"memory_clock_hz", each.memory_clock_hz},
                       {"bfloat16", each.bfloat16},
                       {"most_partitions", each.most_partitions},
                       {"why_no_partitions", or_null(each.why_no_partitions)}});
  }
  OrderedJson launcher = {{"name", found.rank ? to_string(found.rank->launcher) : "contradictory"},
                          {"error", or_null(found.launcher_error)},
                          {"variables", found.variables}};
  if (found.rank) {
    launcher["rank"] = found.rank->rank;
    launcher["size"] = found.rank->size;
    launcher["local_rank"] = found.rank->local_rank;
  }
  OrderedJson links = OrderedJson::array();
  for (const CopyRate& each : found.links) {
    links.push_back(
        {{"from", each.from}, {"to", each.to}, {"bytes_per_s", each.bytes_per_s}, {"latency_s", each.seconds}});
  }
  return {{"schema", "sluice.doctor/1"},
          {"version", kVersion},
          {"cpu",
           {{"model", found.cpu.model},
            {"cores", found.cpu.cores},
            {"machine_cores", found.cpu.all_cores},
            {"memory_bytes", found.cpu.memory_bytes},
            {"available_bytes", found.cpu.available_bytes},
            {"blas", found.cpu.blas},
            {"faster_coretype", or_null(found.cpu.faster_kernels)}}},
          {"mpi", {{"version", or_null(found.mpi)}, {"why_not", or_null(found.why_no_mpi)}}},
          {"cuda",
           {{"architectures", or_null(found.architectures)},
            {"why_not", or_null(found.why_no_devices)},
            {"software", software},
            {"searched", found.searched}}},
          {"devices", devices},
          {"launcher", launcher},
          {"links", links},
          {"why_no_device_links", or_null(found.why_no_links)}};
}

void print_row(const std::string& name, const std::string& text) { fmt::print("{:<13} {}\n", name, text); }

void print_findings(const Findings& found) {
  const Cpu& cpu = found.cpu;
  print_row("sluice", kVersion);
  print_row("CPU", fmt::format("{}, {} of {} cores, {:.1f} of {:.1f} GiB of memory available", cpu.model, cpu.cores,
                               cpu.all_cores, static_cast<double>(cpu.available_bytes) / kGib,
                               static_cast<double>(cpu.memory_bytes) / kGib));
  print_row("BLAS", cpu.blas);
  if (!cpu.faster_kernels.empty()) print_row("", blas_advice(cpu.faster_kernels));
  print_row("MPI", found.mpi.empty() ? "no: " + found.why_no_mpi : found.mpi);
  if (!found.architectures.empty()) print_row("kernels", "for " + found.architectures);
  bool missing = false;
  for (const SoftwareFacts& each : found.software) {
    const std::string flag = optional_flag(each.name);
    print_row(each.name,
              (each.version.empty() ? "no: " + each.detail : fmt::format("{} ({})", each.version, each.detail)) +
                  (flag.empty() ? "" : "; optional: " + flag));
    missing |= each.version.empty() && each.name != "CUDA driver";
  }
  if (missing) {
    print_row("searched", "the loader's folders (LD_LIBRARY_PATH)");
    for (const std::string& folder : found.searched) print_row("", folder);
  }
  if (!found.why_no_devices.empty()) print_row("GPUs", "none: " + found.why_no_devices);
  for (const DeviceFacts& each : found.devices) {
    print_row(fmt::format("GPU {}", each.ordinal),
              fmt::format("{}, sm_{}, {} multiprocessors at {:.2f} GHz, {:.1f} of {:.1f} GiB free{}{}", each.name,
                          each.compute_capability, each.multiprocessors, each.clock_hz / 1e9,
                          static_cast<double>(each.free_bytes) / kGib, static_cast<double>(each.memory_bytes) / kGib,
                          each.bus.empty() ? "" : ", " + each.bus, each.bfloat16 ? "" : "; float16 only, no bfloat16"));
    print_row("", each.most_partitions > 0 ? fmt::format("green contexts: up to {} partitions", each.most_partitions)
                                           : "no green contexts: " + each.why_no_partitions);
  }
  if (!found.rank) {
    print_row("launcher", "contradictory: " + found.launcher_error);
  } else if (found.rank->launcher == LaunchedRank::none) {
    print_row("launcher", "none: one process");
  } else {
    print_row("launcher", fmt::format("{}: rank {} of {}, local rank {}", to_string(found.rank->launcher),
                                      found.rank->rank, found.rank->size, found.rank->local_rank));
  }
  for (const std::string& variable : found.variables) print_row("", variable);
  if (!found.why_no_links.empty()) print_row("links", "GPU links not measured: " + found.why_no_links);
  bool first = true;
  for (const CopyRate& each : found.links) {
    print_row(first ? "links" : "", fmt::format("{} to {}: {:.2f} GB/s, latency {:.1f} us", each.from, each.to,
                                                each.bytes_per_s / 1e9, each.seconds * 1e6));
    first = false;
  }
}

}  // namespace

Subcommand add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Report the hardware, libraries and launcher variables of this machine.\n\n"
      "Examples:\n"
      "  sluice doctor\n"
      "  sluice doctor --json\n"
      "  srun -n 8 sluice doctor\n\n"
      "It reports cores, memory, MPI, GPUs with their partitions and libraries, the launcher of this process, and "
      "measured bandwidths, each with the reason if something is missing.");
  command->group("Run and measure");
  command->footer("Exit codes: 0 success.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON document (sluice.doctor/1)");
  return {command, [json] {
            const Findings found = examine();
            if (*json) {
              fmt::print("{}", json_text(findings_json(found)));
            } else {
              print_findings(found);
            }
            return kDone;
          }};
}

}  // namespace sluice::tools
