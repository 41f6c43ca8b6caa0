//! A memory cgroup for one process, so that what the kernel charges for it can be told from everything else.
//!
//! RSS does not show the memory of a huge page of which only a part is still mapped; the charge does. It
//! belongs to a group of processes, so one is made for the process that is looked at, where that is permitted.

use crate::descriptors::told;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Name of our groups, with the process that made them and a number.
const PREFIX: &str = "hugeheap-bench-";

/// Groups of this process that could not be removed: something that its command left still runs there. Tried
/// again with the next.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

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

impl Shared {
    /// The group that `groups` (`/proc/PID/cgroup`) tells.
    fn of(mounts: &[u8], groups: &[u8]) -> Result<Self, String> {
        let place = places(mounts, groups).into_iter().next();
        let (directory, usage) = place.ok_or("no memory cgroup is mounted here")?;
        let usage = directory.join(usage);
        if !usage.exists() {
            return Err(format!("its control group {} tells no charge", directory.display()));
        }
        let path = directory.display().to_string();
        Ok(Self { path, usage, counts_hugetlb: counts_hugetlb(mounts) })
    }
}

impl Group {
    /// Makes a group below or beside that of this process.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn create() -> Result<Self, String> {
        let mounts = fs::read("/proc/self/mounts").map_err(|error| told(&error).to_string())?;
        let groups = fs::read("/proc/self/cgroup").map_err(|error| told(&error).to_string())?;
        Self::below(&mounts, &groups, |directory| fs::create_dir(directory))
    }

    /// Makes a group in the best of the places that `mounts` and `groups` (`/proc/self/cgroup`) tell. `make`
    /// makes its directory, which the kernel fills with files.
    fn below(mounts: &[u8], groups: &[u8], make: impl Fn(&Path) -> io::Result<()>) -> Result<Self, String> {
        let places = places(mounts, groups);
        if places.is_empty() {
            return Err("no memory cgroup is mounted here".to_owned());
        }
        let mut refusal = String::new();
        for (parent, usage) in places {
            sweep(&parent);
            let directory = match numbered(&parent, &make) {
                Ok(directory) => directory,
                Err(error) => {
                    refusal = format!(
                        "not permitted to make a cgroup in {}: {error}",
                        parent.display(),
                        error = told(&error)
                    );
                    continue;
                }
            };
            let group = Self { directory, usage, counts_hugetlb: counts_hugetlb(mounts) };
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
        let mounts = fs::read("/proc/self/mounts").map_err(|error| told(&error).to_string())?;
        let groups = fs::read(format!("/proc/{pid}/cgroup")).map_err(|error| told(&error).to_string())?;
        Shared::of(&mounts, &groups)
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

    /// Limits the group to `bytes` of memory. The kernel reclaims what it has to; where that is not enough,
    /// version 2 kills, and version 1 refuses (`EBUSY`).
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
        fs::write(self.directory.join(self.members()), "0")
    }

    /// The file that a process with one thread writes to in order to enter.
    ///
    /// `cgroup.procs` moves all threads of a process, so the kernel holds up every fork and exit on the host
    /// meanwhile, and waits for a grace period before: 7 to 16 ms, measured here, by which the command starts
    /// later. Version 1 can move the thread that asks alone, without that: 0.03 ms. In version 2 a thread
    /// cannot be elsewhere than its process.
    fn members(&self) -> &'static str {
        if self.is_v2() { "cgroup.procs" } else { "tasks" }
    }

    /// Makes `command` enter the group before it is executed.
    pub fn adopt(&self, command: &mut Command) -> io::Result<()> {
        // Opened here: the child must not allocate. Writing 0 means who writes: after the fork, the only thread.
        let mut members = fs::OpenOptions::new().write(true).open(self.directory.join(self.members()))?;
        // SAFETY: the closure runs between fork and exec and makes one system call.
        unsafe { command.pre_exec(move || io::Write::write_all(&mut members, b"0")) };
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(std::mem::take(&mut self.directory));
        left.retain(|directory| !is_removed(directory));
    }
}

/// Whether a group is there no more.
fn is_removed(directory: &Path) -> bool {
    fs::remove_dir(directory).is_ok() || !directory.exists()
}

/// The parts of what the kernel wrote, between `separator`s. Bytes: names of groups and of mounts may be any,
/// and one that is no text, of whomever, left all without a charge.
fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    text.split(move |&byte| byte == separator)
}

/// Whether version 2 was mounted so that pages of hugetlb pools are charged (since Linux 6.7).
fn counts_hugetlb(mounts: &[u8]) -> bool {
    parts(mounts, b'\n').any(|line| {
        let words: Vec<_> = parts(line, b' ').collect();
        matches!(words[..], [_, _, b"cgroup2", options, ..]
            if parts(options, b',').any(|word| word == b"memory_hugetlb_accounting"))
    })
}

/// Where a group can be made, best first, and how its charge is called there.
fn places(mounts: &[u8], groups: &[u8]) -> Vec<(PathBuf, &'static str)> {
    let mount = |kind: &[u8], option: Option<&[u8]>| {
        parts(mounts, b'\n').find_map(|line| {
            let mut words = parts(line, b' ');
            let (_, point, found, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
            let fits =
                found == kind && option.is_none_or(|option| parts(options, b',').any(|word| word == option));
            fits.then(|| PathBuf::from(OsStr::from_bytes(point)))
        })
    };
    // `4:memory:/path` with v1 controllers, `0::/path` for v2.
    let path = |controller: &[u8]| {
        parts(groups, b'\n').find_map(|line| {
            let mut words = line.splitn(3, |&byte| byte == b':');
            let (_, controllers, path) = (words.next()?, words.next()?, words.next()?);
            let fits = parts(controllers, b',').any(|word| word == controller);
            let below = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
            fits.then(|| PathBuf::from(OsStr::from_bytes(&path[below..])))
        })
    };
    // In a container the path may be that of the host, which is not visible: then the mount is the group.
    let visible = |mount: PathBuf, path: &Path| {
        let group = mount.join(path);
        if group.is_dir() { group } else { mount }
    };
    let mut places = Vec::new();
    if let (Some(mount), Some(path)) = (mount(b"cgroup", Some(b"memory")), path(b"memory")) {
        places.push((visible(mount, &path), "memory.usage_in_bytes"));
    } else if let (Some(mount), Some(path)) = (mount(b"cgroup2", None), path(b"")) {
        let own = visible(mount.clone(), &path);
        // A group with processes of its own cannot have children with controllers: beside it, then.
        let beside = own.parent().filter(|parent| parent.starts_with(&mount)).map(Path::to_path_buf);
        places.push((own, "memory.current"));
        places.extend(beside.map(|parent| (parent, "memory.current")));
    }
    places
}

/// Makes the first group of this process that is not there. One in which a command left a process behind stays
/// as long as that runs: under one name for all, what was measured after it had no charge.
fn numbered(parent: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let own = std::process::id();
    let mut number = 1;
    loop {
        let directory = parent.join(format!("{PREFIX}{own}-{number}"));
        match make(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| directory),
        }
    }
}

/// Removes groups that earlier measurements left when they were killed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let (pid, _) = pid.split_once('-').unwrap_or((pid, ""));
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
        let mounts = b"cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /no/such/memory cgroup rw,nosuid,memory 0 0\n";
        let groups = b"4:cpu,memory:/a/b\n0::/\n";
        assert_eq!(places(mounts, groups), [("/no/such/memory".into(), "memory.usage_in_bytes")]);
    }

    #[test]
    fn version_2_has_a_second_place_beside_the_own_group() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("slice/unit")).unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", root.path().display());
        let found = places(mounts.as_bytes(), b"0::/slice/unit\n");
        let expected = [root.path().join("slice/unit"), root.path().join("slice")];
        assert_eq!(found, expected.map(|path| (path, "memory.current")));
    }

    #[test]
    fn names_that_are_no_text_leave_nobody_without_a_charge() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join(OsStr::from_bytes(b"a:b\xff"));
        fs::create_dir(&group).unwrap();
        let mounts = [
            b"dev /mnt/\xfe ext4 rw 0 0\ncgroup2 ",
            root.path().as_os_str().as_bytes(),
            b" cgroup2 rw 0 0\n",
        ];
        let found = places(&mounts.concat(), b"1:name=x\xff:/\xff\n0::/a:b\xff\n");
        assert_eq!(found[0], (group, "memory.current"));
    }

    /// A tree of version 2 as systemd makes it: the memory controller is enabled for what is below a slice, not
    /// for what is below a unit, which has processes.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            let unit = tree.0.path().join("web.slice/web.service");
            fs::create_dir_all(&unit).unwrap();
            fs::write(tree.0.path().join("web.slice/cgroup.subtree_control"), "memory pids\n").unwrap();
            fs::write(unit.join("cgroup.subtree_control"), "\n").unwrap();
            fs::write(unit.join("memory.current"), "629145600\n").unwrap();
            tree
        }

        fn mounts(&self, options: &str) -> Vec<u8> {
            format!("proc /proc proc rw 0 0\ncgroup2 {} cgroup2 {options} 0 0\n", self.0.path().display())
                .into()
        }

        /// What the kernel does when a directory is made: its files, as far as the controllers are enabled above.
        fn mkdir(directory: &Path) -> io::Result<()> {
            fs::create_dir(directory)?;
            let control = fs::read_to_string(directory.parent().unwrap().join("cgroup.subtree_control"))?;
            if control.split_whitespace().any(|controller| controller == "memory") {
                for (file, text) in [
                    ("memory.current", "4096\n"),
                    ("memory.peak", "8192\n"),
                    ("memory.max", "max\n"),
                    ("memory.swap.max", "max\n"),
                    ("cgroup.procs", ""),
                ] {
                    fs::write(directory.join(file), text)?;
                }
            }
            Ok(())
        }
    }

    const UNIT: &[u8] = b"0::/web.slice/web.service\n";

    #[test]
    fn a_group_of_version_2_is_made_where_the_controller_is_enabled() {
        let tree = Tree::new();
        let group = Group::below(&tree.mounts("rw,nsdelegate"), UNIT, Tree::mkdir).unwrap();
        let directory = group.usage_file().parent().unwrap().to_path_buf();
        assert_eq!(directory.parent().unwrap(), tree.0.path().join("web.slice"), "beside the unit");
        let left = fs::read_dir(tree.0.path().join("web.slice/web.service")).unwrap().count();
        assert_eq!(left, 2, "the one that was tried first is gone");
        assert!(group.is_v2() && !group.counts_hugetlb());
        assert_eq!((group.charge(), group.peak()), (Some(4096), Some(8192)));
        group.limit(64 << 20).unwrap();
        group.without_swap();
        group.enter().unwrap();
        let text = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
        assert_eq!((text("memory.max"), text("memory.swap.max")), ("67108864".to_owned(), "0".to_owned()));
        assert_eq!(text("cgroup.procs"), "0");
        // Before Linux 5.19 there is no peak.
        fs::remove_file(directory.join("memory.peak")).unwrap();
        assert_eq!(group.peak(), None);
    }

    /// The second one was refused, so that what was measured after a command that left a process behind had no charge.
    #[test]
    fn a_group_that_cannot_be_removed_is_not_in_the_way_of_the_next() {
        let tree = Tree::new();
        // Its files keep a directory here, as a process keeps a group.
        let make = || Group::below(&tree.mounts("rw"), UNIT, Tree::mkdir).unwrap().usage_file();
        let (first, second) = (make(), make());
        assert!(first != second && first.exists() && second.exists());
        // What nobody keeps any more goes with a later one, which may have its name.
        for entry in fs::read_dir(first.parent().unwrap()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let third = make();
        assert!(third == first && second.exists());
    }

    #[test]
    fn a_tree_of_version_2_without_the_controller_is_refused_with_the_reason() {
        let tree = Tree::new();
        fs::write(tree.0.path().join("web.slice/cgroup.subtree_control"), "pids\n").unwrap();
        let why = Group::below(&tree.mounts("rw"), UNIT, Tree::mkdir).unwrap_err();
        assert!(why.starts_with("the memory controller is not enabled below"), "{why}");
        assert_eq!(fs::read_dir(tree.0.path().join("web.slice")).unwrap().count(), 2, "nothing is left");
        let denied = |_: &Path| Err(io::Error::from_raw_os_error(libc::EACCES));
        let why = Group::below(&tree.mounts("rw"), UNIT, denied).unwrap_err();
        assert!(why.starts_with("not permitted to make a cgroup in"), "{why}");
    }

    #[test]
    fn the_charge_of_others_is_read_in_version_2() {
        let tree = Tree::new();
        let shared = Shared::of(&tree.mounts("rw,memory_hugetlb_accounting"), UNIT).unwrap();
        assert_eq!(fs::read_to_string(&shared.usage).unwrap(), "629145600\n");
        assert!(shared.counts_hugetlb && shared.path.ends_with("web.slice/web.service"));
        // The root has no charge of its own.
        let why = Shared::of(&tree.mounts("rw"), b"0::/\n").unwrap_err();
        assert!(why.ends_with("tells no charge"), "{why}");
    }

    #[test]
    fn pools_are_charged_where_the_mount_says_so() {
        assert!(counts_hugetlb(
            b"cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_hugetlb_accounting 0 0\n"
        ));
        assert!(!counts_hugetlb(
            b"cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\ncgroup /m cgroup rw,memory 0 0\n"
        ));
    }

    #[test]
    fn without_a_mount_there_is_no_place() {
        assert!(places(b"proc /proc proc rw 0 0\n", b"0::/\n").is_empty());
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
