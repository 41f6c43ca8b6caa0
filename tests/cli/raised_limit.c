/* Starts itself again under a limit on address space, of so many bytes, and raises it there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int limit(rlim_t bytes) {
    struct rlimit now;
    if (getrlimit(RLIMIT_AS, &now)) return -1;
    now.rlim_cur = bytes < now.rlim_max ? bytes : now.rlim_max;
    return setrlimit(RLIMIT_AS, &now);
}

int main(int count, char **words) {
    if (count == 2) {
        if (limit(strtoul(words[1], NULL, 10))) return 1;
        execl("/proc/self/exe", words[0], words[1], "again", (char *)NULL);
        return 2;
    }
    if (limit(RLIM_INFINITY)) return 3;
    for (int n = 0; n < 1000; n++) {
        char *block = malloc(10000);
        if (!block) return 4;
        memset(block, n, 10000);
    }
    puts("served");
    return 0;
}
