#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/stage.h"
#include "model/graph/footprint.h"

namespace sluice::exec {

// Memory of stages as laid out by their kernels, for the memory model.
class StageFootprint : public Footprint {
 public:
  // `stages` by stage, of one tensor rank; they outlive this.
  explicit StageFootprint(std::span<const std::unique_ptr<Stage>> stages);

  StageBytes stage(int stage) const override;
  SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const override;
  std::int64_t tied_embedding_bytes() const override;

  // Sets what a rank of this stage needs in addition, once its steps are planned: the number of gradient buffers, and
  // the persistent bytes besides weights, gradients and optimizer states (scratch, output buffers).
  void set_rank(int stage, int gradient_buffers, std::int64_t scratch_bytes);

 private:
  struct OfRank {
    int gradient_buffers = 0;
    std::int64_t scratch_bytes = 0;
  };
  std::span<const std::unique_ptr<Stage>> stages_;
  std::vector<OfRank> ranks_;
};

}  // namespace sluice::exec
