/* Counts what a process does to the files below one folder, and at operation number N ends it, or has it fail.

   Preloaded by crash_points.py into the process that forks command lines; one of them calls `arm`. Programs that it
   starts are not counted. The log has a line for each operation: its name and its path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL, ENOSPC_FROM_THERE_ON, EIO_ONCE };
enum { NEEDS_NO_ROOM, NEEDS_ROOM };

static char root[PATH_MAX];
static int fault, log_file = -1;
static pid_t armed;
static long at; /* from 1; 0: never */
static atomic_long done;

void arm(const char *folder, long number, int kind, const char *log_path) {
    snprintf(root, sizeof root, "%s/", folder);
    log_file = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    at = number, fault = kind, armed = getpid();
}

/* Where a call is about to act: `path`, which may be relative to the folder `at_fd`, or the open file `at_fd`. */
static const char *place(char *into, int at_fd, const char *path) {
    char link[64], base[PATH_MAX];
    if (path && path[0] == '/') {
        snprintf(into, PATH_MAX, "%s", path);
        return into;
    }
    if (at_fd == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at_fd);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) length = 0;
    base[length] = 0;
    if (path) snprintf(into, PATH_MAX, "%.*s/%s", (int)length, base, path);
    else snprintf(into, PATH_MAX, "%s", base);
    return into;
}

/* Whether the operation is to fail, with errno set. torn: where it is told whether half of a write is still to be made.
   Ends the process at its operation, unless half of a write is to be made first. */
static int fails(const char *name, int at_fd, const char *path, int needs_room, int *torn) {
    char where[PATH_MAX], line[PATH_MAX + 32];
    int before = errno;
    if (armed == 0 || armed != getpid()) return 0;
    place(where, at_fd, path);
    errno = before;
    if (strncmp(where, root, strlen(root)) != 0) return 0;
    long number = atomic_fetch_add(&done, 1) + 1;
    int length = snprintf(line, sizeof line, "%s %s\n", name, where + strlen(root));
    if (log_file >= 0) syscall(SYS_write, log_file, line, (size_t)length);
    errno = before;
    if (at == 0 || number < at) return 0;
    if (fault == KILL) {
        if (number > at) return 0; /* of another thread, while this one writes its half */
        if (torn) return *torn = 1, 0;
        kill(getpid(), SIGKILL);
    }
    if (fault == EIO_ONCE && number == at) return errno = EIO, 1;
    if (fault == ENOSPC_FROM_THERE_ON && needs_room) {
        if (torn && number == at) return *torn = 1, 0;
        return errno = ENOSPC, 1;
    }
    return 0;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int is_new(int at_fd, const char *path) { return faccessat(at_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0; }

static int open_fails(int at_fd, const char *path, int flags) {
    int before = errno, makes = (flags & O_CREAT) && is_new(at_fd, path);
    errno = before;
    if (!(flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))) return 0;
    return fails(makes ? "create" : "open", at_fd, path, makes ? NEEDS_ROOM : NEEDS_NO_ROOM, NULL);
}

static mode_t mode_of(int flags, va_list more) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = mode_of(flags, more); \
        va_end(more); \
        return open_fails(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at_fd, const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = mode_of(flags, more); \
        va_end(more); \
        return open_fails(at_fd, path, flags) ? -1 : real(at_fd, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(name); \
        int flags = strchr(mode, '+') || *mode != 'r' ? O_RDWR | (*mode == 'r' ? 0 : O_CREAT) : O_RDONLY; \
        return open_fails(AT_FDCWD, path, flags) ? NULL : real(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* After half of a write: a process that is to be ended ends, one whose disk is full is told how much fitted. */
static ssize_t half_written(ssize_t written) {
    if (fault == KILL) kill(getpid(), SIGKILL);
    if (written == 0) return errno = ENOSPC, -1;
    return written;
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    int torn = 0;
    if (fails("write", fd, NULL, NEEDS_ROOM, &torn)) return -1;
    return torn ? half_written(size > 1 ? real(fd, data, size / 2) : 0) : real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    REAL(writev);
    int torn = 0;
    if (fails("write", fd, NULL, NEEDS_ROOM, &torn)) return -1;
    return torn ? half_written(count > 1 ? real(fd, pieces, count / 2) : 0) : real(fd, pieces, count);
}

#define PWRITE(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t offset) { \
        REAL(name); \
        int torn = 0; \
        if (fails("write", fd, NULL, NEEDS_ROOM, &torn)) return -1; \
        return torn ? half_written(size > 1 ? real(fd, data, size / 2, offset) : 0) : real(fd, data, size, offset); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define COPY(name, to, needs, parameters, arguments) \
    ssize_t name parameters { \
        REAL(name); \
        return fails("write", to, NULL, needs, NULL) ? -1 : real arguments; \
    }
COPY(sendfile, out, NEEDS_ROOM, (int out, int in, off_t *offset, size_t size), (out, in, offset, size))
COPY(sendfile64, out, NEEDS_ROOM, (int out, int in, off_t *offset, size_t size), (out, in, offset, size))
COPY(copy_file_range, out, NEEDS_ROOM, (int in, off_t *from, int out, off_t *to, size_t size, unsigned flags),
     (in, from, out, to, size, flags))

#define CALL(name, said, needs, at_fd, path, parameters, arguments) \
    int name parameters { \
        REAL(name); \
        return fails(said, at_fd, path, needs, NULL) ? -1 : real arguments; \
    }
CALL(ftruncate, "truncate", NEEDS_NO_ROOM, fd, NULL, (int fd, off_t size), (fd, size))
CALL(ftruncate64, "truncate", NEEDS_NO_ROOM, fd, NULL, (int fd, off_t size), (fd, size))
CALL(truncate, "truncate", NEEDS_NO_ROOM, AT_FDCWD, path, (const char *path, off_t size), (path, size))
CALL(fallocate64, "allocate", NEEDS_ROOM, fd, NULL, (int fd, int mode, off_t from, off_t size), (fd, mode, from, size))
CALL(fsync, "fsync", NEEDS_NO_ROOM, fd, NULL, (int fd), (fd))
CALL(fdatasync, "fsync", NEEDS_NO_ROOM, fd, NULL, (int fd), (fd))
CALL(mkdir, "mkdir", NEEDS_ROOM, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
CALL(mkdirat, "mkdir", NEEDS_ROOM, at_fd, path, (int at_fd, const char *path, mode_t mode), (at_fd, path, mode))
CALL(rmdir, "rmdir", NEEDS_NO_ROOM, AT_FDCWD, path, (const char *path), (path))
CALL(unlink, "unlink", NEEDS_NO_ROOM, AT_FDCWD, path, (const char *path), (path))
CALL(unlinkat, "unlink", NEEDS_NO_ROOM, at_fd, path, (int at_fd, const char *path, int flags), (at_fd, path, flags))
CALL(rename, "rename", NEEDS_NO_ROOM, AT_FDCWD, new, (const char *old, const char *new), (old, new))
CALL(renameat, "rename", NEEDS_NO_ROOM, to, new, (int from, const char *old, int to, const char *new),
     (from, old, to, new))
CALL(link, "link", NEEDS_ROOM, AT_FDCWD, new, (const char *old, const char *new), (old, new))
CALL(linkat, "link", NEEDS_ROOM, to, new, (int from, const char *old, int to, const char *new, int flags),
     (from, old, to, new, flags))
CALL(symlink, "symlink", NEEDS_ROOM, AT_FDCWD, path, (const char *to, const char *path), (to, path))
CALL(symlinkat, "symlink", NEEDS_ROOM, at_fd, path, (const char *to, int at_fd, const char *path), (to, at_fd, path))
CALL(chmod, "chmod", NEEDS_NO_ROOM, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
