#include "model/schedule/encoder_stages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr int kMostEncoders = 255;  // routes of a schedule

class EncoderStages {
 public:
  EncoderStages(const Schedule& language, const EncoderChoices& choices)
      : language_(language),
        choices_(choices),
        shared_(choices.own_ranks() == 0),
        stages_(shared_ ? 1 : choices.pp),
        encoders_(std::min({shared_ ? language.num_ranks() : choices.dp, language.num_microbatches(), kMostEncoders})) {
    const auto refuse = [&](bool bad, const char* what) {
      if (bad) throw ScheduleError(language.family() + ": an encoder apart is not modeled with " + what);
    };
    refuse(language.weight_policy() != WeightPolicy::flush, "a schedule without a flush");
    refuse(language.num_routes() > 1 || language.encoder_stages() > 0, "stages on two ranks");
    refuse(language.vocabulary_barriers() > 0, "vocabulary passes");
    refuse(language.has_communication(), "sends and receives in its lists");
    refuse(language.num_stages() + stages_ > kMaxStages, "as many stages");
  }

  Schedule run() {
    ScheduleParts parts = language_.parts();
    parts.encoder_stages = stages_;
    parts.frozen_encoder = choices_.frozen && !language_.forward_only();
    parts.num_ranks += choices_.own_ranks();
    parts.num_stages += stages_;
    parts.cells.clear();
    place(parts);
    std::vector<std::vector<Op>> lists(to_size(parts.num_ranks));
    for (int rank = 0; rank < language_.num_ranks(); ++rank) {
      std::vector<Op>& list = lists[to_size(rank + choices_.own_ranks())];
      list = std::move(parts.orders[to_size(rank)]);
      for (Op& op : list) op.stage = static_cast<std::int16_t>(op.stage + stages_);
    }
    find_order();
    shared_ ? add_phases(lists) : add_own_ranks(lists);
    parts.orders = std::move(lists);
    return Schedule(std::move(parts));
  }

 private:
  int encoder_of(int microbatch) const { return microbatch % encoders_; }

  void place(ScheduleParts& parts) const {
    const std::vector<int> language = parts.routes.front();
    parts.routes.assign(to_size(encoders_), {});
    for (int encoder = 0; encoder < encoders_; ++encoder) {
      std::vector<int>& route = parts.routes[to_size(encoder)];
      for (int stage = 0; stage < stages_; ++stage) route.push_back(shared_ ? encoder : encoder * stages_ + stage);
      for (const int rank : language) route.push_back(rank + choices_.own_ranks());
    }
    if (encoders_ == 1) return;
    for (int mb = 0; mb < language_.total_microbatches(); ++mb) {
      parts.route_of.push_back(static_cast<std::uint8_t>(encoder_of(mb)));
    }
  }

  // The microbatches in the order of the first stage, and the number of forwards before the backward of each.
  void find_order() {
    for (const Op& op : language_.ops(language_.rank_of(0, 0))) {
      if (op.stage != 0) continue;
      if (op.kind == OpKind::F && op.slice == 0) forwards_.push_back(op.microbatch);
      if ((op.kind == OpKind::B || op.kind == OpKind::I) && op.slice == 0) {
        backwards_.push_back(op.microbatch);
        before_.push_back(static_cast<int>(forwards_.size()));
      }
    }
    if (choices_.frozen) backwards_.clear();
  }

  void append(std::vector<Op>& list, OpKind kind, int stage, int microbatch) const {
    const int slices = language_.num_slices(microbatch);
    for (int i = 0; i < slices; ++i) {
      list.push_back({.microbatch = microbatch,
                      .stage = static_cast<std::int16_t>(stage),
                      .slice = static_cast<std::int16_t>(kind == OpKind::F ? i : slices - 1 - i),
                      .kind = kind});
    }
  }

  void add_phases(std::vector<std::vector<Op>>& lists) const {
    std::vector<std::vector<Op>> before(lists.size());
    for (const int mb : forwards_) append(before[to_size(encoder_of(mb))], OpKind::F, 0, mb);
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      lists[rank].insert(lists[rank].begin(), before[rank].begin(), before[rank].end());
    }
    for (const int mb : backwards_) append(lists[to_size(encoder_of(mb))], OpKind::B, 0, mb);
  }

  void add_own_ranks(std::vector<std::vector<Op>>& lists) const {
    for (int encoder = 0; encoder < encoders_; ++encoder) {
      for (int stage = 0; stage < stages_; ++stage) {
        std::vector<Op>& list = lists[to_size(encoder * stages_ + stage)];
        std::size_t next = 0;
        const auto run_forwards = [&](std::size_t end) {
          for (; next < std::min(end, forwards_.size()); ++next) {
            if (encoder_of(forwards_[next]) == encoder) append(list, OpKind::F, stage, forwards_[next]);
          }
        };
        for (std::size_t i = 0; i < backwards_.size(); ++i) {
          run_forwards(to_size(before_[i] + (stages_ - stage) * encoders_));
          if (encoder_of(backwards_[i]) == encoder) append(list, OpKind::B, stage, backwards_[i]);
        }
        run_forwards(forwards_.size());
      }
    }
  }

  const Schedule& language_;
  const EncoderChoices& choices_;
  bool shared_;  // by the ranks of the language model
  int stages_;
  int encoders_;
  std::vector<int> forwards_;
  std::vector<int> backwards_;
  std::vector<int> before_;
};

}  // namespace

Schedule with_encoder(const Schedule& language, const EncoderChoices& choices) {
  return EncoderStages(language, choices).run();
}

}  // namespace sluice::model
