//! Why memory is not on huge pages: pure, from what is known of its mapping and its 2 MiB.
//!
//! The first reason that holds is told, in the order in which they exclude each other: what no setting changes
//! (kind, edge), what the process chose (switch, advice), what the host chose (mode), and last what only has
//! not happened yet.

use crate::process::words;
use hugeheap_os::process::{MappingKind, Unit};
use hugeheap_os::{Advice, ThpMode};

/// From this share of resident OS pages on, 2 MiB are called dense; `hugeheap collapse` takes them.
pub(crate) const DENSE: f64 = 0.9;

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    Kind,
    SwitchedOff,
    Broken,
    AdvisedAgainst,
    Edge,
    ModeNever,
    NotAdvised,
    Unknown,
    Sparse,
    Waiting,
}

impl Why {
    pub(crate) const ALL: [Self; 10] = [
        Self::Waiting,
        Self::NotAdvised,
        Self::Broken,
        Self::Sparse,
        Self::ModeNever,
        Self::AdvisedAgainst,
        Self::SwitchedOff,
        Self::Edge,
        Self::Kind,
        Self::Unknown,
    ];

    /// Its name in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::SwitchedOff => "switched_off",
            Self::Broken => "broken",
            Self::AdvisedAgainst => "advised_against",
            Self::Edge => "edge",
            Self::ModeNever => "mode_never",
            Self::NotAdvised => "not_advised",
            Self::Unknown => "unknown",
            Self::Sparse => "sparse",
            Self::Waiting => "waiting",
        }
    }

    /// It in words.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Kind => "a file or shared memory",
            Self::SwitchedOff => "switched off for the process (PR_SET_THP_DISABLE)",
            Self::Broken => "was huge; a part was given back",
            Self::AdvisedAgainst => "advised against (MADV_NOHUGEPAGE)",
            Self::Edge => "cut by the end of its mapping",
            Self::ModeNever => "the host's mode is never",
            Self::NotAdvised => "not advised, and the host's mode is madvise",
            Self::Unknown => "not known whether it is advised (no time to read smaps)",
            Self::Sparse => "allowed, but less than 90 % of it is used",
            Self::Waiting => "allowed, but no huge page when it was touched",
        }
    }

    /// What helps the process `id` called `name`, if anything does from outside.
    pub(crate) fn remedy(self, id: u32, name: &str) -> String {
        match self {
            Self::NotAdvised | Self::Waiting | Self::ModeNever | Self::Unknown => {
                format!("hugeheap collapse {id}, where dense")
            }
            Self::Broken => format!("hugeheap release {id}, where sparse"),
            Self::SwitchedOff => words::switch_remedy(name, "start it without the switch").to_owned(),
            Self::Kind | Self::AdvisedAgainst | Self::Edge | Self::Sparse => String::new(),
        }
    }
}

/// What is known of a mapping besides its 2 MiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) kind: MappingKind,
    /// The advice; `None` where it could not be read.
    pub(crate) advice: Option<Option<Advice>>,
    pub(crate) switched_off: bool,
    /// The host's mode; `None` where it could not be read.
    pub(crate) mode: Option<ThpMode>,
}

/// Why a unit with resident OS pages is not huge. `broken`: a huge page of which a part is mapped is behind it.
pub(crate) fn why(known: &Known, unit: &Unit, pages: u32, whole: bool, broken: bool) -> Why {
    match known {
        Known { kind: MappingKind::File | MappingKind::Shared | MappingKind::Special, .. } => Why::Kind,
        Known { switched_off: true, .. } => Why::SwitchedOff,
        _ if broken => Why::Broken,
        Known { advice: Some(Some(Advice::NoHuge)), .. } => Why::AdvisedAgainst,
        _ if !whole => Why::Edge,
        Known { mode: Some(ThpMode::Never), .. } => Why::ModeNever,
        Known { mode: Some(ThpMode::Madvise), advice: Some(None), .. } => Why::NotAdvised,
        Known { mode: Some(ThpMode::Madvise) | None, advice: None, .. } => Why::Unknown,
        _ if f64::from(unit.resident()) < DENSE * f64::from(pages) => Why::Sparse,
        _ => Why::Waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeheap_os::AddressRange;

    const PAGES: u32 = 512;

    fn of(change: impl Fn(&mut Known), small: u32, whole: bool, broken: bool) -> Why {
        let mut known = Known {
            kind: MappingKind::Anonymous,
            advice: Some(Some(Advice::Huge)),
            switched_off: false,
            mode: Some(ThpMode::Madvise),
        };
        change(&mut known);
        let unit = Unit { range: AddressRange::new(0, 2 << 20), small, huge: 0, zero: 0, swapped: 0 };
        why(&known, &unit, PAGES, whole, broken)
    }

    #[test]
    fn each_reason_has_its_case() {
        let nothing = |_: &mut Known| {};
        assert_eq!(of(|known| known.kind = MappingKind::File, PAGES, true, false), Why::Kind);
        assert_eq!(of(|known| known.switched_off = true, PAGES, true, false), Why::SwitchedOff);
        assert_eq!(of(nothing, 1, true, true), Why::Broken);
        assert_eq!(
            of(|known| known.advice = Some(Some(Advice::NoHuge)), PAGES, true, false),
            Why::AdvisedAgainst
        );
        assert_eq!(of(nothing, PAGES, false, false), Why::Edge);
        assert_eq!(of(|known| known.mode = Some(ThpMode::Never), PAGES, true, false), Why::ModeNever);
        assert_eq!(of(|known| known.advice = Some(None), PAGES, true, false), Why::NotAdvised);
        assert_eq!(of(|known| known.advice = None, PAGES, true, false), Why::Unknown);
        assert_eq!(of(nothing, 460, true, false), Why::Sparse);
        assert_eq!(of(nothing, 461, true, false), Why::Waiting);
        // Under mode always no advice is needed, and none need be known.
        let always =
            |advice| move |known: &mut Known| (known.mode, known.advice) = (Some(ThpMode::Always), advice);
        assert_eq!(of(always(Some(None)), PAGES, true, false), Why::Waiting);
        assert_eq!(of(always(None), PAGES, true, false), Why::Waiting);
    }

    #[test]
    fn a_ruby_is_not_told_to_start_without_its_own_switch() {
        assert_eq!(Why::SwitchedOff.remedy(7, "ruby"), words::RUBY_SWITCH);
        assert_eq!(Why::SwitchedOff.remedy(7, "app"), "start it without the switch");
    }

    #[test]
    fn every_reason_is_listed_once() {
        let mut names: Vec<_> = Why::ALL.iter().map(|why| why.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Why::ALL.len());
    }
}
