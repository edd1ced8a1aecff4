#include <algorithm>
#include <tuple>

#include "kernels/cuda/buffers.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/over_elements.h"

namespace sluice::kernels::cuda {
namespace {

template <class T>
struct Add {
  static constexpr int kThreads = kElementThreads;
  const T* from;
  std::int64_t count;
  T* into;
  SLUICE_DEVICE void operator()() const {
    for_each_element(count, [this](std::int64_t i) { into[i] = from_float<T>(to_float(into[i]) + to_float(from[i])); });
  }
};

template <class T>
struct Widen {
  static constexpr int kThreads = kElementThreads;
  const T* from;
  std::int64_t count;
  bool add;
  float* into;
  SLUICE_DEVICE void operator()() const {
    for_each_element(count, [this](std::int64_t i) { into[i] = to_float(from[i]) + (add ? into[i] : 0.0F); });
  }
};

struct Maximum {
  static constexpr int kThreads = kElementThreads;
  const float* from;
  std::int64_t count;
  float* into;
  SLUICE_DEVICE void operator()() const {
    for_each_element(count, [this](std::int64_t i) { into[i] = into[i] > from[i] ? into[i] : from[i]; });
  }
};

// Reads `vectors` of 16 bytes, then the remaining elements one by one.
template <class T>
struct FlagNotFinite {
  static constexpr int kThreads = kElementThreads;
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  const T* data;
  std::int64_t vectors;
  std::int64_t count;
  std::int32_t* flag;
  SLUICE_DEVICE void operator()() const {
    bool finite = true;
    const auto check = [&finite](T number) {
      const float value = to_float(number);
      finite = finite && value - value == 0.0F;
    };
    for_each_element(vectors, [&](std::int64_t i) {
      const Vector<T, kWidth> numbers = load_vector<T, kWidth>(data + i * kWidth);
      for (const T number : numbers.at) check(number);
    });
    for_each_element(count - vectors * kWidth, [&](std::int64_t i) { check(data[vectors * kWidth + i]); });
    // All threads that write store the same value.
    if (!finite) *flag = 1;
  }
};

template <class T>
struct FillNotANumber {
  static constexpr int kThreads = kElementThreads;
  T* data;
  std::int64_t count;
  SLUICE_DEVICE void operator()() const {
    for_each_element(count, [this](std::int64_t i) { data[i] = from_float<T>(NAN); });
  }
};

struct GradientScale {
  static constexpr int kThreads = 1;
  const float* squares;
  float clip;
  float loss_scale;
  float* scale;
  float* norm;
  SLUICE_DEVICE void operator()() const {
    const float scaled = sqrtf(*squares);
    *norm = scaled / loss_scale;
    const bool finite = scaled - scaled == 0.0F;
    const bool clips = clip > 0 && *norm > clip;
    *scale = finite ? (clips ? clip / scaled : 1.0F / loss_scale) : NAN;
  }
};

}  // namespace

void add(Stream& stream, Element element, const void* from, std::int64_t count, void* into) {
  with_type(element, [&]<class T>(Type<T>) {
    launch(stream, element_grid(count), Add<T>{static_cast<const T*>(from), count, static_cast<T*>(into)});
  });
}

void widen(Stream& stream, Element element, const void* from, std::int64_t count, bool add, float* into) {
  with_type(element, [&]<class T>(Type<T>) {
    launch(stream, element_grid(count), Widen<T>{static_cast<const T*>(from), count, add, into});
  });
}

void maximum(Stream& stream, const float* from, std::int64_t count, float* into) {
  launch(stream, element_grid(count), Maximum{from, count, into});
}

void flag_not_finite(Stream& stream, Element element, const void* data, std::int64_t count, std::int32_t* flag) {
  with_type(element, [&]<class T>(Type<T>) {
    constexpr int kWidth = FlagNotFinite<T>::kWidth;
    const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
    const std::int64_t vectors = aligned ? count / kWidth : 0;
    launch(stream, element_grid(aligned ? vectors + count % kWidth : count),
           FlagNotFinite<T>{static_cast<const T*>(data), vectors, count, flag});
  });
}

void fill_not_a_number(Stream& stream, Element element, void* data, std::int64_t count) {
  with_type(element, [&]<class T>(Type<T>) {
    launch(stream, element_grid(count), FillNotANumber<T>{static_cast<T*>(data), count});
  });
}

void gradient_scale(Stream& stream, const float* squares, float clip, float loss_scale, float* scale, float* norm) {
  launch(stream, Grid{.threads = 1}, GradientScale{squares, clip, loss_scale, scale, norm});
}

}  // namespace sluice::kernels::cuda
