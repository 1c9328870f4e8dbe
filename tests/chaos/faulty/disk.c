/* Preloaded by a command: file operations below $FAULT_ROOT that fail as a disk's do, a clock that jumps, and a
   diary from which a power cut is made afterwards. Native code is reached, too: SQLite's and torch's.

   $FAULT_OPERATION (write, short, sync, rename) fails at its $FAULT_AT-th call of a process with the error number
   $FAULT_ERRNO; "short" writes half of what it is given, which is no failure. With $FAULT_STAYS all later ones fail.
   $FAULT_DIARY: a folder; `diary` in it gets a line for each change, and the content of what was synchronised is
   copied to `content-<number>`.
   $FAULT_CLOCK: seconds that the clock of the day is wrong, every other thousand calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static atomic_int calls, looks;

static int inside(const char *path) {
  const char *root = getenv("FAULT_ROOT");
  return root && *path && !strncmp(path, root, strlen(root)) && !strstr(path, "__pycache__") && !strstr(path, ".pyc");
}

static int path_of(int handle, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t size = readlink(link, path, PATH_MAX - 1);
  path[size < 0 ? 0 : size] = 0;
  return size > 0 && inside(path);
}

static void absolute(const char *name, char *path) {
  if (*name == '/') {
    snprintf(path, PATH_MAX, "%s", name);
  } else {
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) here[0] = 0;
    if (snprintf(path, PATH_MAX, "%s/%s", here, name) >= PATH_MAX) path[0] = 0;
  }
}

/* Whether this call of an operation is the one that goes wrong. */
static int fails(const char *operation) {
  const char *wanted = getenv("FAULT_OPERATION"), *at = getenv("FAULT_AT");
  if (!wanted || !at || strcmp(wanted, operation)) return 0;
  int number = atomic_fetch_add(&calls, 1) + 1, first = atoi(at);
  const char *stays = getenv("FAULT_STAYS");
  if (number != first && !(stays && *stays && number > first)) return 0;
  const char *error = getenv("FAULT_ERRNO");
  errno = error ? atoi(error) : EIO;
  return 1;
}

/* A line of the diary: one write, so that lines of several processes do not mix. */
static void note(const char *form, ...) {
  const char *folder = getenv("FAULT_DIARY");
  if (!folder) return;
  char name[PATH_MAX], line[3 * PATH_MAX];
  snprintf(name, sizeof name, "%s/diary", folder);
  va_list values;
  va_start(values, form);
  int size = vsnprintf(line, sizeof line, form, values);
  va_end(values);
  int handle = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (handle >= 0) {
    syscall(SYS_write, handle, line, size);
    syscall(SYS_close, handle);
  }
}

/* The content of a file at this moment, beside the diary. */
static void keep(const char *path) {
  const char *folder = getenv("FAULT_DIARY");
  if (!folder) return;
  static atomic_int kept;
  char name[PATH_MAX], block[1 << 16];
  snprintf(name, sizeof name, "%s/content-%d-%d", folder, getpid(), atomic_fetch_add(&kept, 1));
  int from = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
  int to = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (ssize_t size; from >= 0 && to >= 0 && (size = syscall(SYS_read, from, block, sizeof block)) > 0;)
    syscall(SYS_write, to, block, size);
  if (to >= 0) syscall(SYS_close, to);
  if (from >= 0) syscall(SYS_close, from);
  note("sync\t%s\t%s\n", path, strrchr(name, '/') + 1);
}

ssize_t write(int handle, const void *data, size_t size) {
  char path[PATH_MAX];
  if (path_of(handle, path)) {
    if (fails("write")) return -1;
    if (size > 1 && fails("short")) size /= 2;
  }
  return REAL(write)(handle, data, size);
}

ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) {
  char path[PATH_MAX];
  if (path_of(handle, path)) {
    if (fails("write")) return -1;
    if (size > 1 && fails("short")) size /= 2;
  }
  return REAL(pwrite64)(handle, data, size, at);
}

ssize_t pwrite(int handle, const void *data, size_t size, off_t at) { return pwrite64(handle, data, size, at); }

static int synchronised(int handle) {
  char path[PATH_MAX];
  struct stat what;
  if (!path_of(handle, path)) return 0;
  if (fails("sync")) return -1;
  if (!fstat(handle, &what)) S_ISDIR(what.st_mode) ? note("folder\t%s\n", path) : keep(path);
  return 0;
}

int fsync(int handle) { return synchronised(handle) ? -1 : REAL(fsync)(handle); }

int fdatasync(int handle) { return synchronised(handle) ? -1 : REAL(fdatasync)(handle); }

static int renamed(const char *old, const char *new) {
  char from[PATH_MAX], to[PATH_MAX];
  absolute(old, from), absolute(new, to);
  if (!inside(to)) return 0;
  if (fails("rename")) return -1;
  note("rename\t%s\t%s\n", from, to);
  return 0;
}

int rename(const char *old, const char *new) { return renamed(old, new) ? -1 : REAL(rename)(old, new); }

int renameat(int a, const char *old, int b, const char *new) {
  if (a == AT_FDCWD && b == AT_FDCWD && renamed(old, new)) return -1;
  return REAL(renameat)(a, old, b, new);
}

static void jump(clockid_t clock, struct timespec *now) {
  const char *seconds = getenv("FAULT_CLOCK");
  if (seconds && clock == CLOCK_REALTIME && atomic_fetch_add(&looks, 1) / 1000 % 2) now->tv_sec += atol(seconds);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int answer = REAL(clock_gettime)(clock, now);
  if (!answer) jump(clock, now);
  return answer;
}
