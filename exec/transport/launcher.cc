#include "exec/transport/launcher.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "model/errors.h"
#include "model/input/files.h"

namespace sluice::exec {
namespace {

// Environment variables of a launcher. Without the first two it did not start this process.
struct Names {
  LaunchedRank::Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kOpenMpi = {LaunchedRank::mpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kMpich = {LaunchedRank::mpirun, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Names kSlurmStep = {LaunchedRank::srun, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr};
constexpr Names kSlurm = {LaunchedRank::srun, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};
constexpr Names kTorch = {LaunchedRank::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

// Step ids from here on are reserved by Slurm: the batch script, an interactive shell.
constexpr std::int64_t kFirstOwnStep = 0xfffffff0;

std::string value_of(const Environment& environment, const char* name) {
  const char* const value = name == nullptr ? nullptr : environment(name);
  return value == nullptr ? std::string() : value;
}

bool is_set(const Environment& environment, const char* name) { return !value_of(environment, name).empty(); }

int number(const Environment& environment, const char* name, int least) {
  const std::string text = value_of(environment, name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw InputError(fmt::format("{}: expected a number of at least {}, got '{}'", name, least, text));
  }
  return value;
}

// Returns nothing if the launcher did not start this process.
std::optional<LaunchedRank> rank_from_variables(const Environment& environment, const Names& names) {
  const bool has_rank = is_set(environment, names.rank);
  const bool has_size = is_set(environment, names.size);
  if (!has_rank && !has_size) return std::nullopt;
  if (!has_rank || !has_size) {
    throw InputError(fmt::format("{} is set but {} is not: expected both", has_rank ? names.rank : names.size,
                                 has_rank ? names.size : names.rank));
  }
  LaunchedRank out{.launcher = names.launcher,
                   .rank = number(environment, names.rank, 0),
                   .size = number(environment, names.size, 1)};
  if (out.rank >= out.size) {
    throw InputError(
        fmt::format("{}: expected a number below {} ({}), got {}", names.rank, out.size, names.size, out.rank));
  }
  if (is_set(environment, names.local_size)) out.local_size = number(environment, names.local_size, 1);
  if (is_set(environment, names.local_rank)) {
    out.local_rank = number(environment, names.local_rank, 0);
    if (out.local_size > 0 && out.local_rank >= out.local_size) {
      throw InputError(fmt::format("{}: expected a number below {} ({}), got {}", names.local_rank, out.local_size,
                                   names.local_size, out.local_rank));
    }
  }
  return out;
}

std::optional<LaunchedRank> rank_from_mpirun(const Environment& environment) {
  if (auto open_mpi = rank_from_variables(environment, kOpenMpi)) return open_mpi;
  // Slurm's PMI sets these variables too.
  if (is_set(environment, "SLURM_STEP_ID")) return std::nullopt;
  return rank_from_variables(environment, kMpich);
}

std::optional<LaunchedRank> rank_from_srun(const Environment& environment) {
  const std::string step = value_of(environment, "SLURM_STEP_ID");
  std::int64_t id = kFirstOwnStep;
  std::from_chars(step.data(), step.data() + step.size(), id);
  if (id >= kFirstOwnStep) return std::nullopt;
  auto out = rank_from_variables(environment, is_set(environment, kSlurmStep.size) ? kSlurmStep : kSlurm);
  if (!out) return out;
  if (value_of(environment, "SLURM_NNODES") == "1") out->local_size = out->size;
  out->run = fmt::format("slurm-{}.{}", value_of(environment, "SLURM_JOB_ID"), step);
  return out;
}

std::optional<LaunchedRank> rank_from_torchrun(const Environment& environment) {
  // RANK alone may be set by something else.
  if (!is_set(environment, kTorch.rank) || !is_set(environment, kTorch.size)) {
    if (is_set(environment, "TORCHELASTIC_RUN_ID")) return rank_from_variables(environment, kTorch);
    return std::nullopt;
  }
  auto out = rank_from_variables(environment, kTorch);
  if (!is_set(environment, kTorch.local_rank)) {
    throw InputError("RANK and WORLD_SIZE are set but LOCAL_RANK is not: expected all three, as set by torchrun");
  }
  if (is_set(environment, "MASTER_ADDR") && is_set(environment, "MASTER_PORT")) {
    out->run = fmt::format("torch-{}-{}-{}-{}", value_of(environment, "TORCHELASTIC_RUN_ID"),
                           value_of(environment, "TORCHELASTIC_RESTART_COUNT"), value_of(environment, "MASTER_ADDR"),
                           value_of(environment, "MASTER_PORT"));
  }
  return out;
}

[[noreturn]] void refuse_contradiction(const LaunchedRank& one, const LaunchedRank& other) {
  throw InputError(fmt::format("{} reports rank {} of {}, but {} reports rank {} of {}", to_string(one.launcher),
                               one.rank, one.size, to_string(other.launcher), other.rank, other.size));
}

bool agree(const LaunchedRank& one, const LaunchedRank& other) {
  return one.rank == other.rank && one.size == other.size;
}

}  // namespace

Environment process_environment() {
  return [](const char* name) { return std::getenv(name); };
}

const char* to_string(LaunchedRank::Launcher launcher) {
  switch (launcher) {
    case LaunchedRank::none: return "none";
    case LaunchedRank::mpirun: return "mpirun";
    case LaunchedRank::srun: return "srun";
    case LaunchedRank::torchrun: return "torchrun";
  }
  return "none";
}

LaunchedRank launched_rank(const Environment& environment) {
  const auto torch = rank_from_torchrun(environment);
  const auto mpi = rank_from_mpirun(environment);
  const auto slurm = rank_from_srun(environment);
  if (torch) {
    if (mpi && !agree(*torch, *mpi)) refuse_contradiction(*torch, *mpi);
    // torchrun's agents are tasks of srun; without an agent, a script has copied srun's numbers.
    if (slurm && !is_set(environment, "TORCHELASTIC_RUN_ID") && !agree(*torch, *slurm))
      refuse_contradiction(*torch, *slurm);
    return *torch;
  }
  if (mpi) return *mpi;  // mpirun's daemons are tasks of srun
  if (slurm) return *slurm;
  return {};
}

std::vector<std::string> launcher_variables(const Environment& environment) {
  std::vector<std::string> out;
  const auto add = [&](const char* name) {
    if (name == nullptr || environment(name) == nullptr) return;
    std::string line = fmt::format("{}={}", name, environment(name));
    if (std::find(out.begin(), out.end(), line) == out.end()) out.push_back(std::move(line));
  };
  for (const Names& names : {kOpenMpi, kMpich, kSlurmStep, kSlurm, kTorch}) {
    for (const char* const name : {names.rank, names.size, names.local_rank, names.local_size}) add(name);
  }
  for (const char* const name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NNODES", "PMIX_RANK", "TORCHELASTIC_RUN_ID",
                                 "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"}) {
    add(name);
  }
  return out;
}

namespace {

// Returns the folder "sluice-UID" for temporary files, which only this user can access; creates it if necessary.
std::string private_folder() {
  std::string folder = fmt::format("{}/sluice-{}", temporary_folder(), ::geteuid());
  struct stat status {};
  const bool made = ::mkdir(folder.c_str(), S_IRWXU) == 0 || errno == EEXIST;
  if (!made || ::lstat(folder.c_str(), &status) != 0) {
    throw InputError(fmt::format("{}: cannot create: {}", folder, std::strerror(errno)));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw InputError(
        fmt::format("{}: expected a folder that only user {} can access: remove it, or specify a file "
                    "through which the processes find each other",
                    folder, ::geteuid()));
  }
  return folder;
}

}  // namespace

std::string bootstrap_path(const LaunchedRank& rank) {
  if (rank.run.empty()) {
    throw InputError(
        fmt::format("{} does not provide an id of the run: specify a file through which its processes find each other",
                    to_string(rank.launcher)));
  }
  if (rank.local_size != rank.size) {
    throw InputError(fmt::format(
        "the {} processes may be on several hosts: specify a file, in a folder that all of them can access, "
        "through which they find each other",
        rank.size));
  }
  std::string name = rank.run;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || c == ':' || c == ' '; }, '_');
  return private_folder() + "/" + name;
}

namespace {

constexpr std::string_view kTitle = "sluice bootstrap 1";

std::string file_text(const std::string& run, std::span<const std::byte> bytes) {
  std::string text = fmt::format("{}\n{}\n", kTitle, run);
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text + "\n";
}

// Returns an empty string if the bytes were read, or else the reason why not.
std::string read_bytes(const std::string& path, const std::string& run, std::span<std::byte> bytes) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "the file does not exist";
  if (status.st_uid != ::geteuid()) return fmt::format("the file belongs to user {}", status.st_uid);
  std::string text;
  try {
    text = read_file(path);
  } catch (const InputError&) {
    return "the file cannot be read";  // or has just been replaced
  }
  const std::size_t title_end = text.find('\n');
  const std::size_t run_end = title_end == std::string::npos ? title_end : text.find('\n', title_end + 1);
  if (run_end == std::string::npos || text.substr(0, title_end) != kTitle) return "not a bootstrap file";
  const std::string of = text.substr(title_end + 1, run_end - title_end - 1);
  if (of != run) return fmt::format("the file belongs to run '{}'", of);
  const std::string_view digits = std::string_view(text).substr(run_end + 1);
  if (digits.size() != 2 * bytes.size() + 1) {
    return fmt::format("expected {1} bytes, got {0}", digits.size() / 2, bytes.size());
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    const char* const begin = digits.data() + 2 * i;
    if (std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2) return "the file is damaged";
    bytes[i] = static_cast<std::byte>(value);
  }
  return {};
}

}  // namespace

FileBootstrap::FileBootstrap(std::string path, std::string run, int rank)
    : path_(std::move(path)), run_(std::move(run)), rank_(rank) {}

FileBootstrap::~FileBootstrap() {
  std::error_code ignored;
  if (written_) std::filesystem::remove(path_, ignored);
}

void FileBootstrap::broadcast(std::span<std::byte> bytes, std::chrono::milliseconds timeout) {
  if (rank_ == 0) {
    write_file_whole(path_, file_text(run_, bytes));
    written_ = true;
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = std::chrono::milliseconds(1);
  while (true) {
    const std::string problem = read_bytes(path_, run_, bytes);
    if (problem.empty()) return;
    if (std::chrono::steady_clock::now() >= deadline) {
      throw InputError(fmt::format("{}: rank {} of run '{}' has waited {:.1f} s for rank 0: {}", path_, rank_, run_,
                                   static_cast<double>(timeout.count()) / 1000, problem));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(100));
  }
}

}  // namespace sluice::exec
