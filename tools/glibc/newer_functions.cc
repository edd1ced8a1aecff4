// What the compiler's static libraries and headers expect of a newer C library, written in terms of glibc 2.28. Linked
// by tools/glibc/stubs.sh into programs for older systems.

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/random.h>
#include <time.h>

extern "C" {

// glibc 2.32. False: reference counts stay atomic also before a process starts its second thread.
char __libc_single_threaded = 0;

// glibc 2.36, for std::random_device.
uint32_t arc4random() {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

// glibc 2.30, for waits on std::condition_variable by the steady clock: the same interval by the clock that older
// versions wait by.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  constexpr long kSecond = 1'000'000'000;
  timespec now{};
  timespec time{};
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &time) != 0) return EINVAL;
  const long nanoseconds = time.tv_nsec + until->tv_nsec - now.tv_nsec + kSecond;  // positive
  time.tv_sec += until->tv_sec - now.tv_sec + nanoseconds / kSecond - 1;
  time.tv_nsec = nanoseconds % kSecond;
  return time.tv_sec < 0 ? ETIMEDOUT : pthread_cond_timedwait(condition, mutex, &time);
}

// glibc 2.35, for the unwinder: finds the tables of the object that contains an address.
int _dl_find_object(void* address, dl_find_object* result) noexcept {
  struct Search {
    uintptr_t address;
    dl_find_object* result;
  } search{reinterpret_cast<uintptr_t>(address), result};
  const auto look = [](dl_phdr_info* object, size_t, void* data) {
    const auto& [wanted, found] = *static_cast<Search*>(data);
    bool contains = false;
    void* tables = nullptr;
    for (const ElfW(Phdr)* each = object->dlpi_phdr; each != object->dlpi_phdr + object->dlpi_phnum; ++each) {
      const uintptr_t start = object->dlpi_addr + each->p_vaddr;
      contains |= each->p_type == PT_LOAD && wanted - start < each->p_memsz;
      if (each->p_type == PT_GNU_EH_FRAME) tables = reinterpret_cast<void*>(start);
    }
    if (!contains || tables == nullptr) return 0;
    *found = dl_find_object{};
    found->dlfo_eh_frame = tables;
    return 1;
  };
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

}  // extern "C"
