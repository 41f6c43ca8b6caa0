//! The host in a few words: what is above the list.

use crate::output::grouped;
use crate::status::facts::{self, value_of};
use crate::status::word;
use crate::thp::catalogue::short_size;
use core::time::Duration;
use hugeheap_os::linux::Linux;
use hugeheap_os::{Facts, HugetlbPool, ThpDefrag, ThpMode};
use serde_json::{Value, json};

/// How long what was read is shown before it is read again: some of the files list what all processors counted.
const AGE: Duration = Duration::from_millis(1900);

/// What is known of the host. In bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub(crate) read: Option<Duration>,
    pub(crate) thp: Option<(ThpMode, ThpDefrag)>,
    pub(crate) total: Option<u64>,
    pub(crate) available: Option<u64>,
    /// Anonymous memory, and how much of it is on huge pages.
    pub(crate) anonymous: Option<u64>,
    pub(crate) huge: Option<u64>,
    /// The most that is stranded: the size of all huge pages of which a part is mapped.
    pub(crate) stranded: Option<u64>,
    /// Free memory in pieces of a huge page or more.
    pub(crate) free_huge: Option<u64>,
    pub(crate) pools: Option<Vec<HugetlbPool>>,
}

impl Host {
    /// Reads it again, unless it was read a moment ago.
    pub(crate) fn refresh(&mut self, linux: Linux) {
        let now = linux.now();
        if self.read.is_some_and(|read| now.saturating_sub(read) < AGE) {
            return;
        }
        let knobs = linux.knobs();
        let pages = linux.page_sizes();
        let meminfo = knobs.text("/proc/meminfo").unwrap_or_default();
        let partial: Vec<u64> =
            facts::sizes(&knobs).iter().filter_map(|size| Some(size.partial? * size.bytes)).collect();
        let zones = facts::zones(&knobs.text("/proc/buddyinfo").unwrap_or_default());
        let huge_page = pages.huge.filter(|_| !zones.is_empty());
        *self = Self {
            read: Some(now),
            thp: linux.thp().ok().map(|thp| (thp.mode, thp.defrag)),
            total: value_of(&meminfo, "MemTotal"),
            available: value_of(&meminfo, "MemAvailable"),
            anonymous: value_of(&meminfo, "AnonPages"),
            huge: value_of(&meminfo, "AnonHugePages"),
            stranded: (!partial.is_empty()).then(|| partial.iter().sum()),
            free_huge: huge_page.map(|huge| facts::free(zones.iter(), pages.os as u64, huge as u64).huge),
            pools: linux.hugetlb_pools().ok(),
        };
    }

    /// It in pieces, what matters most first; `bytes` writes a number of them.
    pub(crate) fn words(&self, bytes: impl Fn(u64) -> String) -> Vec<String> {
        let mut words = vec![match self.thp {
            Some((mode, defrag)) => format!("THP {}, defrag {}", word(mode), word(defrag)),
            None => "no THP".to_owned(),
        }];
        if let (Some(huge), Some(all)) = (self.huge, self.anonymous) {
            let share = if all == 0 { 0.0 } else { 100.0 * huge as f64 / all as f64 };
            words.push(format!("huge {} of {} ({share:.0} %)", bytes(huge), bytes(all)));
        }
        words.push(match self.stranded {
            Some(0) => "stranded nothing".to_owned(),
            Some(most) => format!("stranded at most {}", bytes(most)),
            None => "stranded not counted by this kernel".to_owned(),
        });
        if let Some(free) = self.free_huge {
            words.push(format!("free in huge pages {}", bytes(free)));
        }
        let pools = self.pools.iter().flatten().filter(|pool| pool.total > 0 || pool.overcommit > 0);
        let pools: Vec<String> = pools
            .map(|pool| {
                let size = short_size(pool.page_size as u64);
                format!("{} × {size}, {} free", grouped(pool.total), grouped(pool.available()))
            })
            .collect();
        words.push(if pools.is_empty() {
            "pools none".to_owned()
        } else {
            format!("pools {}", pools.join("; "))
        });
        if let (Some(available), Some(total)) = (self.available, self.total) {
            words.push(format!("memory {} available of {}", bytes(available), bytes(total)));
        }
        words
    }

    pub(crate) fn json(&self) -> Value {
        let pools = self.pools.iter().flatten();
        json!({
            "thp_mode": self.thp.map(|(mode, _)| word(mode)),
            "thp_defrag": self.thp.map(|(_, defrag)| word(defrag)),
            "memory": {"total": self.total, "available": self.available},
            "anonymous": self.anonymous,
            "anonymous_huge": self.huge,
            "stranded_at_most": self.stranded,
            "free_in_huge_pages": self.free_huge,
            "pools": pools.map(|pool| json!({
                "page_size": pool.page_size,
                "total": pool.total,
                "free": pool.free,
                "reserved": pool.reserved,
            })).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::bytes;

    #[test]
    fn what_is_not_known_is_said_or_left_out() {
        let words = Host::default().words(bytes);
        assert_eq!(words, ["no THP", "stranded not counted by this kernel", "pools none"]);
        let host = Host {
            thp: Some((ThpMode::Madvise, ThpDefrag::DeferMadvise)),
            stranded: Some(4 << 20),
            huge: Some(1 << 20),
            anonymous: Some(4 << 20),
            pools: Some(vec![HugetlbPool {
                page_size: 2 << 20,
                total: 10,
                free: 4,
                reserved: 1,
                surplus: 0,
                overcommit: 0,
            }]),
            ..Host::default()
        };
        let words = host.words(bytes);
        assert_eq!(
            words,
            [
                "THP madvise, defrag defer+madvise",
                "huge 1.0 MiB of 4.0 MiB (25 %)",
                "stranded at most 4.0 MiB",
                "pools 10 × 2M, 3 free"
            ]
        );
        let host = Host { total: Some(16), available: Some(12), free_huge: Some(10), ..host };
        assert_eq!(
            host.json(),
            json!({
                "thp_mode": "madvise",
                "thp_defrag": "defer+madvise",
                "memory": {"total": 16, "available": 12},
                "anonymous": 4 << 20,
                "anonymous_huge": 1 << 20,
                "stranded_at_most": 4 << 20,
                "free_in_huge_pages": 10,
                "pools": [{"page_size": 2 << 20, "total": 10, "free": 4, "reserved": 1}],
            })
        );
    }
}
