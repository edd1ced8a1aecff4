#include "model/cluster/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "model/cluster/catalogue.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/input/nearest.h"

namespace sluice::model {
namespace {

constexpr int kMaxNodes = 1 << 16;
constexpr int kMaxGpusPerNode = 1024;

std::vector<std::string> names_under(std::string_view folder) {
  std::vector<std::string> names;
  for (const CatalogueFile& file : catalogue_files()) {
    if (file.name.starts_with(folder)) names.emplace_back(file.name.substr(folder.size()));
  }
  return names;
}

const CatalogueFile* find_file(const std::string& name) {
  for (const CatalogueFile& file : catalogue_files()) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

// Whether a name that is not in the catalogue is a file, which may be missing or unreadable.
bool is_path(const std::string& name) {
  std::error_code error;
  return name.find('/') != std::string::npos || name.ends_with(".json") || std::filesystem::exists(name, error) ||
         error;
}

// Reads a number, or {"value": number, "source": its origin}.
double constant(JsonReader& reader, const std::string& key, double low, double high) {
  JsonReader member = reader.at(key);
  if (!member.json().is_object()) return member.number(low, high);
  const double value = member.number("value", low, high);
  member.string("source");
  member.finish();
  return value;
}

double constant_or(JsonReader& reader, const std::string& key, double low, double high, double fallback) {
  reader.allow(key);
  return reader.has(key) ? constant(reader, key, low, high) : fallback;
}

// Reads a boolean, or {"value": boolean, "source": its origin}.
bool choice_or(JsonReader& reader, const std::string& key, bool fallback) {
  reader.allow(key);
  if (!reader.has(key)) return fallback;
  JsonReader member = reader.at(key);
  if (!member.json().is_object()) return member.boolean();
  const bool value = member.at("value").boolean();
  member.string("source");
  member.finish();
  return value;
}

void check_schema(JsonReader& reader, const std::string& expected) {
  reader.allow("schema");
  if (reader.has("schema") && reader.string("schema") != expected) {
    reader.at("schema").fail(fmt::format("expected \"{}\"", expected));
  }
}

GemmConstants gemm_constants(JsonReader reader) {
  GemmConstants out;
  out.peak_fraction = reader.number("peak_fraction", 1e-3, 1);
  out.sustained_fraction = reader.number_or("sustained_fraction", 1e-2, 1, 1);
  out.operand_edge = reader.number_or("operand_edge", 0, 1e4, 0);
  out.exposed_write = reader.number_or("exposed_write", 0, 1e3, 0);
  out.memory_efficiency = reader.number_or("memory_efficiency", 1e-2, 1, 1);
  out.launch_s = reader.number_or("launch_s", 0, 1e-2, 0);
  out.group_s = reader.number_or("group_s", 0, 1e-2, 0);
  reader.string_or("source", "");
  reader.finish();
  return out;
}

// All four, or none.
std::optional<TileConstants> tile_constants(JsonReader& reader) {
  constexpr const char* kKeys[] = {"operand_edge", "exposed_write", "memory_efficiency", "launch_s"};
  for (const char* key : kKeys) reader.allow(key);
  if (std::none_of(std::begin(kKeys), std::end(kKeys), [&](const char* key) { return reader.has(key); })) {
    return std::nullopt;
  }
  return TileConstants{.operand_edge = reader.number("operand_edge", 0, 1e4),
                       .exposed_write = reader.number("exposed_write", 0, 1e3),
                       .memory_efficiency = reader.number("memory_efficiency", 1e-2, 1),
                       .launch_s = reader.number("launch_s", 0, 1e-2)};
}

NarrowGemmConstants narrow_gemm_constants(JsonReader& gpu, const std::string& key) {
  NarrowGemmConstants out;
  gpu.allow(key);
  if (!gpu.has(key)) return out;
  JsonReader reader = gpu.at(key);
  out.peak_flops_per_s = reader.number("peak_flops_per_s", 1e9, 1e18);
  out.peak_fraction = reader.number_or("peak_fraction", 1e-3, 1, 1);
  out.sustained_fraction = reader.number_or("sustained_fraction", 1e-2, 1, 1);
  out.block_scales = reader.boolean_or("block_scales", false);
  out.tiles = tile_constants(reader);
  reader.string_or("source", "");
  reader.finish();
  return out;
}

std::vector<HeadConstants> head_constants(JsonReader reader) {
  std::vector<HeadConstants> out;
  for (JsonReader kernel : reader.at("kernels").elements()) {
    HeadConstants& one = out.emplace_back();
    one.head_size = kernel.number("head_size", 1, 1e4);
    one.peak_fraction = kernel.number("peak_fraction", 1e-3, 1);
    one.tail_rows = kernel.number_or("tail_rows", 0, 1e6, 0);
    one.overhead_keys = kernel.number_or("overhead_keys", 0, 1e6, 0);
    one.window_keys = kernel.number_or("window_keys", 0, 1e6, 0);
    kernel.finish();
  }
  reader.string_or("source", "");
  reader.finish();
  return out;
}

AttentionConstants attention_constants(JsonReader& gpu, const std::string& key) {
  JsonReader reader = gpu.at(key);
  AttentionConstants out;
  out.peak_fraction = reader.number("peak_fraction", 1e-3, 1);
  out.tail_rows = reader.number_or("tail_rows", 0, 1e6, 0);
  out.softmax_size = reader.number_or("softmax_size", 0, 1e4, 0);
  out.overhead_keys = reader.number_or("overhead_keys", 0, 1e6, 0);
  out.padded_values = reader.boolean_or("padded_values", true);
  reader.string_or("source", "");
  reader.finish();
  const std::string heads = key + "_heads";
  gpu.allow(heads);
  if (gpu.has(heads)) out.heads = head_constants(gpu.at(heads));
  return out;
}

Gpu gpu_from_json(JsonReader reader) {
  check_schema(reader, "sluice.gpu/1");
  Gpu gpu;
  gpu.name = reader.string("name");
  gpu.architecture = reader.string_or("architecture", "");
  gpu.peak_flops_per_s = constant(reader, "peak_flops_per_s", 1e9, 1e18);
  gpu.memory_bytes = static_cast<std::int64_t>(constant(reader, "memory_bytes", 1e6, 1e15));
  gpu.memory_bandwidth_bytes_per_s = constant(reader, "memory_bandwidth_bytes_per_s", 1e6, 1e16);
  gpu.num_sms = static_cast<int>(constant(reader, "sms", 1, 1e5));
  gpu.gemm = gemm_constants(reader.at("gemm"));
  gpu.gemm_8bit = narrow_gemm_constants(reader, "gemm_8bit");
  gpu.gemm_4bit = narrow_gemm_constants(reader, "gemm_4bit");
  gpu.attention_forward = attention_constants(reader, "attention_forward");
  gpu.attention_backward = attention_constants(reader, "attention_backward");
  for (const auto& [key, constants] : {std::pair("attention_8bit_forward", &gpu.attention_8bit_forward),
                                       std::pair("attention_8bit_backward", &gpu.attention_8bit_backward)}) {
    reader.allow(std::string(key) + "_heads");
    if (!reader.has(key)) continue;
    if (gpu.gemm_8bit.peak_flops_per_s == 0) reader.at(key).fail("requires gemm_8bit");
    *constants = attention_constants(reader, key);
  }
  gpu.memory_efficiency = constant(reader, "memory_efficiency", 1e-2, 1);
  gpu.cast_efficiency = constant_or(reader, "cast_efficiency", 1e-2, 1, gpu.memory_efficiency);
  gpu.kernel_s = constant(reader, "kernel_s", 0, 1e-2);
  gpu.overlap_slowdown = constant_or(reader, "overlap_slowdown", 1, 10, 1);
  gpu.workspace_bytes = static_cast<std::int64_t>(constant_or(reader, "workspace_bytes", 0, 1e12, 0));
  gpu.grouped_workspace_bytes = static_cast<std::int64_t>(constant_or(reader, "grouped_workspace_bytes", 0, 1e12, 0));
  gpu.reserved_bytes = static_cast<std::int64_t>(constant_or(reader, "reserved_bytes", 0, 1e12, 0));
  gpu.fragmentation = constant_or(reader, "fragmentation", 0, 1, 0);
  gpu.memory_margin = constant_or(reader, "memory_margin", 0, 1, 0);
  reader.finish();
  return gpu;
}

// Reads a word, or {"value": word, "source": its origin}.
Sharing sharing(JsonReader reader) {
  static const std::vector<std::string> kWords = {"none", "fair", "queue"};
  std::string word;
  if (reader.json().is_object()) {
    word = reader.at("value").one_of(kWords);
    reader.string("source");
    reader.finish();
  } else {
    word = reader.one_of(kWords);
  }
  if (word == "none") return Sharing::none;
  return word == "fair" ? Sharing::fair : Sharing::queue;
}

Link link_from_json(JsonReader reader) {
  check_schema(reader, "sluice.link/1");
  Link link;
  link.name = reader.string("name");
  link.latency_s = constant(reader, "latency_s", 0, 10);
  link.bandwidth_bytes_per_s = constant(reader, "bandwidth_bytes_per_s", 1, 1e15);
  link.transfer_efficiency = constant_or(reader, "transfer_efficiency", 1e-3, 1, 1);
  reader.allow("sharing");
  if (reader.has("sharing")) link.sharing = sharing(reader.at("sharing"));
  link.collective_efficiency = constant_or(reader, "collective_efficiency", 1e-3, 1, link.transfer_efficiency);
  link.collective_latency_s = constant_or(reader, "collective_latency_s", 0, 10, link.latency_s);
  link.collective_step_s = constant_or(reader, "collective_step_s", 0, 10, 0);
  link.exchange_efficiency = constant_or(reader, "exchange_efficiency", 1e-3, 1, link.transfer_efficiency);
  link.exchange_copy_rate = constant_or(reader, "exchange_copy_rate", 0, 10, 0);
  link.shared_exponent = constant_or(reader, "shared_exponent", 0, 2, 0);
  reader.allow("ring_bandwidths");
  if (reader.has("ring_bandwidths")) {
    JsonReader rings = reader.at("ring_bandwidths");
    for (const JsonReader& ring : rings.at("bytes_per_s").elements()) {
      link.ring_bytes_per_s.push_back(ring.number(1, 1e15));
    }
    rings.string_or("source", "");
    rings.finish();
  }
  reader.finish();
  return link;
}

// Reads a name of the catalogue's `folder`, or an object, by `read`.
template <typename Read>
auto named_or_inline(JsonReader reader, const std::string& folder, const char* what, const Read& read) {
  if (reader.json().is_object()) return read(std::move(reader));
  if (!reader.json().is_string()) reader.fail(fmt::format("expected the name of a {}, or an object", what));
  const std::string name = reader.string();
  const CatalogueFile* file = find_file(folder + name);
  if (file == nullptr) {
    const std::vector<std::string> names = names_under(folder);
    reader.fail(fmt::format("expected a {}: {}", what, fmt::join(names, ", ")), did_you_mean(name, names));
  }
  const std::string source = fmt::format("catalogue/{}.json", file->name);
  const Json json = parse_json(file->text, source);
  return read(JsonReader(json, source));
}

Cluster node_from_json(JsonReader reader) {
  check_schema(reader, "sluice.node/1");
  Cluster node;
  node.name = reader.string_or("name", "");
  node.gpu = named_or_inline(reader.at("gpu"), "gpus/", "GPU", gpu_from_json);
  node.gpus_per_node = static_cast<int>(constant(reader, "gpus", 1, kMaxGpusPerNode));
  node.intra_node = named_or_inline(reader.at("intra_node"), "links/", "link", link_from_json);
  node.inter_node = named_or_inline(reader.at("inter_node"), "links/", "link", link_from_json);
  node.nic_per_gpu = reader.boolean_or("nic_per_gpu", true);
  node.host_link_bytes_per_s = constant_or(reader, "host_link_bytes_per_s", 1e6, 1e15, 0);
  node.host_memory_bytes_per_s = constant_or(reader, "host_memory_bytes_per_s", 1e6, 1e15, 0);
  node.host_speed = constant_or(reader, "host_speed", 1e-2, 1e2, 1);
  reader.string_or("source", "");
  reader.finish();
  return node;
}

}  // namespace

double Link::ring_bandwidth(int gpus) const {
  const auto index = static_cast<std::size_t>(gpus - 2);
  return gpus >= 2 && index < ring_bytes_per_s.size() ? ring_bytes_per_s[index]
                                                      : bandwidth_bytes_per_s * collective_efficiency;
}

std::vector<std::string> catalogue_nodes() { return names_under("nodes/"); }
std::vector<std::string> catalogue_gpus() { return names_under("gpus/"); }
std::vector<std::string> catalogue_software() { return names_under("software/"); }

std::vector<std::string> catalogue_models() {
  std::vector<std::string> names;
  for (const CatalogueFile& file : model_files()) names.emplace_back(file.name);
  return names;
}

Software software_from_json(JsonReader reader) {
  check_schema(reader, "sluice.software/1");
  Software software;
  software.name = reader.string("name");
  software.code_base = reader.string_or("code_base", software.name);
  software.issue_s = constant(reader, "issue_s", 0, 1e-2);
  software.expert_issue_s = constant_or(reader, "expert_issue_s", 0, 1e-2, software.issue_s);
  software.dispatch_issue_s = constant_or(reader, "dispatch_issue_s", 0, 1e-1, software.issue_s);
  software.part_issue_s = constant_or(reader, "part_issue_s", 0, 1e-1, 0);
  software.gemm_speed = constant_or(reader, "gemm_speed", 0.1, 10, 1);
  software.attention_speed = constant_or(reader, "attention_speed", 0.1, 10, 1);
  software.memory_speed = constant_or(reader, "memory_speed", 0.1, 10, 1);
  software.blocking_transfers = choice_or(reader, "blocking_transfers", false);
  software.grouped_kernels = choice_or(reader, "grouped_kernels", false);
  software.fused_host_adam = choice_or(reader, "fused_host_adam", true);
  software.fused_latent_rotary = choice_or(reader, "fused_latent_rotary", false);
  software.step_s = constant_or(reader, "step_s", 0, 100, 0);
  reader.string_or("source", "");
  reader.finish();
  return software;
}

Software load_software(const std::string& name_or_path) {
  if (const CatalogueFile* file = find_file("software/" + name_or_path)) {
    const std::string source = fmt::format("catalogue/{}.json", file->name);
    const Json json = parse_json(file->text, source);
    return software_from_json(JsonReader(json, source));
  }
  if (is_path(name_or_path)) {
    const Json json = parse_json(read_file(name_or_path, 1 << 24), name_or_path);
    return software_from_json(JsonReader(json, name_or_path));
  }
  const std::vector<std::string> names = catalogue_software();
  throw InputError(fmt::format("software: expected a file or one of {}, got \"{}\"{}", fmt::join(names, ", "),
                               name_or_path, did_you_mean(name_or_path, names)));
}

Gpu catalogue_gpu(const std::string& name) {
  const Json json = name;
  return named_or_inline(JsonReader(json, "catalogue"), "gpus/", "GPU", gpu_from_json);
}

Link catalogue_link(const std::string& name) {
  const Json json = name;
  return named_or_inline(JsonReader(json, "catalogue"), "links/", "link", link_from_json);
}

Cluster cluster_from_json(JsonReader reader) {
  check_schema(reader, "sluice.cluster/1");
  Cluster cluster = named_or_inline(reader.at("node"), "nodes/", "node", node_from_json);
  cluster.nodes_specified = reader.has("nodes");
  cluster.nodes = static_cast<int>(reader.integer_or("nodes", 1, kMaxNodes, 1));
  cluster.gpus_per_node_specified = reader.has("gpus_per_node");
  cluster.gpus_per_node =
      static_cast<int>(reader.integer_or("gpus_per_node", 1, cluster.gpus_per_node, cluster.gpus_per_node));
  cluster.name = reader.string_or("name", cluster.name);
  reader.finish();
  return cluster;
}

void Cluster::use_for(std::int64_t gpus) {
  if (nodes_specified) return;
  const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(gpus_per_node)));
  if (!gpus_per_node_specified && gpus > gpus_per_node && gpus % gpus_per_node != 0 && gpus % power == 0) {
    gpus_per_node = power;
  }
  nodes = static_cast<int>((gpus + gpus_per_node - 1) / gpus_per_node);
}

Cluster load_cluster(const std::string& name_or_path, int nodes) {
  if (nodes < 0 || nodes > kMaxNodes) {
    throw InputError(fmt::format("nodes: expected a whole number from 1 to {}, got {}", kMaxNodes, nodes));
  }
  Cluster cluster;
  if (const CatalogueFile* file = find_file("nodes/" + name_or_path)) {
    const std::string source = fmt::format("catalogue/{}.json", file->name);
    const Json json = parse_json(file->text, source);
    cluster = node_from_json(JsonReader(json, source));
  } else if (is_path(name_or_path)) {
    const Json json = parse_json(read_file(name_or_path, 1 << 24), name_or_path);
    JsonReader reader(json, name_or_path);
    cluster = reader.has("node") ? cluster_from_json(reader) : node_from_json(reader);
  } else {
    const std::vector<std::string> names = catalogue_nodes();
    throw InputError(fmt::format("cluster: expected a file or one of {}, got \"{}\"{}", fmt::join(names, ", "),
                                 name_or_path, did_you_mean(name_or_path, names)));
  }
  if (nodes > 0) {
    cluster.nodes = nodes;
    cluster.nodes_specified = true;
  }
  return cluster;
}

}  // namespace sluice::model
