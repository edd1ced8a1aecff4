#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::sim {

// Lower bounds of the differences of points in time: at(a, b) <= time(b) - time(a).
class Zone {
 public:
  static constexpr std::int64_t kNone = -(std::int64_t{1} << 60);

  explicit Zone(std::size_t points = 0);

  std::size_t size() const { return points_; }
  std::int64_t at(std::size_t a, std::size_t b) const { return least_[a * points_ + b]; }
  void raise(std::size_t a, std::size_t b, std::int64_t least);

  // Makes all bounds as tight as paths of bounds imply. Returns false if the bounds contradict each other.
  bool close();
  // Raises one bound of a closed zone, and closes it again.
  bool tighten(std::size_t a, std::size_t b, std::int64_t least);

  // The bounds among these points. Exact if the zone is closed.
  Zone projected(std::span<const std::size_t> points) const;
  // Whether each solution of `other` is one of this zone. Both must be closed.
  bool includes(const Zone& other) const;
  bool operator==(const Zone&) const = default;
  auto operator<=>(const Zone&) const = default;  // NOLINT(modernize-use-nullptr)

 private:
  std::size_t points_;
  std::vector<std::int64_t> least_;
};

}  // namespace sluice::sim
