#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "exec/device/provider.h"
#include "exec/plan/layout.h"
#include "exec/run/run_devices.h"
#include "exec/transport/launcher.h"
#include "exec/transport/nccl.h"
#include "exec/transport/transport.h"
#include "tools/command/mpi_ranks.h"

namespace sluice::tools {

// The flags of commands whose workers run somewhere.
struct RunPlaceFlags {
  std::string backend = "cpu";
  std::string transport = "auto";
  std::string devices;
  std::string bootstrap;

  void add_to(CLI::App& command, const char* group);
};

// Where the workers of a command run, and how they reach each other: threads of this process, or the processes of a
// launcher; each on the CPU, or on a device of its own.
class RunPlace {
 public:
  // Throws InputError for a transport that goes with neither the backend nor the launcher, MPI or CUDA that is not
  // there, and processes that cannot meet; in one line if there is no device.
  RunPlace(const RunPlaceFlags& flags, const MpiRanks& ranks);
  ~RunPlace();
  RunPlace(const RunPlace&) = delete;
  RunPlace& operator=(const RunPlace&) = delete;

  // Of processes, the one that speaks. True where workers are threads.
  bool first() const { return launched_.rank == 0; }
  bool processes() const { return launched_.size > 1 || mpi_ != nullptr; }
  // "threads" or "mpi" on the CPU, "inprocess" or "nccl" on devices.
  const char* transport_name() const;
  // Null: the CPU.
  const DeviceKernels* kernels() const { return kernels_; }

  // Opens the devices, and lets processes meet; all of them call it, once, before what follows. Throws InputError if
  // there are not as many processes, or devices, as workers, DeviceError.
  void open(const RunLayout& layout);
  // Null: workers are threads.
  Transport* transport() const;
  const RunDevices& devices() const { return devices_; }
  WorkerDevice own_device() const;  // of a process
  // What the first process says, on all.
  std::string agreed(const std::string& text) const;
  // What is run on, as far as it has a name, and how many are at work.
  std::string machine(int workers) const;

 private:
  void open_devices(const RunLayout& layout);
  void meet();

  DeviceRequest request_;
  std::string bootstrap_file_;
  LaunchedRank launched_;
  const DeviceKernels* kernels_ = nullptr;
  std::unique_ptr<Transport> mpi_;
  std::unique_ptr<FileBootstrap> bootstrap_;
  std::vector<std::unique_ptr<Device>> opened_;
  std::unique_ptr<NcclWorld> nccl_;
  RunDevices devices_;
};

// Whether this process is the one that speaks, as its launcher says; for what goes wrong before a RunPlace is there.
bool is_first_process(const MpiRanks& ranks);

}  // namespace sluice::tools
