//! Transparent huge pages: the host's knobs and this process's switch.
//!
//! A knob with several choices is a file with all of them in one line, the chosen one in brackets:
//! `always [madvise] never`. Since Linux 6.8 each page size has an `enabled` of its own, which for the PMD size
//! is `inherit` (look at the global one) unless somebody changed it; what it says otherwise overrides the
//! global mode.

use super::read::{self, PathBuffer, Root};
use crate::{Error, Khugepaged, Result, Thp, ThpDefrag, ThpDisabled, ThpMode};
use core::ffi::{c_int, c_ulong};
use core::time::Duration;

const DIR: &[u8] = b"/sys/kernel/mm/transparent_hugepage";
const PMD_SIZE: &str = "read(transparent_hugepage/hpage_pmd_size)";
const ENABLED: &str = "read(transparent_hugepage/enabled)";
const SIZE_ENABLED: &str = "read(transparent_hugepage/hugepages-*kB/enabled)";
const DEFRAG: &str = "read(transparent_hugepage/defrag)";
const KHUGEPAGED: &str = "read(transparent_hugepage/khugepaged)";

/// Size of the huge page in bytes.
pub(super) fn huge_page(root: &Root) -> Result<usize> {
    let size = root.at(&[DIR, b"/hpage_pmd_size"], |path| read::number(path, PMD_SIZE))?;
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).ok_or(read::malformed(PMD_SIZE))
}

/// The mode that is in force for huge pages.
pub(super) fn mode(root: &Root) -> Result<ThpMode> {
    let global = root.at(&[DIR, b"/enabled"], |path| choice(path, ENABLED, global_mode))?;
    Ok(match size_mode(root)? {
        SizeMode::Own(mode) => mode,
        SizeMode::Inherit => global,
    })
}

/// The knobs.
pub(super) fn knobs(root: &Root) -> Result<Thp> {
    let mode = mode(root)?;
    let defrag = root.at(&[DIR, b"/defrag"], |path| choice(path, DEFRAG, defrag))?;
    Ok(Thp { mode, defrag, khugepaged: khugepaged(root).ok() })
}

/// What a page size's own `enabled` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeMode {
    Inherit,
    Own(ThpMode),
}

fn size_mode(root: &Root) -> Result<SizeMode> {
    // Without the size there is no telling which file is meant; such a kernel is older than these files.
    let Ok(size) = huge_page(root) else { return Ok(SizeMode::Inherit) };
    let mode = root.at(&[DIR, b"/hugepages-"], |path| {
        path.push_decimal(size / 1024)?;
        path.push(b"kB/enabled")?;
        choice(path, SIZE_ENABLED, own_mode)
    });
    match mode {
        Err(error) if error.code == libc::ENOENT => Ok(SizeMode::Inherit),
        result => result,
    }
}

fn global_mode(word: &[u8]) -> Option<ThpMode> {
    match word {
        b"always" => Some(ThpMode::Always),
        b"madvise" => Some(ThpMode::Madvise),
        b"never" => Some(ThpMode::Never),
        _ => None,
    }
}

fn own_mode(word: &[u8]) -> Option<SizeMode> {
    if word == b"inherit" { Some(SizeMode::Inherit) } else { global_mode(word).map(SizeMode::Own) }
}

fn defrag(word: &[u8]) -> Option<ThpDefrag> {
    match word {
        b"always" => Some(ThpDefrag::Always),
        b"defer" => Some(ThpDefrag::Defer),
        b"defer+madvise" => Some(ThpDefrag::DeferMadvise),
        b"madvise" => Some(ThpDefrag::Madvise),
        b"never" => Some(ThpDefrag::Never),
        _ => None,
    }
}

fn khugepaged(root: &Root) -> Result<Khugepaged> {
    let number = |name: &[u8]| root.at(&[DIR, b"/khugepaged/", name], |path| read::number(path, KHUGEPAGED));
    Ok(Khugepaged {
        defrag: number(b"defrag")? != 0,
        pages_to_scan: number(b"pages_to_scan")?,
        scan_sleep: Duration::from_millis(number(b"scan_sleep_millisecs")?),
        max_ptes_none: number(b"max_ptes_none")?,
    })
}

/// Reads a knob with several choices.
fn choice<T>(path: &PathBuffer, name: &'static str, meaning: impl Fn(&[u8]) -> Option<T>) -> Result<T> {
    let mut buffer = [0; 128];
    let text = read::line(path, &mut buffer, name)?;
    chosen(text).and_then(meaning).ok_or(read::malformed(name))
}

/// The word in brackets.
fn chosen(text: &[u8]) -> Option<&[u8]> {
    let open = text.iter().position(|&byte| byte == b'[')?;
    let rest = &text[open + 1..];
    let close = rest.iter().position(|&byte| byte == b']')?;
    Some(&rest[..close])
}

/// Whether this process has transparent huge pages switched off.
pub(super) fn disabled() -> Result<ThpDisabled> {
    const UNUSED: c_ulong = 0;
    // SAFETY: the call only reads a flag of the process.
    let answer = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, UNUSED, UNUSED, UNUSED, UNUSED) };
    if answer < 0 {
        return Err(Error::last("prctl(PR_GET_THP_DISABLE)"));
    }
    Ok(meaning_of(answer))
}

/// Bit 0: switched off. Bit 1, since Linux 6.18 and only together with bit 0: but for advised ranges
/// (`PR_THP_DISABLE_EXCEPT_ADVISED`). So 0, 1 or 3.
const fn meaning_of(answer: c_int) -> ThpDisabled {
    const EXCEPT_ADVISED: c_int = 1 << 1;
    match answer {
        0 => ThpDisabled::No,
        flags if flags & EXCEPT_ADVISED != 0 => ThpDisabled::ExceptAdvised,
        _ => ThpDisabled::Completely,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeRoot;
    use super::*;
    use proptest::prelude::*;

    const BASE: &str = "sys/kernel/mm/transparent_hugepage";

    fn host(enabled: &str, own: Option<&str>, defrag: &str) -> FakeRoot {
        let fake = FakeRoot::new();
        fake.write(&format!("{BASE}/enabled"), enabled);
        fake.write(&format!("{BASE}/defrag"), defrag);
        fake.write(&format!("{BASE}/hpage_pmd_size"), "2097152\n");
        if let Some(own) = own {
            fake.write(&format!("{BASE}/hugepages-2048kB/enabled"), own);
        }
        fake
    }

    #[test]
    fn the_size_of_its_own_overrides_unless_it_inherits() {
        let global = "always [madvise] never\n";
        let defrag = "always defer defer+madvise [madvise] never\n";
        for (own, mode) in [
            (None, ThpMode::Madvise),
            (Some("always [inherit] madvise never\n"), ThpMode::Madvise),
            (Some("[always] inherit madvise never\n"), ThpMode::Always),
            (Some("always inherit madvise [never]\n"), ThpMode::Never),
        ] {
            let thp = knobs(&host(global, own, defrag).root()).unwrap();
            assert_eq!((thp.mode, thp.defrag), (mode, ThpDefrag::Madvise), "{own:?}");
            assert_eq!(thp.khugepaged, None);
        }
    }

    /// Whoever asked for the mode, which maintenance does with each pass, read the six other files as well.
    #[test]
    fn the_mode_needs_no_other_knob() {
        let fake = FakeRoot::new();
        for (own, expected) in [(None, ThpMode::Madvise), (Some("[always] inherit"), ThpMode::Always)] {
            fake.write(&format!("{BASE}/hpage_pmd_size"), "2097152\n");
            fake.write(&format!("{BASE}/enabled"), "always [madvise] never\n");
            if let Some(own) = own {
                fake.write(&format!("{BASE}/hugepages-2048kB/enabled"), own);
            }
            assert_eq!(mode(&fake.root()), Ok(expected), "{own:?}");
        }
        assert_eq!(mode(&FakeRoot::new().root()), Err(Error::new(ENABLED, libc::ENOENT)));
    }

    #[test]
    fn every_defrag_is_known() {
        let all = "always defer defer+madvise madvise never";
        for (word, expected) in [
            ("always", ThpDefrag::Always),
            ("defer", ThpDefrag::Defer),
            ("defer+madvise", ThpDefrag::DeferMadvise),
            ("madvise", ThpDefrag::Madvise),
            ("never", ThpDefrag::Never),
        ] {
            let text: Vec<_> =
                all.split(' ').map(|w| if w == word { format!("[{w}]") } else { w.into() }).collect();
            let fake = host("[always] madvise never", None, &text.join(" "));
            assert_eq!(knobs(&fake.root()).unwrap().defrag, expected);
        }
    }

    #[test]
    fn khugepaged_is_read_whole_or_not_at_all() {
        let fake = host("[always] madvise never", None, "[always]");
        let files = [
            ("defrag", "1\n"),
            ("pages_to_scan", "4096\n"),
            ("scan_sleep_millisecs", "10000\n"),
            ("max_ptes_none", "511\n"),
        ];
        for (name, text) in files {
            assert_eq!(knobs(&fake.root()).unwrap().khugepaged, None);
            fake.write(&format!("{BASE}/khugepaged/{name}"), text);
        }
        let expected = Khugepaged {
            defrag: true,
            pages_to_scan: 4096,
            scan_sleep: Duration::from_secs(10),
            max_ptes_none: 511,
        };
        assert_eq!(knobs(&fake.root()).unwrap().khugepaged, Some(expected));
    }

    #[test]
    fn missing_and_damaged_knobs_are_errors() {
        assert_eq!(knobs(&FakeRoot::new().root()), Err(Error::new(ENABLED, libc::ENOENT)));
        for text in ["", "[", "always madvise never", "[sometimes]", "]always[", "[always"] {
            let fake = host(text, None, "[always]");
            assert_eq!(knobs(&fake.root()), Err(read::malformed(ENABLED)), "{text}");
            let fake = host("[always]", Some(text), "[always]");
            assert_eq!(knobs(&fake.root()), Err(read::malformed(SIZE_ENABLED)), "{text}");
        }
        let fake = host(&"x".repeat(500), None, "[always]");
        assert_eq!(knobs(&fake.root()), Err(Error::new(ENABLED, libc::EFBIG)));
    }

    #[test]
    fn the_huge_page_is_a_power_of_two() {
        let fake = host("[always]", None, "[always]");
        assert_eq!(huge_page(&fake.root()), Ok(2 << 20));
        fake.write(&format!("{BASE}/hpage_pmd_size"), "3000000\n");
        assert_eq!(huge_page(&fake.root()), Err(read::malformed(PMD_SIZE)));
    }

    #[test]
    fn the_process_switch_has_three_values() {
        assert_eq!(meaning_of(0), ThpDisabled::No);
        assert_eq!(meaning_of(1), ThpDisabled::Completely);
        assert_eq!(meaning_of(3), ThpDisabled::ExceptAdvised);
    }

    proptest! {
        #[test]
        fn brackets_never_panic(text: Vec<u8>) {
            let _ = chosen(&text);
        }
    }
}
