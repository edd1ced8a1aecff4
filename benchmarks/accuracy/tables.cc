#include <iterator>

#include "benchmarks/accuracy/dualpipe_trace.h"
#include "benchmarks/accuracy/expert_tables.h"
#include "benchmarks/accuracy/framework_tables.h"
#include "benchmarks/accuracy/golden_values.h"
#include "benchmarks/accuracy/iteration_tables.h"
#include "benchmarks/accuracy/memory_tables.h"
#include "benchmarks/accuracy/nvidia_tables.h"
#include "benchmarks/accuracy/score.h"
#include "benchmarks/accuracy/torchtitan_table.h"
#include "benchmarks/accuracy/zero_bubble.h"

namespace sluice::bench::accuracy {

namespace {

// Throughput, and memory if the table has it.
TableScore score_zero_bubble_table(const CsvTable& table) {
  TableScore score = score_zero_bubble_throughput(table);
  if (!table.has("peak_mem_GB")) return score;
  TableScore memory = score_zero_bubble_memory(table);
  std::move(memory.comparisons.begin(), memory.comparisons.end(), std::back_inserter(score.comparisons));
  std::move(memory.skipped.begin(), memory.skipped.end(), std::back_inserter(score.skipped));
  return score;
}

}  // namespace

const std::vector<TableKind>& table_kinds() {
  static const std::vector<TableKind> kinds = {
      {"zero-bubble-bubbles",
       {"pp", "num_microbatches", "micro_batch", "t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms"},
       score_zero_bubble_bubbles},
      {"zero-bubble-throughput",
       {"layers", "heads", "hidden", "seq", "pp", "micro_batch", "num_microbatches", "schedule", "derived_iter_ms"},
       score_zero_bubble_table},
      {"korthikanti-memory",
       {"model", "recompute", "params_and_optimizer_gib", "activations_gib"},
       score_korthikanti_memory},
      {"vtrain-multi",
       {"params_B", "gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp",
        "iter_ms", "recompute", "schedule"},
       score_vtrain},
      {"vtrain-single",
       {"gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp", "iter_ms",
        "recompute", "schedule"},
       score_vtrain},
      {"korthikanti-time",
       {"model", "gpus", "hidden", "layers", "heads", "seq", "vocab", "tp", "pp", "interleave", "dp", "global_batch",
        "micro_batch", "recompute", "iter_s"},
       score_korthikanti},
      {"ptdp-weak-scaling",
       {"heads", "hidden", "layers", "tp", "pp", "gpus", "global_batch", "seq", "vocab", "derived_iter_s"},
       score_ptdp},
      {"seq1f1b",
       {"layers", "heads", "hidden", "seq", "pp", "tp", "gpus", "microbatches", "schedule", "tokens_per_s_thousands"},
       score_seq1f1b},
      {"mlperf",
       {"benchmark", "layers", "hidden", "heads", "seq", "tp", "pp", "vp", "dp", "global_batch", "micro_batch",
        "num_microbatches", "median_step_s"},
       score_mlperf},
      {"mlperf-experts",
       {"model", "gpus", "gpu_type", "tp", "pp", "vp", "cp", "ep", "dp", "mbs", "gbs", "layout", "moe_a2a_overlap_1f1b",
        "delay_wgrad", "recompute", "precision", "iter_s"},
       score_mlperf_experts},
      {"dualpipe-trace", {"op", "index", "stream", "gpu_busy_us", "gpu_start_us", "gpu_end_us"}, score_dualpipe_trace},
      {"ultrascale",
       {"model", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gpus", "tp", "pp", "dp", "mbs", "gbs",
        "zero", "status", "iter_s"},
       score_ultrascale},
      {"megatron-golden-values",
       {"test", "family", "gpus", "gpu_type", "all_args", "source", "mem_max_allocated_bytes"},
       score_golden_values},
      {"dgxc",
       {"model", "size", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq",       "gpus",    "gpu_type",
        "tp",    "pp",   "vp",     "cp",     "ep",    "dp",       "mbs", "gbs",   "precision", "scaling", "iter_s"},
       score_nvidia},
      {"megatron-bridge",
       {"release", "task", "model", "layers", "experts", "gpus", "gpu_type", "tp", "pp", "vp", "cp", "ep", "dp", "mbs",
        "gbs", "fsdp", "precision", "iter_s"},
       score_nvidia},
      {"nemo-2024",
       {"release", "model", "layers", "hidden", "gpus", "gpu_type", "tp", "pp", "vp", "cp", "dp", "mbs", "gbs",
        "precision", "iter_s"},
       score_nvidia},
      {"torchtitan",
       {"model", "layers",    "hidden",    "heads",   "kv_heads", "ffn",          "vocab",       "seq",
        "gpus",  "gpu_type",  "dp_shard",  "tp",      "pp",       "vp",           "cp",          "local_batch",
        "gbs",   "recompute", "precision", "compile", "async_tp", "tokens_s_gpu", "peak_mem_GiB"},
       score_torchtitan},
      {"simumax-b200",
       {"case", "model", "parallel", "layers", "microbatches", "real_ms", "peak_alloc_mb_by_rank"},
       score_simumax},
  };
  return kinds;
}

}  // namespace sluice::bench::accuracy
