/* A process whose leader, the thread it began with, ends before others do: each scenario by its name. With
 * C_INTERFACE memory is that of the C interface, else of malloc.
 *
 * What is printed stays in the buffer of stdout, which is no terminal, until the last thread ends. */
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef C_INTERFACE
#include <hugeheap.h>
#define malloc hh_malloc
#define free hh_free
#endif

enum { BLOCKS = 16, BLOCK = 4 << 20, KEYS = 64, MORE_THAN_THERE_ARE = 5000 };

/* Seconds: longer than any host needs. */
static const int patience = 60;

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static int threads(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void wait_for_threads(int wanted) {
    time_t until = time(NULL) + patience;
    while (threads() != wanted) {
        CHECK(time(NULL) < until);
        nap();
    }
}

static char leader_state(void) {
    char text[512];
    FILE *file = fopen("/proc/self/stat", "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL);
    fclose(file);
    return strrchr(text, ')')[2];
}

static void wait_for_the_leader_to_end(void) {
    time_t until = time(NULL) + patience;
    while (leader_state() != 'Z') {
        CHECK(time(NULL) < until);
        nap();
    }
}

static long resident_mib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/thread-self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages / 256;
}

/* Uses 64 MiB and frees them: there is something to do for as long as they are kept. */
static void use_and_free(void) {
    char *blocks[BLOCKS];
    for (int block = 0; block < BLOCKS; block++) {
        CHECK((blocks[block] = malloc(BLOCK)) != NULL);
        memset(blocks[block], 1, BLOCK);
        /* The compiler leaves out what is written before a free, unless somebody may have read it. */
        __asm__ volatile("" : : "r"(blocks[block]) : "memory");
    }
    for (int block = 0; block < BLOCKS; block++)
        free(blocks[block]);
}

static void start(void *(*work)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    CHECK(pthread_detach(thread) == 0);
}

/* Waits for it: the C library does not stand a fork in the middle of another thread's pthread_exit, which the
 * child aborts in. */
static void start_and_join(void *(*work)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Work in a process with so many threads of its own, until the library's is there. */
static void work_and_say(const char *line, int own) {
    use_and_free();
    wait_for_threads(own + 1);
    printf("%s\n", line);
}

/* Waits for a child that must end by itself. */
static void wait_for(pid_t child) {
    int status = -1;
    time_t until = time(NULL) + patience;
    while (waitpid(child, &status, WNOHANG) == 0) {
        CHECK(time(NULL) < until);
        nap();
    }
    CHECK(status == 0);
}

static void fork_a_leader(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work_and_say("the child", 1);
        pthread_exit(NULL);
    }
    wait_for(child);
}

static void *forks(void *unused) {
    fork_a_leader();
    return unused;
}

/* Of a process whose leader has ended /proc/self says that it has no memory. */
static void used_is_measured(void) {
    char *block = malloc(BLOCK);
    CHECK(block != NULL);
    memset(block, 1, BLOCK);
#ifdef C_INTERFACE
    hh_stats_t stats = {.size = sizeof stats};
    hh_measure();
    CHECK(hh_stats(&stats) == HH_OK && stats.resident >= BLOCK);
#endif
    free(block);
}

static void *works_on(void *unused) {
    wait_for_the_leader_to_end();
    CHECK(threads() == 2);
    used_is_measured();
    for (int round = 0; round < 3; round++) {
        use_and_free();
        time_t until = time(NULL) + patience;
        while (resident_mib() > 32) {
            CHECK(time(NULL) < until);
            CHECK(threads() == 2);
            nap();
            /* An event. */
            void *block = malloc(2 << 20);
            CHECK(block != NULL);
            free(block);
        }
    }
    printf("the worker\n");
    return unused;
}

/* Leaves something to do all the time, also in the moment in which the leader ends. */
static void *is_busy(void *unused) {
    while (leader_state() != 'Z')
        use_and_free();
    for (int round = 0; round < 3; round++) {
        use_and_free();
        CHECK(threads() <= 3);
    }
    return unused;
}

static void *forks_when_the_leader_has_ended(void *unused) {
    wait_for_the_leader_to_end();
    fork_a_leader();
    printf("the worker\n");
    return unused;
}

static void *works_before_the_leader_ends(void *unused) {
    work_and_say("the worker", 2);
    return unused;
}

static void *works_when_the_leader_has_ended(void *unused) {
    wait_for_the_leader_to_end();
    use_and_free();
    printf("the worker\n");
    return unused;
}

/* The C library holds the values of the first 32 keys with the thread, and of others in memory that it asks
 * malloc for. */
static void use_keys(int wanted) {
    pthread_key_t key;
    for (int made = 0; made < wanted && pthread_key_create(&key, NULL) == 0; made++)
        ;
}

int main(int count, char **words) {
    CHECK(count == 2);
    const char *scenario = words[1];
    if (strcmp(scenario, "alone") == 0) {
        work_and_say("the leader", 1);
    } else if (strcmp(scenario, "works_on") == 0) {
        work_and_say("the leader", 1);
        start(works_on);
    } else if (strcmp(scenario, "busy") == 0) {
        use_and_free();
        start(is_busy);
        start(is_busy);
        wait_for_threads(4);
        printf("the leader\n");
    } else if (strcmp(scenario, "forked") == 0) {
        start_and_join(forks);
    } else if (strcmp(scenario, "many_keys") == 0) {
        use_keys(KEYS);
        work_and_say("the leader", 1);
        start_and_join(forks);
    } else if (strcmp(scenario, "no_keys") == 0) {
        use_keys(MORE_THAN_THERE_ARE);
        work_and_say("the leader", 1);
        start_and_join(forks);
    } else if (strcmp(scenario, "forked_later") == 0) {
        work_and_say("the leader", 1);
        start(forks_when_the_leader_has_ended);
    } else if (strcmp(scenario, "silent") == 0) {
        start(works_before_the_leader_ends);
        wait_for_threads(3);
        wait_for_threads(2);
        printf("the leader\n");
    } else if (strcmp(scenario, "silent_to_the_end") == 0) {
        start(works_when_the_leader_has_ended);
        printf("the leader\n");
    } else {
        CHECK(!"known");
    }
    pthread_exit(NULL);
}
