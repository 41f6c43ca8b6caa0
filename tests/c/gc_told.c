/* What a heap tells: numbers, events, the log. */
#include "gc_objects.h"

#include <unistd.h>

static void test_statistics(void) {
    hh_gc_stats_t before = numbers();
    CHECK(before.nursery == 128 << 10 && before.phase == HH_GC_IDLE && before.minor == 0);
    struct node *kept = list(50000);
    HH_GC_ROOTS(heap, kept);
    int phases[HH_GC_SWEEPING + 1] = {0};
    for (size_t step = 0; phases[HH_GC_SWEEPING] == 0 || numbers().phase != HH_GC_IDLE; step++) {
        check_list(kept, 50000);
        phases[hh_gc_collect_minor(heap)]++;
        if (numbers().phase == HH_GC_IDLE)
            kept = list(50000);
        CHECK(step < 10000);
    }
    hh_gc_stats_t now = numbers();
    CHECK(now.minor > 0 && now.steps > 0 && now.major > 0 && now.survivors >= 50000 && now.survived_bytes >= 32 * now.survivors);
    CHECK(now.old >= 50000 * 32 && now.held >= now.old && now.pauses >= now.minor && now.pause_longest <= now.pause_total);
    uint64_t counted = 0;
    for (size_t bucket = 0; bucket < HH_GC_BUCKETS; bucket++)
        counted += now.pause_histogram[bucket];
    CHECK(counted == now.pauses);
    /* A program that knows fewer members, and sizes that nobody has. */
    hh_gc_stats_t part;
    memset(&part, 0xFF, sizeof part);
    part.size = 16;
    CHECK(hh_gc_stats(heap, &part) == HH_OK && part.size == 16 && part.nursery == UINT64_MAX);
    part.size = 7;
    CHECK(hh_gc_stats(heap, &part) == HH_BAD_SIZE && hh_gc_stats(heap, NULL) == HH_BAD_ARGUMENT);
    char json[2000], little[10];
    size_t length = hh_gc_stats_json(heap, json, sizeof json);
    CHECK(length < sizeof json && strlen(json) == length && hh_gc_stats_json(heap, NULL, 0) == length);
    CHECK(hh_gc_stats_json(heap, little, sizeof little) == length && strlen(little) == 9);
    puts(json);
}

static hh_gc_event told[HH_GC_EVENT_ARENAS + 1];
static uint64_t tellings[HH_GC_EVENT_ARENAS + 1];

static void hook(void *data, const hh_gc_event *event) {
    CHECK(data == told && event->size == sizeof *event && event->kind <= HH_GC_EVENT_ARENAS);
    told[event->kind] = *event;
    tellings[event->kind]++;
}

static size_t lines_of(const char *file) {
    char line[1000];
    size_t lines = 0;
    FILE *log = fopen(file, "r");
    CHECK(log != NULL);
    while (fgets(line, sizeof line, log) != NULL) {
        CHECK(strstr(line, " gc-minor heap=") != NULL && strstr(line, " survivors=") != NULL);
        lines++;
    }
    fclose(log);
    return lines;
}

/* A hook is told what the numbers count; a log has a line for each; without them nobody is told. */
static void test_events(void) {
    char file[] = "/tmp/hugeheap-gc-XXXXXX", log[100], text[200];
    int descriptor = mkstemp(file);
    CHECK(descriptor >= 0 && close(descriptor) == 0);
    snprintf(log, sizeof log, "gc-minor:%s", file);
    struct node *kept = NULL;
    HH_GC_ROOTS(heap, kept);
    hh_gc_set_hook(heap, hook, told);
    CHECK(hh_gc_set_log(heap, log, text, sizeof text) == HH_OK && text[0] == 0);
    uint64_t before = numbers().minor;
    CHECK(before == 0);
    kept = list(30000);
    void *large = hh_gc_alloc_items(heap, text_type, sizeof(struct text), 1, 9 << 20);
    CHECK(large != NULL);
    kept = list(30000);
    hh_gc_collect(heap);
    hh_gc_stats_t now = numbers();
    CHECK(tellings[HH_GC_EVENT_MINOR] == now.minor && tellings[HH_GC_EVENT_MAJOR] == now.major && now.major > 0);
    CHECK(tellings[HH_GC_EVENT_STEP] > 0 && tellings[HH_GC_EVENT_ARENAS] > 0 && tellings[HH_GC_EVENT_EVACUATION] == now.evacuations);
    CHECK(told[HH_GC_EVENT_MAJOR].number == now.major && told[HH_GC_EVENT_MAJOR].live >= 30000 * 32);
    CHECK(told[HH_GC_EVENT_STEP].to == HH_GC_IDLE && told[HH_GC_EVENT_MAJOR].held >= told[HH_GC_EVENT_MAJOR].live);
    CHECK(told[HH_GC_EVENT_ARENAS].arenas > 0 && told[HH_GC_EVENT_MINOR].not_moved == 0);
    CHECK(lines_of(file) == now.minor);
    /* What is wrong says so, and changes nothing. */
    CHECK(hh_gc_set_log(heap, "gc-minr:-", text, sizeof text) == HH_BAD_LOG && strstr(text, "\"gc-minr\"") != NULL);
    CHECK(hh_gc_set_log(heap, "gc-minor", NULL, 0) == HH_BAD_LOG);
    CHECK(hh_gc_set_log(heap, "arena:/nowhere/at/all", text, 10) == HH_BAD_LOG && strcmp(text, "/nowhere/") == 0);
    (void)hh_gc_collect_minor(heap);
    now = numbers();
    CHECK(lines_of(file) == now.minor && tellings[HH_GC_EVENT_MINOR] == now.minor);
    hh_gc_set_hook(heap, NULL, NULL);
    CHECK(hh_gc_set_log(heap, NULL, NULL, 0) == HH_OK);
    hh_gc_collect(heap);
    CHECK(lines_of(file) == now.minor && tellings[HH_GC_EVENT_MINOR] == now.minor && numbers().minor > now.minor);
    CHECK(remove(file) == 0);
    check_list(kept, 30000);
    CHECK(numbers().rotated == ((settings().checks & HH_GC_ROTATE) != 0 ? numbers().minor : 0));
}

int main(int count, char **words) {
    static const struct section sections[] = {SECTION(statistics), SECTION(events)};
    return run_section(sections, sizeof sections / sizeof sections[0], count, words);
}
