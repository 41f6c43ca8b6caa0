//! One process, this or another, through /proc and a process descriptor.
//!
//! ```text
//!   LinuxProcess ──▶ files     status, maps: text
//!               ├──▶ details   smaps: advice, eligibility, sums per mapping
//!               ├──▶ tables    /proc/PID/pagemap: what is resident, huge, swapped, shared
//!               ├──▶ folios    /proc/kpageflags, kpagecount: partial huge pages, exactly
//!               └──▶ remote    pidfd, process_madvise; madvise for this process itself
//!   SharedMemory               what a process shows under a name, read without stopping it
//! ```
//!
//! **Never the wrong process.** A number is given to a new process when the old one is gone. The descriptor
//! (`pidfd`) is opened first and stands for the process and not for its number. After a file was opened by
//! number, the descriptor is asked whether its process lives: if it does, the number was its own all the time,
//! and so was the file. `process_madvise` takes the descriptor.
//!
//! Under another root (`--root`) numbers may be those of another namespace. So there is no descriptor then, and
//! nothing can be changed.

mod details;
mod files;
mod folios;
mod proc_fs;
mod remote;
mod shared;
mod tables;

pub use proc_fs::ProcFs;
pub use shared::SharedMemory;

use super::read::{File, PathBuffer, Root};
use super::{Linux, cgroup, host, vm};
use crate::process::{
    Change, Derivation, MappingDetail, PageRun, PartialPage, Process, ProcessMapping, ProcessStatus,
};
use crate::{AddressRange, CgroupVersion, Error, Facts, MemoryLevel, MemoryLimits, PageSizes, Result};
use core::time::Duration;
use folios::Folios;
use remote::Target;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use tables::Tables;

/// One process of this host. See [`Process`].
pub struct LinuxProcess {
    root: Root,
    id: u32,
    target: Target,
    sizes: PageSizes,
    tables: RefCell<Tables>,
    /// `None` where the kernel does not tell physical pages to this process.
    folios: Option<RefCell<Folios>>,
    interrupted: fn() -> bool,
}

impl LinuxProcess {
    /// This process itself. What `collapse` and `split` do to it needs no privilege.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn own() -> Result<Self> {
        Self::with(Linux::new(), std::process::id(), Target::Own)
    }

    /// Another process (or this one by its number).
    ///
    /// # Errors
    /// `ESRCH`: there is no such process. `EACCES`, `EPERM`: its memory may not be looked at. `EINVAL`: the
    /// number of a thread that is not a process. `ENOSYS`: a kernel before 5.3.
    pub fn open(linux: Linux, id: u32) -> Result<Self> {
        let target = if !linux.root.as_bytes().is_empty() {
            Target::Looked
        } else if id == std::process::id() {
            Target::Own
        } else {
            Target::open(id)?
        };
        Self::with(linux, id, target)
    }

    /// Work on it ends when `interrupted` says so: a signal came.
    #[must_use]
    pub fn ending_when(self, interrupted: fn() -> bool) -> Self {
        Self { interrupted, ..self }
    }

    /// What a process says about itself, without opening its memory: anybody may read that.
    ///
    /// # Errors
    /// `ESRCH`: there is no such process.
    pub fn status_of(linux: Linux, id: u32) -> Result<ProcessStatus> {
        status_of(&linux.root, id)
    }

    /// Details of the mappings of a process until `deadline` (on [`Facts::now`]), and whether all are there,
    /// without opening its page tables.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn details_of(linux: Linux, id: u32, deadline: Duration) -> Result<(Vec<MappingDetail>, bool)> {
        details::read(&path_of(&linux.root, id, b"/smaps")?, || host::now() < deadline)
    }

    /// The processes there are, in the order of their numbers.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn all(linux: Linux) -> Result<Vec<u32>> {
        let names = super::read::list(&linux.root, b"/proc", "read(/proc)")?;
        let mut ids: Vec<u32> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        ids.sort_unstable();
        // Without a process there is no /proc: an empty directory is where it would be mounted.
        if ids.is_empty() {
            let _ = File::open(&linux.root.path(b"/proc/meminfo")?, "read(/proc)")?;
        }
        Ok(ids)
    }

    /// Huge pages of which only a part is mapped, on the whole host; `None` before Linux 6.12.
    pub fn partially_mapped_on_host(linux: Linux) -> Option<u64> {
        let mut path = linux.root.path(b"/sys/kernel/mm/transparent_hugepage/hugepages-").ok()?;
        path.push_decimal(linux.page_sizes().huge? / 1024).ok()?;
        path.push(b"kB/stats/nr_anon_partially_mapped").ok()?;
        super::read::number(&path, "read(nr_anon_partially_mapped)").ok()
    }

    /// The memory cgroup of a process, as the kernel names it (`/proc/PID/cgroup`).
    ///
    /// # Errors
    /// `Missing` where it is in none, or there is no such process.
    pub fn memory_group(linux: Linux, id: u32) -> Result<String> {
        let path = cgroup::name_of(&linux.root, id.to_string().as_bytes())?;
        Ok(String::from_utf8_lossy(path.as_bytes()).into_owned())
    }

    /// Where the files of a process's memory cgroup are, and which version of them.
    ///
    /// # Errors
    /// `Missing` where it cannot be seen from here.
    pub fn memory_group_directory(linux: Linux, id: u32) -> Result<(CgroupVersion, PathBuf)> {
        let (version, path) = cgroup::directory_of(&linux.root, id.to_string().as_bytes())?;
        Ok((version, PathBuf::from(OsStr::from_bytes(path.as_bytes()))))
    }

    /// Limits and charge of a process's memory cgroup, without opening its memory.
    ///
    /// # Errors
    /// `Missing` where it is in none, or it cannot be seen from here.
    pub fn memory_limits_of(linux: Linux, id: u32) -> Result<MemoryLimits> {
        cgroup::limits_of(&linux.root, id.to_string().as_bytes())
    }

    /// The levels that limit a process's memory, without opening its memory: see [`Process::memory_levels`].
    ///
    /// # Errors
    /// `Missing` where it is in no group, or it cannot be seen from here.
    pub fn memory_levels_of(linux: Linux, id: u32) -> Result<Vec<MemoryLevel>> {
        cgroup::levels_of(&linux.root, id.to_string().as_bytes())
    }

    /// The process that the thread `id` belongs to: itself, when it is a process. `None` without such a thread.
    pub fn process_of_thread(linux: Linux, id: u32) -> Option<u32> {
        files::group(&path_of(&linux.root, id, b"/status").ok()?)
    }

    fn with(linux: Linux, id: u32, target: Target) -> Result<Self> {
        let sizes = linux.page_sizes();
        let tables = Tables::open(&path_of(&linux.root, id, b"/pagemap")?, sizes.os)?;
        let real = linux.root.as_bytes().is_empty();
        let folios = if real { Folios::open(sizes).map(RefCell::new) } else { None };
        let process = Self {
            root: linux.root,
            id,
            target,
            sizes,
            tables: RefCell::new(tables),
            folios,
            interrupted: || false,
        };
        process.target.check()?;
        Ok(process)
    }

    fn path(&self, file: &[u8]) -> Result<PathBuffer> {
        path_of(&self.root, self.id, file)
    }
}

/// What a process says about itself. One whose main thread has ended lives if another thread has memory: of one
/// that ends as a whole the others are counted until all of its memory is free, seconds of a large one.
fn status_of(root: &Root, id: u32) -> Result<ProcessStatus> {
    const TASKS: &str = "read(/proc/PID/task)";
    let mut status = files::status(&path_of(root, id, b"/status")?)?;
    if status.main_thread_ended {
        let tasks = path_of(root, id, b"/task")?;
        let names = super::read::list(&Root::REAL, tasks.as_bytes(), TASKS).map_err(gone)?;
        let has_memory = |name: &std::ffi::OsString| {
            let file = [b"/task/", name.as_bytes(), b"/status"].concat();
            path_of(root, id, &file)
                .and_then(|path| files::status(&path))
                .is_ok_and(|thread| thread.has_memory)
        };
        status.main_thread_ended = names.iter().any(has_memory);
        status.ended = !status.main_thread_ended;
    }
    Ok(status)
}

/// The path of a file of a process.
fn path_of(root: &Root, id: u32, file: &[u8]) -> Result<PathBuffer> {
    let mut path = root.path(b"/proc/")?;
    path.push_decimal(id as usize)?;
    path.push(file)?;
    Ok(path)
}

/// Opens a file of a process. One that is missing means the process is.
fn open(path: &PathBuffer, name: &'static str) -> Result<File> {
    File::open(path, name).map_err(gone)
}

fn gone(error: Error) -> Error {
    if error.code == libc::ENOENT { Error::new(error.call, libc::ESRCH) } else { error }
}

impl Process for LinuxProcess {
    fn id(&self) -> u32 {
        self.id
    }

    fn page_sizes(&self) -> PageSizes {
        self.sizes
    }

    fn status(&self) -> Result<ProcessStatus> {
        let status = status_of(&self.root, self.id)?;
        self.target.check()?;
        Ok(status)
    }

    fn mappings(&self) -> Result<Vec<ProcessMapping>> {
        let mappings = files::mappings(&self.path(b"/maps")?)?;
        self.target.check()?;
        Ok(mappings)
    }

    fn details(&self, deadline: Duration) -> Result<(Vec<MappingDetail>, bool)> {
        let details = details::read(&self.path(b"/smaps")?, || host::now() < deadline)?;
        self.target.check()?;
        Ok(details)
    }

    fn pages(&self, range: AddressRange, visit: &mut dyn FnMut(PageRun)) -> Result<()> {
        self.tables.borrow_mut().runs(range, visit)
    }

    fn tells_huge(&self) -> bool {
        self.tables.borrow().scans
    }

    fn shared_pages(&self, unit: AddressRange) -> Result<u32> {
        self.tables.borrow_mut().shared(unit)
    }

    fn derivation(&self) -> Derivation {
        if self.folios.is_some() { Derivation::Folios } else { Derivation::Tables }
    }

    fn partial_pages(&self, unit: AddressRange, visit: &mut dyn FnMut(PartialPage)) -> Result<()> {
        let mut tables = self.tables.borrow_mut();
        match &self.folios {
            Some(folios) => folios.borrow_mut().partial(tables.entries(unit)?, unit.start, visit),
            None => {
                tables.partial(unit, self.sizes.huge.unwrap_or(unit.len), visit)?;
                Ok(())
            }
        }
    }

    fn memory_limits(&self) -> Result<MemoryLimits> {
        let id = self.id.to_string();
        cgroup::limits_of(&self.root, id.as_bytes())
    }

    fn memory_levels(&self) -> Result<Vec<MemoryLevel>> {
        cgroup::levels_of(&self.root, self.id.to_string().as_bytes())
    }

    fn allows(&self, change: Change) -> Result<()> {
        self.target.allows(change)
    }

    fn take(&self) -> Result<()> {
        self.tables.borrow().take()
    }

    fn let_go(&self) {
        self.tables.borrow().let_go();
    }

    fn collapse(&self, range: AddressRange) -> Result<()> {
        self.target.collapse(range)
    }

    fn split(&self, pages: &[usize]) -> Result<usize> {
        self.target.split(pages, self.sizes.os)
    }

    fn is_interrupted(&self) -> bool {
        (self.interrupted)()
    }

    fn now(&self) -> Duration {
        host::now()
    }

    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl core::fmt::Debug for LinuxProcess {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LinuxProcess").field("id", &self.id).finish()
    }
}

/// The unit of [`vm::os_page`], for the parts below.
fn os_page() -> usize {
    vm::os_page()
}

#[cfg(test)]
mod tests;
