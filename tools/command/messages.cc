#include "tools/command/messages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "model/input/printable.h"

namespace sluice::tools {

void print_message(std::string_view message) {
  if (message.empty()) return;
  std::string line = fmt::format("sluice: {}", model::printable(message));
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
}

void open_standard_descriptors() {
  const int wrong_way[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) == -1) (void)!::open("/dev/null", wrong_way[descriptor]);
  }
}

}  // namespace sluice::tools
