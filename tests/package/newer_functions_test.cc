// Calls tools/glibc/newer_functions.cc, which this program links in place of the C library's functions, through the C++
// library: exceptions, random numbers and waits by the steady clock. Exits with the number of failures.

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

extern "C" {
extern char __libc_single_threaded;
}

namespace {

using Clock = std::chrono::steady_clock;
int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

bool caught(const std::string& text) {
  try {
    throw std::runtime_error(text);
  } catch (const std::exception& error) {
    return error.what() == text;
  }
}

// Waits of whole and broken seconds, for a time that is past and one that is not.
void check_waits() {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  for (const int milliseconds : {-1'500, 0, 3, 1'001}) {
    const Clock::time_point start = Clock::now();
    const Clock::time_point until = start + std::chrono::milliseconds(milliseconds);
    while (condition.wait_until(lock, until) != std::cv_status::timeout) {
    }
    const auto waited = Clock::now() - start;
    expect(Clock::now() >= until && waited < std::chrono::seconds(60), "a wait ends when its time has passed");
  }
  std::thread notifier([&] {
    const std::lock_guard held(mutex);
    condition.notify_one();
  });
  expect(condition.wait_for(lock, std::chrono::seconds(60)) == std::cv_status::no_timeout, "a wait ends when notified");
  lock.unlock();
  notifier.join();
}

}  // namespace

int main() {
  std::set<unsigned> values;
  std::random_device device;
  for (int i = 0; i < 8; ++i) values.insert(device());
  expect(values.size() > 1, "random numbers differ");
  expect(__libc_single_threaded == 0, "reference counts are atomic");
  expect(caught("here"), "an exception is caught");
  bool elsewhere = false;
  std::thread([&] { elsewhere = caught("in a thread"); }).join();
  expect(elsewhere, "an exception is caught in a thread");
  check_waits();
  dl_find_object found{};
  expect(_dl_find_object(nullptr, &found) == -1, "no object contains address 0");
  return failures;
}
