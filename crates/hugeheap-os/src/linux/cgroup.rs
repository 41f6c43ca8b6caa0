//! The memory cgroup of this process: where its files are, its limits and its charge.
//!
//! Terms: the *group path* is where the kernel says the process is (`/proc/self/cgroup`). It is seen from the root of
//! the process's cgroup namespace. The *mount* is where the hierarchy can be seen (`/proc/self/mountinfo`), with
//! a *mount root*: which group of the hierarchy appears at the mount point. In a container that shares the host's
//! cgroup namespace both are long (`/docker/4f…`); in one with its own namespace both are `/`.
//!
//! ```text
//!   directory of the group = mount point + (group path without the mount root)
//! ```
//!
//! A group path that does not lie under the mount root (the process was moved out of what the container can see) has no
//! directory here, and that is an error: the limits of another group would be a guess.
//!
//! Which version: the memory controller is on v1 exactly when /proc/self/cgroup has a line whose controllers name
//! `memory`; then the v2 hierarchy, should there be one (hybrid hosts), does not have it. A v1 mount is known by its
//! options, a v2 mount by its type.
//!
//! Limits hold for all groups below, each beside what all of them are charged together ([`levels_of`],
//! [`room`]). Where one limit is asked for, the least of the group and its visible parents counts. v1 knows the
//! least of all parents, also those above the mount root (`hierarchical_memory_limit`).

use super::lines::{Line, Lines};
use super::read::{self, File, PathBuffer, Root};
use crate::{CgroupVersion, Error, MemoryLevel, MemoryLimits, Result};

const GROUP: &str = "read(/proc/self/cgroup)";
const MOUNTS: &str = "read(/proc/self/mountinfo)";
const STAT: &str = "read(memory.stat)";
const LIMIT: &str = "read(memory limit)";
const CHARGE: &str = "read(memory charge)";

/// Window for /proc/self/cgroup and mountinfo. Overlay mounts have longer lines; a cut line is never a cgroup's.
const WINDOW: usize = 2048;

/// Where a group's files are. More than a kibibyte: it is filled and used where it is, and a path to a file is
/// made in it ([`at`](Self::at)). With copies and paths of their own these facts took 11 KiB of stack, in the
/// first request of a thread that had no more.
struct Place {
    version: CgroupVersion,
    /// Directory of the group, with the root.
    directory: PathBuffer,
    /// Length of the mount point in it: parents above are not visible.
    top: usize,
}

/// Limits and charge of this process's group. Does not allocate.
pub(super) fn limits(root: &Root) -> Result<MemoryLimits> {
    limits_of(root, b"self")
}

/// Limits and charge of the group of `process`, a name in /proc, as far as this process sees it. Does not allocate.
pub(super) fn limits_of(root: &Root, process: &[u8]) -> Result<MemoryLimits> {
    let mut place = Place::nowhere();
    place.find(root, process)?;
    match place.version {
        CgroupVersion::V1 => limits_v1(&mut place),
        CgroupVersion::V2 => limits_v2(&mut place),
    }
}

/// The levels that limit the group of `process`, the group first: each limit with what is charged against it.
pub(super) fn levels_of(root: &Root, process: &[u8]) -> Result<Vec<MemoryLevel>> {
    let mut levels = Vec::new();
    each_level(root, process, Limits::All, |level| levels.push(level))?;
    Ok(levels)
}

/// What is left below the limits above which the kernel kills, of the tightest level. Does not allocate.
pub(super) fn room(root: &Root) -> Result<Option<u64>> {
    let mut room: Option<u64> = None;
    each_level(root, b"self", Limits::Hard, |level| room = least(room, Some(level.room_at_most())))?;
    Ok(room)
}

/// Which limits of v2 are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limits {
    /// `memory.max`.
    Hard,
    /// The lesser of `memory.max` and `memory.high`.
    All,
}

/// Tells of the levels that limit the group of `process`, the group first. Does not allocate.
fn each_level(root: &Root, process: &[u8], limits: Limits, mut tell: impl FnMut(MemoryLevel)) -> Result<()> {
    let mut place = Place::nowhere();
    place.find(root, process)?;
    // Of v1, the least limit of all levels, also of those that cannot be seen.
    let above = match place.version {
        CgroupVersion::V1 => stat(&mut place, [b"hierarchical_memory_limit"]).unwrap_or_default()[0],
        CgroupVersion::V2 => None,
    };
    let above = above.filter(|&limit| is_limit_v1(limit));
    let (mut top, mut seen) = (None, false);
    loop {
        // A level below the one where the controller ends has no files; what is charged is its parent's.
        match level(&mut place, limits) {
            Ok(level) => {
                top = Some(level);
                seen |= above.is_some_and(|above| level.limit == above);
                // Without a hierarchy (before 5.11) parents above do not limit. That is seen from the least
                // limit of those that do.
                if level.limit < u64::MAX && above.is_none_or(|above| level.limit >= above) {
                    tell(level);
                }
            }
            Err(error) if error.code == libc::ENOENT => {}
            Err(error) => return Err(error),
        }
        if !place.ascend() {
            break;
        }
    }
    if let (Some(above), Some(top), false) = (above, top, seen) {
        // That of a level above what can be seen, which is charged as much as the highest that can at least.
        tell(MemoryLevel { limit: above, ..top });
    }
    Ok(())
}

/// One level; a limit of `u64::MAX` is none.
fn level(place: &mut Place, limits: Limits) -> Result<MemoryLevel> {
    let (limit, charge, keys): (_, &[u8], [&[u8]; 2]) = match place.version {
        CgroupVersion::V1 => {
            let limit = place.at(b"memory.limit_in_bytes", limit)?.filter(|&limit| is_limit_v1(limit));
            (limit, b"memory.usage_in_bytes", [b"total_rss", b"total_shmem"])
        }
        CgroupVersion::V2 => {
            let max = place.at(b"memory.max", limit)?;
            let high = if limits == Limits::All { place.at(b"memory.high", limit)? } else { None };
            (least(max, high), b"memory.current", [b"anon", b"shmem"])
        }
    };
    let charge = place.at(charge, |path| read::number(path, CHARGE))?;
    let [anonymous, shared] = stat(place, keys).unwrap_or_default();
    let kept = anonymous.map(|anonymous| anonymous + shared.unwrap_or(0));
    Ok(MemoryLevel { limit: limit.unwrap_or(u64::MAX), charge, kept })
}

/// The group of `process` as the kernel names it.
pub(super) fn name_of(root: &Root, process: &[u8]) -> Result<PathBuffer> {
    let mut group = PathBuffer::new();
    group_path(root, process, &mut group)?;
    Ok(group)
}

/// The version that the memory controller is on, and the directory of the group of `process`.
pub(super) fn directory_of(root: &Root, process: &[u8]) -> Result<(CgroupVersion, PathBuffer)> {
    let mut place = Place::nowhere();
    place.find(root, process)?;
    Ok((place.version, place.directory))
}

/// Finds the group of the memory controller, and the version it is on.
#[inline(never)]
fn group_path(root: &Root, process: &[u8], group: &mut PathBuffer) -> Result<CgroupVersion> {
    let mut unified = false;
    let mut lines =
        Lines::<_, WINDOW>::new(root.at(&[b"/proc/", process, b"/cgroup"], |path| File::open(path, GROUP))?);
    while let Some(line) = lines.next()? {
        // "4:cpu,memory:/path" and "0::/path"; the path may hold colons.
        let mut fields = line.bytes.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(read::malformed(GROUP));
        };
        let v1 = controllers.split(|&byte| byte == b',').any(|name| name == b"memory");
        let v2 = number == b"0" && controllers.is_empty();
        if !(v1 || v2) {
            continue;
        }
        if line.cut {
            return Err(Error::new(GROUP, libc::ENAMETOOLONG));
        }
        group.truncate(0);
        group.push(path)?;
        if v1 {
            return Ok(CgroupVersion::V1);
        }
        unified = true;
    }
    if unified { Ok(CgroupVersion::V2) } else { Err(Error::new(GROUP, libc::ENOENT)) }
}

/// A mount of the hierarchy that is looked for; both paths with the kernel's escapes.
struct Mount<'a> {
    root: &'a [u8],
    point: &'a [u8],
}

/// Understands a line of mountinfo, if it is a mount of the memory controller's hierarchy:
/// `35 31 0:32 /root /mount/point rw,relatime [shared:1 …] - cgroup cgroup rw,memory`.
fn mount_of<'a>(line: &Line<'a>, version: CgroupVersion) -> Option<Mount<'a>> {
    if line.cut {
        return None;
    }
    let mut fields = line.bytes.split(|&byte| byte == b' ');
    let (root, point) = (fields.nth(3)?, fields.next()?);
    fields.find(|&field| field == b"-")?;
    let kind = fields.next()?;
    let options = fields.nth(1).unwrap_or_default();
    let wanted = match version {
        CgroupVersion::V1 => kind == b"cgroup" && options.split(|&byte| byte == b',').any(|o| o == b"memory"),
        CgroupVersion::V2 => kind == b"cgroup2",
    };
    wanted.then_some(Mount { root, point })
}

/// Appends a path of mountinfo, in which space, tab, newline and backslash are written as `\` and three octal digits.
fn push_unescaped(path: &mut PathBuffer, text: &[u8]) -> Result<()> {
    let mut rest = text;
    while let Some(escape) = rest.iter().position(|&byte| byte == b'\\') {
        path.push(&rest[..escape])?;
        let number = rest.get(escape + 1..escape + 4).and_then(|text| read::digits(text, 8));
        let byte = number.and_then(|number| u8::try_from(number).ok()).ok_or(read::malformed(MOUNTS))?;
        path.push(&[byte])?;
        rest = &rest[escape + 4..];
    }
    path.push(rest)
}

/// What of `group` lies below `mount_root`: empty or with a slash in front. `None` when it lies elsewhere or
/// outside of the namespace (the kernel writes `/..` then).
fn below<'a>(group: &'a [u8], mount_root: &[u8]) -> Option<&'a [u8]> {
    if group.split(|&byte| byte == b'/').any(|part| part == b"..") {
        return None;
    }
    // The root group is "/", which as a prefix of others is "".
    let without_slash = |path: &'a [u8]| path.strip_suffix(b"/").unwrap_or(path);
    let rest = without_slash(group).strip_prefix(mount_root.strip_suffix(b"/").unwrap_or(mount_root))?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

impl Place {
    /// One to be filled by [`find`](Self::find).
    const fn nowhere() -> Self {
        Self { version: CgroupVersion::V2, directory: PathBuffer::new(), top: 0 }
    }

    /// Becomes the place of the group of `process`.
    #[inline(never)]
    fn find(&mut self, root: &Root, process: &[u8]) -> Result<()> {
        let mut group = PathBuffer::new();
        self.version = group_path(root, process, &mut group)?;
        self.find_mounted(root, group.as_bytes())
    }

    /// The same for a group and version that are known.
    #[inline(never)]
    fn find_mounted(&mut self, root: &Root, group: &[u8]) -> Result<()> {
        let mut lines =
            Lines::<_, WINDOW>::new(root.at(&[b"/proc/self/mountinfo"], |path| File::open(path, MOUNTS))?);
        while let Some(line) = lines.next()? {
            let Some(mount) = mount_of(&line, self.version) else { continue };
            self.directory.truncate(0);
            push_unescaped(&mut self.directory, mount.root)?;
            let Some(below) = below(group, self.directory.as_bytes()) else { continue };
            self.directory.truncate(0);
            self.directory.push(root.as_bytes())?;
            push_unescaped(&mut self.directory, mount.point)?;
            self.top = self.directory.as_bytes().len();
            return self.directory.push(below);
        }
        Err(Error::new(MOUNTS, libc::ENOENT))
    }

    /// Does something with the path of a file of the group: the directory's, which is longer by the file's name
    /// meanwhile.
    fn at<R>(&mut self, name: &[u8], work: impl FnOnce(&PathBuffer) -> Result<R>) -> Result<R> {
        let length = self.directory.as_bytes().len();
        let path = &mut self.directory;
        let result = path.push(b"/").and_then(|()| path.push(name)).and_then(|()| work(path));
        path.truncate(length);
        result
    }

    /// Goes to the parent. False at the mount point.
    fn ascend(&mut self) -> bool {
        let path = self.directory.as_bytes();
        match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) if slash >= self.top && path.len() > self.top => {
                self.directory.truncate(slash);
                true
            }
            _ => false,
        }
    }
}

/// Reads a limit: a number, or `max` for none. A missing file is no limit, too: the root group has no limits, nor
/// has a group whose parent did not enable the controller.
fn limit(path: &PathBuffer) -> Result<Option<u64>> {
    let mut buffer = [0; 64];
    match read::line(path, &mut buffer, LIMIT) {
        Err(error) if error.code == libc::ENOENT => Ok(None),
        Err(error) => Err(error),
        Ok(text) if text.trim_ascii() == b"max" => Ok(None),
        Ok(text) => read::decimal(text).map(Some).ok_or(read::malformed(LIMIT)),
    }
}

/// The lesser of two limits of which either may be none.
fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn limits_v2(place: &mut Place) -> Result<MemoryLimits> {
    let (mut max, mut high, mut charged) = (None, None, None);
    loop {
        max = least(max, place.at(b"memory.max", limit)?);
        high = least(high, place.at(b"memory.high", limit)?);
        // Where the controller ends above the process's group, the nearest parent that has it is what is charged.
        if charged.is_none() {
            charged = match place.at(b"memory.current", |path| read::number(path, CHARGE)) {
                Err(error) if error.code == libc::ENOENT => None,
                charge => Some((charge?, stat(place, [b"anon"]).map_or(None, |[anonymous]| anonymous))),
            };
        }
        if !place.ascend() {
            break;
        }
    }
    let (charge, anonymous) = charged.ok_or(Error::new(CHARGE, libc::ENOENT))?;
    Ok(MemoryLimits { version: CgroupVersion::V2, max, high, charge, anonymous })
}

fn limits_v1(place: &mut Place) -> Result<MemoryLimits> {
    let charge = place.at(b"memory.usage_in_bytes", |path| read::number(path, CHARGE))?;
    // The charge includes the groups below, so the statistics that do count.
    let keys: [&[u8]; 2] = [b"hierarchical_memory_limit", b"total_rss"];
    let [hierarchical, anonymous] = stat(place, keys).unwrap_or_default();
    let mut max = hierarchical.filter(|&limit| is_limit_v1(limit));
    loop {
        let own = place.at(b"memory.limit_in_bytes", limit)?;
        max = least(max, own.filter(|&limit| is_limit_v1(limit)));
        // The statistics already are the least of all parents.
        if hierarchical.is_some() || !place.ascend() {
            break;
        }
    }
    Ok(MemoryLimits { version: CgroupVersion::V1, max, high: None, charge, anonymous })
}

/// v1 writes "no limit" as the largest number of pages in bytes: 2⁶³ rounded down to the OS page, of which the
/// largest is 64 KiB (256 KiB on one architecture).
const fn is_limit_v1(limit: u64) -> bool {
    limit < (1 << 63) - (1 << 20)
}

/// Values of memory.stat.
fn stat<const N: usize>(place: &mut Place, keys: [&[u8]; N]) -> Result<[Option<u64>; N]> {
    let mut values = [None; N];
    let mut lines = Lines::<_, 256>::new(place.at(b"memory.stat", |path| File::open(path, STAT))?);
    while let Some(line) = lines.next()? {
        for (value, key) in values.iter_mut().zip(keys) {
            *value = value.or_else(|| read::number_of(line.bytes, key));
        }
    }
    Ok(values)
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
