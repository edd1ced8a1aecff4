#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/cost/cost_table.h"

namespace sluice::model {

// A measurement of an op of one part of a model, on a slice of `tokens` after a prefix of `context` tokens.
struct ProfileSample {
  PartKind part = PartKind::layer;
  OpKind kind = OpKind::F;
  std::int64_t tokens = 1;
  std::int64_t context = 0;
  int sequences = 1;  // of the microbatch
  int tensor_parallel = 1;
  int expert_parallel = 1;  // of the parts of layers with experts; 1 elsewhere
  double seconds = 0;       // above 0
  double spread_s = 0;
};

// A message over a link.
struct ProfileTransfer {
  std::string link;
  std::int64_t bytes = 0;
  double seconds = 0;  // above 0
};

// A pass over all parameters of a stage or rank.
struct ProfilePass {
  PassKind pass = PassKind::optimizer;
  std::int64_t parameters = 1;
  double seconds = 0;  // above 0
};

// An all-reduce of an array over `ranks` ranks.
struct ProfileSum {
  int ranks = 2;
  std::int64_t bytes = 0;
  double seconds = 0;  // above 0
};

// The contents of a profile file (schema sluice.profile/1, docs/formats.md): measurements in the order of the file.
struct Profile {
  std::string source;  // the file's path
  std::string machine;
  std::string dtype;
  std::string model;
  ModelShape shape;               // of the model; unknown sizes are absent
  bool waited_for_cores = false;  // some times include waits of a worker for a core
  std::vector<ProfileSample> samples;
  std::vector<ProfileTransfer> transfers;
  std::vector<ProfilePass> passes;
  std::vector<ProfileSum> sums;
  RunMemory memory;  // of the executor, if it measured the profile
};

// Throws InputError naming the file and the location in it.
Profile read_profile(const std::string& path);
Profile parse_profile(std::string_view text, const std::string& source);

// Returns the text of a profile file, which parse_profile parses back to the same profile.
std::string to_json_text(const Profile& profile);

}  // namespace sluice::model
