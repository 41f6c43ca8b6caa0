//! The codes of findings. A code is stable: scripts and alerts name it. It is never given another meaning.

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Good to know; often as it should be.
    Notice,
    /// Costs huge pages, or will surprise somebody.
    Warning,
    /// There are no huge pages at all.
    Error,
}

impl Level {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

macro_rules! codes {
    ($($variant:ident $name:literal $level:ident;)*) => {
        /// What can be found.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Code { $($variant),* }

        impl Code {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            pub(crate) const fn level(self) -> Level {
                match self { $(Self::$variant => Level::$level),* }
            }
        }
    };
}

codes! {
    ThpMissing "HH-THP-MISSING" Error;
    ThpClosed "HH-THP-CLOSED" Warning;
    ThpNever "HH-THP-NEVER" Warning;
    ThpSizeNever "HH-THP-SIZE-NEVER" Warning;
    ThpAlways "HH-THP-ALWAYS" Notice;
    DefragAlways "HH-DEFRAG-ALWAYS" Notice;
    DefragNone "HH-DEFRAG-NONE" Notice;
    KhugepagedSlow "HH-KHUGEPAGED-SLOW" Notice;
    KhugepagedNoDefrag "HH-KHUGEPAGED-NO-DEFRAG" Notice;
    KhugepagedFills "HH-KHUGEPAGED-FILLS" Notice;
    MthpOn "HH-MTHP-ON" Notice;
    KernelNoCollapse "HH-KERNEL-NO-COLLAPSE" Notice;
    KernelNoSplit "HH-KERNEL-NO-SPLIT" Notice;
    KernelNoScan "HH-KERNEL-NO-SCAN" Notice;
    PoolUsedUp "HH-POOL-USED-UP" Warning;
    PoolIdle "HH-POOL-IDLE" Warning;
    PoolLimit "HH-POOL-LIMIT" Warning;
    PoolUneven "HH-POOL-UNEVEN" Notice;
    PoolFork "HH-POOL-FORK" Notice;
    Fragmented "HH-FRAGMENTED" Warning;
    MemoryLow "HH-MEMORY-LOW" Warning;
    NodeFull "HH-NODE-FULL" Notice;
    CgroupTight "HH-CGROUP-TIGHT" Warning;
    SysReadOnly "HH-SYS-READ-ONLY" Notice;
    CapabilityMissing "HH-CAPABILITY-MISSING" Notice;
    AddressLimit "HH-ADDRESS-LIMIT" Notice;
    NestedPaging "HH-NESTED-PAGING" Notice;
    FreePageReporting "HH-FREE-PAGE-REPORTING" Notice;
    CountersMissing "HH-COUNTERS-MISSING" Notice;
    CountersDenied "HH-COUNTERS-DENIED" Notice;
    ShellThpOff "HH-SHELL-THP-OFF" Warning;
    ShellThpAdvised "HH-SHELL-THP-ADVISED" Notice;
    ProcessThpOff "HH-PROCESS-THP-OFF" Warning;
    ProcessNotHuge "HH-PROCESS-NOT-HUGE" Notice;
    MergeOff "HH-MERGE-OFF" Warning;
    MergeSlow "HH-MERGE-SLOW" Notice;
    TargetStatic "HH-TARGET-STATIC" Warning;
    TargetLibc "HH-TARGET-LIBC" Warning;
    TargetMachine "HH-TARGET-MACHINE" Warning;
    TargetSecure "HH-TARGET-SECURE" Warning;
    TargetWrapper "HH-TARGET-WRAPPER" Notice;
    TargetNoRuntime "HH-TARGET-NO-RUNTIME" Notice;
    PythonOld "HH-PYTHON-OLD" Notice;
    PythonOther "HH-PYTHON-OTHER" Warning;
    PythonFreeThreaded "HH-PYTHON-FREE-THREADED" Warning;
    PythonAllocator "HH-PYTHON-ALLOCATOR" Warning;
    PythonOwnHugePages "HH-PYTHON-OWN-HUGE-PAGES" Notice;
    RubyThpOff "HH-RUBY-THP-OFF" Warning;
}

impl Code {
    /// The code a user means: with or without `HH-`, in any case.
    pub(crate) fn find(text: &str) -> Option<Self> {
        let name = text.to_ascii_uppercase();
        let is = |code: &&Self| code.name() == name || code.name().strip_prefix("HH-") == Some(&name);
        Self::ALL.iter().find(is).copied()
    }
}

/// Something found, and what to do about it. Each text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) code: Code,
    pub(crate) what: String,
    pub(crate) fix: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_found_as_people_type_them() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        assert_eq!(Code::find("thp-never"), Some(Code::ThpNever));
        assert_eq!(Code::find("HH-THP-NEVER"), Some(Code::ThpNever));
        assert_eq!(Code::find("HH-NOTHING"), None);
    }
}
