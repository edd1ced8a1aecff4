#include "model/cost/profile.h"

#include <algorithm>

#include "model/cost/memory_json.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMaxProfileTokens = std::int64_t{1} << 31;
constexpr double kMaxProfileSeconds = 1e6;
// Shorter than the resolution of any clock; relative errors need times above 0.
constexpr double kLeastSeconds = 1e-12;

const std::vector<std::string> kPassNames = {"optimizer", "norm"};  // as PassKind
const std::vector<std::string> kKindNames = {"F", "I", "W", "B"};

std::vector<std::string> part_names() {
  std::vector<std::string> names;
  for (const PartKind part : kParts) names.push_back(to_string(part));
  return names;
}

template <typename T>
T named(const JsonReader& reader, const std::vector<std::string>& names, const std::vector<T>& values) {
  const auto found = std::find(names.begin(), names.end(), reader.one_of(names));
  return values[found - names.begin()];
}

ProfileSample sample_from_json(JsonReader reader) {
  ProfileSample sample;
  sample.part = named<PartKind>(reader.at("part"), part_names(), {kParts.begin(), kParts.end()});
  sample.kind = named<OpKind>(reader.at("kind"), kKindNames, {OpKind::F, OpKind::I, OpKind::W, OpKind::B});
  const std::span<const OpKind> kinds = kinds_of(sample.part);
  if (std::find(kinds.begin(), kinds.end(), sample.kind) == kinds.end()) {
    reader.at("kind").fail(kinds.size() > 2 ? "expected F, I or W of this part" : "expected F or I of this part");
  }
  sample.tokens = reader.integer("tokens", 1, kMaxProfileTokens);
  sample.context = reader.integer_or("context", 0, kMaxProfileTokens, 0);
  sample.sequences = static_cast<int>(reader.integer_or("sequences", 1, 1 << 20, 1));
  sample.tensor_parallel = static_cast<int>(reader.integer_or("tensor_parallel", 1, 1 << 16, 1));
  if (is_of_expert_layer(sample.part)) {
    sample.expert_parallel = static_cast<int>(reader.integer_or("expert_parallel", 1, 1 << 16, 1));
  }
  sample.seconds = reader.number("seconds", kLeastSeconds, kMaxProfileSeconds);
  sample.spread_s = reader.number_or("spread_s", 0, kMaxProfileSeconds, 0);
  reader.finish();
  return sample;
}

ProfileTransfer transfer_from_json(JsonReader reader) {
  ProfileTransfer transfer;
  transfer.link = reader.string("link");
  if (transfer.link.empty()) reader.at("link").fail("expected the name of a link");
  transfer.bytes = reader.integer("bytes", 0, std::int64_t{1} << 50);
  transfer.seconds = reader.number("seconds", kLeastSeconds, kMaxProfileSeconds);
  reader.finish();
  return transfer;
}

ProfilePass pass_from_json(JsonReader reader) {
  ProfilePass pass;
  pass.pass = named<PassKind>(reader.at("pass"), kPassNames, {kPasses.begin(), kPasses.end()});
  pass.parameters = reader.integer("parameters", 1, std::int64_t{1} << 50);
  pass.seconds = reader.number("seconds", kLeastSeconds, kMaxProfileSeconds);
  reader.finish();
  return pass;
}

ProfileSum sum_from_json(JsonReader reader) {
  ProfileSum sum;
  sum.ranks = static_cast<int>(reader.integer("ranks", 2, 1 << 24));
  sum.bytes = reader.integer("bytes", 0, std::int64_t{1} << 50);
  sum.seconds = reader.number("seconds", kLeastSeconds, kMaxProfileSeconds);
  reader.finish();
  return sum;
}

Profile profile_from_json(JsonReader root) {
  if (root.string("schema") != "sluice.profile/1") root.at("schema").fail("expected \"sluice.profile/1\"");
  Profile profile;
  profile.source = root.source();
  profile.machine = root.string_or("machine", "");
  profile.dtype = root.string_or("dtype", "");
  profile.model = root.string_or("model", "");
  root.allow("shape");
  if (root.has("shape")) profile.shape = model_shape_from_json(root.at("shape"));
  profile.waited_for_cores = root.boolean_or("waited_for_cores", false);
  for (const JsonReader& sample : root.at("samples").elements()) profile.samples.push_back(sample_from_json(sample));
  root.allow("transfers");
  if (root.has("transfers")) {
    for (const JsonReader& transfer : root.at("transfers").elements()) {
      profile.transfers.push_back(transfer_from_json(transfer));
    }
  }
  root.allow("passes");
  if (root.has("passes")) {
    for (const JsonReader& pass : root.at("passes").elements()) profile.passes.push_back(pass_from_json(pass));
  }
  root.allow("sums");
  if (root.has("sums")) {
    for (const JsonReader& sum : root.at("sums").elements()) profile.sums.push_back(sum_from_json(sum));
  }
  root.allow("memory");
  if (root.has("memory")) profile.memory = run_memory_from_json(root.at("memory"));
  root.finish();
  return profile;
}

}  // namespace

Profile parse_profile(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  return profile_from_json(JsonReader(json, source));
}

Profile read_profile(const std::string& path) { return parse_profile(read_file(path), path); }

std::string to_json_text(const Profile& profile) {
  nlohmann::ordered_json root = {
      {"schema", "sluice.profile/1"}, {"machine", profile.machine}, {"dtype", profile.dtype}, {"model", profile.model}};
  if (!profile.shape.empty()) root["shape"] = profile.shape;
  if (profile.waited_for_cores) root["waited_for_cores"] = true;
  root["samples"] = nlohmann::ordered_json::array();
  root["transfers"] = nlohmann::ordered_json::array();
  for (const ProfileSample& sample : profile.samples) {
    root["samples"].push_back({{"part", to_string(sample.part)},
                               {"kind", std::string(1, letter(sample.kind))},
                               {"tokens", sample.tokens},
                               {"context", sample.context},
                               {"sequences", sample.sequences},
                               {"tensor_parallel", sample.tensor_parallel},
                               {"seconds", sample.seconds},
                               {"spread_s", sample.spread_s}});
    if (is_of_expert_layer(sample.part)) root["samples"].back()["expert_parallel"] = sample.expert_parallel;
  }
  for (const ProfileTransfer& transfer : profile.transfers) {
    root["transfers"].push_back({{"link", transfer.link}, {"bytes", transfer.bytes}, {"seconds", transfer.seconds}});
  }
  for (const ProfilePass& pass : profile.passes) {
    root["passes"].push_back(
        {{"pass", to_string(pass.pass)}, {"parameters", pass.parameters}, {"seconds", pass.seconds}});
  }
  for (const ProfileSum& sum : profile.sums) {
    root["sums"].push_back({{"ranks", sum.ranks}, {"bytes", sum.bytes}, {"seconds", sum.seconds}});
  }
  if (!profile.memory.parts.empty()) root["memory"] = run_memory_json(profile.memory);
  return root.dump(1) + "\n";
}

}  // namespace sluice::model
