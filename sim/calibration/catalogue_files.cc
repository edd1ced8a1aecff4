#include "sim/calibration/catalogue_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "model/cluster/catalogue.h"
#include "model/errors.h"

namespace sluice::sim {
namespace {

// Edits a JSON file with one member per line.
class MemberLines {
 public:
  explicit MemberLines(const std::string& name) {
    for (const CatalogueFile& file : catalogue_files()) {
      if (file.name == name) text_ = file.text;
    }
    if (text_.empty()) throw InputError(fmt::format("the catalogue has no {}", name));
  }

  // Replaces the line of a member, or appends one.
  void set(std::string_view key, const std::string& value) {
    const std::string begin = fmt::format("\n  \"{}\": ", key);
    const std::size_t at = text_.find(begin);
    if (at == std::string::npos) {
      text_.insert(text_.rfind("\n}"), "," + begin + value);
      return;
    }
    const std::size_t end = text_.find('\n', at + 1);
    const bool last = text_[end - 1] != ',';
    text_.replace(at, end - at, begin + value + (last ? "" : ","));
  }

  // Removes the line of a member, which is not the last one, if there is one.
  void remove(std::string_view key) {
    const std::size_t at = text_.find(fmt::format("\n  \"{}\": ", key));
    if (at != std::string::npos) text_.erase(at, text_.find('\n', at + 1) - at);
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string json_text(const std::string& text) { return nlohmann::json(text).dump(); }

std::string source_of(const LogFit& fit, const std::string& what, const std::string& origin,
                      const std::string& command) {
  return fmt::format("{}, {} {} ({}): mean error {:.1f} %, held out {:.1f} %, worst {:.0f} %", command,
                     fit.in_sample.rows, what, origin, 100 * fit.in_sample.mean, 100 * fit.held_out.mean,
                     100 * fit.held_out.worst);
}

std::string value_of(double value, const std::string& source) {
  return fmt::format("{{\"value\": {:.3g}, \"source\": {}}}", value, json_text(source));
}

std::string heads_text(const std::vector<HeadConstants>& heads, const std::map<double, LogFit>& found,
                       const std::string& origin, const std::string& command) {
  std::string kernels;
  std::string source;
  for (const HeadConstants& one : heads) {
    fmt::format_to(std::back_inserter(kernels),
                   "{}{{\"head_size\": {}, \"peak_fraction\": {:.3g}, \"tail_rows\": {:.3g}, "
                   "\"overhead_keys\": {:.3g}, \"window_keys\": {:.3g}}}",
                   kernels.empty() ? "" : ", ", one.head_size, one.peak_fraction, one.tail_rows, one.overhead_keys,
                   one.window_keys);
    source += (source.empty() ? "" : "; ") +
              source_of(found.at(one.head_size), fmt::format("shapes of {}", one.head_size), origin, command);
  }
  return fmt::format("{{\"kernels\": [{}], \"source\": {}}}", kernels, json_text(source));
}

}  // namespace

std::string gpu_file_with(const std::string& name, const GpuFit& fit, const std::string& command) {
  MemberLines lines("gpus/" + name);
  if (fit.gemm.in_sample.rows > 0) {
    const GemmConstants& g = fit.gpu.gemm;
    std::string source = source_of(fit.gemm, "GEMMs", fit.origin, command);
    if (fit.grouped.in_sample.rows > 0) {
      source +=
          fmt::format("; group_s: {} groups of GEMMs, mean error {:.1f} %, held out {:.1f} %",
                      fit.grouped.in_sample.rows, 100 * fit.grouped.in_sample.mean, 100 * fit.grouped.held_out.mean);
    } else {
      source += "; group_s given";
    }
    lines.set("gemm",
              fmt::format("{{\"peak_fraction\": {:.3g}, \"sustained_fraction\": {:.3g}, \"operand_edge\": {:.3g}, "
                          "\"exposed_write\": {:.3g}, "
                          "\"memory_efficiency\": {:.3g}, \"launch_s\": {:.3g}, \"group_s\": {:.3g}, \"source\": {}}}",
                          g.peak_fraction, g.sustained_fraction, g.operand_edge, g.exposed_write, g.memory_efficiency,
                          g.launch_s, g.group_s, json_text(source)));
  }
  const auto narrow = [&](std::string_view key, const NarrowGemmConstants& g, const LogFit& found) {
    if (found.in_sample.rows == 0) return;
    lines.set(key, fmt::format("{{\"peak_flops_per_s\": {:.5g}, \"peak_fraction\": {:.3g}, "
                               "\"sustained_fraction\": {:.3g}, \"operand_edge\": {:.3g}, "
                               "\"exposed_write\": {:.3g}, \"memory_efficiency\": {:.3g}, \"launch_s\": {:.3g}, "
                               "\"block_scales\": {}, \"source\": {}}}",
                               g.peak_flops_per_s, g.peak_fraction, g.sustained_fraction, g.tiles->operand_edge,
                               g.tiles->exposed_write, g.tiles->memory_efficiency, g.tiles->launch_s, g.block_scales,
                               json_text(source_of(found, "GEMMs", fit.origin, command))));
  };
  narrow("gemm_8bit", fit.gpu.gemm_8bit, fit.narrow[0]);
  narrow("gemm_4bit", fit.gpu.gemm_4bit, fit.narrow[1]);
  const auto attention = [&](std::string_view key, const AttentionConstants& a, const LogFit& found) {
    if (found.in_sample.rows == 0) return;
    lines.set(key, fmt::format(
                       "{{\"peak_fraction\": {:.3g}, \"tail_rows\": {:.3g}, \"overhead_keys\": {:.3g}, "
                       "\"softmax_size\": {:.3g}, \"padded_values\": {}, \"source\": {}}}",
                       a.peak_fraction, a.tail_rows, a.overhead_keys, a.softmax_size, a.padded_values,
                       json_text(source_of(found, "shapes", fit.attention_origin, command) + "; softmax_size given")));
  };
  attention("attention_forward", fit.gpu.attention_forward, fit.attention[0][0]);
  attention("attention_backward", fit.gpu.attention_backward, fit.attention[0][1]);
  if (fit.gpu.attention_8bit_forward) {
    attention("attention_8bit_forward", *fit.gpu.attention_8bit_forward, fit.attention[1][0]);
  }
  if (fit.gpu.attention_8bit_backward) {
    attention("attention_8bit_backward", *fit.gpu.attention_8bit_backward, fit.attention[1][1]);
  }
  for (const bool eight : {false, true}) {
    for (const bool backward : {false, true}) {
      const std::map<double, LogFit>& found = fit.heads[eight ? 1 : 0][backward ? 1 : 0];
      const std::string key =
          fmt::format("attention_{}{}_heads", eight ? "8bit_" : "", backward ? "backward" : "forward");
      if (fit.attention[eight ? 1 : 0][backward ? 1 : 0].in_sample.rows > 0) lines.remove(key);
      if (found.empty()) continue;
      lines.set(key, heads_text(fit.gpu.attention(backward, eight).heads, found, fit.attention_origin, command));
    }
  }
  return lines.text();
}

std::string link_file_with(const std::string& name, const LinkFit& fit, const std::string& command) {
  MemberLines lines("links/" + name);
  const Link known = catalogue_link(name);
  if (fit.link.latency_s != known.latency_s || fit.link.transfer_efficiency != known.transfer_efficiency) {
    const std::string source = fmt::format("{}, lines fitted to messages ({})", command, fit.origin);
    lines.set("latency_s", value_of(fit.link.latency_s, source));
    lines.set("transfer_efficiency", value_of(fit.link.transfer_efficiency, source));
  }
  if (fit.all_to_all.in_sample.rows > 0) {
    const std::string source = source_of(fit.all_to_all, "all-to-alls", fit.origin, command);
    lines.set("exchange_efficiency", value_of(fit.link.exchange_efficiency, source));
    lines.set("exchange_copy_rate", value_of(fit.link.exchange_copy_rate, source));
  }
  if (fit.all_reduce.in_sample.rows > 0) {
    const std::string source = source_of(fit.all_reduce, "all-reduces", fit.origin, command);
    lines.set("collective_efficiency", value_of(fit.link.collective_efficiency, source));
    lines.set("collective_latency_s", value_of(fit.link.collective_latency_s, source));
    lines.set("collective_step_s", value_of(fit.link.collective_step_s, source));
    if (!fit.link.ring_bytes_per_s.empty()) {
      std::string list;
      for (const double bandwidth : fit.link.ring_bytes_per_s) {
        list += fmt::format("{}{:.4g}", list.empty() ? "" : ", ", bandwidth);
      }
      lines.set("ring_bandwidths", fmt::format("{{\"bytes_per_s\": [{}], \"source\": {}}}", list, json_text(source)));
    }
  }
  return lines.text();
}

}  // namespace sluice::sim
