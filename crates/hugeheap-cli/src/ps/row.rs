//! One process in the list: what is known of it, and where that comes from. Pure.

use super::arguments::Sort;
use core::time::Duration;
use hugeheap_os::process::{MappingDetail, ProcessStatus};
use hugeheap_os::{ThpDisabled, ThpMode};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Time the kernel takes to write smaps: per page of page tables (measured: 38 µs with 500 MB of objects), and
/// for the mappings of any process (0.3 ms for 100 of them).
const SMAPS_PER_TABLE: Duration = Duration::from_micros(40);
const SMAPS_AT_LEAST: Duration = Duration::from_micros(300);

/// What smaps costs for a process whose page tables have this size in bytes.
pub(crate) fn cost(page_tables: u64, os_page: usize) -> Duration {
    let tables = u32::try_from(page_tables / os_page as u64).unwrap_or(u32::MAX);
    SMAPS_AT_LEAST + SMAPS_PER_TABLE * tables
}

/// Sums over the mappings of a process. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) resident: u64,
    pub(crate) huge: u64,
    /// Resident, without a file, in mappings that may have huge pages, and not on one.
    pub(crate) eligible: u64,
}

/// Adds the mappings up.
pub(crate) fn sums(details: &[MappingDetail]) -> Sums {
    let mut sums = Sums { resident: 0, huge: 0, eligible: 0 };
    for detail in details {
        sums.resident += detail.resident;
        sums.huge += detail.huge;
        if detail.eligible == Some(true) {
            sums.eligible += detail.anonymous.saturating_sub(detail.huge);
        }
    }
    sums
}

/// Why a process's mappings were not summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// There was no time.
    Budget,
    /// Not allowed.
    Permission,
    /// The kernel wrote nothing that could be understood.
    Failed,
}

impl Unread {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Permission => "permission",
            Self::Failed => "failed",
        }
    }
}

/// How what is stranded was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The host's counter says that there is none at all.
    Host,
    /// The physical pages behind the process's page tables.
    Folios,
}

impl Source {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host_counter",
            Self::Folios => "folios",
        }
    }
}

/// Whether a process may have transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thp {
    /// As the host's mode allows.
    On,
    /// The process switched them off.
    OffByItself,
    /// The process that started it had switched them off.
    OffInherited(u32),
    /// The host's mode is `never`.
    OffOnHost,
    /// The kernel does not tell (before 5.0).
    Unknown,
}

impl Thp {
    pub(crate) fn text(self) -> String {
        match self {
            Self::On => "on".to_owned(),
            Self::OffByItself => "off: by itself".to_owned(),
            Self::OffInherited(parent) => format!("off: inherited from {parent}"),
            Self::OffOnHost => "off: host".to_owned(),
            Self::Unknown => "–".to_owned(),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::OffByItself => "off_by_itself",
            Self::OffInherited(_) => "off_inherited",
            Self::OffOnHost => "off_on_host",
            Self::Unknown => "unknown",
        }
    }
}

/// A line of the list.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: u32,
    pub(crate) status: ProcessStatus,
    pub(crate) sums: Result<Sums, Unread>,
    /// Bytes stranded in it, and how that was found out; `None`: not known.
    pub(crate) stranded: Option<(u64, Source)>,
    pub(crate) thp: Thp,
}

impl Row {
    /// Resident memory with hugetlb pages, which RSS leaves out.
    pub(crate) fn resident(&self) -> u64 {
        self.status.resident + self.status.hugetlb
    }

    pub(crate) fn coverage(&self) -> Option<f64> {
        let sums = self.sums.ok().filter(|sums| sums.resident > 0)?;
        Some(sums.huge as f64 / sums.resident as f64)
    }
}

/// Why processes have no transparent huge pages. The switch is inherited over `fork` and `exec`: a parent that
/// has it, too, is taken for where it comes from.
pub(crate) fn switches(statuses: &BTreeMap<u32, ProcessStatus>, mode: Option<ThpMode>) -> BTreeMap<u32, Thp> {
    let off = |status: &ProcessStatus| status.thp_disabled == Some(ThpDisabled::Completely);
    let of = |status: &ProcessStatus| match status.thp_disabled {
        _ if off(status) => match statuses.get(&status.parent) {
            Some(parent) if off(parent) => Thp::OffInherited(status.parent),
            _ => Thp::OffByItself,
        },
        _ if mode == Some(ThpMode::Never) => Thp::OffOnHost,
        None => Thp::Unknown,
        Some(_) => Thp::On,
    };
    statuses.iter().map(|(id, status)| (*id, of(status))).collect()
}

/// Sorts the list. What is not known comes last.
pub(crate) fn sort(rows: &mut [Row], by: Sort) {
    let per_mille = |share: f64| (share * 1e6) as u64;
    let key = |row: &Row| match by {
        Sort::Rss | Sort::Name => Some(row.resident()),
        Sort::Huge => row.sums.ok().map(|sums| sums.huge),
        Sort::Coverage => row.coverage().map(per_mille),
        Sort::Eligible => row.sums.ok().map(|sums| sums.eligible),
        Sort::Stranded => row.stranded.map(|(bytes, _)| bytes),
        Sort::Pid => Some(u64::from(u32::MAX - row.id)),
        Sort::User => Some(u64::from(u32::MAX - row.status.user)),
        Sort::Thp => match row.thp {
            Thp::Unknown => None,
            Thp::On => Some(0),
            Thp::OffOnHost => Some(1),
            Thp::OffInherited(_) => Some(2),
            Thp::OffByItself => Some(3),
        },
    };
    if by == Sort::Name {
        rows.sort_by(|one, other| {
            let key = |row: &Row| (Reverse(row.resident()), row.id);
            one.status.name.cmp(&other.status.name).then_with(|| key(one).cmp(&key(other)))
        });
        return;
    }
    // `None` is less than anything: reversed, it is last.
    rows.sort_by_key(|row| (Reverse(key(row)), Reverse(row.resident()), row.id));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    pub(crate) fn status(name: &str, resident: u64, parent: u32, thp: Option<ThpDisabled>) -> ProcessStatus {
        ProcessStatus {
            name: name.to_owned(),
            resident,
            anonymous: resident,
            hugetlb: 0,
            swapped: 0,
            page_tables: 0,
            thp_disabled: thp,
            has_memory: true,
            ended: false,
            main_thread_ended: false,
            user: 0,
            parent,
        }
    }

    pub(crate) fn row(id: u32, resident: u64, huge: Option<u64>, stranded: Option<u64>) -> Row {
        let sums = huge.map(|huge| Sums { resident, huge, eligible: resident - huge });
        Row {
            id,
            status: status("app", resident, 1, Some(ThpDisabled::No)),
            sums: sums.ok_or(Unread::Budget),
            stranded: stranded.map(|bytes| (bytes, Source::Folios)),
            thp: Thp::On,
        }
    }

    #[test]
    fn what_may_be_huge_and_is_not_is_summed_where_it_is_allowed() {
        let detail = |eligible, anonymous, huge| MappingDetail {
            resident: anonymous,
            anonymous,
            huge,
            eligible,
            ..MappingDetail::default()
        };
        let details =
            [detail(Some(true), 8 * MIB, 2 * MIB), detail(Some(false), 4 * MIB, 0), detail(None, MIB, 0)];
        assert_eq!(sums(&details), Sums { resident: 13 * MIB, huge: 2 * MIB, eligible: 6 * MIB });
    }

    #[test]
    fn smaps_costs_what_the_page_tables_say() {
        assert_eq!(cost(0, 4096), SMAPS_AT_LEAST);
        assert_eq!(cost(MIB, 4096).as_micros(), 300 + 256 * 40);
        assert!(cost(1 << 40, 4096) > Duration::from_secs(1000));
    }

    #[test]
    fn who_switched_huge_pages_off_is_found_by_the_parents() {
        let off = Some(ThpDisabled::Completely);
        let on = Some(ThpDisabled::No);
        let statuses: BTreeMap<u32, ProcessStatus> = [
            (1, status("init", MIB, 0, on)),
            (2, status("ruby", MIB, 1, off)),
            (3, status("worker", MIB, 2, off)),
            (4, status("old", MIB, 1, None)),
        ]
        .into();
        let found: Vec<Thp> = switches(&statuses, Some(ThpMode::Madvise)).into_values().collect();
        assert_eq!(found, [Thp::On, Thp::OffByItself, Thp::OffInherited(2), Thp::Unknown]);
        let found: Vec<Thp> = switches(&statuses, Some(ThpMode::Never)).into_values().collect();
        assert_eq!(found[0], Thp::OffOnHost);
    }

    #[test]
    fn what_is_not_known_is_last() {
        let mut rows =
            vec![row(1, MIB, None, None), row(2, MIB, Some(0), Some(0)), row(3, 4 * MIB, Some(MIB), Some(9))];
        let order = |rows: &[Row]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        for by in [Sort::Huge, Sort::Coverage, Sort::Eligible, Sort::Stranded] {
            sort(&mut rows, by);
            assert_eq!(order(&rows), [3, 2, 1], "{by:?}");
        }
        sort(&mut rows, Sort::Pid);
        assert_eq!(order(&rows), [1, 2, 3]);
        sort(&mut rows, Sort::Rss);
        assert_eq!(order(&rows), [3, 1, 2]);
        (rows[0].status.name, rows[0].status.user) = ("a".to_owned(), 7);
        sort(&mut rows, Sort::User);
        assert_eq!(order(&rows), [1, 2, 3]);
        sort(&mut rows, Sort::Name);
        assert_eq!(order(&rows), [3, 1, 2]);
        // Each by its own number: here the largest of one is the smallest of the other.
        let mut two = [row(1, 4 * MIB, Some(MIB), None), row(2, 4 * MIB, Some(3 * MIB), None)];
        for (by, wanted) in [(Sort::Eligible, [1, 2]), (Sort::Huge, [2, 1]), (Sort::Coverage, [2, 1])] {
            sort(&mut two, by);
            assert_eq!(order(&two), wanted, "{by:?}");
        }
        rows[2].thp = Thp::OffByItself;
        sort(&mut rows, Sort::Thp);
        assert_eq!(order(&rows), [2, 3, 1]);
    }
}
