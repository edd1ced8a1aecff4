#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/csv.h"
#include "model/scenario/setup.h"
#include "model/weave/part_kernels.h"
#include "model/weave/weave.h"
#include "tools/command/assumptions.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {
namespace {

struct WeaveOptions {
  std::string file;
  std::string parts;
  std::optional<double> compute_rate;
  std::optional<double> communication_rate;
  std::optional<double> kernel_gap_s;
  std::optional<double> second_exposed;
  std::optional<int> stage;
  bool json = false;
  std::unique_ptr<ScenarioFlags> flags;
};

struct MeasuredParts {
  std::vector<LayerTimes> forward;
  std::vector<LayerTimes> backward;
};

// One row per part: `part` ("dispatch(F)"), `layer` from 0 in the order of its pass, and `seconds`; also `kernels` and
// `second_stream_s` where these are busy times of a trace.
MeasuredParts read_parts(const WeaveOptions& options) {
  constexpr int kMostLayers = 10000;
  const CsvTable table = read_csv(options.parts);
  for (const auto& [flag, given, column] :
       {std::tuple("--kernel-gap", options.kernel_gap_s.has_value(), "kernels"),
        std::tuple("--second-stream-exposed", options.second_exposed.has_value(), "second_stream_s")}) {
    if (given && !table.has(column)) {
      throw InputError(fmt::format("{}: {} needs the column {}", options.parts, flag, column));
    }
  }
  const StreamGaps gaps{.kernel_s = options.kernel_gap_s.value_or(0),
                        .second_exposed = options.second_exposed.value_or(1)};
  MeasuredParts out;
  std::set<std::tuple<int, int, int>> known;
  for (int row = 0; row < table.num_rows(); ++row) {
    const std::optional<PassPart> part = parse_part(table.text(row, "part"));
    if (!part) table.fail(row, "part", "expected a part such as dispatch(F)");
    const auto layer = static_cast<std::size_t>(table.integer(row, "layer", 0, kMostLayers));
    if (!known.emplace(static_cast<int>(part->part), static_cast<int>(part->pass), static_cast<int>(layer)).second) {
      table.fail(row, "part", "this part of this layer occurs twice");
    }
    std::vector<LayerTimes>& layers = part->pass == OpKind::F ? out.forward : out.backward;
    if (layer >= layers.size()) layers.resize(layer + 1);
    PartKernels kernels{.busy_s = table.number(row, "seconds", 0, 1e6)};
    if (table.has("kernels")) kernels.kernels = static_cast<int>(table.integer(row, "kernels", 0, 1 << 20));
    if (table.has("second_stream_s")) kernels.second_busy_s = table.number(row, "second_stream_s", 0, 1e6);
    const double seconds = extent_s(kernels, gaps);
    const double rate = (communicates(part->part) ? options.communication_rate : options.compute_rate).value_or(1);
    layers[layer].of(part->pass, part->part) = seconds;
    layers[layer].delay(part->pass, part->part) = seconds / rate - seconds;
  }
  if (known.empty()) throw InputError(options.parts + ": expected at least one part");
  return out;
}

WovenBlock block_of_parts(const WeaveOptions& options, const nlohmann::json& document) {
  const MeasuredParts parts = read_parts(options);
  const nlohmann::json::json_pointer key("/parallelism/weave");
  const std::string name = document.contains(key) ? document.at(key).get<std::string>() : "dualpipe";
  const Weave weave =
      name == kSearchedWeave ? fastest_weave(parts.forward, parts.backward) : find_weave(name, "--weave");
  return weave_block(weave, parts.forward, parts.backward);
}

// Of the stage with the most layers in the middle, unless one is given.
WovenBlock block_of_scenario(const WeaveOptions& options, const Setup& setup) {
  print_message(ScenarioFlags::unused(options.file, "weave", kWeave));
  const int stages = setup.schedule().num_stages();
  const int stage = options.stage.value_or(stages / 2);
  if (stage < 0 || stage >= stages) {
    throw InputError(fmt::format("--stage: expected 0 to {}, got {}", stages - 1, stage));
  }
  if (!setup.schedule().has_joint_blocks()) {
    print_message(
        fmt::format("{} has no joint blocks: printed as if F and B of one stage were one", setup.schedule().family()));
  }
  const MicrobatchShape& shape = setup.schedule().shape(0);
  WovenBlock block = setup.cost().woven_joint(stage, shape, 0, OpKind::B, stage, shape, 0);
  if (block.communication_s == 0) {
    throw InputError(fmt::format(
        "weave: stage {} has no dispatch and combine: expected --ep above 1 and a stage with layers of experts "
        "(--stage)",
        stage));
  }
  return block;
}

// The order of issue in a layer, as --weave takes it.
std::string order_of(const WovenBlock& block) {
  std::vector<std::string> words;
  for (const PassPart& part : block.order) words.push_back(to_string(part));
  return fmt::format("{}", fmt::join(words, " "));
}

double compute_s(const WovenBlock& block) {
  double seconds = 0;
  for (const WovenPart& part : block.parts) {
    if (!communicates(part.part.part)) seconds += part.end_s - part.start_s;
  }
  return seconds;
}

double hidden(const WovenBlock& block) {
  return block.communication_s > 0 ? 1 - block.exposed_s / block.communication_s : 0;
}

OrderedJson block_json(const WovenBlock& block) {
  OrderedJson out;
  out["schema"] = "sluice.weave/1";
  out["order"] = order_of(block);
  out["seconds"] = block.seconds;
  out["compute_s"] = compute_s(block);
  out["outside_s"] = block.outside_s;
  out["communication_s"] = block.communication_s;
  out["hidden_fraction"] = hidden(block);
  out["parts"] = OrderedJson::array();
  for (const WovenPart& part : block.parts) {
    OrderedJson row;
    row["part"] = to_string(part.part);
    row["layer"] = part.layer;
    row["start_s"] = part.start_s;
    row["end_s"] = part.end_s;
    row["after"] = nullptr;
    if (part.after >= 0) {
      const WovenPart& before = block.parts[static_cast<std::size_t>(part.after)];
      row["after"] = {{"part", to_string(before.part)}, {"layer", before.layer}};
    }
    out["parts"].push_back(std::move(row));
  }
  return out;
}

std::string block_table(const WovenBlock& block) {
  std::string out = fmt::format(
      "block {:.3f} ms    compute of layers {:.3f} ms, outside of them {:.3f} ms, idle {:.3f} ms    dispatch and "
      "combine "
      "{:.3f} ms, {:.1f} % hidden\n"
      "order {}\n\n  lane           layer  part              start ms      end ms  waits for\n",
      1e3 * block.seconds, 1e3 * compute_s(block), 1e3 * block.outside_s,
      1e3 * (block.seconds - compute_s(block) - block.outside_s), 1e3 * block.communication_s, 100 * hidden(block),
      order_of(block));
  for (const WovenPart& part : block.parts) {
    std::string before = "-";
    if (part.after >= 0) {
      const WovenPart& need = block.parts[static_cast<std::size_t>(part.after)];
      before = fmt::format("{} of layer {}", to_string(need.part), need.layer);
    }
    out += fmt::format("  {:<14} {:>5}  {:<14} {:>11.3f} {:>11.3f}  {}\n",
                       communicates(part.part.part) ? "communication" : "compute", part.layer, to_string(part.part),
                       1e3 * part.start_s, 1e3 * part.end_s, before);
  }
  return out;
}

int weave_command(const WeaveOptions& options) {
  if (!options.parts.empty() && !options.file.empty()) {
    throw InputError("weave: --parts and a scenario exclude each other");
  }
  for (const auto& [flag, given] : {std::pair("--compute-rate", options.compute_rate.has_value()),
                                    std::pair("--communication-rate", options.communication_rate.has_value()),
                                    std::pair("--kernel-gap", options.kernel_gap_s.has_value()),
                                    std::pair("--second-stream-exposed", options.second_exposed.has_value())}) {
    if (options.parts.empty() && given) throw InputError(fmt::format("weave: {} needs --parts", flag));
  }
  if (!options.parts.empty() && options.stage) throw InputError("weave: --stage needs a scenario");
  const nlohmann::json document = options.flags->document(options.file);
  std::optional<Setup> setup;
  if (options.parts.empty()) setup.emplace(ScenarioFlags::read(document, options.file));
  const WovenBlock block = setup ? block_of_scenario(options, *setup) : block_of_parts(options, document);
  OrderedJson results = block_json(block);
  std::string text = block_table(block);
  if (setup) add_assumptions(results, text, {setup->scenario(), document, kWeave, true});
  fmt::print("{}", options.json ? json_text(results) : text);
  return kDone;
}

}  // namespace

Subcommand add_weave_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "weave",
      "Print how the parts of a forward and a backward with experts interleave.\n\n"
      "Examples:\n"
      "  sluice weave --model deepseek-v3 --cluster h800 --pp 16 --ep 64 --gpus 2048 --schedule dualpipe \\\n"
      "      --microbatches 64 --seq-length 4096\n"
      "  sluice weave --parts measured.csv --weave search\n\n"
      "Compute and communication are two lanes, each of which runs its parts in the order of --weave. A part starts "
      "when "
      "the previous one of its lane and the part that it needs have ended.");
  command->group("Predict and plan");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto options = std::make_shared<WeaveOptions>();
  command->add_option("scenario", options->file, "Scenario file (docs/formats.md); flags override its keys");
  command->add_option("--parts", options->parts,
                      "Measured parts in place of a scenario: CSV with the columns part, layer and seconds");
  command
      ->add_option("--compute-rate", options->compute_rate,
                   "With --parts: speed of compute while communication runs, 0.001 to 1 (default 1)")
      ->check(number_from(0.001, 1));
  command
      ->add_option("--communication-rate", options->communication_rate,
                   "With --parts: speed of communication while compute runs, 0.001 to 1 (default 1)")
      ->check(number_from(0.001, 1));
  command
      ->add_option("--kernel-gap", options->kernel_gap_s,
                   "With --parts: idle seconds of a stream per kernel of the column kernels, 0 to 1 (default 0)")
      ->check(number_from(0, 1));
  command
      ->add_option("--second-stream-exposed", options->second_exposed,
                   "With --parts: fraction of the column second_stream_s, the busy time of a second stream, by which a "
                   "part takes longer than its first stream is busy, 0 to 1 (default 1)")
      ->check(number_from(0, 1));
  command->add_option("--stage", options->stage,
                      "Stage whose forward and backward interleave (default: the middle one)");
  command->add_flag("--json", options->json, "Print one JSON document (sluice.weave/1)");
  options->flags = std::make_unique<ScenarioFlags>(*command, kWeave);
  ScenarioFlags::add_imports(*command, options->file);
  return {command,
          [options] { return options->flags->naming_flags(options->file, [&] { return weave_command(*options); }); }};
}

}  // namespace sluice::tools
