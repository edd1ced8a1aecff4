#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "exec/checkpoint/checkpoint.h"
#include "exec/run/faults.h"
#include "tests/fuzz/targets.h"

namespace sluice::test::fuzz {
namespace {

// An in-memory file with a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(fd_ >= 0 && ::write(fd_, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
            "cannot create an in-memory file");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

void try_checkpoint(std::string_view text) {
  const MemoryFile file(text);
  accepts([&] {
    const CheckpointReader reader(file.path());
    require(reader.step() >= 0, "a negative step");
    for (const std::string& name : reader.names()) {
      // Only names are known here; the shapes are mostly wrong.
      Parameter block{.name = name, .all_rows = 2, .all_columns = 3, .rows = 2, .columns = 3};
      std::vector<std::byte> values(2 * 3 * 8);
      accepts([&] { reader.read(block, "", Precision::float32, values.data()); });
      accepts([&] { reader.read(block, "", Precision::float64, values.data()); });
    }
  });
}

void try_fault(std::string_view text) {
  accepts([&] {
    const Fault fault = parse_fault(text);
    require(fault.text == text, "the text of the fault changed");
    require((fault.kind == FaultKind::delay) == (fault.delay.count() > 0), "a delay of 0");
  });
}

}  // namespace sluice::test::fuzz
