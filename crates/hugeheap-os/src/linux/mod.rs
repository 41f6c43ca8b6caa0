//! Linux: pages by `mmap` and its relatives, facts from /proc and /sys.
//!
//! ```text
//!   pages ──▶ hugetlb ──▶ vm            memory: states, pool pages, one function per system call
//!   residency ──▶ pagemap ──▶ maps      what backs a range: page tables, and which mapping it is
//!            └──▶ smaps                 the same on older kernels
//!   facts ──▶ thp, pools, cgroup        facts from files
//!        ├──▶ host, hardware
//!        └──▶ capabilities              facts by trying
//!   knobs                               what an operator sets, as text
//!   process                             another process: its facts, its page tables, advice for it
//!   read, lines                         files without the heap, line by line
//!   descriptors                         a thread that shares none with the program
//!   leader                              whether the thread that the process began with has ended
//! ```

mod capabilities;
mod cgroup;
mod descriptors;
mod facts;
mod hardware;
mod host;
mod hugetlb;
mod knobs;
mod leader;
mod lines;
mod maps;
mod pagemap;
mod pages;
mod pools;
mod process;
mod read;
mod residency;
mod smaps;
#[cfg(test)]
mod testing;
mod thp;
mod vm;

pub use descriptors::{separate_descriptors, write_to_stderr};
pub use knobs::{Knob, Knobs};

pub use process::{LinuxProcess, ProcFs, SharedMemory};

use crate::Result;
use read::Root;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Linux. Holds nothing but where /proc and /sys are, so it is cheap to copy and fit for a static.
#[derive(Clone, Copy)]
pub struct Linux {
    root: Root,
}

impl Linux {
    /// The running kernel with the real /proc and /sys.
    pub const fn new() -> Self {
        Self { root: Root::REAL }
    }

    /// The running kernel with the /proc and /sys in `dir` as sources of [`Facts`](crate::Facts): for
    /// tests, and for containers that see the host's there. [`Pages`](crate::Pages) always work on this process.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a path of more than 256 bytes.
    pub fn with_root(dir: &Path) -> Result<Self> {
        Ok(Self { root: Root::new(dir)? })
    }

    /// Where the files of this process's memory cgroup are, and which version of them.
    ///
    /// # Errors
    /// `Missing` where it cannot be seen from here.
    pub fn memory_group_directory(&self) -> Result<(crate::CgroupVersion, std::path::PathBuf)> {
        let (version, path) = cgroup::directory_of(&self.root, b"self")?;
        Ok((version, std::ffi::OsStr::from_bytes(path.as_bytes()).into()))
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Linux {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let root = String::from_utf8_lossy(self.root.as_bytes());
        f.debug_struct("Linux").field("root", &root).finish()
    }
}
