//! The data TLB of this machine's CPU, as it tells by CPUID.
//!
//! AMD (Fn8000_0005, Fn8000_0006) gives entries and ways by page size; of the second level it gives a range of
//! ways, 8 to 15 for instance, and the sets are a power of two. Intel (leaf 18H) gives ways and sets of each
//! structure, and which page sizes it holds; several of the second level hold the same page size side by side.
//! Other architectures have no such instruction.

#[cfg(target_arch = "x86_64")]
pub(super) use told::own;

/// Nothing can be asked.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn own() -> Option<super::geometry::Cpu> {
    None
}

#[cfg(target_arch = "x86_64")]
mod told {
    use super::super::geometry::{Cpu, Level, Levels};
    use raw_cpuid::{Associativity, CpuId, CpuIdReader, DatInfo, DatType};

    /// What this machine's CPU says; `None` when it says nothing that can be computed with.
    pub(crate) fn own() -> Option<Cpu> {
        of(&CpuId::new())
    }

    fn of<R: CpuIdReader>(cpuid: &CpuId<R>) -> Option<Cpu> {
        let (levels, leaf) = match intel(cpuid) {
            Some(levels) => (levels, "leaf 18H"),
            None => (amd(cpuid)?, "Fn8000_0005 and Fn8000_0006"),
        };
        let [small, huge] = levels;
        Some(Cpu {
            name: "this CPU".to_owned(),
            small,
            huge,
            source: format!("it says so itself by CPUID, {leaf}"),
        })
    }

    /// For 4 KiB and for 2 MiB.
    fn intel<R: CpuIdReader>(cpuid: &CpuId<R>) -> Option<[Levels; 2]> {
        let all: Vec<DatInfo> = cpuid.get_deterministic_address_translation_info()?.collect();
        let levels = |holds: fn(&DatInfo) -> bool| -> Option<Levels> {
            let of = |kinds: &[DatType]| -> Option<Level> {
                let mut some = all.iter().filter(|one| holds(one) && kinds.contains(&one.cache_type()));
                let first = some.next()?;
                let (sets, mut ways) = (first.sets(), u32::from(first.ways()));
                // Neighbours with as many sets are as one with the ways of both.
                ways += some
                    .filter(|other| other.sets() == first.sets())
                    .map(|other| u32::from(other.ways()))
                    .sum::<u32>();
                usable(Level { entries: sets * ways, ways })
            };
            Some([of(&[DatType::DataTLB, DatType::LoadOnly])?, of(&[DatType::UnifiedTLB])?])
        };
        Some([levels(DatInfo::has_4k_entries)?, levels(DatInfo::has_2mb_entries)?])
    }

    fn amd<R: CpuIdReader>(cpuid: &CpuId<R>) -> Option<[Levels; 2]> {
        let (first, second) = (cpuid.get_l1_cache_and_tlb_info()?, cpuid.get_l2_l3_cache_and_tlb_info()?);
        Some([
            [
                level(u32::from(first.dtlb_4k_size()), first.dtlb_4k_associativity())?,
                level(u32::from(second.dtlb_4k_size()), second.dtlb_4k_associativity())?,
            ],
            [
                level(u32::from(first.dtlb_2m_4m_size()), first.dtlb_2m_4m_associativity())?,
                level(u32::from(second.dtlb_2m_4m_size()), second.dtlb_2m_4m_associativity())?,
            ],
        ])
    }

    /// A level of which the ways are at least those told, as many as make its sets a power of two.
    fn level(entries: u32, told: Associativity) -> Option<Level> {
        let least = match told {
            Associativity::FullyAssociative => entries,
            Associativity::DirectMapped => 1,
            Associativity::NWay(ways) => u32::from(ways),
            Associativity::Disabled | Associativity::Unknown => return None,
        };
        // The ranges of ways end below twice their beginning, but for the first.
        (least..=least.saturating_mul(2)).find_map(|ways| usable(Level { entries, ways }))
    }

    fn usable(level: Level) -> Option<Level> {
        let Level { entries, ways } = level;
        let whole = ways > 0 && entries > 0 && entries % ways == 0;
        (whole && (entries / ways).is_power_of_two()).then_some(level)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use raw_cpuid::CpuIdResult;

        fn result([eax, ebx, ecx, edx]: [u32; 4]) -> CpuIdResult {
            CpuIdResult { eax, ebx, ecx, edx }
        }

        fn text(bytes: &[u8; 12]) -> [u32; 4] {
            let word =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            [0x20, word(0), word(8), word(4)]
        }

        #[test]
        fn an_amd_cpu_gives_entries_and_a_range_of_ways() {
            // As an EPYC of family 25, model 17 answers.
            let answer = |leaf: u32, _: u32| {
                result(match leaf {
                    0 => text(b"AuthenticAMD"),
                    0x8000_0000 => [0x8000_0028, 0, 0, 0],
                    0x8000_0005 => [0xff48_ff40, 0xff48_ff40, 0x2008_0140, 0x2008_0140],
                    0x8000_0006 => [0x5c00_2200, 0x6c00_4200, 0x0400_6140, 0x0a00_9140],
                    _ => [0; 4],
                })
            };
            let cpu = of(&CpuId::with_cpuid_reader(answer)).unwrap();
            let full = Level { entries: 72, ways: 72 };
            assert_eq!(cpu.small, [full, Level { entries: 3072, ways: 12 }]);
            assert_eq!(cpu.huge, [full, Level { entries: 3072, ways: 6 }]);
            assert!(cpu.source.contains("Fn8000_0006"));
        }

        #[test]
        fn an_intel_cpu_gives_each_structure() {
            // As a Core i7-1068NG7 answers: page sizes and ways, sets, kind and level.
            let answer = |leaf: u32, sub: u32| {
                result(match (leaf, sub) {
                    (0, _) => text(b"GenuineIntel"),
                    (0x18, 0) => [7, 0, 0, 0],
                    (0x18, 1) => [0, 0x0008_0007, 1, 0x0000_0122],
                    (0x18, 2) => [0, 0x0010_000f, 1, 0x0000_0125],
                    (0x18, 3) => [0, 0x0004_0001, 16, 0x0000_0024],
                    (0x18, 4) => [0, 0x0004_0006, 8, 0x0000_0024],
                    (0x18, 5) => [0, 0x0008_0008, 1, 0x0000_0124],
                    (0x18, 6) => [0, 0x0008_0007, 128, 0x0000_0043],
                    (0x18, 7) => [0, 0x0008_0009, 128, 0x0000_0043],
                    _ => [0; 4],
                })
            };
            let cpu = of(&CpuId::with_cpuid_reader(answer)).unwrap();
            assert_eq!(cpu.small, [Level { entries: 64, ways: 4 }, Level { entries: 2048, ways: 16 }]);
            assert_eq!(cpu.huge, [Level { entries: 32, ways: 4 }, Level { entries: 1024, ways: 8 }]);
            assert!(cpu.source.contains("18H"));
        }

        #[test]
        fn a_cpu_that_says_nothing_has_no_geometry() {
            assert_eq!(of(&CpuId::with_cpuid_reader(|_: u32, _: u32| result([0; 4]))), None);
        }
    }
}
