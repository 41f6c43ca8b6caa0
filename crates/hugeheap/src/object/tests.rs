//! What a heap of blocks promises, on the simulated kernel.

use super::*;
use crate::arena::{Arenas, Settings};
use crate::lock::Lock;
use core::ptr::NonNull;
use hugeheap_os::simulated::{Config, Kernel};

/// Arenas on a simulated kernel, behind a lock.
pub(crate) struct World {
    pub(crate) arenas: Lock<Arenas<Kernel>>,
    pub(crate) kernel: Kernel,
}

impl Source for World {
    type Os = Kernel;
    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<Kernel>) -> R) -> R {
        work(&mut self.arenas.lock())
    }
    fn os(&self) -> &Kernel {
        &self.kernel
    }
}

/// A space of its own for a test. Never freed, as in a process.
pub(crate) fn space() -> &'static Space<World> {
    let kernel = Kernel::new(Config::default());
    let settings = Settings { region: Some(256 << 20), ..Settings::DEFAULT };
    let arenas = Lock::new(Arenas::new(kernel.clone(), settings));
    let world = Box::leak(Box::new(World { arenas, kernel }));
    Box::leak(Box::new(Space::new(world)))
}

fn fill(address: NonNull<u8>, bytes: usize, value: u8) {
    // SAFETY: the test owns the block.
    unsafe { address.write_bytes(value, bytes) };
}

fn holds(address: NonNull<u8>, bytes: usize, value: u8) -> bool {
    // SAFETY: the test owns the block and filled it.
    unsafe { core::slice::from_raw_parts(address.as_ptr(), bytes) }.iter().all(|&byte| byte == value)
}

#[test]
fn blocks_of_every_size_are_apart_and_aligned() {
    let mut heap = space().acquire().expect("memory");
    let mut blocks = Vec::new();
    for round in 0..3 {
        for bytes in (1..20_000).step_by(97).chain([0, 16, 512, 513, 8192, 8193, 1 << 20, (1 << 20) + 1]) {
            let address = heap.allocate(bytes).expect("memory");
            assert_eq!(address.as_ptr() as usize % 16, 0);
            assert!(heap.usable_size(address).expect("live") >= bytes);
            let value = (blocks.len() * 7 + round) as u8;
            fill(address, bytes, value);
            blocks.push((address, bytes, value));
        }
    }
    for &(address, bytes, value) in &blocks {
        assert!(holds(address, bytes, value), "{bytes} bytes were overwritten");
    }
    for (address, ..) in blocks {
        // SAFETY: live and not used any more.
        unsafe { heap.free(address) };
    }
}

#[test]
fn pages_without_blocks_go_back_to_the_arenas() {
    let space = space();
    let mut heap = space.acquire().expect("memory");
    let blocks: Vec<_> = (0..100_000).map(|_| heap.allocate(64).expect("memory")).collect();
    let live = space.source().arenas.lock().snapshot().live;
    assert!((6_400_000..6_700_000).contains(&live), "{live}");
    for address in blocks {
        // SAFETY: live and not used any more.
        unsafe { heap.free(address) };
    }
    heap.trim();
    assert_eq!(space.source().arenas.lock().snapshot().live, 0);
}
