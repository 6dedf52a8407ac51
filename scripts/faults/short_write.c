/* Preloaded: one write of the process takes only half of its bytes, as writes may. tests/it/faults/mod.rs compiles it.
 * SHORT_AT is the write's number, from 1, over all threads. With SHORT_THEN_FULL all later writes find the disk full.
 * SHORT_LOG names a file that is there afterwards if the write was reached. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long n_writes;

/* What is written to pipes and terminals is no output. */
static int is_file(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

/* Bytes that this write takes; -1: the disk is full. */
static ssize_t share(int fd, size_t n_bytes) {
    const char *at = getenv("SHORT_AT");
    if (at == NULL || fd <= 2 || !is_file(fd))
        return n_bytes;
    long number = atomic_fetch_add(&n_writes, 1) + 1, wanted = atol(at);
    if (number > wanted && getenv("SHORT_THEN_FULL") != NULL) {
        errno = ENOSPC;
        return -1;
    }
    if (number != wanted)
        return n_bytes;
    const char *log = getenv("SHORT_LOG");
    if (log != NULL)
        close(open(log, O_CREAT | O_WRONLY, 0600));
    return n_bytes > 1 ? n_bytes / 2 : n_bytes;
}

ssize_t write(int fd, const void *bytes, size_t n_bytes) {
    static ssize_t (*real)(int, const void *, size_t);
    if (real == NULL)
        real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    ssize_t n = share(fd, n_bytes);
    return n < 0 ? -1 : real(fd, bytes, n);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n_bytes, off64_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (real == NULL)
        real = (ssize_t(*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    ssize_t n = share(fd, n_bytes);
    return n < 0 ? -1 : real(fd, bytes, n, offset);
}
