//! The findings about merging (KSM), for a process or an environment that asks for it. Pure.
//!
//! ```text
//!   asked ──▶ does the host merge? ── no ──▶ HH-MERGE-OFF
//!                     │ yes
//!                     └──▶ two rounds over what is to be merged ── longer than a minute ──▶ HH-MERGE-SLOW
//! ```
//!
//! A host that does not merge is as it should be while nobody asks for it.

use super::codes::{Code, Finding};
use super::rules::add;
use super::situation::{Merging, Situation};
use crate::output::{bytes, seconds, shown};
use core::time::Duration;
use hugeheap_os::ErrorKind;

/// Two rounds should be over by then: a page is merged when the second one finds it as the first did. With the
/// kernel's own setting it is half a minute for a heap of 256 MiB.
const LONG: f64 = 60.0;
/// What is to be merged at least, where the kernel has seen less: it knows no page before its first round. The
/// heap that docs/mechanisms/merging.md measures.
const LEAST: u64 = 256 << 20;
/// OS pages at a time, and the pause between, with which that heap is merged in three seconds.
const PAGES: u64 = 5000;
const PAUSE: Duration = Duration::from_millis(20);

/// Who asks for merging, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// `HUGEHEAP_MERGE` is 1.
    Environment,
    /// The process counts that it could not: a program that asks by itself.
    Counted,
}

impl Asked {
    const fn text(self) -> &'static str {
        match self {
            Self::Environment => "HUGEHEAP_MERGE=1",
            Self::Counted => "it counts no_merging",
        }
    }
}

pub(super) fn merging(situation: &Situation, found: &mut Vec<Finding>) {
    let who = match &situation.process {
        Some(process) => process.merge.map(|asked| {
            format!("{} ({}) asks for merging ({})", shown(&process.name), process.id, asked.text())
        }),
        None => situation
            .merge
            .then(|| format!("what is started here asks for merging ({})", Asked::Environment.text())),
    };
    let Some(who) = who else { return };
    match &situation.merging {
        Ok(merging) if merging.run == 1 => slow(&who, merging, situation.os_page, found),
        Ok(merging) => add(
            found,
            Code::MergeOff,
            format!(
                "{who}, and this host does not merge equal pages (ksm/run is {}): nothing is made alike",
                merging.run
            ),
            "echo 1 > /sys/kernel/mm/ksm/run (as root, for the whole host)",
        ),
        Err(error) if error.kind() == ErrorKind::Missing => add(
            found,
            Code::MergeOff,
            format!("{who}, and this kernel cannot merge equal pages: nothing is made alike"),
            "boot a kernel with CONFIG_KSM, or mount /sys in the container; else leave --merge out",
        ),
        Err(_) => add(
            found,
            Code::MergeOff,
            format!("{who}, and /sys/kernel/mm/ksm/run cannot be read: nothing is made alike"),
            "make /sys readable for the program",
        ),
    }
}

fn slow(who: &str, merging: &Merging, os_page: u64, found: &mut Vec<Finding>) {
    let rate = |pages: u64, pause: Duration| (pages * os_page) as f64 / pause.as_secs_f64();
    let now = rate(merging.pages_to_scan, merging.pause);
    let known = merging.known * os_page;
    let all = known.max(LEAST);
    let time = 2.0 * all as f64 / now;
    // Where the kernel chooses the pace, or it is as fast already, there is nothing to set.
    if merging.chosen_by_kernel || now >= rate(PAGES, PAUSE) || time <= LONG {
        return;
    }
    let pause = if merging.pause > PAUSE {
        format!("; echo {} > /sys/kernel/mm/ksm/sleep_millisecs", PAUSE.as_millis())
    } else {
        String::new()
    };
    let of = if known >= LEAST { "that are to be merged here" } else { "of a sparse heap" };
    add(
        found,
        Code::MergeSlow,
        format!(
            "{who}, and the kernel looks at {}/s: a page is merged after two rounds, and for {} {of} these take {}",
            bytes(now as u64),
            bytes(all),
            if now > 0.0 { seconds(time) } else { "forever".to_owned() }
        ),
        format!(
            "echo {PAGES} > /sys/kernel/mm/ksm/pages_to_scan{pause} (as root; it takes more of a processor)"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::super::rules::findings;
    use super::super::rules::tests::healthy;
    use super::*;
    use hugeheap_os::Error;

    fn merging() -> Merging {
        Merging { run: 1, pages_to_scan: 100, pause: PAUSE, chosen_by_kernel: false, known: 0 }
    }

    /// The finding of an environment that asks.
    fn of(merging: Result<Merging, Error>) -> Option<(Code, String)> {
        let situation = Situation { merge: true, merging, ..healthy() };
        findings(&situation)
            .first()
            .map(|finding| (finding.code, format!("{}: {}", finding.what, finding.fix)))
    }

    #[test]
    fn a_host_that_does_not_merge_is_found_where_it_is_asked_to() {
        for run in [0, 2] {
            let (code, text) = of(Ok(Merging { run, ..merging() })).unwrap();
            assert_eq!(code, Code::MergeOff);
            assert!(text.contains(&format!("ksm/run is {run}")) && text.contains("echo 1 >"), "{text}");
        }
        let (_, text) = of(Err(Error::new("read(2)", libc::ENOENT))).unwrap();
        assert!(text.contains("CONFIG_KSM"), "{text}");
        let (_, text) = of(Err(Error::new("read(2)", libc::EACCES))).unwrap();
        assert!(text.contains("make /sys readable"), "{text}");
        let unasked = Situation { merging: Ok(Merging { run: 0, ..merging() }), ..healthy() };
        assert_eq!(findings(&unasked), []);
    }

    /// 256 MiB with the kernel's own setting: half a minute, as measured. 1.1 GiB are two minutes.
    #[test]
    fn rounds_that_take_minutes_are_found() {
        assert_eq!(of(Ok(merging())), None);
        let (code, text) = of(Ok(Merging { known: 300_000, ..merging() })).unwrap();
        assert_eq!(code, Code::MergeSlow);
        assert!(text.contains("19.5 MiB/s") && text.contains("1.1 GiB that are to be merged here"), "{text}");
        let (_, text) = of(Ok(Merging { pages_to_scan: 20, ..merging() })).unwrap();
        assert!(text.contains("for 256 MiB of a sparse heap"), "{text}");
        assert!(!text.contains("sleep_millisecs"), "{text}");
        let (_, text) = of(Ok(Merging { pause: Duration::from_secs(1), ..merging() })).unwrap();
        assert!(text.contains("echo 20 > /sys/kernel/mm/ksm/sleep_millisecs"), "{text}");
        let (_, text) = of(Ok(Merging { pages_to_scan: 0, ..merging() })).unwrap();
        assert!(text.contains("forever"), "{text}");
    }

    #[test]
    fn a_pace_that_cannot_be_bettered_is_no_finding() {
        let many = Merging { known: 100_000_000, ..merging() };
        assert_eq!(of(Ok(Merging { pages_to_scan: PAGES, ..many })), None);
        assert_eq!(of(Ok(Merging { pause: Duration::ZERO, ..many })), None);
        assert_eq!(of(Ok(Merging { chosen_by_kernel: true, ..many })), None);
        assert!(of(Ok(many)).is_some());
    }
}
