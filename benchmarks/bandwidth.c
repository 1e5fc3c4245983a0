// Owns the measurement of the memory's read bandwidth: threads that add up their share of a buffer, again and again.

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { LANES = 16, MAX_THREADS = 64 };

struct share {
  const uint64_t *words;
  size_t count;
  int rounds;
  uint64_t sum;
};

static void *add_up(void *argument) {
  struct share *share = argument;
  uint64_t lanes[LANES] = {0};
  for (int round = 0; round < share->rounds; ++round)
    for (size_t i = 0; i + LANES <= share->count; i += LANES)
      for (int lane = 0; lane < LANES; ++lane) lanes[lane] += share->words[i + lane];
  for (int lane = 0; lane < LANES; ++lane) share->sum += lanes[lane];
  return NULL;
}

static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

// Bytes a second that `threads` threads read together. `sum` keeps the compiler from leaving the reading out.
double read_bandwidth(const uint64_t *words, size_t count, int threads, int rounds, uint64_t *sum) {
  pthread_t ids[MAX_THREADS];
  struct share shares[MAX_THREADS];
  size_t each = count / threads;
  double start_s = now_s();
  for (int i = 0; i < threads; ++i) {
    shares[i] = (struct share){words + i * each, each, rounds, 0};
    pthread_create(&ids[i], NULL, add_up, &shares[i]);
  }
  for (int i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    *sum += shares[i].sum;
  }
  return (double)each * threads * sizeof *words * rounds / (now_s() - start_s);
}
