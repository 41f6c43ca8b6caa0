//! The knobs of transparent huge pages: names, files, what their values mean. No system calls but reading.
//!
//! A name is the kernel's file name with its directory; only `enabled` is called `mode`. The knob of one size
//! of huge page is `size.` and the size: `size.64K`, `size.2M`.

use hugeheap_os::linux::{Knob, Knobs, Linux};
use hugeheap_os::{Error, Facts, Result};
use serde_json::{Value, json};

pub(crate) const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

/// What a knob takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of the words the file shows.
    Choice,
    /// 0 or 1; `on`, `off`, `yes` and `no` are understood.
    Switch,
    /// A number; the text is its unit.
    Number(&'static str),
}

/// The knobs with fixed names: name, file below [`DIRECTORY`], kind, what it steers.
const FIXED: [(&str, &str, Kind, &str); 14] = [
    ("mode", "enabled", Kind::Choice, "which memory may be huge"),
    ("defrag", "defrag", Kind::Choice, "how far a page fault goes to find a huge page"),
    ("shmem_enabled", "shmem_enabled", Kind::Choice, "which shared memory may be huge"),
    (
        "use_zero_page",
        "use_zero_page",
        Kind::Switch,
        "reading untouched memory maps one shared huge page of zeros",
    ),
    (
        "shrink_underused",
        "shrink_underused",
        Kind::Switch,
        "under pressure, mostly empty huge pages are split",
    ),
    ("khugepaged.defrag", "khugepaged/defrag", Kind::Switch, "khugepaged may compact memory"),
    ("khugepaged.pages_to_scan", "khugepaged/pages_to_scan", Kind::Number("OS pages"), "scanned per wake-up"),
    (
        "khugepaged.scan_sleep_millisecs",
        "khugepaged/scan_sleep_millisecs",
        Kind::Number("ms"),
        "between wake-ups",
    ),
    (
        "khugepaged.alloc_sleep_millisecs",
        "khugepaged/alloc_sleep_millisecs",
        Kind::Number("ms"),
        "after a failure",
    ),
    (
        "khugepaged.max_ptes_none",
        "khugepaged/max_ptes_none",
        Kind::Number("OS pages"),
        "of a huge page may be absent; they are filled with zeros",
    ),
    (
        "khugepaged.max_ptes_swap",
        "khugepaged/max_ptes_swap",
        Kind::Number("OS pages"),
        "of a huge page may be swapped out",
    ),
    (
        "khugepaged.max_ptes_shared",
        "khugepaged/max_ptes_shared",
        Kind::Number("OS pages"),
        "of a huge page may be shared with a fork",
    ),
    (
        "khugepaged.pages_collapsed",
        "khugepaged/pages_collapsed",
        Kind::Number("huge pages"),
        "made since boot (only to be read)",
    ),
    (
        "khugepaged.full_scans",
        "khugepaged/full_scans",
        Kind::Number("scans"),
        "of everything since boot (only to be read)",
    ),
];

/// Knobs that only tell.
const READ_ONLY: [&str; 2] = ["khugepaged.pages_collapsed", "khugepaged.full_scans"];

/// The knob that the kernel does not take 0 for.
const NOT_ZERO: &str = "khugepaged.pages_to_scan";

/// Numbers of OS pages of one huge page: the kernel takes no more than all but one.
const PARTS: [&str; 3] =
    ["khugepaged.max_ptes_none", "khugepaged.max_ptes_swap", "khugepaged.max_ptes_shared"];

/// One knob of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) kind: Kind,
    /// What it steers.
    pub(crate) steers: &'static str,
    /// What it says, or why it cannot be read.
    pub(crate) knob: Result<Knob>,
    /// The largest number the kernel takes, where it has a limit of its own.
    pub(crate) most: Option<u32>,
}

impl Named {
    pub(crate) fn is_read_only(&self) -> bool {
        READ_ONLY.contains(&self.name.as_str())
    }

    /// The value as the kernel takes it.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence.
    pub(crate) fn parse(&self, value: &str) -> std::result::Result<String, String> {
        match self.kind {
            Kind::Choice => {
                let choices = self.knob.as_ref().map(|knob| knob.choices.as_slice()).unwrap_or_default();
                // A kernel's own list decides: they grow.
                if choices.iter().any(|choice| choice == value) {
                    return Ok(value.to_owned());
                }
                Err(format!("takes {}", choices.join(", ")))
            }
            Kind::Switch => match value {
                "1" | "on" | "yes" => Ok("1".to_owned()),
                "0" | "off" | "no" => Ok("0".to_owned()),
                _ => Err("takes 1 or 0".to_owned()),
            },
            Kind::Number(unit) => match value.parse::<u32>() {
                // Refused here, because a dry run does not ask the kernel.
                Ok(0) if self.name == NOT_ZERO => Err("takes a number from 1 on".to_owned()),
                Ok(number) if self.most.is_some_and(|most| number > most) => {
                    Err(format!("takes at most {} {unit}", self.most.unwrap_or(number)))
                }
                Ok(number) => Ok(number.to_string()),
                Err(_) => Err(format!("takes a number of {unit}")),
            },
        }
    }

    /// What its value means, for people. `mode` is the host's, which sizes may inherit.
    pub(crate) fn meaning(&self, mode: Option<&str>) -> String {
        let Ok(knob) = &self.knob else { return String::new() };
        let inherited = |value: &str| match value {
            "always" => "all memory",
            "madvise" => "memory that asks for it (MADV_HUGEPAGE)",
            "never" => "none",
            _ => "",
        };
        match (self.name.as_str(), knob.value.as_str()) {
            ("mode", "always") => "all memory may be huge, asked or not".to_owned(),
            ("mode", "madvise") => "memory that asks for it (MADV_HUGEPAGE) may be huge".to_owned(),
            ("mode", "never") => "none; only an explicit collapse makes huge pages".to_owned(),
            ("defrag", "always") => "each fault reclaims and compacts, and waits for it".to_owned(),
            ("defrag", "defer") => "faults take what is free and wake the background threads".to_owned(),
            ("defrag", "defer+madvise") => {
                "memory that asks waits for compaction, other memory does not".to_owned()
            }
            ("defrag", "madvise") => {
                "memory that asks waits for compaction, other memory takes what is free".to_owned()
            }
            ("defrag", "never") => "faults take what is free".to_owned(),
            (name, "inherit") if name.starts_with("size.") => {
                format!("as mode: {}", mode.map_or("unknown", inherited))
            }
            (name, value) if name.starts_with("size.") => inherited(value).to_owned(),
            _ => match self.kind {
                Kind::Number(unit) => format!("{unit} {}", self.steers),
                _ => self.steers.to_owned(),
            },
        }
    }

    pub(crate) fn json(&self) -> Value {
        let mut value = json!({"name": self.name, "file": self.file});
        match &self.knob {
            Ok(knob) => {
                // Numbers as numbers: whoever reads this compares them.
                value["value"] = match knob.value.parse::<u64>() {
                    Ok(number) if self.kind != Kind::Choice => number.into(),
                    _ => knob.value.clone().into(),
                };
                if self.kind == Kind::Choice {
                    value["choices"] = knob.choices.clone().into();
                }
            }
            Err(error) => value["unreadable"] = error.to_string().into(),
        }
        value
    }
}

/// All knobs this kernel has.
///
/// # Errors
/// `ENOENT` on a kernel without transparent huge pages; `EACCES` where /sys is closed.
pub(crate) fn all(knobs: &Knobs) -> Result<Vec<Named>> {
    // The first decides whether there are any.
    let _ = knobs.text(&format!("{DIRECTORY}/enabled"))?;
    let parts = knobs.number(&format!("{DIRECTORY}/hpage_pmd_size")).ok();
    let parts = parts.map(|huge| huge / Linux::new().page_sizes().os as u64);
    let most = parts.and_then(|parts| u32::try_from(parts.checked_sub(1)?).ok());
    let mut found = Vec::new();
    for (name, file, kind, steers) in FIXED {
        let file = format!("{DIRECTORY}/{file}");
        let knob = knobs.read(&file);
        if !is_missing(&knob) {
            let most = most.filter(|_| PARTS.contains(&name));
            found.push(Named { name: name.to_owned(), file, kind, steers, knob, most });
        }
    }
    let mut sizes: Vec<u64> = knobs
        .list(DIRECTORY)?
        .iter()
        .filter_map(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok())
        .collect();
    sizes.sort_unstable();
    for size in sizes {
        let file = format!("{DIRECTORY}/hugepages-{size}kB/enabled");
        let knob = knobs.read(&file);
        // The smallest sizes are only for shared memory and have no such file.
        if !is_missing(&knob) {
            let name = format!("size.{}", short_size(size << 10));
            let steers = "which memory may have pages of this size";
            found.push(Named { name, file, kind: Kind::Choice, steers, knob, most: None });
        }
    }
    Ok(found)
}

fn is_missing(knob: &Result<Knob>) -> bool {
    matches!(knob, Err(Error { code: libc::ENOENT, .. }))
}

/// `64K`, `2M`, `1G`: a size as people type it.
pub(crate) fn short_size(bytes: u64) -> String {
    match bytes {
        _ if bytes % (1 << 30) == 0 => format!("{}G", bytes >> 30),
        _ if bytes % (1 << 20) == 0 => format!("{}M", bytes >> 20),
        _ => format!("{}K", bytes >> 10),
    }
}

/// The knob called `name`; dashes stand for underscores, the case of a size's letter does not matter.
///
/// # Errors
/// One line with the names there are.
pub(crate) fn find<'a>(all: &'a [Named], name: &str) -> std::result::Result<&'a Named, String> {
    let same = |known: &str| known.eq_ignore_ascii_case(&name.replace('-', "_"));
    all.iter().find(|named| same(&named.name)).ok_or_else(|| {
        let known = FIXED.iter().any(|(fixed, ..)| same(fixed));
        if known {
            return format!("this kernel has no knob {name}");
        }
        let names: Vec<_> = all.iter().map(|named| named.name.as_str()).collect();
        format!("no knob is called '{name}'; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(kind: Kind, value: &str, choices: &[&str]) -> Named {
        let choices = choices.iter().map(|&choice| choice.to_owned()).collect();
        Named {
            name: "x".into(),
            file: "/x".into(),
            kind,
            steers: "something",
            knob: Ok(Knob { value: value.into(), choices }),
            most: None,
        }
    }

    #[test]
    fn values_are_checked_before_anything_is_written() {
        let choice = named(Kind::Choice, "never", &["always", "never"]);
        assert_eq!(choice.parse("always"), Ok("always".into()));
        assert!(choice.parse("sometimes").unwrap_err().contains("always, never"));
        let switch = named(Kind::Switch, "0", &[]);
        assert_eq!(switch.parse("on"), Ok("1".into()));
        assert!(switch.parse("2").is_err());
        let number = named(Kind::Number("ms"), "0", &[]);
        assert_eq!(number.parse("0010"), Ok("10".into()));
        for text in ["-1", "x", "", "4294967296"] {
            assert!(number.parse(text).unwrap_err().contains("number of ms"), "{text}");
        }
        let part = Named { most: Some(511), ..number.clone() };
        assert_eq!(part.parse("511"), Ok("511".into()));
        assert!(part.parse("512").unwrap_err().contains("at most 511 ms"));
        let scanned = Named { name: NOT_ZERO.into(), ..number };
        assert!(scanned.parse("0").is_err() && scanned.parse("1").is_ok());
    }

    #[test]
    fn names_are_found_as_people_type_them() {
        let mut knob = named(Kind::Number("OS pages"), "511", &[]);
        knob.name = "khugepaged.max_ptes_none".into();
        let mut size = named(Kind::Choice, "inherit", &["inherit"]);
        size.name = "size.2M".into();
        let all = [knob, size];
        assert_eq!(find(&all, "khugepaged.max-ptes-none").unwrap().name, "khugepaged.max_ptes_none");
        assert_eq!(find(&all, "size.2m").unwrap().name, "size.2M");
        assert!(find(&all, "color").unwrap_err().contains("khugepaged.max_ptes_none, size.2M"));
        assert!(find(&all, "shrink_underused").unwrap_err().contains("this kernel has no knob"));
        assert_eq!(all[1].meaning(Some("never")), "as mode: none");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(short_size(64 << 10), "64K");
        assert_eq!(short_size(2 << 20), "2M");
        assert_eq!(short_size(1 << 30), "1G");
    }
}
