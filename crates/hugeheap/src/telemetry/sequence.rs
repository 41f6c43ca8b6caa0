//! A sequence lock: one writer that never waits, readers that retry.
//!
//! The sequence is odd while the words change and even when they belong together. A writer that was killed in
//! the middle leaves it odd; readers give up after their tries. The orderings follow Boehm, "Can seqlocks get
//! along with programming language memory models?" (MSPC 2012): the words are atomics, a release fence
//! separates the odd sequence from the words, an acquire fence the words from the second look at the sequence.
//! Model-checked with loom (`RUSTFLAGS="--cfg loom" cargo test -p hugeheap --lib sequence`).

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// `N` words that are read together.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SequenceLock<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> SequenceLock<N> {
    /// All words zero.
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self { sequence: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; N] }
    }

    /// Replaces the words. One writer at a time.
    pub(super) fn write(&self, words: &[u64; N]) {
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, from) in self.words.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// Reads words that belong together; `None` when the writer was in the middle at each of `tries` tries.
    pub(super) fn read(&self, tries: u32) -> Option<[u64; N]> {
        for _ in 0..tries {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let mut words = [0; N];
                for (to, from) in words.iter_mut().zip(&self.words) {
                    *to = from.load(Ordering::Relaxed);
                }
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return Some(words);
                }
            }
            core::hint::spin_loop();
        }
        None
    }

    /// As a writer that is killed in the middle leaves it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn abandon(&self) {
        self.sequence.fetch_or(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn readers_never_see_words_of_two_writes() {
        loom::model(|| {
            let lock = Arc::new(SequenceLock::<2> {
                sequence: AtomicU64::new(0),
                words: [AtomicU64::new(0), AtomicU64::new(0)],
            });
            let writer = {
                let lock = Arc::clone(&lock);
                loom::thread::spawn(move || {
                    lock.write(&[1, 1]);
                    lock.write(&[2, 2]);
                })
            };
            if let Some([a, b]) = lock.read(2) {
                assert_eq!(a, b);
            }
            writer.join().unwrap();
            assert_eq!(lock.read(1), Some([2, 2]));
        });
    }
}
