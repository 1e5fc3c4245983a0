// Owns one call of the kernels' library in a process of its own: driver FILE FUNCTION ARGUMENT...
//
// FILE is mapped at kBase, where the pointers in it and among the arguments lead. The results are left in it.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "library.cpp"

constexpr uintptr_t kBase = uintptr_t{1} << 36;  // emulator.py's BASE

// A number, or the address of whatever a function takes.
struct Argument {
  uint64_t value = 0;

  operator int() const { return static_cast<int>(value); }
  template <typename T>
  operator T *() const {
    return reinterpret_cast<T *>(value);
  }
};

bool map(const char *path) {
  const int file = open(path, O_RDWR);
  struct stat status;
  if (file < 0 || fstat(file, &status) < 0) return false;
  void *const base = reinterpret_cast<void *>(kBase);
  return mmap(base, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == base;
}

int main(int argc, char **argv) {
  Argument a[8];
  for (int i = 3; i < argc && i < 11; i++) a[i - 3].value = std::strtoull(argv[i], nullptr, 10);
  const std::string function = argc > 2 ? argv[2] : "";
  if (function == "instruction_set") {
    std::puts(ms_instruction_set());
  } else if (!map(argv[1])) {
    std::perror("driver");
    return 1;
  } else if (function == "linear") {
    ms_linear(a[0], a[1], a[2], a[3]);
  } else if (function == "row") {
    ms_row(a[0], a[1], a[2]);
  } else if (function == "attend") {
    ms_attend(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
  } else if (function == "step") {
    Model *const model = ms_model_new(a[0], a[1], a[2], a[3]);
    ms_model_step(model, a[4]);
    ms_model_delete(model);
  } else {
    return 2;
  }
  return 0;
}
