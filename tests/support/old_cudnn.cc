// A libcudnn.so.9 of version 9.1.0, with nothing else.

#include <cstddef>

extern "C" std::size_t cudnnGetVersion() { return 90100; }
