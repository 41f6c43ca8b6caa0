//! Looks at this process's memory, from the kernel. In bytes.

use std::fs;
use std::path::Path;

/// One look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    pub(crate) rss: u64,
    pub(crate) anonymous: u64,
    /// Mapped by transparent huge pages.
    pub(crate) thp: u64,
    /// Pages of a hugetlb pool, which RSS leaves out.
    pub(crate) hugetlb: u64,
    /// Charge of the process's own cgroup, where it has one.
    pub(crate) charge: Option<u64>,
}

impl Look {
    pub(crate) fn now(charge: Option<&Path>) -> Self {
        // Read first: what is allocated for the other shall not be part of it.
        let charge = charge.and_then(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
        let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        Self {
            rss: field(&text, "Rss:"),
            anonymous: field(&text, "Anonymous:"),
            thp: field(&text, "AnonHugePages:"),
            hugetlb: field(&text, "Private_Hugetlb:") + field(&text, "Shared_Hugetlb:"),
            charge,
        }
    }

    pub(crate) fn json(&self) -> String {
        let charge = self.charge.map_or("null".to_owned(), |charge| charge.to_string());
        format!(
            r#"{{"rss":{},"anonymous":{},"thp":{},"hugetlb":{},"charge":{charge}}}"#,
            self.rss, self.anonymous, self.thp, self.hugetlb
        )
    }
}

/// The most that was ever resident. Not from `getrusage`, whose figure includes the process that started this one.
pub(crate) fn peak_rss() -> u64 {
    field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:")
}

/// What this process used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Seconds of all threads.
    pub(crate) user: f64,
    pub(crate) system: f64,
    pub(crate) minor_faults: u64,
}

impl Usage {
    pub(crate) fn now() -> Self {
        // SAFETY: all zero is a valid value of this plain struct.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is ours to be filled.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self {
            user: seconds(usage.ru_utime),
            system: seconds(usage.ru_stime),
            minor_faults: usage.ru_minflt as u64,
        }
    }
}

/// The value of `name` in kilobytes, as bytes; 0 where the kernel does not tell.
fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_kilobytes() {
        let text = "Rss:        1200 kB\nAnonymous:     4 kB\n";
        assert_eq!(field(text, "Rss:"), 1200 << 10);
        assert_eq!(field(text, "AnonHugePages:"), 0);
    }

    #[test]
    fn this_process_has_memory() {
        let look = Look::now(None);
        assert!(look.rss >= look.anonymous && look.anonymous > 0);
        assert!(peak_rss() >= 1 << 20);
        assert!(Usage::now().minor_faults > 0);
        assert!(look.json().ends_with(r#""charge":null}"#));
    }
}
