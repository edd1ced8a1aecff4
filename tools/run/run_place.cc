#include "tools/run/run_place.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string_view>
#include <thread>

#include "exec/device/cudnn.h"
#include "exec/transport/nccl_functions.h"
#include "kernels/attention_library.h"
#include "kernels/device_kernels.h"
#include "model/errors.h"
#include "model/scenario/automatic.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#ifdef SLUICE_HAVE_MPI
#endif

namespace sluice::tools {
namespace {

constexpr std::chrono::minutes kConnectTimeout{5};

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "this machine";
}

// The fastest kind that this machine has. Emulated devices have no library.
AttentionChoice default_attention() {
  if (device_provider()->name() != "cuda") return AttentionChoice::gemm;
  try {
    cudnn();
    return AttentionChoice::cudnn;
  } catch (const DeviceError&) {
    return AttentionChoice::gemm;
  }
}

}  // namespace

void RunPlaceFlags::add_to(CLI::App& command, const char* group) {
  command.add_option("--backend", backend, "Where ranks compute (default: cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->group(group);
  command
      .add_option("--transport", transport,
                  "Communication between ranks: threads or mpi on the CPU, inprocess or nccl on GPUs; auto uses mpi or "
                  "nccl under a launcher (default: auto)")
      ->check(CLI::IsMember({"threads", "mpi", "inprocess", "nccl", "auto"}))
      ->group(group);
  command
      .add_option("--bootstrap", bootstrap,
                  "File in a shared folder through which processes on several hosts find each other without MPI "
                  "(default: a local file)")
      ->type_name(kReadFile)
      ->group(group);
  command
      .add_option(
          "--attention", attention,
          "Attention on GPUs: cudnn (cuDNN 9.10.2 or later), or gemm (matrix multiplications), which also computes, "
          "with a note, what cuDNN cannot (default: cudnn where it is found, else gemm)")
      ->check(CLI::IsMember({"cudnn", "gemm"}))
      ->group(group);
  command
      .add_option(
          "--devices", devices,
          "Devices of the ranks of one process: gpu[:N], whole GPUs; green:N, N partitions of one GPU; stream:N, "
          "N streams of one GPU (default: gpu)")
      ->group(group);
  command
      .add_option("--device-memory-margin", memory_margin,
                  "Memory of each GPU that a run leaves free, for the modules that CUDA loads with the first launch of "
                  "a kernel, as in 512MiB or 0B (default: 512MiB)")
      ->group(group);
}

bool is_first_process(const MpiRanks& ranks) {
  if (ranks.size() > 1) return ranks.first();
  try {
    return launched_rank().rank == 0;
  } catch (const InputError&) {
    return true;  // the next call throws again
  }
}

RunPlace::RunPlace(const RunPlaceFlags& flags, const MpiRanks& ranks) : bootstrap_file_(flags.bootstrap) {
  const bool on_devices = flags.backend == "cuda";
  const auto refuse = [&](const std::string& why) {
    throw InputError(fmt::format("--transport {}: {}", flags.transport, why));
  };
  if (on_devices) {
    const std::string why = why_no_devices();
    if (!why.empty()) throw InputError("--backend cuda: " + why);
    kernels_ = device_kernels();
    request_ = parse_devices(flags.devices.empty() ? "gpu" : flags.devices);
    if (flags.attention.empty()) attention_ = default_attention();
  } else if (!flags.devices.empty()) {
    throw InputError("--devices: needs --backend cuda");
  }
  if (!flags.memory_margin.empty()) {
    if (!on_devices) throw InputError("--device-memory-margin: needs --backend cuda");
    devices_.memory_margin = parse_bytes(flags.memory_margin, "--device-memory-margin");
  }
  if (!flags.attention.empty()) {
    if (!on_devices) throw InputError("--attention: needs --backend cuda");
    attention_ = flags.attention == "cudnn" ? AttentionChoice::cudnn : AttentionChoice::gemm;
  }
  const bool of_cpu = flags.transport == "threads" || flags.transport == "mpi";
  const bool of_devices = flags.transport == "inprocess" || flags.transport == "nccl";
  if (on_devices && of_cpu) refuse("expected inprocess, nccl or auto with --backend cuda");
  if (!on_devices && of_devices) refuse("needs --backend cuda");

  launched_.rank = ranks.rank();
  launched_.size = ranks.size();
  // Without MPI, the rank comes from the launcher's variables. Processes on the CPU need MPI.
  if (on_devices && flags.transport != "inprocess") launched_ = launched_rank();
  if (ranks.size() > 1 && launched_.size != ranks.size()) {
    throw InputError(
        fmt::format("MPI reports {} processes, the variables of the launcher {}", ranks.size(), launched_.size));
  }
  const bool many = launched_.size > 1;
  if (many && (flags.transport == "threads" || flags.transport == "inprocess")) {
    refuse("excludes a launcher that starts several processes");
  }
  if (flags.transport == "nccl" && !many && launched_.launcher == LaunchedRank::none) {
    refuse("needs a launcher (mpirun, srun, torchrun) that starts one process per rank");
  }
  if (ranks.size() > 1 || flags.transport == "mpi") {
#ifdef SLUICE_HAVE_MPI
    if (!ranks.started()) refuse("needs a launcher (mpirun, srun) that starts one process per rank");
    ranks.within("MPI_Comm_dup", [&] { mpi_ = make_mpi_transport(); });
#else
    refuse("this sluice was built without MPI");
#endif
  }
}

RunPlace::~RunPlace() = default;

const char* RunPlace::transport_name() const {
  if (kernels_ == nullptr) return mpi_ != nullptr ? "mpi" : "threads";
  return processes() ? "nccl" : "inprocess";
}

void RunPlace::open(const RunPlan& plan) {
  const RunLayout& layout = plan.layout();
  const int started = mpi_ != nullptr ? mpi_->size() : launched_.size;
  if (processes() && started != layout.size()) {
    throw InputError(fmt::format("{} pipeline x {} data x {} tensor ranks need {} processes, but {} were started",
                                 layout.pipeline, layout.data, layout.tensor, layout.size(), started));
  }
  if (kernels_ == nullptr) return;
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  if (processes() && plan.has_experts() && (loading == nullptr || std::string_view(loading) != "EAGER")) {
    throw InputError(
        fmt::format("{}: experts on the GPUs of several processes need CUDA_MODULE_LOADING=EAGER in the environment: a "
                    "kernel that is loaded during a run may wait for a message that waits for it",
                    plan.spec().model.name));
  }
  open_devices(layout);
  if (processes()) connect_processes();
}

void RunPlace::open_devices(const RunLayout& layout) {
  const DeviceProvider& provider = *device_provider();
  devices_.kernels = kernels_;
  devices_.devices.assign(layout.size(), nullptr);
  if (processes()) {
    if (request_.kind != DeviceRequest::gpu) {
      throw InputError(
          fmt::format("--devices {}: needs a single process; with a launcher, each process has a GPU of its own",
                      to_string(request_)));
    }
    const auto visible = provider.num_devices();
    const int ordinal = ordinal_of(launched_.local_rank, visible);
    opened_ = provider.open({.kind = DeviceRequest::gpu, .count = 1}, std::array{ordinal});
    devices_.devices[launched_.rank] = opened_.front().get();
    return;
  }
  DeviceRequest request = request_;
  if (request.count == 0) request.count = layout.size();
  if (request.count != layout.size()) {
    throw InputError(fmt::format("--devices {}: {} pipeline x {} data x {} tensor ranks need {} devices",
                                 to_string(request), layout.pipeline, layout.data, layout.tensor, layout.size()));
  }
  const auto visible = provider.num_devices();
  if (request.kind == DeviceRequest::gpu && request.count > visible) {
    throw InputError(
        fmt::format("--devices {}: {} workers need as many GPUs, and {} GPU{} found: --devices green:{} shares one",
                    to_string(request), layout.size(), visible, visible == 1 ? "" : "s", layout.size()));
  }
  opened_ = provider.open(request);
  for (std::size_t rank = 0; rank < opened_.size(); ++rank) devices_.devices[rank] = opened_[rank].get();
}

void RunPlace::connect_processes() {
  if (mpi_ == nullptr) {
    const std::string path = bootstrap_file_.empty() ? bootstrap_path(launched_) : bootstrap_file_;
    bootstrap_ = std::make_unique<FileBootstrap>(path, launched_.run.empty() ? path : launched_.run, launched_.rank);
    const auto broadcast = [&](std::span<std::byte> bytes) { bootstrap_->broadcast(bytes, kConnectTimeout); };
    tcp_ = make_tcp_transport(launched_.rank, launched_.size, broadcast, kConnectTimeout);
  }
  nccl_ = std::make_unique<NcclWorld>(nccl(), *opened_.front(), *transport());
  devices_.transport = &nccl_->devices();
}

Transport* RunPlace::transport() const { return mpi_ != nullptr ? mpi_.get() : tcp_.get(); }

WorkerDevice RunPlace::own_device() const {
  if (kernels_ == nullptr) return {};
  return {devices_.devices[launched_.rank], devices_.transport, nullptr, devices_.memory_margin};
}

std::string RunPlace::broadcast(const std::string& text) const {
  Transport* const between = transport();
  if (between == nullptr) return text;
  std::array<char, 4096> bytes{};
  std::copy_n(text.begin(), std::min(text.size(), bytes.size() - 1), bytes.begin());
  between->broadcast(std::as_writable_bytes(std::span(bytes)));
  return bytes.data();
}

void RunPlace::print_library_notes() const {
  for (const auto& device : opened_) {
    if (const AttentionLibrary* const library = device->attention_library(); library != nullptr) {
      for (const std::string& note : library->notes()) print_message("note: attention without cuDNN: " + note);
    }
  }
}

bool RunPlace::shares_cores(int workers) const {
  const int cores = usable_cores();
  return transport() == nullptr && kernels_ == nullptr && cores != 0 && workers > cores;
}

int usable_cores() {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
  return static_cast<int>(std::thread::hardware_concurrency());
}

std::string RunPlace::machine(int workers) const {
  const std::string name = opened_.empty() ? processor() : opened_.front()->name();
  return fmt::format("{}, {} worker{}", name, workers, workers == 1 ? "" : "s");
}

}  // namespace sluice::tools
