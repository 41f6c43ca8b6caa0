//! The workloads, as every program knows them.
//!
//! | workload | shows |
//! |---|---|
//! | `binary-trees` | trees of two references per node, made and dropped; one stays: the field's first benchmark of collectors |
//! | `gcbench` | Boehm's, Ellis's and Kovac's: trees made from above and from below, one that stays, an array of numbers |
//! | `churn` | a large live set of which random objects are replaced: pauses |
//! | `lru` | a cache that forgets what was used longest ago: a hash table and a list, old objects written all the time |
//! | `pinned` | many objects that must not move among garbage |
//! | `wide-arrays` | arrays of a hundred thousand references and more, written at random places |
//! | `evacuation` | nine of ten objects die at random: what becomes of memory |
//!
//! All programs draw the same random numbers and answer the same check, so that it is seen that they do the same work.

/// One workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    BinaryTrees,
    GcBench,
    Churn,
    Lru,
    Pinned,
    WideArrays,
    Evacuation,
}

impl Workload {
    pub(crate) const ALL: [Self; 7] = [
        Self::BinaryTrees,
        Self::GcBench,
        Self::Churn,
        Self::Lru,
        Self::Pinned,
        Self::WideArrays,
        Self::Evacuation,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::BinaryTrees => "binary-trees",
            Self::GcBench => "gcbench",
            Self::Churn => "churn",
            Self::Lru => "lru",
            Self::Pinned => "pinned",
            Self::WideArrays => "wide-arrays",
            Self::Evacuation => "evacuation",
        }
    }

    pub(crate) const fn description(self) -> &'static str {
        match self {
            Self::BinaryTrees => "trees made and dropped, one stays",
            Self::GcBench => "trees made from above and from below, one stays, an array of numbers",
            Self::Churn => "a large live set of which random objects are replaced",
            Self::Lru => "a cache that forgets what was used longest ago",
            Self::Pinned => "many objects that must not move among garbage",
            Self::WideArrays => "large arrays of references, written at random places",
            Self::Evacuation => "nine of ten objects die at random",
        }
    }

    /// Bytes that an object has at least in any language, without a header: its references and numbers. The
    /// mean where there are several kinds; arrays, which are few, are not counted. A program that allocates
    /// less does other work: OCaml's compiler once made one constant of all leaves of `binary-trees`, and the
    /// checks were the same.
    pub(crate) const fn least_bytes(self) -> u64 {
        match self {
            // Two references.
            Self::BinaryTrees => 16,
            // And two small numbers.
            Self::GcBench => 24,
            // Seven words.
            Self::Churn | Self::Evacuation => 56,
            // An entry of five words, a value of seven.
            Self::Lru => 48,
            // Three words.
            Self::Pinned | Self::WideArrays => 24,
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == text)
    }

    /// Whether what it shows is how long it waits for its collector: of programs that run for seconds with much
    /// that lives.
    pub(crate) const fn is_about_pauses(self) -> bool {
        matches!(self, Self::Churn | Self::Lru | Self::WideArrays)
    }

    /// Whether its size is a depth of trees; else it is bytes.
    pub(crate) const fn is_trees(self) -> bool {
        matches!(self, Self::BinaryTrees | Self::GcBench)
    }
}

/// Random numbers that every language computes alike: 31 bits, of which the upper ones are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new() -> Self {
        Self(42)
    }

    #[inline(always)]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = (self.0 * 1_103_515_245 + 12_345) & 0x7fff_ffff;
        (self.0 * limit) >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_in_every_program() {
        for workload in Workload::ALL {
            assert_eq!(Workload::parse(workload.name()), Some(workload));
            let name = format!("\"{}\"", workload.name());
            assert!(include_str!("programs/boehm.c").contains(&name), "{name}");
            // OCaml cannot pin.
            let ocaml = include_str!("programs/program.ml").contains(&name);
            assert_eq!(ocaml, workload != Workload::Pinned, "{name}");
        }
        assert_eq!(Workload::parse("nothing"), None);
    }

    #[test]
    fn random_numbers_are_below_their_limit_and_spread() {
        let mut random = Random::new();
        let drawn: Vec<_> = (0..1000).map(|_| random.below(10)).collect();
        assert!(drawn.iter().all(|&number| number < 10));
        assert!((0..10).all(|number| drawn.iter().filter(|&&other| other == number).count() > 50));
    }
}
