#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>

#include "model/namespaces.h"
#endif

namespace sluice::kernels::emulation {

// Announces switches between stacks of fibers to sanitizers; does nothing without them.
#if defined(__SANITIZE_ADDRESS__)

struct StackNotes {
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* fake = nullptr;
};
inline void note_fiber(StackNotes& of, const void* bottom, std::size_t size) { of = {bottom, size, nullptr}; }
inline void note_thread(StackNotes&) {}
inline void forget_fiber(StackNotes&) {}
// Called before a switch; `ends`: `from` is not resumed again.
inline void note_leaving(StackNotes& from, const StackNotes& to, bool ends) {
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake, to.bottom, to.size);
}
// Called after a switch.
inline void note_arriving(StackNotes& at, StackNotes& from) {
  __sanitizer_finish_switch_fiber(at.fake, &from.bottom, &from.size);
}

#elif defined(__SANITIZE_THREAD__)

struct StackNotes {
  void* fiber = nullptr;
};
inline void note_fiber(StackNotes& of, const void*, std::size_t) { of.fiber = __tsan_create_fiber(0); }
inline void note_thread(StackNotes& of) { of.fiber = __tsan_get_current_fiber(); }
inline void forget_fiber(StackNotes& of) { __tsan_destroy_fiber(of.fiber); }
inline void note_leaving(StackNotes&, const StackNotes& to, bool) { __tsan_switch_to_fiber(to.fiber, 0); }
inline void note_arriving(StackNotes&, StackNotes&) {}

#else

struct StackNotes {};
inline void note_fiber(StackNotes&, const void*, std::size_t) {}
inline void note_thread(StackNotes&) {}
inline void forget_fiber(StackNotes&) {}
inline void note_leaving(StackNotes&, const StackNotes&, bool) {}
inline void note_arriving(StackNotes&, StackNotes&) {}

#endif

}  // namespace sluice::kernels::emulation
