//! Settings from the environment.
//!
//! | variable | value |
//! |---|---|
//! | `HUGEHEAP_POLICY` | `auto`, `thp`, `dense`, `hugetlb`, `base` |
//! | `HUGEHEAP_LEVEL` | `arenas`, `objects`, `malloc` |
//! | `HUGEHEAP_DECAY` | the decay time in seconds, 0.001 to 86400 |
//! | `HUGEHEAP_LIMIT` | bytes, with an optional suffix K, M, G or T (powers of 1024), as in `1.5G`; `0`: none |
//! | `HUGEHEAP_MERGE` | `1`: OS pages of idle heaps are made alike, for the host to merge; `0` |
//! | `HUGEHEAP_HARDENED` | `1`: heaps are hardened; `0` |
//! | `HUGEHEAP_THREAD` | `0`: no maintenance thread; `1` |
//! | `HUGEHEAP_CHILDREN` | `0`: children do not inherit; `1` |
//! | `HUGEHEAP_TELEMETRY` | a directory for the record of each process |
//! | `HUGEHEAP_PUBLISH` | `0`: no page of numbers; `1` |
//! | `HUGEHEAP_DISABLE` | `1`: do nothing; `0` |
//! | `HUGEHEAP_LOG` | sections and a file, for garbage-collected heaps: [`gc`](crate::gc) |
//!
//! Read without allocating, because a library's constructor does it before the program begins.

use crate::arena::{Policy, Settings};
use crate::telemetry::Level;
use crate::telemetry::publish::DIRECTORY_NAME_MAX;
use crate::{complain, gc};
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

/// A variable of the environment.
pub(crate) fn variable(name: &'static CStr) -> Option<&'static CStr> {
    // SAFETY: the result is a C string in the environment; it is used at once, before anything changes the environment.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value)) }
    }
}

/// Whether a variable that is a switch says no.
pub(super) fn is_off(name: &'static CStr) -> bool {
    variable(name).is_some_and(|value| value == c"0")
}

/// The variables that have a value of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `HUGEHEAP_POLICY`.
    Policy,
    /// `HUGEHEAP_LEVEL`.
    Level,
    /// `HUGEHEAP_DECAY`.
    Decay,
    /// `HUGEHEAP_LIMIT`.
    Limit,
    /// `HUGEHEAP_MERGE`.
    Merge,
    /// `HUGEHEAP_HARDENED`.
    Hardened,
    /// `HUGEHEAP_PUBLISH`.
    Publish,
    /// `HUGEHEAP_THREAD`.
    Thread,
    /// `HUGEHEAP_CHILDREN`.
    Children,
    /// `HUGEHEAP_DISABLE`.
    Disable,
    /// `HUGEHEAP_TELEMETRY`.
    Telemetry,
}

/// A setting whose value was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingError(pub Setting);

impl SettingError {
    /// One line: which variable and what it takes. Static, because it is printed by a constructor.
    pub const fn message(self) -> &'static str {
        match self.0 {
            Setting::Policy => "HUGEHEAP_POLICY must be one of auto, thp, dense, hugetlb, base",
            Setting::Level => "HUGEHEAP_LEVEL must be arenas, objects or malloc",
            Setting::Decay => "HUGEHEAP_DECAY must be seconds between 0.001 and 86400",
            Setting::Limit => "HUGEHEAP_LIMIT must be bytes, with an optional suffix K, M, G or T",
            Setting::Merge => "HUGEHEAP_MERGE must be 0 or 1",
            Setting::Hardened => "HUGEHEAP_HARDENED must be 0 or 1",
            Setting::Publish => "HUGEHEAP_PUBLISH must be 0 or 1",
            Setting::Thread => "HUGEHEAP_THREAD must be 0 or 1",
            Setting::Children => "HUGEHEAP_CHILDREN must be 0 or 1",
            Setting::Disable => "HUGEHEAP_DISABLE must be 0 or 1",
            Setting::Telemetry => {
                "HUGEHEAP_TELEMETRY must be an existing directory, with a name of at most 511 bytes"
            }
        }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for SettingError {}

/// The settings that the environment asks for.
///
/// # Errors
/// Names the first variable that was not understood.
pub fn settings_from_environment() -> Result<(Settings, Level), SettingError> {
    let mut settings = Settings::DEFAULT;
    let mut level = Level::Arenas;
    let text = |name| variable(name).map(|value: &CStr| value.to_str().unwrap_or("?"));
    if let Some(value) = text(c"HUGEHEAP_POLICY") {
        settings.policy = Policy::parse(value).ok_or(SettingError(Setting::Policy))?;
    }
    if let Some(value) = text(c"HUGEHEAP_LEVEL") {
        level = Level::parse(value).ok_or(SettingError(Setting::Level))?;
    }
    if let Some(value) = text(c"HUGEHEAP_DECAY") {
        settings.decay = parse_decay(value).ok_or(SettingError(Setting::Decay))?;
    }
    if let Some(value) = text(c"HUGEHEAP_LIMIT") {
        let bytes = parse_bytes(value).map_err(|_| SettingError(Setting::Limit))?;
        settings.limit = (bytes > 0).then_some(bytes);
    }
    if let Some(value) = text(c"HUGEHEAP_MERGE") {
        settings.merge = parse_switch(value).ok_or(SettingError(Setting::Merge))?;
    }
    if let Some(value) = text(c"HUGEHEAP_HARDENED") {
        parse_switch(value).ok_or(SettingError(Setting::Hardened))?;
    }
    if let Some(value) = text(c"HUGEHEAP_PUBLISH") {
        parse_switch(value).ok_or(SettingError(Setting::Publish))?;
    }
    if let Some(value) = text(c"HUGEHEAP_THREAD") {
        parse_switch(value).ok_or(SettingError(Setting::Thread))?;
    }
    Ok((settings, level))
}

/// Whether `HUGEHEAP_DISABLE` says that nothing is to be done: a switch of the libraries for CPython. Empty is
/// as not set.
///
/// # Errors
/// It was not understood.
pub fn disabled_by_environment() -> Result<bool, SettingError> {
    Ok(switch(c"HUGEHEAP_DISABLE", Setting::Disable)?.unwrap_or(false))
}

/// Whether children inherit the preload library, as `HUGEHEAP_CHILDREN` says. Empty is as not set.
///
/// # Errors
/// It was not understood.
pub fn children_inherit() -> Result<bool, SettingError> {
    Ok(switch(c"HUGEHEAP_CHILDREN", Setting::Children)?.unwrap_or(true))
}

/// Tells in one line each what is not understood of the settings without which a program is on hugeheap all the
/// same: where the record goes, and the log. The log is that of garbage-collected heaps, of which a process may
/// have none; then nobody else would look at what was asked for.
pub fn tell_what_is_passed_over() {
    tell_telemetry();
    if let Some(value) = variable(c"HUGEHEAP_LOG") {
        gc::tell_wrong_log(value);
    }
}

/// Tells a `HUGEHEAP_TELEMETRY` that is not understood.
pub(super) fn tell_telemetry() {
    if telemetry_is_wrong() {
        complain::line(format_args!("{}; no record is kept", SettingError(Setting::Telemetry)));
    }
}

/// Whether the value names no directory. One that cannot be written is no mistake of the value's: who looks for
/// records there sees that there are none.
fn telemetry_is_wrong() -> bool {
    let Some(name) = variable(c"HUGEHEAP_TELEMETRY").filter(|name| !name.is_empty()) else { return false };
    if name.to_bytes().len() > DIRECTORY_NAME_MAX {
        return true;
    }
    let mut found = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the name ends in a zero byte, and the struct is read only when it was filled.
    unsafe {
        if libc::stat(name.as_ptr(), found.as_mut_ptr()) == 0 {
            found.assume_init().st_mode & libc::S_IFMT != libc::S_IFDIR
        } else {
            matches!(*libc::__errno_location(), libc::ENOENT | libc::ENOTDIR)
        }
    }
}

fn switch(name: &'static CStr, setting: Setting) -> Result<Option<bool>, SettingError> {
    match variable(name).map(CStr::to_bytes) {
        None | Some(b"") => Ok(None),
        Some(value) => {
            let value = core::str::from_utf8(value).ok().and_then(parse_switch);
            value.map(Some).ok_or(SettingError(setting))
        }
    }
}

/// Whether the environment asks for hardened heaps. Read once: later changes would give threads different heaps.
pub(crate) fn hardened() -> bool {
    /// 0: not read yet, else 1 more than the value.
    static READ: AtomicU8 = AtomicU8::new(0);
    match READ.load(Ordering::Relaxed) {
        0 => {
            let value = variable(c"HUGEHEAP_HARDENED").and_then(|value| parse_switch(value.to_str().ok()?));
            let value = value.unwrap_or(false);
            READ.store(1 + u8::from(value), Ordering::Relaxed);
            value
        }
        value => value == 2,
    }
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn parse_decay(text: &str) -> Option<u64> {
    let seconds: f64 = text.parse().ok()?;
    (0.001..=86_400.0).contains(&seconds).then_some((seconds * 1e9) as u64)
}

/// A number of bytes as people write it: `1048576`, `512M`, `1.5GiB`. Suffixes are powers of 1024, in either
/// case. The same for settings of the environment and for options of the commands.
///
/// # Errors
/// Says what was not understood.
pub fn parse_bytes(text: &str) -> Result<u64, &'static str> {
    const NONE: &str = "not a number of bytes, such as 512M";
    const UNKNOWN: &str = "unknown suffix; use K, M, G or T";
    let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    if digits.is_empty() {
        return Err(NONE);
    }
    let shift = match suffix.as_bytes() {
        [] | [b'b' | b'B'] => 0,
        [unit, rest @ ..] if ["", "b", "ib"].iter().any(|end| rest.eq_ignore_ascii_case(end.as_bytes())) => {
            match unit.to_ascii_lowercase() {
                b'k' => 10,
                b'm' => 20,
                b'g' => 30,
                b't' => 40,
                _ => return Err(UNKNOWN),
            }
        }
        _ => return Err(UNKNOWN),
    };
    let unit = 1_u64 << shift;
    // Whole numbers are kept as they are: the others have 53 bits.
    let bytes = if let Ok(whole) = digits.parse::<u64>() {
        whole.checked_mul(unit)
    } else {
        let number: f64 = digits.parse().map_err(|_| NONE)?;
        let bytes = number * unit as f64;
        // A part of a byte: the unit was forgotten, and 0 may mean that there is no limit.
        if unit == 1 && digits.contains('.') || number > 0.0 && bytes < 1.0 {
            return Err(NONE);
        }
        (bytes < u64::MAX as f64).then_some(bytes as u64)
    };
    bytes.ok_or("too many bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_suffixes_and_refuse_the_rest() {
        for (text, bytes) in [
            ("123", 123),
            ("2G", 2 << 30),
            ("512m", 512 << 20),
            ("1.5G", 3 << 29),
            ("2GB", 2 << 30),
            ("4KiB", 4096),
            (".5k", 512),
            ("16b", 16),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "G", "-1", "1.5.5G", ".", "é", " 1G", "0.5", "1.5", "0.0001K"] {
            assert_eq!(parse_bytes(bad), Err("not a number of bytes, such as 512M"), "{bad}");
        }
        for bad in ["1P", "2GBB", "1e9", "1 G", "5é"] {
            assert_eq!(parse_bytes(bad), Err("unknown suffix; use K, M, G or T"), "{bad}");
        }
        for bad in ["99999999999T", "99999999999.5T", "18446744073709551616", "18446744073709551615K"] {
            assert_eq!(parse_bytes(bad), Err("too many bytes"), "{bad}");
        }
    }

    #[test]
    fn who_gives_a_wrong_level_is_told_of_all_that_there_are() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.name()), Some(level));
            assert!(SettingError(Setting::Level).message().contains(level.name()), "{level:?}");
        }
    }

    #[test]
    fn a_switch_is_0_or_1() {
        assert_eq!((parse_switch("0"), parse_switch("1")), (Some(false), Some(true)));
        for bad in ["", "yes", "01", "2"] {
            assert_eq!(parse_switch(bad), None, "{bad}");
        }
    }

    #[test]
    fn decay_is_seconds_within_reason() {
        assert_eq!(parse_decay("1"), Some(1_000_000_000));
        assert_eq!(parse_decay("0.25"), Some(250_000_000));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x", ""] {
            assert_eq!(parse_decay(bad), None, "{bad}");
        }
    }
}
