//! Whether to hook an interpreter, as a pure function of what was found in the process.

use hugeheap::telemetry::HookState;

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The symbols of the arena hook are there.
    pub is_cpython: bool,
    /// `Py_GetVersion()`.
    pub version: &'a [u8],
    /// `PYTHONMALLOC` of the environment.
    pub python_malloc: Option<&'a [u8]>,
    /// `PYTHON_PYMALLOC_HUGEPAGES` of the environment.
    pub own_huge_pages: Option<&'a [u8]>,
}

/// Major and minor number at the beginning of a version text.
pub fn version_numbers(text: &[u8]) -> Option<(u32, u32)> {
    let mut parts = text.split(|&byte| !byte.is_ascii_digit());
    let mut number = || core::str::from_utf8(parts.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// What to do. `Hooked` and `OtherAllocator` mean: install.
pub fn decide(found: Found<'_>) -> HookState {
    if !found.is_cpython {
        return HookState::NotPython;
    }
    // "3.13.0 experimental free-threading build", "3.14.0 free-threading build".
    if contains(found.version, b"free-threading") {
        return HookState::FreeThreaded;
    }
    // The option exists since 3.15; older interpreters ignore the variable.
    let has_option = version_numbers(found.version).is_some_and(|numbers| numbers >= (3, 15));
    if has_option && found.own_huge_pages.is_some_and(|value| !value.is_empty() && value != b"0") {
        return HookState::OwnHugePages;
    }
    match found.python_malloc {
        Some(b"malloc" | b"malloc_debug" | b"mimalloc" | b"mimalloc_debug") => HookState::OtherAllocator,
        _ => HookState::Hooked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOCK: Found<'_> = Found {
        is_cpython: true,
        version: b"3.13.0 (main, Oct  8 2024, 12:00:00) [GCC 12.2.0]",
        python_malloc: None,
        own_huge_pages: None,
    };

    #[test]
    fn stock_interpreters_are_hooked() {
        assert_eq!(decide(STOCK), HookState::Hooked);
        assert_eq!(decide(Found { python_malloc: Some(b"pymalloc_debug"), ..STOCK }), HookState::Hooked);
        assert_eq!(decide(Found { version: b"", ..STOCK }), HookState::Hooked);
    }

    #[test]
    fn what_has_no_arenas_is_told_apart() {
        assert_eq!(decide(Found { is_cpython: false, ..STOCK }), HookState::NotPython);
        assert_eq!(
            decide(Found { version: b"3.13.0 experimental free-threading build (main)", ..STOCK }),
            HookState::FreeThreaded
        );
        for name in ["malloc", "malloc_debug", "mimalloc"] {
            assert_eq!(
                decide(Found { python_malloc: Some(name.as_bytes()), ..STOCK }),
                HookState::OtherAllocator
            );
        }
    }

    #[test]
    fn the_option_of_3_15_is_not_fought() {
        let option = Found { own_huge_pages: Some(b"1"), ..STOCK };
        assert_eq!(decide(option), HookState::Hooked, "3.13 does not know the option");
        assert_eq!(decide(Found { version: b"3.15.0a7 (main)", ..option }), HookState::OwnHugePages);
        assert_eq!(
            decide(Found { version: b"3.15.0", own_huge_pages: Some(b"0"), ..STOCK }),
            HookState::Hooked
        );
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version_numbers(b"3.9.18 (main)"), Some((3, 9)));
        assert_eq!(version_numbers(b"3.15.0a7+"), Some((3, 15)));
        assert_eq!(version_numbers(b"PyPy"), None);
    }
}
