//! The simulated kernel under any sequence of calls, with several processes, limits and random failures: its books
//! always agree with a walk over all page tables.

mod simulated_common;

use hugeheap_os::simulated::{Config, Kernel};
use hugeheap_os::{AddressRange, Advice, Backing, Facts, Khugepaged, Pages, Protection};
use proptest::prelude::*;
use simulated_common::naive::{OS, PAGES, RATIO, backing, config};

proptest! {
    #![proptest_config(config())]

    /// When all processes have exited nothing is left.
    #[test]
    fn any_sequence_keeps_the_books(
        ops in prop::collection::vec((0..15_u8, 0..PAGES, 1..2 * RATIO, any::<bool>()), 1..120),
        seed in any::<u64>(),
    ) {
        let huge = RATIO * OS;
        let config = Config {
            cgroup_max: Some(60 * OS as u64),
            map_limit: 12,
            free_huge_pages: Some(3),
            ..Config::with_page_sizes(OS, Some(huge)).with_pool(3)
        };
        let kernel = Kernel::new(config);
        let spaces = [kernel.reserve(PAGES * OS, huge).unwrap(), kernel.reserve(PAGES * OS, OS).unwrap()];
        let mut processes = vec![kernel.clone()];
        kernel.fail_randomly(seed, 100);
        for (number, start, len, second) in ops {
            let process = processes[start % processes.len()].clone();
            let range = AddressRange::new(spaces[usize::from(second)].start + start * OS, len.min(PAGES - start) * OS);
            let aligned = AddressRange::new(range.start & !(huge - 1), huge);
            // SAFETY: nothing is kept in the memory; calls that make no sense are refused.
            let _ = unsafe {
                match number {
                    0 => process.map(range, backing(start as u8 % 3).0),
                    1 => process.map(aligned, Backing::Hugetlb(huge)),
                    2 => process.unmap(if second { range } else { aligned }),
                    5 => process.decommit(range),
                    6 => process.split(range),
                    7 => process.collapse(aligned),
                    8 => process.advise(range, if second { Advice::Huge } else { Advice::NoHuge }),
                    9 => process.protect(range, [Protection::Read, Protection::ReadWrite][start % 2]),
                    10 => {
                        let to = spaces[usize::from(!second)].start + (start + len) % PAGES * OS;
                        process.relocate(range, AddressRange::new(to, range.len))
                    }
                    11 => process.populate(range),
                    _ => Ok(()),
                }
            };
            match number {
                3 | 4 => {
                    let _ = process.touch(range);
                },
                12 if processes.len() < 4 => processes.push(process.fork()),
                13 => {
                    process.reclaim();
                    process.run_khugepaged((start * RATIO) as u64);
                    process.set_pool(start as u64 % 5);
                }
                14 => {
                    let _ = process.touch_read(range);
                },
                _ => {}
            }
            kernel.check().unwrap();
            prop_assert!(kernel.charge() <= 60 * OS as u64);
        }
        for process in processes {
            process.exit();
            kernel.check().unwrap();
        }
        prop_assert_eq!((kernel.charge(), kernel.partially_mapped(), kernel.stranded()), (0, 0, 0));
    }
}

#[test]
fn khugepaged_knobs_scale_with_the_page_sizes() {
    let thp = Kernel::new(Config::with_page_sizes(OS, Some(RATIO * OS))).thp().unwrap();
    assert!(matches!(thp.khugepaged, Some(Khugepaged { max_ptes_none: 7, pages_to_scan: 64, .. })));
}
