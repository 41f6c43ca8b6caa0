//! Blocks: taken and given plainly, checked, or timed one by one.
//!
//! * [`Plain`] writes a block where a program would at least: its first word, its end, and one byte of every OS page.
//! * [`Checked`] fills it with a pattern of its own and looks at every byte before it is given back: two blocks
//!   that overlap, and a block the allocator wrote into, are found.
//! * [`Timed`] measures each allocation, its first write included: a fresh page costs where it is written.

use crate::histogram::Histogram;
use crate::random::{Random, mixed};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What Rust's and C's small objects need; every allocator here gives it without extra effort.
const ALIGNMENT: usize = 8;
/// The smallest block: its first word is written.
pub(crate) const SMALLEST: usize = 8;
const OS_PAGE: usize = 4096;

/// Takes blocks of sizes from `least` to `most` until they have so many bytes.
pub(crate) fn fill<M: Memory>(
    memory: &mut M,
    random: &mut Random,
    (least, most): (usize, usize),
    bytes: usize,
) -> Vec<Block> {
    let (mut blocks, mut sum) = (Vec::new(), 0);
    while sum < bytes {
        let block = memory.take(random.within(least, most));
        sum += block.size();
        blocks.push(block);
    }
    blocks
}

/// Gives back all but `keep` of a thousand blocks, whichever, and adds these to `kept`.
pub(crate) fn drop_most<M: Memory>(
    memory: &mut M,
    random: &mut Random,
    blocks: impl IntoIterator<Item = Block>,
    keep: usize,
    kept: &mut Vec<Block>,
) {
    for block in blocks {
        if random.below(1000) < keep {
            kept.push(block);
        } else {
            memory.give(block);
        }
    }
}

/// A block that was taken. It is given back to a [`Memory`] of the same kind, on any thread.
#[derive(Debug)]
pub(crate) struct Block {
    start: NonNull<u8>,
    size: u32,
    /// What distinguishes its pattern from all others'.
    tag: u32,
}

// SAFETY: a block is memory without an owner thread; whoever has the value is the only one to use it.
unsafe impl Send for Block {}

impl Block {
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    pub(crate) fn size(&self) -> usize {
        self.size as usize
    }

    /// Clears the block and adds one to every byte, `times` times: a program at work on its object.
    pub(crate) fn work(&mut self, times: usize) {
        let start = self.start.as_ptr();
        // SAFETY: the whole block, which is ours.
        unsafe { start.write_bytes(0, self.size()) };
        for _ in 0..times {
            for offset in 0..self.size() {
                // SAFETY: within the block, cleared above. Volatile: every access shall be made.
                unsafe {
                    let byte = start.add(offset);
                    byte.write_volatile(byte.read_volatile().wrapping_add(1));
                }
            }
        }
    }

    fn layout(&self) -> Layout {
        layout(self.size())
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGNMENT).expect("workloads take sizes far below the limit")
}

/// Where blocks come from. Every thread has its own value.
pub(crate) trait Memory: Default + Send + 'static {
    /// Whether a workload may write into its blocks between taking and giving.
    const WRITABLE: bool = true;

    fn take(&mut self, size: usize) -> Block;
    /// Gives a block a larger size; its contents stay.
    fn grow(&mut self, block: &mut Block, size: usize);
    fn give(&mut self, block: Block);
}

/// As a program does it.
#[derive(Debug, Default)]
pub(crate) struct Plain;

impl Memory for Plain {
    fn take(&mut self, size: usize) -> Block {
        let block = allocate(size);
        touch(&block);
        block
    }

    fn grow(&mut self, block: &mut Block, size: usize) {
        let before = block.size();
        resize(block, size);
        touch_from(block, before);
    }

    fn give(&mut self, block: Block) {
        // SAFETY: the first word was written when the block was taken. Volatile: a program looks at what it frees.
        unsafe { block.start.cast::<u64>().as_ptr().read_volatile() };
        release(&block);
    }
}

fn allocate(size: usize) -> Block {
    let layout = layout(size.max(SMALLEST));
    // SAFETY: the size is not zero.
    let start = unsafe { alloc(layout) };
    let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
    Block { start, size: layout.size() as u32, tag: 0 }
}

fn resize(block: &mut Block, size: usize) {
    let layout = layout(size);
    // SAFETY: taken by `allocate` or here with this layout, and the size is not zero: blocks only grow. The old
    // one is given up.
    let start = unsafe { realloc(block.start.as_ptr(), block.layout(), layout.size()) };
    let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
    (block.start, block.size) = (start, layout.size() as u32);
}

fn release(block: &Block) {
    // SAFETY: taken by `allocate` with this layout; `give` consumes the block, so that it happens once.
    unsafe { dealloc(block.start.as_ptr(), block.layout()) };
}

fn touch(block: &Block) {
    // SAFETY: the block has at least eight bytes, aligned to eight.
    unsafe { block.start.cast::<u64>().as_ptr().write_volatile(block.size as u64) };
    touch_from(block, OS_PAGE);
}

/// One byte of every OS page from `first` on, and the end.
fn touch_from(block: &Block, first: usize) {
    let start = block.start.as_ptr();
    // SAFETY: every offset lies within the block.
    unsafe {
        for offset in (first..block.size()).step_by(OS_PAGE) {
            start.add(offset).write_volatile(1);
        }
        start.add(block.size() - 1).write_volatile(1);
    }
}

/// Every byte is written and compared.
#[derive(Debug, Default)]
pub(crate) struct Checked;

/// The next pattern. From one counter: two threads that got the same memory have different patterns in it.
static TAG: AtomicU32 = AtomicU32::new(1);

impl Memory for Checked {
    const WRITABLE: bool = false;

    fn take(&mut self, size: usize) -> Block {
        let mut block = allocate(size);
        assert!(
            block.address().is_multiple_of(ALIGNMENT),
            "the block of {} bytes at {:#x} is not aligned",
            block.size(),
            block.address()
        );
        block.tag = TAG.fetch_add(1, Ordering::Relaxed);
        write_pattern(&block, 0);
        block
    }

    fn grow(&mut self, block: &mut Block, size: usize) {
        let before = block.size();
        resize(block, size);
        write_pattern(block, before);
    }

    fn give(&mut self, block: Block) {
        for word in 0..block.size().div_ceil(WORD) {
            let expected = pattern(block.tag, word);
            let mut found = expected;
            let len = WORD.min(block.size() - word * WORD);
            // SAFETY: the word, or what the block has of it, lies within the block, and was written by `take`.
            unsafe {
                let from = block.start.as_ptr().add(word * WORD);
                std::ptr::copy_nonoverlapping(from, found.as_mut_ptr(), len);
            }
            assert!(found == expected, "{}", changed(&block, word, expected, found));
        }
        release(&block);
    }
}

/// Writes the pattern from the byte `first` on. What a block had before it grew is left alone: it has to be
/// there still.
fn write_pattern(block: &Block, first: usize) {
    for word in first / WORD..block.size().div_ceil(WORD) {
        let pattern = pattern(block.tag, word);
        let begin = first.saturating_sub(word * WORD);
        let end = WORD.min(block.size() - word * WORD);
        // SAFETY: the word, or what the block has of it, lies within the block.
        unsafe {
            let to = block.start.as_ptr().add(word * WORD + begin);
            std::ptr::copy_nonoverlapping(pattern.as_ptr().add(begin), to, end - begin);
        }
    }
}

/// Bytes of a word of the pattern.
const WORD: usize = 8;

/// Word by word another value for every block.
fn pattern(tag: u32, word: usize) -> [u8; WORD] {
    mixed(u64::from(tag) << 32 | word as u64).to_le_bytes()
}

#[cold]
fn changed(block: &Block, word: usize, expected: [u8; WORD], found: [u8; WORD]) -> String {
    let byte = (0..WORD).find(|&byte| found[byte] != expected[byte]).unwrap_or(0);
    format!(
        "byte {} of the block of {} bytes at {:#x} changed from {:#04x} to {:#04x} while the block was live",
        word * WORD + byte,
        block.size(),
        block.address(),
        expected[byte],
        found[byte],
    )
}

/// Each allocation is measured. The threads' measurements are added up when their value is dropped.
#[derive(Debug)]
pub(crate) struct Timed(Histogram);

/// All threads' measurements, in ticks of [`now`].
static LATENCIES: Mutex<Histogram> = Mutex::new(Histogram::new());

impl Default for Timed {
    fn default() -> Self {
        Self(Histogram::new())
    }
}

impl Memory for Timed {
    fn take(&mut self, size: usize) -> Block {
        let before = now();
        let block = allocate(size);
        touch(&block);
        self.0.add(now().wrapping_sub(before));
        block
    }

    fn grow(&mut self, block: &mut Block, size: usize) {
        let before = now();
        Plain.grow(block, size);
        self.0.add(now().wrapping_sub(before));
    }

    fn give(&mut self, block: Block) {
        Plain.give(block);
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        LATENCIES.lock().unwrap_or_else(PoisonError::into_inner).merge(&self.0);
    }
}

/// The latency of single allocations. In nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    pub(crate) count: u64,
    pub(crate) half: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) most: f64,
    /// What reading the clock twice takes, and is part of all others.
    pub(crate) clock: f64,
}

/// What was measured so far; `None` without measurements.
pub(crate) fn latencies() -> Option<Latencies> {
    let seen = LATENCIES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if seen.count() == 0 {
        return None;
    }
    let mut nothing = Histogram::new();
    for _ in 0..10_000 {
        let before = now();
        nothing.add(now().wrapping_sub(before));
    }
    let tick = tick();
    let quantile = |share: f64| seen.quantile(share) as f64 * tick;
    Some(Latencies {
        count: seen.count(),
        half: quantile(0.5),
        p99: quantile(0.99),
        p999: quantile(0.999),
        most: seen.most() as f64 * tick,
        clock: nothing.quantile(0.5) as f64 * tick,
    })
}

/// The time stamp counter where there is one: a system's clock takes longer than an allocation.
#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    // SAFETY: reads a counter every x86-64 has.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Nanoseconds per tick of [`now`], measured against the system's clock.
fn tick() -> f64 {
    const ENOUGH: Duration = Duration::from_millis(20);
    let (start, ticks) = (Instant::now(), now());
    loop {
        let passed = start.elapsed();
        if passed >= ENOUGH {
            return passed.as_nanos() as f64 / now().wrapping_sub(ticks).max(1) as f64;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_large_as_asked_for() {
        let mut memory = Plain;
        for size in [1, 8, 100, 5000, 70_000] {
            let mut block = memory.take(size);
            assert_eq!(block.size(), size.max(SMALLEST));
            block.work(1);
            memory.give(block);
        }
    }

    #[test]
    fn a_byte_that_changed_is_found() {
        let mut memory = Checked;
        let block = memory.take(100);
        memory.give(block);
        let block = memory.take(100);
        let address = block.address() as *mut u8;
        // SAFETY: within the block. This is the mistake to be found.
        unsafe { address.add(57).write(!address.add(57).read()) };
        let said = std::panic::catch_unwind(move || Checked.give(block)).unwrap_err();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains("byte 57 of the block of 100 bytes"), "{said}");
    }

    #[test]
    fn what_a_block_had_before_it_grew_is_looked_at() {
        let mut memory = Checked;
        let mut block = memory.take(13);
        for size in [14, 21, 5_000, 300_000] {
            memory.grow(&mut block, size);
            assert_eq!(block.size(), size);
        }
        memory.give(block);
        let mut block = memory.take(13);
        // SAFETY: within the block. This is the mistake to be found, as if it had not been copied.
        unsafe { block.start.as_ptr().add(12).write(!block.start.as_ptr().add(12).read()) };
        memory.grow(&mut block, 4_000);
        let said = std::panic::catch_unwind(move || Checked.give(block)).unwrap_err();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains("byte 12 of the block of 4000 bytes"), "{said}");
    }

    #[test]
    fn two_blocks_never_have_one_pattern() {
        let bytes = |tag| (0..8).map(|word| pattern(tag, word)).collect::<Vec<_>>();
        assert_ne!(bytes(1), bytes(2));
    }

    #[test]
    fn latencies_are_counted_and_plausible() {
        let mut memory = Timed::default();
        for _ in 0..1000 {
            let block = memory.take(64);
            memory.give(block);
        }
        drop(memory);
        let latencies = latencies().unwrap();
        assert!(latencies.count >= 1000);
        assert!(latencies.half > 0.0 && latencies.half <= latencies.p99 && latencies.p99 <= latencies.most);
        assert!(latencies.clock <= latencies.half * 1.5, "{latencies:?}");
    }
}
