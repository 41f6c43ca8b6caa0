//! Programs for the machines that run operations beside a plain model: made at random, and printed in one line
//! when one fails.

use proptest::prelude::*;

/// One operation: its number and three parameters.
pub(crate) type Code = [u8; 4];

/// The host and the settings at the start.
pub(crate) type Start = [u8; 8];

/// Printed in one line, so that a failure can be pasted into a test.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) start: Start,
    pub(crate) codes: Vec<Code>,
    pub(crate) faulty: bool,
}

impl Program {
    /// Runs it on a machine that is made by `new`, and checks itself in each `step` and at the `end`.
    pub(crate) fn run<M>(&self, new: fn(Start, bool) -> M, step: fn(&mut M, Code), end: fn(M)) {
        let mut machine = new(self.start, self.faulty);
        for &code in &self.codes {
            step(&mut machine, code);
        }
        end(machine);
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({:?}, &{:?}, {})", self.start, self.codes, self.faulty)
    }
}

/// Programs of up to `most` operations of the given kinds, of all kinds when none is given.
pub(crate) fn programs(
    most: usize,
    kinds: &'static [u8],
    faulty: impl Strategy<Value = bool>,
) -> impl Strategy<Value = Program> {
    let code = any::<Code>().prop_map(move |[kind, a, b, c]| {
        [if kinds.is_empty() { kind } else { kinds[kind as usize % kinds.len()] }, a, b, c]
    });
    (any::<Start>(), proptest::collection::vec(code, 1..most), faulty)
        .prop_map(|(start, codes, faulty)| Program { start, codes, faulty })
}

/// `usual` cases, so that the time is known, or as many as `PROPTEST_CASES` says. No files of old failures:
/// those become tests of their own.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    let cases = if asked { default.cases } else { usual };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 2000, ..default }
}
