//! The three units and how an address finds its metadata.
//!
//! ```text
//!   region   ├───────────────────────────────────────────────────────────────┤  one reservation
//!   arena    ├── 2 MiB ──┼── 2 MiB ──┼── …                                       one huge page
//!   heap page├16 KiB┼16 KiB┼ … 128 to an arena
//!   OS page  ├4K┼4K┼4K┼4K┤
//! ```
//!
//! Index of the arena in its region = (address − start) / 2 MiB; of the heap page in its arena =
//! (address / 16 KiB) mod 128. Nothing is stored in the memory handed out.

/// Bytes of an arena: the huge page of x86-64 and of arm64 with 4 KiB pages. Where the huge page is larger (32 or
/// 512 MiB with larger OS pages), arenas keep this size and huge backing comes from smaller folios.
pub const ARENA_BYTES: usize = 2 << 20;

/// Bytes of a heap page. Exactly pymalloc's pool size since 3.10, so that an arena of 1 MiB aligned to it loses no
/// pool, and a multiple of the OS page up to 16 KiB, so that a heap page can be protected alone.
pub const HEAP_PAGE_BYTES: usize = 16 << 10;

/// Heap pages in an arena.
pub const HEAP_PAGES: u32 = (ARENA_BYTES / HEAP_PAGE_BYTES) as u32;

const _: () = assert!(HEAP_PAGES == u128::BITS, "one u128 is a bitmap over an arena");

/// Heap pages needed for `bytes`; at least one. `None` when the sum overflows.
pub const fn heap_pages_for(bytes: usize) -> Option<usize> {
    match bytes.checked_add(HEAP_PAGE_BYTES - 1) {
        Some(sum) if bytes > 0 => Some(sum / HEAP_PAGE_BYTES),
        Some(_) => Some(1),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_to_heap_pages() {
        assert_eq!(heap_pages_for(0), Some(1));
        assert_eq!(heap_pages_for(1), Some(1));
        assert_eq!(heap_pages_for(16 << 10), Some(1));
        assert_eq!(heap_pages_for((16 << 10) + 1), Some(2));
        assert_eq!(heap_pages_for(1 << 20), Some(64));
        assert_eq!(heap_pages_for(usize::MAX), None);
    }
}
