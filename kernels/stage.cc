#include "kernels/stage.h"

#include <stdexcept>

namespace sluice::kernels {

void Stage::add_squared_norm(const std::byte*, float*, Stream&) const {
  throw std::logic_error("add_squared_norm is not implemented by CPU stages");
}

void Stage::set_weights(const std::byte*, std::byte*, std::byte*, Stream&) const {
  throw std::logic_error("set_weights is not implemented by CPU stages");
}

void Stage::begin_parts(SliceCall&, bool) const {
  throw std::logic_error("begin_parts is not implemented by stages on devices");
}

void Stage::run_part(const SliceCall&, const StagePart&) const {
  throw std::logic_error("run_part is not implemented by stages on devices");
}

void Stage::end_parts(SliceCall&, bool) const {
  throw std::logic_error("end_parts is not implemented by stages on devices");
}

std::int64_t Stage::table_bytes(std::int64_t) const { return 0; }
void Stage::fill_tables(std::byte*, std::int64_t, Stream&) const {}

}  // namespace sluice::kernels
