//! Where findings begin: at what docs/reference/doctor.md says of each, and not before. A finding that comes
//! early is acted upon in vain, one that comes late is none.

use super::codes::Code;
use super::limits::Limit;
use super::rules::findings;
use super::rules::tests::healthy;
use super::situation::{ProcessFacts, Situation};
use crate::pool::plan::Pool;
use crate::status::facts;
use hugeheap_os::{MemoryLevel, NumaNode, ThpDisabled};

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;

fn codes(change: impl FnOnce(&mut Situation)) -> Vec<Code> {
    let mut situation = healthy();
    change(&mut situation);
    findings(&situation).iter().map(|finding| finding.code).collect()
}

fn pool(total: u64) -> Pool {
    Pool { page: HUGE, node: None, total, unused: total, reserved: Some(0), surplus: 0, overcommit: Some(0) }
}

#[test]
fn khugepaged_is_slow_when_it_needs_more_than_a_day() {
    // 4,096 pages in ten seconds are 1.6 MiB/s.
    let day = 4096 * 4096 * 8640;
    let of = |total| codes(|host| host.total = Some(total));
    assert_eq!((of(day - HUGE), of(day + HUGE)), (vec![], vec![Code::KhugepagedSlow]));
}

#[test]
fn khugepaged_fills_when_one_os_page_is_enough_for_it() {
    let of = |none| {
        codes(|host| {
            let mut thp = host.thp.unwrap();
            thp.khugepaged = thp.khugepaged.map(|mut daemon| {
                daemon.max_ptes_none = none;
                daemon
            });
            host.thp = Ok(thp);
        })
    };
    assert_eq!((of(510), of(511)), (vec![], vec![Code::KhugepagedFills]));
}

#[test]
fn a_pool_is_idle_from_a_twentieth_of_memory_on() {
    // Of 16 GiB that is 819.2 MiB.
    let of = |pages| codes(|host| host.pools = vec![pool(pages)]);
    assert_eq!((of(409), of(410)), (vec![Code::PoolFork], vec![Code::PoolIdle, Code::PoolFork]));
}

#[test]
fn a_pool_that_a_group_may_use_up_is_no_finding() {
    let of = |pages| {
        codes(|host| {
            host.pools = vec![pool(10)];
            host.pool_limits = vec![Limit { page: HUGE, bytes: pages * HUGE, of_reservations: false }];
        })
    };
    assert_eq!((of(10), of(9)), (vec![Code::PoolFork], vec![Code::PoolLimit, Code::PoolFork]));
}

/// The pool is empty until somebody asks for a page, and may be again by the time a child writes.
#[test]
fn a_pool_that_is_made_on_demand_is_one() {
    assert_eq!(codes(|host| host.pools = vec![Pool { overcommit: Some(10), ..pool(0) }]), [Code::PoolFork]);
    assert_eq!(codes(|host| host.pools = vec![pool(0)]), []);
}

/// On a busy host little is free, in small pieces, and a huge page is made by dropping caches.
#[test]
fn free_memory_is_in_pieces_when_there_is_some_and_a_tenth_of_it_is_not() {
    // Blocks of one OS page, and of a huge page, in huge pages.
    let of = |small: u64, huge: u64| {
        let text = format!("Node 0, zone Normal {} 0 0 0 0 0 0 0 0 {huge} 0\n", small * 512);
        codes(|host| host.zones = facts::zones(&text))
    };
    assert_eq!((of(63, 0), of(64, 0)), (vec![], vec![Code::Fragmented]));
    assert_eq!((of(900, 100), of(901, 99)), (vec![], vec![Code::Fragmented]));
}

#[test]
fn where_all_memory_is_low_no_node_is_told_of() {
    let full = |id| NumaNode { id, total: 8 << 30, free: 1 << 20 };
    let of = |available| {
        codes(|host| {
            host.nodes = vec![full(0), full(1)];
            host.available = Some(available);
        })
    };
    assert_eq!(of(100 * MIB), [Code::MemoryLow]);
    assert_eq!(of(8 << 30), [Code::NodeFull, Code::NodeFull]);
}

#[test]
fn a_limit_is_tight_below_sixteen_huge_pages() {
    let of = |room| {
        let charge = (1 << 30) - room;
        codes(|host| host.levels = vec![MemoryLevel { limit: 1 << 30, charge, kept: Some(charge) }])
    };
    assert_eq!((of(16 * HUGE), of(16 * HUGE - 4096)), (vec![], vec![Code::CgroupTight]));
}

#[test]
fn counters_are_closed_to_who_has_neither_the_level_nor_a_capability() {
    const PERFMON: u64 = 1 << 38;
    let of = |paranoid, capabilities: u64| {
        codes(|host| {
            host.calls.hardware_counters = false;
            host.paranoid = Some(paranoid);
            host.capabilities = Some(1 << 23 | 1 << 19 | capabilities);
        })
    };
    assert_eq!(of(3, 0), [Code::CountersDenied]);
    // Open to all, or to this one: then there are none.
    for (paranoid, capabilities) in [(2, 0), (3, PERFMON), (3, 1 << 21)] {
        assert_eq!(of(paranoid, capabilities), [Code::CountersMissing], "{paranoid}");
    }
}

#[test]
fn a_process_has_less_than_it_could_below_half_of_sixty_four_mebibytes_and_more() {
    let of = |anonymous, huge| {
        codes(|host| {
            host.process = Some(ProcessFacts {
                id: 7,
                name: "python3".into(),
                anonymous,
                hugetlb: 0,
                huge: Some(huge),
                switch: Some(ThpDisabled::No),
                hooked: Some(false),
                python: Some(true),
                advised_against: Some(0),
                merge: None,
            });
        })
    };
    assert_eq!((of(63 * MIB, 0), of(64 * MIB, 0)), (vec![], vec![Code::ProcessNotHuge]));
    assert_eq!((of(200 * MIB, 100 * MIB), of(200 * MIB, 98 * MIB)), (vec![], vec![Code::ProcessNotHuge]));
}
