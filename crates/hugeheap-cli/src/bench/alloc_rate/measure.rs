//! The jobs: what runs, on what, how often; and what a run tells.

use super::worker::{Kind, Told};
use crate::bench::process;
use crate::bench::subject::Subject;
use std::process::Command;

/// Which table a job belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The loop with objects of 16 bytes, in every language.
    Programs,
    /// Other sizes of objects.
    Sizes,
    /// Other sizes of the nursery.
    Nurseries,
}

impl Part {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Programs => "programs",
            Self::Sizes => "sizes",
            Self::Nurseries => "nurseries",
        }
    }
}

/// One loop to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) part: Part,
    /// Place of the program in the plan.
    pub(crate) subject: usize,
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
    /// 0: as hugeheap chooses.
    pub(crate) nursery: u64,
    pub(crate) count: u64,
}

impl Job {
    /// For lines about the progress, and in JSON.
    pub(crate) fn name(&self, subject: &Subject) -> String {
        let kind = kind_name(self.kind);
        match self.part {
            Part::Programs => format!("{}, {kind}", subject.name),
            Part::Sizes => format!("{} bytes, {kind}", self.bytes),
            Part::Nurseries => format!("nursery of {} KiB, {kind}", self.nursery >> 10),
        }
    }

    /// The arguments for a count of objects.
    pub(crate) fn words(&self, subject: &Subject, count: u64) -> Vec<String> {
        if subject.name == RPYTHON {
            return vec![count.to_string(), u8::from(self.kind == Kind::Field).to_string()];
        }
        let mut words = vec![kind_name(self.kind).to_owned(), count.to_string(), self.bytes.to_string()];
        words.push(self.nursery.to_string());
        words
    }
}

/// The reference's own program, which the user has built.
pub(crate) const RPYTHON: &str = "rpython";

pub(crate) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Plain => "plain",
        Kind::Field => "field",
        Kind::Ring => "ring",
    }
}

/// Whether a program can leave the field as it is: most languages write it in any case.
pub(crate) fn can(subject: &Subject, kind: Kind) -> bool {
    kind == Kind::Field || matches!(subject.name, "hugeheap" | "boehm" | "java" | RPYTHON)
}

/// How many times fewer objects a program allocates, so that no run takes longer than some seconds: RPython is
/// given as fast as we are.
pub(crate) fn fewer(subject: &Subject) -> u64 {
    match subject.name {
        "boehm" => 16,
        "cpython" | "pypy-no-jit" => 64,
        "pypy" | "java" | "ocaml" => 2,
        _ => 1,
    }
}

/// Runs a job once.
///
/// # Errors
/// One line that says how it failed.
pub(crate) fn run(job: &Job, subject: &Subject) -> Result<Told, String> {
    let mut command: Command = subject.command(job.words(subject, job.count));
    let measured = process::measure(&mut command, None)?;
    if subject.name != RPYTHON {
        return measured.told();
    }
    let seconds = rpython_seconds(&measured.stdout)
        .ok_or("printed no line with seconds, as the reference's program does")?;
    Ok(Told { seconds, objects: job.count, bytes: 16, heap: None })
}

/// The seconds in what the reference's program prints: a line `0.433825 s`, or `(0.433825, s)` of versions that
/// print tuples.
fn rpython_seconds(text: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let plain: String = line.chars().filter(|letter| !"(),'".contains(*letter)).collect();
        let words: Vec<_> = plain.split_whitespace().collect();
        match words[..] {
            [number, "s"] => number.parse().ok().filter(|seconds| *seconds > 0.0),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_references_seconds_are_found() {
        let text = "without initialization\n<A object at 0x7c71> <A object at 0x7c72>\n0.433825 s\n14.9 GB\n34.3 GB/s\n";
        assert_eq!(rpython_seconds(text), Some(0.433_825));
        assert_eq!(rpython_seconds("(0.844812, s)\n(14.901161, GB)\n"), Some(0.844_812));
        assert_eq!(rpython_seconds("0.0 s\n"), None);
        assert_eq!(rpython_seconds("nothing\n"), None);
    }
}
