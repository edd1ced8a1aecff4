#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "exec/device/provider.h"
#include "exec/plan/run_plan.h"
#include "exec/run/run_devices.h"
#include "exec/transport/launcher.h"
#include "exec/transport/nccl.h"
#include "exec/transport/tcp.h"
#include "exec/transport/transport.h"
#include "tools/command/mpi_ranks.h"

namespace sluice::tools {

// The flags that select backend, transport and devices of a run.
struct RunPlaceFlags {
  std::string backend = "cpu";
  std::string transport = "auto";
  std::string devices;
  std::string bootstrap;
  std::string memory_margin;
  std::string attention;

  void add_to(CLI::App& command, const char* group);
};

// Where the workers of a run execute and how they communicate: threads of this process, or processes of a launcher,
// each on the CPU or on a device of its own.
class RunPlace {
 public:
  // Throws InputError for a transport that the backend or the launcher does not support, for missing MPI, CUDA or
  // devices, and for inconsistent launcher variables.
  RunPlace(const RunPlaceFlags& flags, const MpiRanks& ranks);
  ~RunPlace();
  RunPlace(const RunPlace&) = delete;
  RunPlace& operator=(const RunPlace&) = delete;

  // Returns whether this is the process that prints. True if workers are threads.
  bool first() const { return launched_.rank == 0; }
  bool processes() const { return launched_.size > 1 || mpi_ != nullptr; }
  // "threads" or "mpi" on the CPU, "inprocess" or "nccl" on devices.
  const char* transport_name() const;
  // Null on the CPU.
  const DeviceKernels* kernels() const { return kernels_; }
  AttentionChoice attention() const { return attention_; }

  // Opens the devices and connects the processes. Must be called once, by all processes, before the functions below.
  // Throws InputError unless the number of processes, or devices, equals the number of workers, and for experts on GPUs
  // of several processes unless CUDA loads kernels eagerly (decision 0021); DeviceError.
  void open(const RunPlan& plan);
  // Null if workers are threads.
  Transport* transport() const;
  const RunDevices& devices() const { return devices_; }
  // The device of this process.
  WorkerDevice own_device() const;
  // Returns the text of the first process, on all processes; at most 4095 bytes.
  std::string broadcast(const std::string& text) const;
  // Prints one line on standard error for each reason why a device of this process computed attention without cuDNN,
  // where the flags ask for it.
  void print_library_notes() const;
  // Returns whether workers are threads that are more than the cores: they wait for each other.
  bool shares_cores(int workers) const;
  // Returns the name of the processor or device, and the number of workers.
  std::string machine(int workers) const;

 private:
  void open_devices(const RunLayout& layout);
  void connect_processes();

  DeviceRequest request_;
  std::string bootstrap_file_;
  LaunchedRank launched_;
  const DeviceKernels* kernels_ = nullptr;
  AttentionChoice attention_ = AttentionChoice::gemm;
  std::unique_ptr<Transport> mpi_;
  std::unique_ptr<FileBootstrap> bootstrap_;
  std::unique_ptr<Transport> tcp_;
  std::vector<std::unique_ptr<Device>> opened_;
  std::unique_ptr<NcclWorld> nccl_;
  RunDevices devices_;
};

// Returns the number of cores that this process may use; 0: unknown.
int usable_cores();

// Returns whether this is the process that prints, from the launcher's variables; for errors before RunPlace exists.
bool is_first_process(const MpiRanks& ranks);

}  // namespace sluice::tools
