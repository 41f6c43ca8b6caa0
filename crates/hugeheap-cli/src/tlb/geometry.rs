//! Geometries of data TLBs: entries and ways, by page size and level.
//!
//! ```text
//!   --cpu ENTRIES:WAYS…   as given
//!   --cpu NAME            KNOWN: from the maker's manual, or from what a CPU of the kind says of itself (CPUID)
//!   no --cpu              KNOWN, by the family and model of /proc/cpuinfo; else what this CPU says of itself
//! ```
//!
//! The table comes before CPUID because CPUID is not always right: an Alder Lake says that its first level has
//! 64 entries for 4 KiB, its manual says 96, and so do measurements. A kind that neither a manual nor a CPU at
//! hand confirmed is not in the table.

/// One level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) entries: u32,
    /// As many as entries: fully associative.
    pub(crate) ways: u32,
}

impl Level {
    /// The same with fewer sets, as many as valgrind's model can have with lines of `page` bytes: less than 2
    /// GiB in all.
    pub(crate) fn fitted(self, page: u64) -> Self {
        let mut fitted = self;
        while u64::from(fitted.entries) * page >= 1 << 31 && fitted.entries > fitted.ways {
            fitted.entries /= 2;
        }
        fitted
    }
}

/// First and second level for one page size.
pub(crate) type Levels = [Level; 2];

/// A CPU's data TLB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) name: String,
    pub(crate) small: Levels,
    pub(crate) huge: Levels,
    /// Where it is from.
    pub(crate) source: String,
}

/// A CPU that is known by name.
struct Known {
    name: &'static str,
    /// Entries and ways: first and second level for 4 KiB pages, then for 2 MiB pages.
    figures: [(u32, u32); 4],
    source: &'static str,
    /// Vendor, family, and models of `/proc/cpuinfo`.
    vendor: &'static str,
    family: u32,
    models: &'static [std::ops::RangeInclusive<u32>],
}

const KNOWN: [Known; 6] = [
    Known {
        name: "skylake",
        figures: [(64, 4), (1536, 12), (32, 4), (1536, 12)],
        source: "Intel 64 and IA-32 Architectures Optimization Reference Manual, 248966-045, table 2-15",
        vendor: "GenuineIntel",
        family: 6,
        models: &[78..=78, 85..=85, 94..=94, 142..=142, 158..=158],
    },
    Known {
        name: "icelake",
        // Two halves of 128 sets and 8 ways: one holds pages of 4 KiB and 2 MiB, the other of 4 KiB and 1 GiB.
        figures: [(64, 4), (2048, 16), (32, 4), (1024, 8)],
        source: "CPUID leaf 18H (Intel SDM, volume 2) of a Core i7-1068NG7",
        vendor: "GenuineIntel",
        family: 6,
        models: &[106..=106, 108..=108, 125..=126],
    },
    Known {
        name: "goldencove",
        figures: [(96, 6), (2048, 16), (32, 4), (1024, 8)],
        source: "first level and entries: Intel 64 and IA-32 Architectures Optimization Reference Manual, volume 1, \
                 Golden Cove; ways of the second: CPUID leaf 18H of an Alder Lake",
        vendor: "GenuineIntel",
        family: 6,
        models: &[143..=143, 151..=151, 154..=154, 207..=207],
    },
    Known {
        name: "zen4",
        figures: [(72, 72), (3072, 12), (72, 72), (3072, 6)],
        source: "CPUID Fn8000_0005 and Fn8000_0006 (AMD64 Programmer's Manual, volume 3) of an EPYC of family 25, model 17",
        vendor: "AuthenticAMD",
        family: 25,
        models: &[16..=31, 96..=127, 160..=175],
    },
    Known {
        name: "zen5",
        figures: [(96, 96), (4096, 16), (96, 96), (4096, 16)],
        source: "Software Optimization Guide for the AMD Zen5 Microarchitecture, 58455 rev. 1.00, L1 and L2 data TLB",
        vendor: "AuthenticAMD",
        family: 26,
        models: &[0..=255],
    },
    Known {
        name: "neoverse-n1",
        figures: [(48, 48), (1280, 5), (48, 48), (1280, 5)],
        source: "Arm Neoverse N1 Core Technical Reference Manual, 100616, A5.2 TLB organization",
        vendor: "ARM",
        family: 8,
        models: &[0xd0c..=0xd0c],
    },
];

impl Known {
    fn cpu(&self) -> Cpu {
        let [a, b, c, d] = self.figures.map(|(entries, ways)| Level { entries, ways });
        Cpu { name: self.name.to_owned(), small: [a, b], huge: [c, d], source: self.source.to_owned() }
    }
}

/// All that are known by name.
pub(crate) fn known() -> impl Iterator<Item = Cpu> {
    KNOWN.iter().map(Known::cpu)
}

/// The CPU that `/proc/cpuinfo` is about, if it is known.
pub(crate) fn of(cpuinfo: &str) -> Option<Cpu> {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    if let Some(vendor) = field("vendor_id") {
        let (family, model): (u32, u32) = (field("cpu family")?.parse().ok()?, field("model")?.parse().ok()?);
        let fits = |known: &&Known| {
            known.vendor == vendor
                && known.family == family
                && known.models.iter().any(|models| models.contains(&model))
        };
        return KNOWN.iter().find(fits).map(Known::cpu);
    }
    let part = u32::from_str_radix(field("CPU part")?.strip_prefix("0x")?, 16).ok()?;
    KNOWN
        .iter()
        .find(|known| known.vendor == "ARM" && known.models.iter().any(|models| models.contains(&part)))
        .map(Known::cpu)
}

/// A name, `list`, or a geometry: `64:4,2048:16/32:4,1024:8`.
pub(crate) fn parse(text: &str) -> Result<Cpu, String> {
    if let Some(cpu) = known().find(|cpu| cpu.name == text.to_ascii_lowercase()) {
        return Ok(cpu);
    }
    if text == "list" {
        let none = [Level { entries: 1, ways: 1 }; 2];
        return Ok(Cpu { name: text.to_owned(), small: none, huge: none, source: String::new() });
    }
    if !text.contains(':') {
        let names: Vec<_> = KNOWN.iter().map(|known| known.name).collect();
        return Err(format!(
            "no CPU of that name is known; those are {}; or give a geometry, such as 64:4,2048:16/32:4,1024:8",
            names.join(", ")
        ));
    }
    let (small, huge) = text.split_once('/').unwrap_or((text, text));
    Ok(Cpu {
        name: text.to_owned(),
        small: levels(small)?,
        huge: levels(huge)?,
        source: "as given".to_owned(),
    })
}

fn levels(text: &str) -> Result<Levels, String> {
    let (first, second) = text
        .split_once(',')
        .ok_or_else(|| format!("'{text}': two levels are needed, such as 64:4,2048:16"))?;
    Ok([level(first)?, level(second)?])
}

fn level(text: &str) -> Result<Level, String> {
    let wrong = || format!("'{text}' is not ENTRIES:WAYS, such as 64:4");
    let (entries, ways) = text.split_once(':').ok_or_else(wrong)?;
    let (entries, ways): (u32, u32) =
        (entries.parse().map_err(|_| wrong())?, ways.parse().map_err(|_| wrong())?);
    if !(1..=65_536).contains(&entries) || ways == 0 || entries % ways != 0 {
        return Err(format!("'{text}': entries are 1 to 65536, and a multiple of the ways"));
    }
    if !(entries / ways).is_power_of_two() {
        return Err(format!("'{text}': the sets, entries / ways, must be a power of two to be computed"));
    }
    Ok(Level { entries, ways })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_geometry_can_be_computed() {
        for cpu in known() {
            for Level { entries, ways } in cpu.small.into_iter().chain(cpu.huge) {
                assert!(level(&format!("{entries}:{ways}")).is_ok(), "{} {entries}:{ways}", cpu.name);
            }
            assert!(!cpu.source.is_empty());
        }
    }

    #[test]
    fn geometries_are_read() {
        let cpu = parse("64:4,2048:16/32:4,1024:8").unwrap();
        assert_eq!(cpu.small[1], Level { entries: 2048, ways: 16 });
        assert_eq!(cpu.huge[0], Level { entries: 32, ways: 4 });
        assert_eq!(parse("64:4,2048:16").unwrap().huge[0].entries, 64);
        assert_eq!(parse("Zen4").unwrap().name, "zen4");
        for (text, word) in [
            ("pentium", "skylake"),
            ("64:4", "two levels"),
            ("64:5,2048:16", "multiple"),
            ("96:8,8:8", "power"),
            ("a:b,1:1", "ENTRIES"),
        ] {
            assert!(parse(text).unwrap_err().contains(word), "{text}");
        }
    }

    #[test]
    fn what_is_too_large_for_the_model_gets_fewer_sets() {
        let level = Level { entries: 3072, ways: 24 };
        assert_eq!(level.fitted(4096), level);
        assert_eq!(level.fitted(2 << 20), Level { entries: 768, ways: 24 });
        assert_eq!(Level { entries: 2048, ways: 16 }.fitted(2 << 20), Level { entries: 512, ways: 16 });
    }

    #[test]
    fn machines_are_recognised() {
        let amd = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n";
        assert_eq!(of(amd).unwrap().name, "zen4");
        assert_eq!(of(&amd.replace(": 17\n", ": 1\n")), None, "another of the same family");
        assert_eq!(of("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n").unwrap().name, "neoverse-n1");
        assert_eq!(of("vendor_id\t: Unknown\ncpu family\t: 1\nmodel\t\t: 1\n"), None);
    }
}
