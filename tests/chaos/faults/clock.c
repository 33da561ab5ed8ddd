/* Steps the time of day of the processes that preload this library, by the nanoseconds in a shared file.
 *
 * The file is named by HETERPS_TEST_CLOCK and begins with two 64-bit numbers: the offset, and how often a process has
 * read a time that was changed by it. Clocks that count from the start of the machine stay as they are. Deadlines in
 * the time of day are given to the kernel as if its clock had been stepped.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL
/* A deadline before this second counts from the start of the machine: a condition variable may use either clock. */
#define FIRST_DATE 1000000000LL

struct clock {
    int64_t offset;
    int64_t reads;
};

static struct clock none;
static struct clock *stepped = &none;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_clock(void)
{
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("HETERPS_TEST_CLOCK");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map = mmap(NULL, sizeof(struct clock), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED)
        stepped = map;
    close(file);
}

static void add(struct timespec *time, int64_t nanoseconds)
{
    int64_t sum = time->tv_sec * BILLION + time->tv_nsec + nanoseconds;
    time->tv_sec = sum / BILLION;
    time->tv_nsec = sum % BILLION;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!real_gettime) /* called by another library's constructor */
        open_clock();
    int result = real_gettime(clock, time);
    int64_t offset = __atomic_load_n(&stepped->offset, __ATOMIC_RELAXED);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        __atomic_fetch_add(&stepped->reads, 1, __ATOMIC_RELAXED);
        add(time, offset);
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

/* The kernel's own time of a deadline. */
static struct timespec real_deadline(const struct timespec *deadline)
{
    struct timespec real = *deadline;
    if (real.tv_sec >= FIRST_DATE)
        add(&real, -__atomic_load_n(&stepped->offset, __ATOMIC_RELAXED));
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) /* the version that glibc links today on x86-64, where dlsym may return that of old programs */
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec changed = real_deadline(deadline);
    return real(condition, mutex, &changed);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline)
{
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec changed = real_deadline(deadline);
    return real(semaphore, &changed);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *deadline)
{
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec changed = real_deadline(deadline);
    return real(mutex, &changed);
}
