//! What each finding means: the mechanism, how to verify it, how to undo its fix. `hugeheap explain CODE`.

use super::codes::Code;

/// The three parts of an explanation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Explanation {
    pub(crate) code: Code,
    pub(crate) mechanism: &'static str,
    pub(crate) verify: &'static str,
    pub(crate) undo: &'static str,
}

const NO_FIX: &str = "Nothing is changed by the fix on this host.";

macro_rules! explanations {
    ($($code:ident: $mechanism:literal, $verify:literal, $undo:expr;)*) => {
        pub(crate) const ALL: &[Explanation] = &[
            $(Explanation { code: Code::$code, mechanism: $mechanism, verify: $verify, undo: $undo }),*
        ];
    };
}

explanations! {
    ThpMissing:
        "Without /sys/kernel/mm/transparent_hugepage the kernel was built without transparent huge pages, or a sandbox hides the directory. Only pages of a hugetlb pool are left.",
        "ls /sys/kernel/mm/transparent_hugepage; grep TRANSPARENT_HUGEPAGE /boot/config-$(uname -r)",
        NO_FIX;
    ThpClosed:
        "The directory is there and its files may not be read, as some container runtimes mask them. hugeheap then counts thp_unsupported and stays on OS pages.",
        "cat /sys/kernel/mm/transparent_hugepage/enabled",
        NO_FIX;
    ThpNever:
        "In mode never no page fault gives a huge page and khugepaged makes none, also for memory that asks with MADV_HUGEPAGE. An explicit collapse (MADV_COLLAPSE) still works, which policies dense and auto use.",
        "hugeheap thp get mode; afterwards grep AnonHugePages /proc/meminfo while the program runs",
        "hugeheap thp set mode=never, and delete the line from /etc/tmpfiles.d/hugeheap-thp.conf. What is huge stays so until it is freed.";
    ThpSizeNever:
        "Since Linux 6.8 each size has a knob of its own. For the huge page it is 'inherit' unless somebody changed it; 'never' there overrides the mode, and the mode still says 'madvise'.",
        "hugeheap thp get size.2M mode",
        "hugeheap thp set size.2M=never";
    ThpAlways:
        "In mode always the first touch of any aligned 2 MiB makes a huge page, also for stacks and for allocators that free in small pieces. Memory grows, and what is freed in part stays charged (stranded). hugeheap works in this mode; other programs pay.",
        "hugeheap status (stranded), and RSS of the programs before and after",
        "hugeheap thp set mode=always";
    DefragAlways:
        "A fault that finds no free huge page reclaims and compacts memory itself, and the program waits: milliseconds, on a full host seconds. 'madvise' limits that to memory that asked.",
        "grep compact_stall /proc/vmstat, twice: it rises while programs wait",
        "hugeheap thp set defrag=always";
    DefragNone:
        "A fault takes a huge page only if one is free at that moment. On a host that has run for a while memory is in pieces, and most faults fall back to OS pages. khugepaged repairs that later, slowly.",
        "hugeheap status: faults that found none, since boot",
        "hugeheap thp set defrag=never (or defer, whatever hugeheap thp set printed)";
    KhugepagedSlow:
        "khugepaged looks at pages_to_scan OS pages, then sleeps. At the default, 16 MiB in ten seconds, hundreds of gigabytes take days. What a fault missed stays on OS pages as long.",
        "hugeheap thp get khugepaged.full_scans, an hour apart",
        "hugeheap thp set khugepaged.pages_to_scan=4096";
    KhugepagedNoDefrag:
        "khugepaged needs a free huge page to copy to. With khugepaged/defrag 0 it takes only what is free already and never compacts.",
        "hugeheap thp get khugepaged.pages_collapsed, an hour apart",
        "hugeheap thp set khugepaged.defrag=0";
    KhugepagedFills:
        "max_ptes_none says how many OS pages of a huge page may be absent; they are filled with zeros. At 511, the default, one used OS page of 2 MiB is enough, so sparse memory grows, and what an allocator gave back comes again. hugeheap keeps its broken arenas from that with MADV_NOHUGEPAGE; others do not.",
        "RSS of a program that freed most of its memory, over minutes",
        "hugeheap thp set khugepaged.max_ptes_none=511";
    MthpOn:
        "Folios of 16 KiB to 1 MiB cost fewer faults, and on some CPUs fewer TLB entries. They are not huge pages: AnonHugePages and coverage do not count them, they have counters per size.",
        "hugeheap status; cat /sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/nr_anon",
        "hugeheap thp set, with the values it printed";
    KernelNoCollapse:
        "MADV_COLLAPSE (Linux 6.1) makes a range huge now, whatever the mode. Without it policy dense leaves arenas as they are, auto advises instead, and collapse from outside is not possible. Tried with a call, not guessed from the version: a sandbox may filter it.",
        "hugeheap bench obmalloc --json lists the calls under host.capabilities",
        NO_FIX;
    KernelNoSplit:
        "When a part of a huge page is freed, the kernel keeps all of it until memory is short. MADV_COLD on the rest makes it split at once, which is how hugeheap breaks an arena and how hugeheap release frees what is stranded.",
        "hugeheap status (stranded) after a program freed most of its memory",
        NO_FIX;
    KernelNoScan:
        "ioctl(PAGEMAP_SCAN) tells which memory is huge without formatting text. Without it smaps is read, which takes seconds for large processes, and is done seldom.",
        "uname -r: 6.7 or newer has it unless a sandbox filters it",
        NO_FIX;
    PoolUsedUp:
        "Pages of a hugetlb pool are all handed out or reserved. The next mapping with MAP_HUGETLB fails; hugeheap counts pool_empty and goes on with transparent huge pages. What other programs do, they decide: many exit.",
        "hugeheap pool list",
        "hugeheap pool set N, with the size it printed";
    PoolIdle:
        "Pages of a pool are taken from the host at once and can be used for nothing else, not even the file cache. Pages that no program wants are lost memory.",
        "hugeheap pool list (free) while all programs run",
        "hugeheap pool set N, with the size that hugeheap pool release printed";
    PoolLimit:
        "A control group can limit hugetlb pages apart from the pool. Above the limit on use the touch fails, and a touch has no other answer than SIGBUS. The limit on reservations (rsvd) answers at mmap, where the program can fall back.",
        "cat hugetlb.2MB.max hugetlb.2MB.events in the group's directory",
        "Write the old value back to the file, or restore the pod's limits.";
    PoolUneven:
        "Memory of another NUMA node is slower. A program bound to the node with few pages finds the pool empty though the host's total looks well.",
        "hugeheap pool list: the lines per node",
        "hugeheap pool set --node NODE N, with the size it printed";
    PoolFork:
        "Reserved pages of a private mapping belong to the parent. When a child, or after a fork the parent, writes to a shared page, the copy needs a page that nobody reserved; with an empty pool that is SIGBUS for the child. CPython's own option for pool pages has this problem. hugeheap moves its arenas away before a fork (fallback pool_forks).",
        "docs: hugetlb and fork; dmesg shows nothing, the child's status is SIGBUS",
        "hugeheap run --policy hugetlb";
    Fragmented:
        "A huge page needs 512 neighbouring OS pages. Free memory exists, in smaller pieces. Compaction moves pages together; memory the kernel itself uses cannot be moved, so it helps for a while. More free memory helps longest.",
        "hugeheap status (free), before and after",
        "Compacting changes nothing that would have to be undone.";
    MemoryLow:
        "Close to its end memory is in pieces, each huge page is paid with reclaim, and the kernel splits huge pages to get at their free parts.",
        "hugeheap status (memory); cat /proc/pressure/memory",
        NO_FIX;
    NodeFull:
        "Huge pages are taken from the node that the program runs on. On a full node the kernel takes OS pages there rather than huge pages of another node.",
        "numastat -m; hugeheap doctor again",
        "numactl --localalloc";
    CgroupTight:
        "A huge page is charged whole. With less room than that, faults take OS pages and a collapse is refused (EBUSY). What is stranded is in the charge and not in RSS.",
        "cat memory.current memory.max in the group's directory; anon_fault_fallback_charge in hugepages-2048kB/stats rises",
        "Restore the limit.";
    SysReadOnly:
        "Container runtimes mount /sys read-only. Everything can be read; knobs belong to the host.",
        "grep ' /sys ' /proc/self/mountinfo",
        "Remove privileged: true from the pod.";
    CapabilityMissing:
        "Collapsing or splitting memory of another process needs CAP_SYS_NICE, and access as a debugger has it (the same user, or CAP_SYS_PTRACE). One's own process needs neither.",
        "grep CapEff /proc/self/status; capsh --decode=...",
        "Remove the capabilities from the pod, or do without sudo.";
    AddressLimit:
        "hugeheap reserves address space, not memory, and asks for less when the limit does not allow it. The limit also counts what is reserved and never touched, so it limits memory badly.",
        "ulimit -v",
        "ulimit -v N, with the old limit";
    NestedPaging:
        "With nested paging each address is translated by the guest's and by the host's tables. The TLB holds a 2 MiB entry only where both have a huge page. With OS pages on the host the gain is in shorter walks, and in fewer faults.",
        "on the host: grep AnonHugePages /proc/PID-OF-QEMU/smaps_rollup",
        "Start the virtual machine without the backing again.";
    FreePageReporting:
        "Free blocks of 2 MiB are reported to the hypervisor two seconds after they were freed, and their memory goes back to it. Touching it again waits until the hypervisor has found other memory: twenty times as long and more. While it takes memory, programs in this machine stand still for up to tens of milliseconds.",
        "where /sys/bus/virtio/devices/virtio*/device is 0x0005, the sixth character of features beside it is 1",
        "Start the virtual machine with free page reporting again.";
    CountersMissing:
        "Most virtual machines have no counters for TLB misses. hugeheap bench then says 'not supported' in that column and tells faults, coverage and page tables.",
        "perf stat -e dTLB-load-misses true",
        NO_FIX;
    CountersDenied:
        "kernel.perf_event_paranoid above 2 closes counters to all but root and CAP_PERFMON. Distributions do that.",
        "cat /proc/sys/kernel/perf_event_paranoid",
        "sysctl kernel.perf_event_paranoid=N, with the old value";
    ShellThpOff:
        "PR_SET_THP_DISABLE is inherited over fork and exec. A service manager or a parent set it; nothing started from here gets a transparent huge page, whatever it asks, and neither collapse nor khugepaged helps.",
        "grep THP_enabled /proc/self/status",
        "hugeheap thp set --for off -- COMMAND";
    ShellThpAdvised:
        "Since Linux 6.18 the switch can leave advised memory alone. hugeheap advises its arenas, so it is not affected; programs that rely on mode always are.",
        "python3 -c 'import ctypes; print(ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))' prints 3",
        "hugeheap thp set --for advised -- COMMAND";
    ProcessThpOff:
        "The process, or who started it, called prctl(PR_SET_THP_DISABLE). It gets no transparent huge page, and a collapse from outside is refused (EINVAL). Only the process itself can take it back.",
        "grep THP_enabled /proc/PID/status",
        "Start it without hugeheap thp set again.";
    ProcessNotHuge:
        "The process has memory that would fit huge pages and has few. Reasons: it does not ask (mode madvise), its mappings are smaller than 2 MiB or not aligned, or no huge page was free when it was touched.",
        "hugeheap map PID shows the reason for each mapping",
        "hugeheap release PID splits nothing that is in use; restart the program to have it as it was.";
    MergeOff:
        "Whoever asks for merging has OS pages of sparse heaps made alike, for the kernel to keep one for several (KSM). Pages that nobody merges would have lost their huge pages for nothing, so nothing is made alike while ksm/run is 0 (off) or 2 (off, and what was merged taken apart). The process counts no_merging.",
        "cat /sys/kernel/mm/ksm/run; afterwards pages_sharing beside it rises while heaps are idle",
        "echo 2 > /sys/kernel/mm/ksm/run, which also takes apart what was merged; 0 leaves that as it is.";
    MergeSlow:
        "The kernel's thread looks at pages_to_scan OS pages, then sleeps sleep_millisecs. A page is merged when two rounds over all that is to be merged on the host saw the same contents. At the default, 100 pages each 20 ms, that is 20 MiB/s; with 5,000 it is 1 GiB/s, and up to a whole processor while a round lasts.",
        "cat /sys/kernel/mm/ksm/full_scans, a minute apart",
        "echo 100 > /sys/kernel/mm/ksm/pages_to_scan (or what it was)";
    TargetStatic:
        "hugeheap run works through the dynamic loader (LD_PRELOAD). A static program has none.",
        "file PROGRAM",
        NO_FIX;
    TargetLibc:
        "The library is built for the GNU C library. Loaded into a program of another one (musl in Alpine images) it would crash it, so hugeheap run leaves it out and says so.",
        "file PROGRAM: the interpreter it names",
        NO_FIX;
    TargetMachine:
        "A library can be loaded only into a program of the same machine and word size.",
        "file PROGRAM",
        NO_FIX;
    TargetSecure:
        "For programs that gain privileges at their start (set-user-ID, set-group-ID, file capabilities) the dynamic loader ignores LD_PRELOAD, without a word.",
        "ls -l PROGRAM; getcap PROGRAM",
        "Give the bit or the capability back: chmod u+s, setcap.";
    TargetWrapper:
        "The command is a shell script. hugeheap run goes through it and reaches what it starts, by the environment; which program that is cannot be told without running it.",
        "hugeheap run --summary -- COMMAND names the processes that were hooked",
        NO_FIX;
    TargetNoRuntime:
        "hugeheap run puts CPython's objects on huge pages, and what a Ruby allocates. Another program runs as it is, with the library loaded and idle, unless level malloc is asked for.",
        "hugeheap run --summary -- COMMAND: state not_python",
        NO_FIX;
    PythonOld:
        "The hooks exist since 3.4 and take sizes from the calls, so older versions work as far as is known. They are not tested.",
        "hugeheap run --summary -- python3 ...: state hooked",
        NO_FIX;
    PythonOther:
        "PyPy, GraalPy and others have a garbage-collected heap of their own that no hook reaches.",
        "python3 -c 'import sys; print(sys.implementation.name)'",
        NO_FIX;
    PythonFreeThreaded:
        "Free-threaded builds keep objects in a mimalloc of their own; only data-stack chunks would come through the hook, so it is not installed (state free_threaded).",
        "python3 -c 'import sysconfig; print(sysconfig.get_config_var(\"Py_GIL_DISABLED\"))'",
        NO_FIX;
    PythonAllocator:
        "PYTHONMALLOC chooses another allocator than pymalloc. Arenas do not come from the hook then, but for data-stack chunks (state other_allocator).",
        "env | grep PYTHONMALLOC",
        "Set PYTHONMALLOC again.";
    PythonOwnHugePages:
        "CPython 3.15 can be built to take its arenas from the hugetlb pool, and does when PYTHON_PYMALLOC_HUGEPAGES is set. It falls back silently when the pool is empty, and a forked child may die. hugeheap does not hook such a process (state own_huge_pages).",
        "env | grep PYTHON_PYMALLOC_HUGEPAGES",
        "Set PYTHON_PYMALLOC_HUGEPAGES again.";
    RubyThpOff:
        "CRuby calls prctl(PR_SET_THP_DISABLE) at its start, since 2.6, so that less is copied when forked children write. Asked just now, this one had THP_enabled 0. Its children inherit it. Under hugeheap run the call holds for what Ruby maps itself, its object pages, and not for what it allocates.",
        "ruby -e 'puts File.read(\"/proc/self/status\")[/THP_enabled.*/]'",
        NO_FIX;
}

/// The explanation of a code. There is one for each: a test says so.
pub(crate) fn of(code: Code) -> Option<&'static Explanation> {
    ALL.iter().find(|explanation| explanation.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_explanation_in_the_order_of_the_codes() {
        let explained: Vec<_> = ALL.iter().map(|explanation| explanation.code).collect();
        assert_eq!(explained, Code::ALL);
    }

    #[test]
    fn explanations_say_something_in_each_part() {
        for explanation in ALL {
            for part in [explanation.mechanism, explanation.verify, explanation.undo] {
                assert!(part.len() > 5 && part.trim() == part, "{:?}: {part:?}", explanation.code);
            }
        }
    }
}
