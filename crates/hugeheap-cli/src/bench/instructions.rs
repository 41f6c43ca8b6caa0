//! Instructions and cycles per object: the difference between two runs with different counts, so that what a
//! program does once is not in it.
//!
//! By the CPU's counters where the machine has them; else by callgrind, which executes the program itself and
//! is exact, but knows no cycles.

use super::counters::{Counters, NAMES};
use super::process;
use super::subject::{Subject, on_path};
use crate::descriptors::told;
use serde_json::{Value, json};
use std::process::Stdio;

/// How instructions are counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    Hardware,
    Callgrind,
}

/// What one object costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) instructions: f64,
    pub(crate) cycles: Option<f64>,
}

impl Counted {
    pub(crate) fn json(self) -> Value {
        json!({"instructions": self.instructions, "cycles": self.cycles})
    }
}

impl Counting {
    /// What there is.
    ///
    /// # Errors
    /// One line with what to do.
    pub(crate) fn here() -> Result<Self, String> {
        let index = |name| NAMES.iter().position(|known| *known == name).unwrap_or(0);
        let refusal = match Counters::open() {
            // Some machines have a few counters and not this one.
            Ok(counters) if counters.has(index("instructions")) => return Ok(Self::Hardware),
            Ok(_) => "not supported: this machine does not count instructions".to_owned(),
            Err(why) => why,
        };
        match on_path("valgrind") {
            Some(_) => Ok(Self::Callgrind),
            None => Err(format!("hardware counters: {refusal}; callgrind: not found, install valgrind")),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware counters",
            Self::Callgrind => "callgrind",
        }
    }

    /// What an object costs, by runs that allocate as many as `counts` say. `words`: the arguments for a count.
    ///
    /// # Errors
    /// One line when the program fails.
    pub(crate) fn count(
        self,
        subject: &Subject,
        counts: [u64; 2],
        words: impl Fn(u64) -> Vec<String>,
    ) -> Result<Counted, String> {
        let [few, many] = [self.run(subject, &words(counts[0]))?, self.run(subject, &words(counts[1]))?];
        let each = |few: u64, many: u64| (many as f64 - few as f64) / (counts[1] - counts[0]) as f64;
        Ok(Counted {
            instructions: each(few.0, many.0),
            cycles: few.1.zip(many.1).map(|(few, many)| each(few, many)),
        })
    }

    /// Instructions and cycles of a whole process.
    fn run(self, subject: &Subject, words: &[String]) -> Result<(u64, Option<u64>), String> {
        match self {
            Self::Hardware => {
                let counters = Counters::open()?;
                let measured = process::measure(&mut subject.command(words), Some(counters))?;
                let counts = measured.counters.ok_or("no counts")?;
                let of = |name| NAMES.iter().position(|known| *known == name).and_then(|index| counts[index]);
                Ok((of("instructions").ok_or("instructions were not counted")?, of("cycles")))
            }
            Self::Callgrind => {
                let starter = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];
                let output = subject.behind(&starter, words).stdin(Stdio::null()).output();
                let output = output.map_err(|error| {
                    format!("valgrind could not be started: {error}", error = told(&error))
                })?;
                let said = String::from_utf8_lossy(&output.stderr);
                let count = collected(&said).filter(|_| output.status.success());
                let last = || said.lines().last().unwrap_or("no message").to_owned();
                count.map(|count| (count, None)).ok_or_else(|| format!("under callgrind: {}", last()))
            }
        }
    }
}

/// The count in what callgrind says in the end: `==5== Collected : 12207769`.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_count_is_found() {
        assert_eq!(collected("==5== Events    : Ir\n==5== Collected : 12207769\n==5==\n"), Some(12_207_769));
        assert_eq!(collected("==5== Command: x\n"), None);
    }

    #[test]
    fn what_a_program_does_once_is_not_counted() {
        let Ok(counting) = Counting::here() else {
            eprintln!("nothing counts instructions here: nothing to test");
            return;
        };
        let subject = Subject::new("sh", "", &["sh".as_ref(), "-c".as_ref()], true);
        let words = |count: u64| vec![format!("i=0; while [ $i -lt {count} ]; do i=$((i+1)); done")];
        let counted = counting.count(&subject, [100, 1100], words).unwrap();
        assert!((50.0..100_000.0).contains(&counted.instructions), "{counted:?}");
    }
}
