#include "tests/support/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace sluice::test {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Whether the process has a handler for `signal`, by the mask in /proc.
bool catches(pid_t process, int signal) {
  std::istringstream status(content_of("/proc/" + std::to_string(process) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1U) != 0;
  }
  return false;
}

// Sends `signal` when the process has a handler for it; does nothing if the process ends before.
void send_when_caught(pid_t process, int signal) {
  while (!catches(process, signal)) {
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (ended.si_pid == process) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(process, signal);
}

// Waits until the file has content or the process has ended.
void wait_for_content(const std::string& file, pid_t process) {
  while (true) {
    std::error_code missing;
    if (std::filesystem::file_size(file, missing) > 0 && !missing) return;
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (ended.si_pid == process) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

CommandResult run(const std::string& program, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& environment, int signal, bool after_output) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {program};
  line.insert(line.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  // A run that fails leaves its flight recorders in the temporary folder.
  std::vector<std::string> variables = environment;
  std::filesystem::create_directory(folder.path("tmp"));
  variables.push_back("TMPDIR=" + folder.path("tmp"));
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, folder.path("out").c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, folder.path("err").c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + line[0]);
  if (after_output) wait_for_content(folder.path("out"), child);
  if (signal != 0) send_when_caught(child, signal);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content_of(folder.path("out")),
          content_of(folder.path("err"))};
}

}  // namespace

CommandResult run_sluice(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return run_program(SLUICE_COMMAND, arguments, environment);
}

std::string output_of(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  const CommandResult result = run_sluice(arguments, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

nlohmann::json json_of(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return nlohmann::json::parse(output_of(arguments, environment));
}

CommandResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment) {
  return run(program, arguments, environment, 0, false);
}

CommandResult run_program_and_signal(const std::string& program, const std::vector<std::string>& arguments, int signal,
                                     bool after_output) {
  return run(program, arguments, {}, signal, after_output);
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

TemporaryFolder::TemporaryFolder() {
  folder_ = (std::filesystem::temp_directory_path() / "sluice_test_XXXXXX").string();
  if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make " + folder_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

int TemporaryFolder::num_files() const {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
}

}  // namespace sluice::test
