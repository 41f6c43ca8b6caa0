//! The control group's limits on hugetlb pages: `hugetlb.2MB.max` and `hugetlb.2MB.rsvd.max`, in v1 `…limit_in_bytes`.
//!
//! The limit on pages is enforced at the fault, where the only answer is SIGBUS; the one on reservations at
//! `mmap`, where it is an error.

use hugeheap_os::linux::Knobs;

/// Above this a number is v1's way to say "no limit" (2⁶³ rounded down to a page).
const NO_LIMIT: u64 = 1 << 62;

/// A limit on pages of one size. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) page: u64,
    pub(crate) bytes: u64,
    /// Whether it is on reservations: told at `mmap`.
    pub(crate) of_reservations: bool,
}

/// The limits of the process `process` (`self`, or a number) on pages of the sizes `pages`: the least of its
/// group and those above it.
pub(crate) fn read(knobs: &Knobs, process: &str, pages: impl Iterator<Item = u64>) -> Vec<Limit> {
    let directories = directories(knobs, process).unwrap_or_default();
    let mut limits = Vec::new();
    for page in pages {
        let size = if page >= 1 << 30 { format!("{}GB", page >> 30) } else { format!("{}MB", page >> 20) };
        for (of_reservations, files) in
            [(false, ["max", "limit_in_bytes"]), (true, ["rsvd.max", "rsvd.limit_in_bytes"])]
        {
            let paths = directories
                .iter()
                .flat_map(|directory| files.map(|file| format!("{directory}/hugetlb.{size}.{file}")));
            let least =
                paths.filter_map(|path| knobs.number(&path).ok()).filter(|&bytes| bytes < NO_LIMIT).min();
            limits.extend(least.map(|bytes| Limit { page, bytes, of_reservations }));
        }
    }
    limits
}

/// The directories of a process's group and of those above it, as far as this process sees them mounted.
fn directories(knobs: &Knobs, process: &str) -> Option<Vec<String>> {
    let groups = knobs.text(&format!("/proc/{process}/cgroup")).ok()?;
    let mounts = knobs.text("/proc/self/mountinfo").ok()?;
    let group_of = |wanted: &dyn Fn(&str, &str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(number, controllers).then(|| path.to_owned())
        })
    };
    let has_hugetlb = |text: &str| text.split(',').any(|word| word == "hugetlb");
    let v1 = group_of(&|_, controllers| has_hugetlb(controllers));
    let group =
        v1.clone().or_else(|| group_of(&|number, controllers| number == "0" && controllers.is_empty()))?;
    let (root, point) = mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let is_meant = match (system.next()?, v1.is_some()) {
            ("cgroup", true) => has_hugetlb(system.nth(1)?),
            ("cgroup2", false) => true,
            _ => false,
        };
        is_meant.then(|| (root.to_owned(), point.to_owned()))
    })?;
    let below = group.strip_prefix(root.trim_end_matches('/'))?.trim_end_matches('/');
    let mut directories = vec![point.clone()];
    for (index, _) in below.match_indices('/').skip(1) {
        directories.push(format!("{point}{}", &below[..index]));
    }
    if !below.is_empty() {
        directories.push(format!("{point}{below}"));
    }
    Some(directories)
}
