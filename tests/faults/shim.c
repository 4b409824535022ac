/* A library that is loaded before libc and lets one of its calls fail, be cut short, or be met by a signal.

   Only calls count that touch a file below one folder, so that imports and libraries' own files do not.  Nothing happens
   before `fault_arm`.  Built by tests/faults/built.py; used by tests/faults/server.py, where the actions have names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <dirent.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif
#ifndef FICLONE
#define FICLONE 0x40049409
#endif
#ifndef FICLONERANGE
#define FICLONERANGE 0x4020940d
#endif

enum { FAIL = 1, FAIL_FROM, SHORT, SIGNAL_BEFORE, SIGNAL_AFTER, SIGNAL_FROM };
enum { MAY_WAIT = 1, LOOKS = 2 };

typedef struct {
    long at;
    int action;
    long argument;
} Rule;

typedef struct {
    int error;
    int cut;
    int signals[8];
    int many;
} Turn;

#define RULES 8
static Rule rules[RULES];
static int armed, log_file = -1, with_looks;
static char watched[PATH_MAX], sticky[32];
static size_t watched_length;
static long counted;
static __thread int inside;

/* The system calls of this library itself: `syscall` below is replaced, too. */
static long kernel(long number, long a, long b, long c) {
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c);
}

/* Watch what is below `folder`, a real path; `log` is a file that gets a line for each call. */
void fault_arm(const char *folder, int log, int looks) {
    snprintf(watched, sizeof watched, "%s", folder);
    watched_length = strlen(watched);
    log_file = log;
    with_looks = looks;
    counted = 0;
    sticky[0] = 0;
    __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}

void fault_disarm(void) { __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST); }

/* At call number `at`, from 1, do this: an errno, a signal's number, or how many bytes are left of a length. */
void fault_rule(int which, long at, int action, long argument) { rules[which] = (Rule){at, action, argument}; }

static int below(const char *path) {
    return strncmp(path, watched, watched_length) == 0 && (path[watched_length] == '/' || !path[watched_length]);
}

static void file_path(int file, char *found) {
    char path[64];
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    snprintf(path, sizeof path, file == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", file);
    long length = real(SYS_readlinkat, AT_FDCWD, path, found, (long)PATH_MAX - 1);
    found[length < 0 ? 0 : length] = 0;
}

static void full_path(int folder, const char *path, char *found) {
    if (path[0] == '/') {
        snprintf(found, PATH_MAX, "%s", path);
        return;
    }
    file_path(folder, found);
    size_t length = strlen(found);
    snprintf(found + length, PATH_MAX - length, "/%s", path);
}

static int turn_of(Turn *turn, const char *name, int how, const char *one, const char *other) {
    char line[2 * PATH_MAX + 128];
    if (how & LOOKS && !with_looks)
        return 0;
    long at = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    int hit = 0;
    for (int k = 0; k < RULES; k++) {
        Rule *rule = &rules[k];
        if (!rule->action)
            continue;
        int later = rule->action == FAIL_FROM && at > rule->at && strcmp(sticky, name) == 0;
        if (at != rule->at && !later && !(rule->action == SIGNAL_FROM && at >= rule->at))
            continue;
        hit = 1;
        if (rule->action == FAIL || rule->action == FAIL_FROM) {
            snprintf(sticky, sizeof sticky, "%s", name);
            turn->error = rule->argument;
        } else if (rule->action == SHORT) {
            turn->cut = rule->argument;
        } else if (rule->action == SIGNAL_AFTER) {
            turn->signals[turn->many++] = rule->argument;
        }
    }
    int length = snprintf(line, sizeof line, "%ld\t%s\t%s\t%s\t%s\n", at, name, hit ? "hit" : "", one, other);
    if (log_file >= 0)
        kernel(SYS_write, log_file, (long)line, length);
    for (int k = 0; k < RULES; k++) {
        Rule *rule = &rules[k];
        int met = (rule->action == SIGNAL_BEFORE && at == rule->at) || (rule->action == SIGNAL_FROM && at >= rule->at);
        if (!met)
            continue;
        kernel(SYS_kill, kernel(SYS_getpid, 0, 0, 0), rule->argument, 0);
        /* A call that may wait ends with EINTR when a handler ran; any other begins after the handler. */
        if (how & MAY_WAIT && rule->argument != SIGSTOP && rule->action == SIGNAL_BEFORE)
            turn->error = EINTR;
    }
    return 1;
}

static int on_paths(Turn *turn, const char *name, int how, int folder, const char *path, int other_folder,
                    const char *other) {
    char one[PATH_MAX * 2], two[PATH_MAX * 2] = "";
    memset(turn, 0, sizeof *turn);
    if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST) || inside || !path)
        return 0;
    int kept = errno;
    inside = 1;
    full_path(folder, path, one);
    if (other)
        full_path(other_folder, other, two);
    int mine = (below(one) || (other && below(two))) && turn_of(turn, name, how, one, two);
    inside = 0;
    errno = kept;
    return mine;
}

static int on_files(Turn *turn, const char *name, int how, int file, int other_file) {
    char one[PATH_MAX * 2], two[PATH_MAX * 2] = "";
    memset(turn, 0, sizeof *turn);
    if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST) || inside || file < 0)
        return 0;
    int kept = errno;
    inside = 1;
    file_path(file, one);
    if (other_file >= 0)
        file_path(other_file, two);
    int mine = (below(one) || (other_file >= 0 && below(two))) && turn_of(turn, name, how, one, two);
    inside = 0;
    errno = kept;
    return mine;
}

static void after(Turn *turn) {
    int kept = errno;
    for (int k = 0; k < turn->many; k++)
        kernel(SYS_kill, kernel(SYS_getpid, 0, 0, 0), turn->signals[k], 0);
    errno = kept;
}

/* Memory: the n-th request for at least so many bytes fails, or all from there on. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static long memory_at, memory_counted;
static size_t memory_least;
static int memory_stays;

void fault_memory(long at, size_t least, int stays) {
    memory_least = least;
    memory_stays = stays;
    memory_counted = 0;
    __atomic_store_n(&memory_at, at, __ATOMIC_SEQ_CST);
}

/* How many requests there were. */
long fault_memory_counted(void) { return memory_counted; }

static int no_memory(size_t size) {
    long at = __atomic_load_n(&memory_at, __ATOMIC_SEQ_CST);
    if (!at || size < memory_least)
        return 0;
    long now = __atomic_add_fetch(&memory_counted, 1, __ATOMIC_SEQ_CST);
    if (now != at && !(memory_stays && now > at))
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return no_memory(size) ? NULL : __libc_malloc(size); }
void *calloc(size_t many, size_t size) {
    return no_memory(size ? many * size : 0) ? NULL : __libc_calloc(many, size);
}
void *realloc(void *held, size_t size) { return no_memory(size) ? NULL : __libc_realloc(held, size); }

#define REAL(name) ((__typeof__(&name))real_##name())
#define FIND(name)                                                                                                     \
    static void *real_##name(void) {                                                                                   \
        static void *found;                                                                                            \
        if (!found)                                                                                                    \
            found = dlsym(RTLD_NEXT, #name);                                                                           \
        return found;                                                                                                  \
    }
/* Do `call` in its turn; `failed` is what the function returns with errno. */
#define IN_TURN(type, failed, met, call)                                                                               \
    Turn turn;                                                                                                         \
    if (!(met))                                                                                                        \
        return call;                                                                                                   \
    if (turn.error) {                                                                                                  \
        errno = turn.error;                                                                                            \
        after(&turn);                                                                                                  \
        return failed;                                                                                                 \
    }                                                                                                                  \
    type result = call;                                                                                                \
    after(&turn);                                                                                                      \
    return result
#define PATHS(name, how, ...) on_paths(&turn, name, how, __VA_ARGS__)
#define ONE(folder, path) folder, path, AT_FDCWD, NULL
#define FILES(name, how, one, other) on_files(&turn, name, how, one, other)
#define CUT(count) (turn.cut && (size_t)turn.cut < (count) ? (size_t)turn.cut : (count))

static const char *opening(int flags) { return flags & (O_CREAT | O_WRONLY | O_RDWR) ? "create" : "open"; }

#define OPEN(name)                                                                                                     \
    FIND(name)                                                                                                         \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        IN_TURN(int, -1, PATHS(opening(flags), MAY_WAIT, ONE(AT_FDCWD, path)), REAL(name)(path, flags, mode));         \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                                                                   \
    FIND(name)                                                                                                         \
    int name(int folder, const char *path, int flags, ...) {                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        IN_TURN(int, -1, PATHS(opening(flags), MAY_WAIT, ONE(folder, path)), REAL(name)(folder, path, flags, mode));   \
    }
OPENAT(openat)
OPENAT(openat64)
FIND(creat)
int creat(const char *path, mode_t mode) {
    IN_TURN(int, -1, PATHS("create", MAY_WAIT, ONE(AT_FDCWD, path)), REAL(creat)(path, mode));
}
FIND(creat64)
int creat64(const char *path, mode_t mode) {
    IN_TURN(int, -1, PATHS("create", MAY_WAIT, ONE(AT_FDCWD, path)), REAL(creat64)(path, mode));
}
#define FOPEN(name)                                                                                                    \
    FIND(name)                                                                                                         \
    FILE *name(const char *path, const char *mode) {                                                                   \
        IN_TURN(FILE *, NULL, PATHS(mode[0] == 'r' ? "open" : "create", MAY_WAIT, ONE(AT_FDCWD, path)),                \
                REAL(name)(path, mode));                                                                               \
    }
FOPEN(fopen)
FOPEN(fopen64)
FIND(opendir)
DIR *opendir(const char *path) {
    IN_TURN(DIR *, NULL, PATHS("opendir", 0, ONE(AT_FDCWD, path)), REAL(opendir)(path));
}
#define READDIR(name, entry)                                                                                           \
    FIND(name)                                                                                                         \
    struct entry *name(DIR *folder) {                                                                                  \
        IN_TURN(struct entry *, NULL, FILES("readdir", 0, dirfd(folder), -1), REAL(name)(folder));                     \
    }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

FIND(read)
ssize_t read(int file, void *data, size_t count) {
    IN_TURN(ssize_t, -1, FILES("read", MAY_WAIT, file, -1), REAL(read)(file, data, CUT(count)));
}
ssize_t __read_chk(int file, void *data, size_t count, size_t room) {
    (void)room;
    return read(file, data, count);
}
#define PREAD(name, offset_type)                                                                                       \
    FIND(name)                                                                                                         \
    ssize_t name(int file, void *data, size_t count, offset_type at) {                                                 \
        IN_TURN(ssize_t, -1, FILES("pread", MAY_WAIT, file, -1), REAL(name)(file, data, CUT(count), at));              \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
ssize_t __pread64_chk(int file, void *data, size_t count, off64_t at, size_t room) {
    (void)room;
    return pread64(file, data, count, at);
}
FIND(write)
ssize_t write(int file, const void *data, size_t count) {
    IN_TURN(ssize_t, -1, FILES("write", MAY_WAIT, file, -1), REAL(write)(file, data, CUT(count)));
}
#define PWRITE(name, offset_type)                                                                                      \
    FIND(name)                                                                                                         \
    ssize_t name(int file, const void *data, size_t count, offset_type at) {                                           \
        IN_TURN(ssize_t, -1, FILES("pwrite", MAY_WAIT, file, -1), REAL(name)(file, data, CUT(count), at));             \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* A list of buffers cut short is its first buffer, cut short. */
#define VECTORS(word, name, ...)                                                                                       \
    {                                                                                                                  \
        struct iovec first = {NULL, 0};                                                                                \
        Turn turn;                                                                                                     \
        if (!FILES(word, MAY_WAIT, file, -1))                                                                          \
            return REAL(name)(file, vectors, many, ##__VA_ARGS__);                                                     \
        if (turn.error) {                                                                                              \
            errno = turn.error;                                                                                        \
            return -1;                                                                                                 \
        }                                                                                                              \
        if (turn.cut && many > 0) {                                                                                    \
            first = vectors[0];                                                                                        \
            first.iov_len = CUT(first.iov_len);                                                                        \
            vectors = &first;                                                                                          \
            many = 1;                                                                                                  \
        }                                                                                                              \
        ssize_t result = REAL(name)(file, vectors, many, ##__VA_ARGS__);                                               \
        after(&turn);                                                                                                  \
        return result;                                                                                                 \
    }
FIND(readv)
ssize_t readv(int file, const struct iovec *vectors, int many) VECTORS("read", readv)
FIND(writev)
ssize_t writev(int file, const struct iovec *vectors, int many) VECTORS("write", writev)
FIND(preadv)
ssize_t preadv(int file, const struct iovec *vectors, int many, off_t at) VECTORS("pread", preadv, at)
FIND(preadv64)
ssize_t preadv64(int file, const struct iovec *vectors, int many, off64_t at) VECTORS("pread", preadv64, at)
FIND(preadv2)
ssize_t preadv2(int file, const struct iovec *vectors, int many, off_t at, int flags)
    VECTORS("pread", preadv2, at, flags)
FIND(preadv64v2)
ssize_t preadv64v2(int file, const struct iovec *vectors, int many, off64_t at, int flags)
    VECTORS("pread", preadv64v2, at, flags)
FIND(pwritev)
ssize_t pwritev(int file, const struct iovec *vectors, int many, off_t at) VECTORS("pwrite", pwritev, at)
FIND(pwritev64)
ssize_t pwritev64(int file, const struct iovec *vectors, int many, off64_t at) VECTORS("pwrite", pwritev64, at)
FIND(pwritev64v2)
ssize_t pwritev64v2(int file, const struct iovec *vectors, int many, off64_t at, int flags)
    VECTORS("pwrite", pwritev64v2, at, flags)

FIND(copy_file_range)
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t count, unsigned flags) {
    IN_TURN(ssize_t, -1, FILES("copy_file_range", MAY_WAIT, from, to),
            REAL(copy_file_range)(from, from_at, to, to_at, CUT(count), flags));
}
#define SENDFILE(name, offset_type)                                                                                    \
    FIND(name)                                                                                                         \
    ssize_t name(int to, int from, offset_type *at, size_t count) {                                                    \
        IN_TURN(ssize_t, -1, FILES("sendfile", MAY_WAIT, from, to), REAL(name)(to, from, at, CUT(count)));             \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

#define ALLOCATE(name, offset_type)                                                                                    \
    FIND(name)                                                                                                         \
    int name(int file, int mode, offset_type at, offset_type count) {                                                  \
        IN_TURN(int, -1, FILES("fallocate", MAY_WAIT, file, -1), REAL(name)(file, mode, at, count));                   \
    }
ALLOCATE(fallocate, off_t)
ALLOCATE(fallocate64, off64_t)
/* These two return the error instead. */
#define RESERVE(name, offset_type)                                                                                     \
    FIND(name)                                                                                                         \
    int name(int file, offset_type at, offset_type count) {                                                            \
        IN_TURN(int, turn.error, FILES("fallocate", MAY_WAIT, file, -1), REAL(name)(file, at, count));                 \
    }
RESERVE(posix_fallocate, off_t)
RESERVE(posix_fallocate64, off64_t)
#define TRUNCATE(name, offset_type)                                                                                    \
    FIND(name)                                                                                                         \
    int name(int file, offset_type length) {                                                                           \
        IN_TURN(int, -1, FILES("ftruncate", MAY_WAIT, file, -1), REAL(name)(file, length));                            \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)
#define TRUNCATE_PATH(name, offset_type)                                                                               \
    FIND(name)                                                                                                         \
    int name(const char *path, offset_type length) {                                                                   \
        IN_TURN(int, -1, PATHS("ftruncate", MAY_WAIT, ONE(AT_FDCWD, path)), REAL(name)(path, length));                 \
    }
TRUNCATE_PATH(truncate, off_t)
TRUNCATE_PATH(truncate64, off64_t)
FIND(fsync)
int fsync(int file) { IN_TURN(int, -1, FILES("fsync", MAY_WAIT, file, -1), REAL(fsync)(file)); }
FIND(fdatasync)
int fdatasync(int file) { IN_TURN(int, -1, FILES("fsync", MAY_WAIT, file, -1), REAL(fdatasync)(file)); }

/* Only advice: returns the error. */
#define ADVISE(name, offset_type)                                                                                      \
    FIND(name)                                                                                                         \
    int name(int file, offset_type at, offset_type count, int advice) {                                                \
        IN_TURN(int, turn.error, FILES("fadvise", 0, file, -1), REAL(name)(file, at, count, advice));                  \
    }
ADVISE(posix_fadvise, off_t)
ADVISE(posix_fadvise64, off64_t)

FIND(rename)
int rename(const char *from, const char *to) {
    IN_TURN(int, -1, PATHS("rename", 0, AT_FDCWD, from, AT_FDCWD, to), REAL(rename)(from, to));
}
FIND(renameat)
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    IN_TURN(int, -1, PATHS("rename", 0, from_folder, from, to_folder, to),
            REAL(renameat)(from_folder, from, to_folder, to));
}
static const char *renaming(unsigned flags) { return flags & RENAME_EXCHANGE ? "exchange" : "rename"; }
FIND(renameat2)
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    IN_TURN(int, -1, PATHS(renaming(flags), 0, from_folder, from, to_folder, to),
            REAL(renameat2)(from_folder, from, to_folder, to, flags));
}
FIND(syscall)
long syscall(long number, ...) {
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long), d = va_arg(rest, long);
    long e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_renameat2) /* asked for where libc has no function for it */
        return renameat2(a, (const char *)b, c, (const char *)d, e);
    return REAL(syscall)(number, a, b, c, d, e, f);
}
FIND(link)
int link(const char *from, const char *to) {
    IN_TURN(int, -1, PATHS("link", 0, AT_FDCWD, from, AT_FDCWD, to), REAL(link)(from, to));
}
FIND(linkat)
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    IN_TURN(int, -1, PATHS("link", 0, from_folder, from, to_folder, to),
            REAL(linkat)(from_folder, from, to_folder, to, flags));
}
FIND(symlink)
int symlink(const char *to, const char *path) {
    IN_TURN(int, -1, PATHS("symlink", 0, ONE(AT_FDCWD, path)), REAL(symlink)(to, path));
}
FIND(unlink)
int unlink(const char *path) { IN_TURN(int, -1, PATHS("unlink", 0, ONE(AT_FDCWD, path)), REAL(unlink)(path)); }
FIND(unlinkat)
int unlinkat(int folder, const char *path, int flags) {
    IN_TURN(int, -1, PATHS(flags & AT_REMOVEDIR ? "rmdir" : "unlink", 0, ONE(folder, path)),
            REAL(unlinkat)(folder, path, flags));
}
FIND(mkdir)
int mkdir(const char *path, mode_t mode) {
    IN_TURN(int, -1, PATHS("mkdir", 0, ONE(AT_FDCWD, path)), REAL(mkdir)(path, mode));
}
FIND(mkdirat)
int mkdirat(int folder, const char *path, mode_t mode) {
    IN_TURN(int, -1, PATHS("mkdir", 0, ONE(folder, path)), REAL(mkdirat)(folder, path, mode));
}
FIND(rmdir)
int rmdir(const char *path) { IN_TURN(int, -1, PATHS("rmdir", 0, ONE(AT_FDCWD, path)), REAL(rmdir)(path)); }

FIND(ioctl)
int ioctl(int file, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (request != FICLONERANGE && request != FICLONE)
        return REAL(ioctl)(file, request, argument);
    int from = request == FICLONE ? (int)(long)argument : -1;
    IN_TURN(int, -1, FILES("clone", 0, file, from), REAL(ioctl)(file, request, argument));
}
FIND(flock)
int flock(int file, int operation) {
    if (operation == LOCK_UN)
        return REAL(flock)(file, operation);
    IN_TURN(int, -1, FILES("lock", MAY_WAIT, file, -1), REAL(flock)(file, operation));
}
static int locks(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}
#define FCNTL(name)                                                                                                    \
    FIND(name)                                                                                                         \
    int name(int file, int command, ...) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, command);                                                                                       \
        void *argument = va_arg(rest, void *);                                                                         \
        va_end(rest);                                                                                                  \
        if (!locks(command))                                                                                           \
            return REAL(name)(file, command, argument);                                                                \
        IN_TURN(int, -1, FILES("lock", MAY_WAIT, file, -1), REAL(name)(file, command, argument));                      \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
#define LOCKF(name, offset_type)                                                                                       \
    FIND(name)                                                                                                         \
    int name(int file, int command, offset_type length) {                                                              \
        IN_TURN(int, -1, FILES("lock", MAY_WAIT, file, -1), REAL(name)(file, command, length));                        \
    }
LOCKF(lockf, off_t)
LOCKF(lockf64, off64_t)

#define MAP(name, offset_type)                                                                                         \
    FIND(name)                                                                                                         \
    void *name(void *place, size_t length, int protection, int flags, int file, offset_type at) {                      \
        if (flags & MAP_ANONYMOUS || !__atomic_load_n(&armed, __ATOMIC_SEQ_CST)) {                                     \
            if (real_##name())                                                                                         \
                return REAL(name)(place, length, protection, flags, file, at);                                         \
        }                                                                                                              \
        IN_TURN(void *, MAP_FAILED, FILES("mmap", 0, file, -1),                                                        \
                REAL(name)(place, length, protection, flags, file, at));                                               \
    }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

#define STATVFS(name, buffer)                                                                                          \
    FIND(name)                                                                                                         \
    int name(const char *path, struct buffer *found) {                                                                 \
        IN_TURN(int, -1, PATHS("statvfs", 0, ONE(AT_FDCWD, path)), REAL(name)(path, found));                           \
    }
STATVFS(statvfs, statvfs)
STATVFS(statvfs64, statvfs64)
#define FSTATVFS(name, buffer)                                                                                         \
    FIND(name)                                                                                                         \
    int name(int file, struct buffer *found) {                                                                         \
        IN_TURN(int, -1, FILES("statvfs", 0, file, -1), REAL(name)(file, found));                                      \
    }
FSTATVFS(fstatvfs, statvfs)
FSTATVFS(fstatvfs64, statvfs64)

FIND(chmod)
int chmod(const char *path, mode_t mode) {
    IN_TURN(int, -1, PATHS("chmod", 0, ONE(AT_FDCWD, path)), REAL(chmod)(path, mode));
}
FIND(fchmodat)
int fchmodat(int folder, const char *path, mode_t mode, int flags) {
    IN_TURN(int, -1, PATHS("chmod", 0, ONE(folder, path)), REAL(fchmodat)(folder, path, mode, flags));
}
FIND(fchmod)
int fchmod(int file, mode_t mode) { IN_TURN(int, -1, FILES("chmod", MAY_WAIT, file, -1), REAL(fchmod)(file, mode)); }
FIND(chown)
int chown(const char *path, uid_t user, gid_t group) {
    IN_TURN(int, -1, PATHS("chown", 0, ONE(AT_FDCWD, path)), REAL(chown)(path, user, group));
}
FIND(fchown)
int fchown(int file, uid_t user, gid_t group) {
    IN_TURN(int, -1, FILES("chown", MAY_WAIT, file, -1), REAL(fchown)(file, user, group));
}
FIND(utimensat)
int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    IN_TURN(int, -1, PATHS("utime", 0, ONE(folder, path)), REAL(utimensat)(folder, path, times, flags));
}
FIND(futimens)
int futimens(int file, const struct timespec times[2]) {
    IN_TURN(int, -1, FILES("utime", 0, file, -1), REAL(futimens)(file, times));
}

#define STAT(name, buffer)                                                                                             \
    FIND(name)                                                                                                         \
    int name(const char *path, struct buffer *found) {                                                                 \
        IN_TURN(int, -1, PATHS("stat", LOOKS, ONE(AT_FDCWD, path)), REAL(name)(path, found));                          \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
#define FSTAT(name, buffer)                                                                                            \
    FIND(name)                                                                                                         \
    int name(int file, struct buffer *found) {                                                                         \
        IN_TURN(int, -1, FILES("fstat", LOOKS, file, -1), REAL(name)(file, found));                                    \
    }
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
#define FSTATAT(name, buffer)                                                                                          \
    FIND(name)                                                                                                         \
    int name(int folder, const char *path, struct buffer *found, int flags) {                                          \
        IN_TURN(int, -1, PATHS("stat", LOOKS, ONE(folder, path)), REAL(name)(folder, path, found, flags));             \
    }
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)
