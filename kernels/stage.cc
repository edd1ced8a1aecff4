#include "kernels/stage.h"

#include <stdexcept>

namespace sluice::kernels {

void Stage::add_squared_norm(const std::byte*, float*, Stream&) const {
  throw std::logic_error("add_squared_norm is not implemented by CPU stages");
}

void Stage::draw_weights(std::byte*, std::uint64_t, Stream&) const {
  throw std::logic_error("draw_weights is not implemented by CPU stages");
}
void Stage::set_weights(const std::byte*, std::byte*, std::byte*, Stream&) const {
  throw std::logic_error("set_weights is not implemented by CPU stages");
}

std::int64_t Stage::table_bytes(std::int64_t) const { return 0; }
void Stage::fill_tables(std::byte*, std::int64_t, Stream&) const {}

}  // namespace sluice::kernels
