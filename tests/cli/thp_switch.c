/* Takes transparent huge pages from itself as CRuby does at its start, and prints what `prctl` answered,
 * `errno` (77 before), the switch, and what of the family passes through. With the argument `old` in a kernel
 * before 6.18: a filter refuses the flag as that does. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int without_flags(void)
{
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_THP_DISABLE, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof lines / sizeof *lines, lines};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int count, char **words)
{
    if (count > 1 && !strcmp(words[1], "old") && without_flags()) {
        perror("no filter");
        return 2;
    }
    errno = 77;
    int answer = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    printf("%d %d %d\n", answer, errno, prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));

    char name[16] = "";
    prctl(PR_SET_NAME, "renamed");
    prctl(PR_GET_NAME, name);
    answer = prctl(PR_SET_THP_DISABLE, 1, 4, 0, 0);
    printf("%s %d %d %d\n", name, answer, errno, prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
    printf("%d\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    return 0;
}
