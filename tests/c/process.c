/* What is asked of the process as a whole: settings, numbers, JSON: process SECTION. */
#include "interface.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/resource.h>

static void test_process(void) {
    CHECK(strcmp(hh_version(), HH_VERSION) == 0);

    enum { BYTES = 64 << 20 };
    hh_stats_t before = statistics();
    CHECK(before.pid == (uint32_t)getpid() || before.pid == 0);
    char *block = hh_malloc(BYTES);
    CHECK(block != NULL);
    memset(block, 1, BYTES);
    hh_measure();
    hh_stats_t during = statistics();
    CHECK(during.live >= before.live + BYTES && during.arenas >= 32 && during.large >= BYTES);
    CHECK(during.resident >= BYTES);
    hh_free(block);
    CHECK(statistics().live < during.live);
    hh_give_back();
    /* Some of it maintenance may have given back in the meantime. */
    hh_stats_t after = statistics();
    CHECK(after.given_back >= before.given_back + BYTES && after.retained == 0 && after.live_peak >= during.live);
    CHECK(hh_give_back() == 0);

    /* A program that was built with fewer members, and one that was built with more. */
    struct {
        hh_stats_t known;
        uint64_t later[2];
    } newer;
    memset(&newer, 0xAA, sizeof newer);
    newer.known.size = sizeof newer;
    CHECK(hh_stats(&newer.known) == HH_OK && newer.known.size == sizeof(hh_stats_t));
    CHECK(newer.later[0] == 0xAAAAAAAAAAAAAAAAu);
    hh_stats_t older;
    memset(&older, 0xAA, sizeof older);
    older.size = offsetof(hh_stats_t, arenas_full);
    CHECK(hh_stats(&older) == HH_OK && older.size == offsetof(hh_stats_t, arenas_full));
    CHECK(older.arenas_peak >= 32 && older.arenas_full == 0xAAAAAAAAAAAAAAAAu);
    older.size = 0;
    CHECK(hh_stats(&older) == HH_BAD_SIZE);
    older.size = 13;
    CHECK(hh_stats(&older) == HH_BAD_SIZE);
    CHECK(hh_stats(NULL) == HH_BAD_ARGUMENT);

    hh_options options = HH_OPTIONS_INIT;
    CHECK(hh_configure(&options) == HH_OK);
    CHECK(statistics().policy == 4);
    options.policy = "thp";
    options.decay = 250 * UINT64_C(1000000);
    options.limit = (uint64_t)1 << 40;
    CHECK(hh_configure(&options) == HH_OK);
    CHECK(statistics().policy == 1);
    options.policy = NULL;
    options.limit = HH_NO_LIMIT;
    CHECK(hh_configure(&options) == HH_OK);
    CHECK(statistics().policy == 1);
    /* What is refused changes nothing. */
    options.policy = "dense";
    options.decay = 999999;
    CHECK(hh_configure(&options) == HH_BAD_DECAY);
    options.decay = UINT64_MAX;
    CHECK(hh_configure(&options) == HH_BAD_DECAY);
    const char *const bad[] = {"", "THP", "thp ", "4", "\xff"};
    options.decay = 0;
    for (unsigned n = 0; n < sizeof bad / sizeof bad[0]; n++) {
        options.policy = bad[n];
        CHECK(hh_configure(&options) == HH_BAD_POLICY);
    }
    options.policy = NULL;
    const uint64_t wrong[] = {3, UINT64_MAX};
    for (unsigned n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
        options.merge = wrong[n];
        CHECK(hh_configure(&options) == HH_BAD_MERGE);
    }
    const uint64_t merges[] = {HH_MERGE, HH_NO_MERGE, 0};
    for (unsigned n = 0; n < sizeof merges / sizeof merges[0]; n++) {
        options.merge = merges[n];
        CHECK(hh_configure(&options) == HH_OK);
    }
    /* A program that was compiled before there was merging: what lies behind its struct is none of it. */
    hh_options shorter = HH_OPTIONS_INIT;
    shorter.size = offsetof(hh_options, merge);
    shorter.policy = "dense";
    shorter.merge = UINT64_MAX;
    CHECK(hh_configure(&shorter) == HH_OK && statistics().policy == 2);
    shorter.policy = "thp";
    CHECK(hh_configure(&shorter) == HH_OK && statistics().policy == 1);
    options.policy = "base";
    options.size = 4;
    CHECK(hh_configure(&options) == HH_BAD_SIZE);
    options.size = sizeof options + 8;
    CHECK(hh_configure(&options) == HH_BAD_SIZE);
    CHECK(hh_configure(NULL) == HH_BAD_ARGUMENT);
    CHECK(statistics().policy == 1);

    for (int status = HH_OK; status <= HH_BAD_ARGUMENT; status++) {
        CHECK(strlen(hh_strerror(status)) > 5);
        for (int other = HH_OK; other < status; other++)
            CHECK(strcmp(hh_strerror(status), hh_strerror(other)) != 0);
    }
    CHECK(strcmp(hh_strerror(99), hh_strerror(-1)) == 0 && strstr(hh_strerror(99), "not a status") != NULL);
}

/* Prints the JSON, for the test to parse; checks every length of buffer. */
static void test_json(void) {
    /* A counted fallback, so that there is a reason to print: arenas that this address space does not hold. */
    CHECK(hh_malloc(unknown((size_t)1 << 46)) == NULL);
    static char whole[8192], part[8192];
    size_t length = hh_stats_json(NULL, 0);
    CHECK(length > 100 && length < sizeof whole);
    CHECK(hh_stats_json(NULL, 100) == length);
    CHECK(hh_stats_json(whole, sizeof whole) == length && strlen(whole) == length);
    for (size_t size = 1; size <= length + 1; size++) {
        memset(part, '?', sizeof part);
        CHECK(hh_stats_json(part, size) == length);
        CHECK(strlen(part) == size - 1 && memcmp(part, whole, size - 1) == 0 && part[size] == '?');
    }
    puts(whole);
}

static void *nothing(void *argument) { return argument; }

/* A process at its limit of threads: what maintenance is refused is not the program's matter. */
static void test_refused(void) {
    enum { BLOCKS = 100000 };
    static void *blocks[BLOCKS];
    for (int n = 0; n < BLOCKS; n++) blocks[n] = hh_malloc(700);
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    if (geteuid() == 0) CHECK(setgid(54321) == 0 && setuid(54321) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == EAGAIN);
    for (int n = 0; n < BLOCKS; n++) {
        errno = EDOM;
        hh_free(blocks[n]);
        CHECK(errno == EDOM);
    }
    hh_give_back();
    CHECK(errno == EDOM);
}

MAIN({"process", test_process}, {"json", test_json}, {"refused", test_refused})
