//! Touching free memory before a measurement needs it.
//!
//! The memory of a virtual machine is not all there. What the guest never touched, the host first has to find: 2.4
//! seconds per GiB here, against 0.08 when it is there. Worse, a guest with free page reporting (virtio
//! balloon) gives memory back to the host all the time: blocks of 2 MiB that stayed free for about two seconds
//! are taken away, and touching them again costs thirty times what it costs otherwise. Only *whole* free blocks
//! are reported. So a variant that frees and takes huge pages meets them at random, depending on how long the
//! run before it lasted, and one on small pages does not: a measurement without care punishes exactly what it
//! wants to measure.
//!
//! Hence two rules. Nearly all free memory is touched once at the start, but for guests that
//! [report](super::page_reporting) it. And right before *every* timed run, of every variant, as much memory as
//! the run will need is touched and freed again: the run then finds it at hand, well within the two seconds in
//! which it was not yet reported.

use crate::output::{Output, bytes};
use hugeheap_os::Facts;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

const MIB: u64 = 1 << 20;
/// Progress of the first touch is told in steps of this size.
const STEP: u64 = 256 * MIB;
/// Left alone by the first touch: other programs go on meanwhile.
const MARGIN: u64 = 1024 * MIB;

/// What a run that peaks at `peak` bytes needs: its memory, what an allocator takes beside it, page tables.
pub fn need(peak: u64) -> u64 {
    peak.saturating_add(peak / 10 * 3).saturating_add(64 * MIB)
}

/// Touches `len` bytes and frees them. Fails without harm when there is not that much.
pub fn touch_and_free(len: u64) -> io::Result<()> {
    touched(len).map(drop)
}

/// The same, but that who gets them frees them.
pub(super) fn touched(len: u64) -> io::Result<Memory> {
    let memory = Memory::map(len)?;
    memory.touch(0, len);
    Ok(memory)
}

/// How much of the free memory may be touched at once without getting in anyone's way.
pub fn touchable(facts: &impl Facts) -> u64 {
    let mut free = facts.available_memory().unwrap_or(0);
    for level in facts.memory_levels().unwrap_or_default() {
        free = free.min(level.room());
    }
    free.saturating_sub(MARGIN.max(free / 10))
}

/// Touches `len` bytes of free memory once, with progress. In a process of its own, the first the kernel
/// kills should memory run short: the measurement then goes on with what was reached.
pub fn touch_once(len: u64, out: &Output) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    out.progress(
        &format!(
            "touching {} of free memory once (a virtual machine's memory is slow at the first touch; --touch none skips this)",
            bytes(len)
        ),
        true,
    );
    let (mut reader, mut writer) = pipe()?;
    // SAFETY: the child makes system calls and writes to memory it maps itself, then ends without unwinding.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        // No reader: it must learn by the pipe's end when this process is killed.
        drop(reader);
        let _ = fs::write("/proc/self/oom_score_adj", "1000");
        let code = touch_in_steps(len, &mut writer);
        // SAFETY: ends the child at once, without the parent's destructors.
        unsafe { libc::_exit(code) };
    }
    drop(writer);
    let mut reached = 0;
    let mut step = [0];
    while super::interrupt::noted().is_none() && reader.read(&mut step).unwrap_or(0) == 1 {
        reached = (reached + STEP).min(len);
        out.progress(&format!("touched {} of {}", bytes(reached), bytes(len)), false);
    }
    let mut status = 0;
    // SAFETY: the child is ours and not yet waited for.
    unsafe {
        if super::interrupt::noted().is_some() {
            libc::kill(child, libc::SIGKILL);
        }
        while libc::waitpid(child, &mut status, 0) < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    out.progress(&format!("touched {} of {}", bytes(reached), bytes(len)), true);
    Ok(())
}

fn touch_in_steps(len: u64, progress: &mut fs::File) -> libc::c_int {
    let Ok(memory) = Memory::map(len) else { return 1 };
    let mut from = 0;
    while from < len {
        let to = (from + STEP).min(len);
        memory.touch(from, to);
        if progress.write_all(&[0]).is_err() {
            return 1;
        }
        from = to;
    }
    0
}

fn pipe() -> io::Result<(fs::File, fs::File)> {
    let mut ends = [0; 2];
    // SAFETY: two numbers to be filled.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are open, and owned by nobody else.
    let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((reader.into(), writer.into()))
}

/// Memory of no other use, freed when dropped.
pub(super) struct Memory {
    start: *mut u8,
    len: usize,
}

impl Memory {
    fn map(len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages make the touch fast, and hand the memory back in whole blocks. Refused: small pages do too.
        // SAFETY: the mapping is ours.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        Ok(Self { start: start.cast(), len })
    }

    fn touch(&self, from: u64, to: u64) {
        for offset in (from as usize..(to as usize).min(self.len)).step_by(4096) {
            // SAFETY: within the mapping. Volatile, because nobody ever reads it.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by map, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_freed() {
        touch_and_free(8 * MIB).unwrap();
        touch_once(3 * MIB, &Output::new(true, false, true)).unwrap();
    }

    #[test]
    fn more_than_there_is_fails_without_harm() {
        assert!(touch_and_free(u64::MAX / 2).is_err());
    }

    #[test]
    fn the_need_leaves_room() {
        assert_eq!(need(100 * MIB), 194 * MIB);
    }
}
