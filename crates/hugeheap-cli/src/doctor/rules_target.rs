//! The findings about a process or a command. Pure.

use super::codes::{Code, Finding};
use super::rules::add;
use super::situation::{ProcessFacts, Situation};
use super::target::Runtime;
use crate::output::{bytes, shown};
use crate::process::words;
use hugeheap_os::ThpDisabled;

/// Anonymous memory from which on huge pages can pay: the second-level TLB of current CPUs reaches 6 to 8 MiB
/// with OS pages, and a process of this size has a working set beyond that.
const WORTH: u64 = 64 << 20;
/// A process with less coverage than this has not got what it could.
const COVERED: f64 = 0.5;
/// The oldest CPython that hugeheap is tested with.
const OLDEST: [u64; 2] = [3, 10];
/// The first with an option for huge pages of its own.
const OWN_OPTION: [u64; 2] = [3, 15];

pub(super) fn process(situation: &Situation, found: &mut Vec<Finding>) {
    let Some(process) = &situation.process else { return };
    let (id, name) = (process.id, shown(&process.name));
    let is_off = process.switch == Some(ThpDisabled::Completely);
    if is_off {
        let ruby = if name.starts_with("ruby") { "; CRuby does that at its start" } else { "" };
        add(
            found,
            Code::ProcessThpOff,
            format!("{name} ({id}) has transparent huge pages switched off (PR_SET_THP_DISABLE){ruby}"),
            words::switch_remedy(
                &name,
                "start it with hugeheap thp set --for on -- COMMAND; a running process cannot be changed from outside",
            ),
        );
    }
    if let Some(huge) = process.on_huge_pages() {
        let coverage = huge as f64 / process.heap().max(1) as f64;
        if !is_off && process.heap() >= WORTH && coverage < COVERED {
            let how = match process.hooked {
                Some(true) => "it runs on hugeheap",
                _ => "it does not run on hugeheap",
            };
            add(
                found,
                Code::ProcessNotHuge,
                format!(
                    "{name} ({id}) has {} on huge pages of {} ({how})",
                    bytes(huge),
                    bytes(process.heap())
                ),
                more(process),
            );
        }
    }
}

/// What makes more of a process's memory huge.
fn more(process: &ProcessFacts) -> String {
    let against = process.advised_against.unwrap_or(0);
    let open = process.anonymous.saturating_sub(process.huge.unwrap_or(0)).saturating_sub(against);
    let mut fixes = Vec::new();
    if open >= WORTH / 4 || against == 0 {
        fixes.push(format!("hugeheap collapse {} now", process.id));
    }
    if against > open {
        fixes.push(format!(
            "the program advises {} against huge pages (MADV_NOHUGEPAGE), which only it can change",
            bytes(against)
        ));
    }
    if process.python == Some(true) && process.hooked != Some(true) {
        fixes.push("hugeheap run -- COMMAND at its next start".to_owned());
    }
    fixes.join("; ")
}

pub(super) fn target(situation: &Situation, found: &mut Vec<Finding>) {
    let Some(target) = &situation.target else { return };
    let program = target.program.display();
    if let Some((name, text)) = &target.hindrance {
        let (code, fix) = match *name {
            "static" => (Code::TargetStatic, "use a dynamically linked build"),
            "foreign_libc" => (Code::TargetLibc, "use an image with the GNU C library (Debian, not Alpine)"),
            "foreign_machine" => (Code::TargetMachine, "use a program and a hugeheap for the same machine"),
            _ => {
                (Code::TargetSecure, "start it as the user it changes to, without the bit or the capability")
            }
        };
        add(found, code, format!("{program} {text}"), fix);
    }
    if let Some(wrapper) = &target.wrapper {
        add(
            found,
            Code::TargetWrapper,
            format!("{} is a script of {wrapper}: what it starts cannot be told", target.name),
            "name the program that it starts: hugeheap doctor -- PROGRAM",
        );
    }
    match &target.runtime {
        Runtime::Python { implementation, version, free_threaded, own_huge_pages } => {
            let number = [version[0], version[1]];
            let said = target.runtime.text();
            if implementation != "cpython" {
                let what = format!("{said} has an object heap of its own: hugeheap run does nothing for it");
                return add(found, Code::PythonOther, what, "use CPython");
            }
            if *free_threaded {
                let what =
                    format!("{said} keeps objects in its own allocator: hugeheap run does nothing for it");
                add(
                    found,
                    Code::PythonFreeThreaded,
                    what,
                    "use the build with the lock (python3, not python3t)",
                );
            } else if number < OLDEST {
                let what = format!("{said} is older than what hugeheap is tested with (3.10)");
                add(found, Code::PythonOld, what, "use CPython 3.10 or newer, or test it");
            }
            if let Some(allocator) = target.allocator.as_deref().filter(|name| !name.starts_with("pymalloc"))
            {
                add(
                    found,
                    Code::PythonAllocator,
                    format!(
                        "PYTHONMALLOC={allocator} is set: objects do not come from arenas, nor from hugeheap"
                    ),
                    "unset PYTHONMALLOC",
                );
            }
            if number >= OWN_OPTION && (*own_huge_pages || target.asks_huge_pages) {
                let state = if target.asks_huge_pages { "asked for" } else { "built in" };
                add(
                    found,
                    Code::PythonOwnHugePages,
                    format!(
                        "{said} has huge pages of its own {state}: it takes pool pages, and hugeheap stays away while it does"
                    ),
                    "unset PYTHON_PYMALLOC_HUGEPAGES to let hugeheap do it",
                );
            }
        }
        Runtime::Ruby { thp: Some(false), .. } if situation.switch != Some(ThpDisabled::Completely) => add(
            found,
            Code::RubyThpOff,
            format!(
                "{} switches transparent huge pages off for itself at its start (PR_SET_THP_DISABLE)",
                target.runtime.text()
            ),
            words::RUBY_SWITCH,
        ),
        Runtime::Ruby { .. } => {}
        Runtime::Unknown if target.wrapper.is_none() && target.hindrance.is_none() => add(
            found,
            Code::TargetNoRuntime,
            format!(
                "{program} is no interpreter that hugeheap knows: hugeheap run helps Python and Ruby programs unasked"
            ),
            "hugeheap run --level malloc -- COMMAND puts all that it allocates on huge pages; hugeheap collapse PID makes the heap of any running process huge",
        ),
        // A wrapper, and a program that cannot be hooked, were told of already.
        Runtime::Silent(why) if target.wrapper.is_none() && target.hindrance.is_none() => add(
            found,
            Code::TargetNoRuntime,
            format!("{program} is called like an interpreter and did not say which it is: {why}"),
            "start it by hand here: it has to run; CPython from 3.10 on answers",
        ),
        Runtime::Unknown | Runtime::Silent(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::findings;
    use super::super::rules::tests::healthy;
    use super::super::target::TargetFacts;
    use super::*;

    fn codes(runtime: Runtime, asks: bool) -> Vec<Code> {
        let mut situation = healthy();
        situation.target = Some(TargetFacts {
            name: "x".into(),
            program: "/x".into(),
            hindrance: None,
            wrapper: None,
            runtime,
            allocator: None,
            asks_huge_pages: asks,
        });
        findings(&situation).iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_fix_is_one_that_helps_this_process() {
        const MIB: u64 = 1 << 20;
        let python = ProcessFacts {
            id: 7,
            name: "app".into(),
            anonymous: 200 * MIB,
            hugetlb: 0,
            huge: Some(0),
            switch: Some(ThpDisabled::No),
            hooked: Some(false),
            python: Some(true),
            advised_against: Some(0),
            merge: None,
        };
        let found = |process: ProcessFacts| {
            let mut situation = healthy();
            situation.process = Some(process);
            findings(&situation).first().map(|finding| finding.fix.clone())
        };
        let fix = |process| found(process).unwrap();
        let both = "hugeheap collapse 7 now; hugeheap run -- COMMAND at its next start";
        assert_eq!(fix(python.clone()), both);
        assert_eq!(fix(ProcessFacts { hooked: Some(true), ..python.clone() }), "hugeheap collapse 7 now");
        assert_eq!(fix(ProcessFacts { python: Some(false), ..python.clone() }), "hugeheap collapse 7 now");
        let against =
            ProcessFacts { python: Some(false), advised_against: Some(199 * MIB), ..python.clone() };
        assert!(fix(against).starts_with("the program advises 199 MiB against"));
        let partly = |against| {
            let advised_against = Some(against * MIB);
            fix(ProcessFacts { python: Some(false), advised_against, ..python.clone() })
        };
        let collapse = "hugeheap collapse 7 now";
        assert_eq!(partly(100), collapse, "most of what can be had can be had now");
        let both = partly(160);
        assert!(both.starts_with(&format!("{collapse}; the program advises 160 MiB against")), "{both}");
        // On hugetlb pages, all of it is huge.
        assert_eq!(found(ProcessFacts { anonymous: MIB, hugetlb: 200 * MIB, ..python }), None);
    }

    /// Ruby was to be started with the switch on, which it sets itself afterwards. What keeps it on for a part
    /// is hugeheap's library.
    #[test]
    fn a_ruby_that_is_off_is_told_nothing_that_cannot_work() {
        let fix = |name: &str| {
            let mut situation = healthy();
            situation.process = Some(ProcessFacts {
                id: 7,
                name: name.into(),
                anonymous: 0,
                hugetlb: 0,
                huge: Some(0),
                switch: Some(ThpDisabled::Completely),
                hooked: Some(false),
                python: Some(false),
                advised_against: Some(0),
                merge: None,
            });
            let found = findings(&situation);
            let off = found.iter().find(|finding| finding.code == Code::ProcessThpOff);
            off.map(|finding| finding.fix.clone()).unwrap()
        };
        assert_eq!(fix("ruby3.1"), words::RUBY_SWITCH);
        assert!(fix("redis-server").contains("--for on"));
    }

    #[test]
    fn python_is_judged_by_version_and_build() {
        let python = |version, free_threaded, own_huge_pages| Runtime::Python {
            implementation: "cpython".into(),
            version,
            free_threaded,
            own_huge_pages,
        };
        assert_eq!(
            codes(python([3, 12, 1], false, false), true),
            [],
            "before 3.15 the variable means nothing"
        );
        assert_eq!(codes(python([3, 9, 18], false, false), false), [Code::PythonOld]);
        assert_eq!(codes(python([3, 10, 0], false, false), false), [], "the oldest that is tested");
        assert_eq!(codes(python([3, 15, 0], false, true), false), [Code::PythonOwnHugePages]);
        assert_eq!(codes(python([3, 15, 0], false, false), true), [Code::PythonOwnHugePages]);
        assert_eq!(codes(python([3, 8, 1], false, false), false), [Code::PythonOld]);
        assert_eq!(codes(python([3, 14, 0], true, false), false), [Code::PythonFreeThreaded]);
    }
}
