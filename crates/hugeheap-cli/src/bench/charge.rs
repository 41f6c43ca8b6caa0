//! A memory cgroup for one process, so that what the kernel charges for it can be told from everything else.
//!
//! RSS does not show the memory of a huge page of which only a part is still mapped; the charge does. It belongs to a group
//! of processes, so one is made for the process that is looked at, where that is permitted.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of our groups, with the process that made them.
const PREFIX: &str = "hugeheap-bench-";

/// A group of one process. Removed when dropped; its process must have ended.
#[derive(Debug)]
pub struct Group {
    directory: PathBuf,
    usage: &'static str,
    counts_hugetlb: bool,
}

/// A group that others made, with whatever else is in it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: String,
    /// The file with the charge in bytes.
    pub(crate) usage: PathBuf,
    pub(crate) counts_hugetlb: bool,
}

impl Group {
    /// Makes a group below or beside that of this process.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn create() -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let places = places(&mounts, &groups);
        if places.is_empty() {
            return Err("no memory cgroup is mounted here".to_owned());
        }
        let mut refusal = String::new();
        for (parent, usage) in places {
            sweep(&parent);
            let directory = parent.join(format!("{PREFIX}{}", std::process::id()));
            if let Err(error) = fs::create_dir(&directory) {
                refusal = format!("not permitted to make a cgroup in {}: {error}", parent.display());
                continue;
            }
            let group = Self { directory, usage, counts_hugetlb: counts_hugetlb(&mounts) };
            if group.usage_file().exists() {
                return Ok(group);
            }
            refusal = format!("the memory controller is not enabled below {}", parent.display());
        }
        Err(refusal)
    }

    /// The group that a running process is in.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn of(pid: u32) -> Result<Shared, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(|error| error.to_string())?;
        let place = places(&mounts, &groups).into_iter().next();
        let (directory, usage) = place.ok_or("no memory cgroup is mounted here")?;
        let usage = directory.join(usage);
        if !usage.exists() {
            return Err(format!("its control group {} tells no charge", directory.display()));
        }
        let path = directory.display().to_string();
        Ok(Shared { path, usage, counts_hugetlb: counts_hugetlb(&mounts) })
    }

    /// The file with the charge in bytes.
    pub fn usage_file(&self) -> PathBuf {
        self.directory.join(self.usage)
    }

    /// The most that was charged since it was made; `None` before Linux 5.19 with version 2.
    pub(crate) fn peak(&self) -> Option<u64> {
        let files = ["memory.peak", "memory.max_usage_in_bytes"];
        let text = files.iter().find_map(|file| fs::read_to_string(self.directory.join(file)).ok())?;
        text.trim().parse().ok()
    }

    /// Whether the charge holds pages of hugetlb pools.
    pub fn counts_hugetlb(&self) -> bool {
        self.counts_hugetlb
    }

    /// The charge now, in bytes.
    pub(crate) fn charge(&self) -> Option<u64> {
        fs::read_to_string(self.usage_file()).ok()?.trim().parse().ok()
    }

    /// Limits the group to `bytes` of memory. The kernel reclaims what it has to; where that is not enough, version 2 kills, and
    /// version 1 refuses (`EBUSY`).
    pub(crate) fn limit(&self, bytes: u64) -> io::Result<()> {
        let file = if self.is_v2() { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(self.directory.join(file), bytes.to_string())
    }

    /// Keeps the group's memory out of swap, as far as the host can: a limit is met by killing then, not by swapping.
    pub(crate) fn without_swap(&self) {
        let file = if self.is_v2() { "memory.swap.max" } else { "memory.swappiness" };
        let _ = fs::write(self.directory.join(file), "0");
    }

    /// Whether it is a group of version 2.
    pub(crate) fn is_v2(&self) -> bool {
        self.usage == "memory.current"
    }

    /// Enters the group with the process that asks: a child that is to be measured.
    pub(crate) fn enter(&self) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), "0")
    }

    /// Makes `command` enter the group before it is executed.
    pub fn adopt(&self, command: &mut Command) -> io::Result<()> {
        // Opened here: the child must not allocate. Writing 0 means the process that writes.
        let mut procs = fs::OpenOptions::new().write(true).open(self.directory.join("cgroup.procs"))?;
        // SAFETY: the closure runs between fork and exec and makes one system call.
        unsafe { command.pre_exec(move || io::Write::write_all(&mut procs, b"0")) };
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Whether version 2 was mounted so that pages of hugetlb pools are charged (since Linux 6.7).
fn counts_hugetlb(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let words: Vec<_> = line.split(' ').collect();
        matches!(words[..], [_, _, "cgroup2", options, ..]
            if options.split(',').any(|word| word == "memory_hugetlb_accounting"))
    })
}

/// Where a group can be made, best first, and how its charge is called there.
fn places(mounts: &str, groups: &str) -> Vec<(PathBuf, &'static str)> {
    let mount = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ');
            let (_, point, found, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
            let fits =
                found == kind && option.is_none_or(|option| options.split(',').any(|word| word == option));
            fits.then(|| PathBuf::from(point))
        })
    };
    // `4:memory:/path` with v1 controllers, `0::/path` for v2.
    let path = |controller: &str| {
        groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let fits = controllers.split(',').any(|word| word == controller);
            fits.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    // In a container the path may be that of the host, which is not visible: then the mount is the group.
    let visible = |mount: PathBuf, path: &str| {
        let group = mount.join(path);
        if group.is_dir() { group } else { mount }
    };
    let mut places = Vec::new();
    if let (Some(mount), Some(path)) = (mount("cgroup", Some("memory")), path("memory")) {
        places.push((visible(mount, &path), "memory.usage_in_bytes"));
    } else if let (Some(mount), Some(path)) = (mount("cgroup2", None), path("")) {
        let own = visible(mount.clone(), &path);
        // A group with processes of its own cannot have children with controllers: beside it, then.
        let beside = own.parent().filter(|parent| parent.starts_with(&mount)).map(Path::to_path_buf);
        places.push((own, "memory.current"));
        places.extend(beside.map(|parent| (parent, "memory.current")));
    }
    places
}

/// Removes groups that earlier measurements left when they were killed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_found_by_its_controller() {
        let mounts = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /no/such/memory cgroup rw,nosuid,memory 0 0\n";
        let groups = "4:cpu,memory:/a/b\n0::/\n";
        assert_eq!(places(mounts, groups), [("/no/such/memory".into(), "memory.usage_in_bytes")]);
    }

    #[test]
    fn version_2_has_a_second_place_beside_the_own_group() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("slice/unit")).unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", root.path().display());
        let found = places(&mounts, "0::/slice/unit\n");
        let expected = [root.path().join("slice/unit"), root.path().join("slice")];
        assert_eq!(found, expected.map(|path| (path, "memory.current")));
    }

    #[test]
    fn pools_are_charged_where_the_mount_says_so() {
        assert!(counts_hugetlb(
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_hugetlb_accounting 0 0\n"
        ));
        assert!(!counts_hugetlb(
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\ncgroup /m cgroup rw,memory 0 0\n"
        ));
    }

    #[test]
    fn without_a_mount_there_is_no_place() {
        assert!(places("proc /proc proc rw 0 0\n", "0::/\n").is_empty());
    }

    #[test]
    fn a_process_is_charged_in_its_group() {
        let Ok(group) = Group::create() else {
            eprintln!("no cgroup can be made here: nothing to test");
            return;
        };
        let file = group.usage_file();
        let mut command = Command::new("cat");
        command.arg(&file);
        group.adopt(&mut command).unwrap();
        let output = command.output().unwrap();
        let charge: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!(charge > 0 && charge < 64 << 20, "{charge}");
        drop(group);
        assert!(!file.exists());
    }
}
