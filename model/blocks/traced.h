#pragma once

#include <string>
#include <vector>

#include "model/blocks/attention_core.h"
#include "model/input/json_reader.h"

namespace sluice::model {

// A layer, or a part of one, as the ops that a PyTorch module of the user ran (sluice.torch.model), with its own norms
// and residual additions. All sizes are of one device of `tp`.
class Traced : public Block {
 public:
  struct Op {
    enum class Kind : std::uint8_t {
      gemm,          // rows x k by a weight of k x n; I and W have the FLOPs of F
      batched_gemm,  // between activations, `batch` of m x k by k x n per token: I has two, W none
      attention,
      memory,  // bytes only
      scan,    // FLOPs at a fraction of the peak
      all_reduce,
      all_gather,
      reduce_scatter,
    };
    Kind kind = Kind::memory;
    std::string name;
    std::string input_gradient;  // the names of its kernels in I and W
    std::string weight_gradient;
    double m = 0;
    double k = 0;
    double n = 0;
    double rows = 1;     // of a gemm, per token
    double batch = 1;    // of batched GEMMs, per token
    int experts = 0;     // of a grouped gemm, with a weight each and the same number of rows
    AttentionCore core;  // whole heads of this device
    // Per token: bytes moved or, of a collective, of the whole tensor; FLOPs of a scan.
    double forward = 0;
    double backward = 0;
    int forward_kernels = 1;
    int backward_kernels = 1;
    double flops = 0;
    double backward_flops = 0;
    double fraction = 0;  // of the GPU's peak in 16 bits
    double state = 0;     // bytes per sequence that a scan hands to the next slice

    bool has_weight() const { return kind == Kind::gemm; }
    bool communicates() const { return kind >= Kind::all_reduce; }
  };
  // What F stores for I or W.
  struct Tensor {
    std::string name;
    std::string formula;
    TensorLife life = TensorLife::to_input_gradient;
    double bytes = 0;  // per token
  };
  struct Options {
    int tp = 1;
    BlockParameters parameters;
    std::int64_t replicated = 0;  // parameters that every tensor-parallel rank has
    std::vector<Op> ops;          // in the order of the forward
    std::vector<Tensor> tensors;
  };

  Traced(int hidden, Options options) : Block(hidden, false), options_(std::move(options)) {}
  // Reads a block of a model file. Throws InputError naming the file and the key.
  static BlockPtr read(JsonReader& reader, int hidden, bool dropout);

  std::string_view kind() const override { return "traced"; }
  const Options& options() const { return options_; }
  bool whole_step() const override { return true; }
  BlockParameters parameters(const Shards& shards) const override;
  std::int64_t active_matrix_elements() const override;
  std::int64_t idle_parameters() const override;
  std::int64_t matrices_of_each_shape(const Training& training) const override;
  double core_model_flops(std::int64_t tokens) const override;
  double core_flops(std::int64_t tokens, std::int64_t context) const override;
  int tensor_units() const override { return options_.tp; }
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override;
  void check(const std::string& model, const Training& training) const override;

 private:
  Options options_;
};

}  // namespace sluice::model
