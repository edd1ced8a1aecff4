#include "kernels/stage.h"

#include <stdexcept>

namespace sluice::kernels {

void Stage::add_squared_norm(const std::byte*, float*, Stream&) const {
  throw std::logic_error("add_squared_norm is not implemented by CPU stages");
}

void Stage::set_weights(const std::byte*, std::byte*, std::byte*, Stream&) const {
  throw std::logic_error("set_weights is not implemented by CPU stages");
}

}  // namespace sluice::kernels
