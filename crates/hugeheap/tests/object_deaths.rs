//! A wrong free ends a real process: one line that names address, size class and mistake, then SIGABRT.
//!
//! Each test runs this file's binary once more, with the name of a deed in the environment. The child does it
//! as the allocator's user would: with a heap of its own and through Rust's global allocator.

use hugeheap::object::{GlobalHeap, ProcessHeap, space};
use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr::NonNull;

/// Name of the variable that makes a child of this binary do a deed instead of the tests.
const DEED: &str = "HUGEHEAP_TEST_DEED";

/// Does something that must end the process. Says before where, on standard output.
type Deed = fn(&mut ProcessHeap);

/// What happens to the address that a child printed: the line begins with what was done, and ends with why that
/// is wrong.
fn dies(test: &str, deed: Deed, action: &str, mistake: &str) {
    if std::env::var_os(DEED).is_some_and(|name| name == test) {
        let mut heap = space().acquire().expect("memory");
        deed(&mut heap);
        println!("the process goes on");
        std::process::exit(0);
    }
    let output = Command::new(std::env::current_exe().expect("this binary has a path"))
        .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(DEED, test)
        .output()
        .expect("this binary runs again");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{out}{err}");
    // libtest writes the test's name before it, without an end of line.
    let address = out.lines().find_map(|line| line.rsplit_once("address ")).expect("the child said where").1;
    assert_eq!(err, format!("hugeheap: {action} of {address}: {mistake}\n"));
}

fn tell(address: usize) {
    println!("address {address:#x}");
}

fn free(heap: &mut ProcessHeap, address: usize) {
    tell(address);
    // SAFETY: what is not live is refused, which is what the test is about.
    unsafe { heap.free(NonNull::new(address as *mut u8).expect("not null")) };
}

fn free_sized(heap: &mut ProcessHeap, address: usize, bytes: usize) {
    tell(address);
    // SAFETY: as in `free`.
    unsafe { heap.free_sized(NonNull::new(address as *mut u8).expect("not null"), bytes) };
}

fn take(heap: &mut ProcessHeap, bytes: usize) -> usize {
    heap.allocate(bytes).expect("memory").as_ptr() as usize
}

/// Frees a live block in the usual way.
fn give(heap: &mut ProcessHeap, address: usize) {
    // SAFETY: live and not used any more.
    unsafe { heap.free(NonNull::new(address as *mut u8).expect("not null")) };
}

/// Lets another thread do it, after it has freed a block of the same page: such a page has a way of its own.
fn in_pending_page(heap: &mut ProcessHeap, deed: impl FnOnce(&mut ProcessHeap) + Send + 'static) {
    let neighbour = take(heap, 48);
    std::thread::spawn(move || {
        let mut heap = space().acquire().expect("memory");
        give(&mut heap, neighbour);
        deed(&mut heap);
    })
    .join()
    .expect("the process ends before");
}

/// One test per deed: its name, what is done, what the line says after the address, the deed.
macro_rules! deaths {
    ($($(#[$attribute:meta])* $name:ident $action:literal $mistake:literal $deed:expr;)*) => {
        $($(#[$attribute])* #[test] fn $name() { dies(stringify!($name), $deed, $action, $mistake) })*
    };
}

deaths! {
    foreign_address "free" "the address is not from this heap" |heap| {
        take(heap, 48);
        let own = Box::new([0_u64; 6]);
        free(heap, &raw const *own as usize);
    };

    inside_a_small_block "free" "size class 48: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 48);
        free(heap, block + 16);
    };

    inside_a_medium_block "free" "size class 1024: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 1000);
        free(heap, block + 512);
    };

    not_aligned "free" "size class 48: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 48);
        free(heap, block + 4);
    };

    in_the_rest_of_a_page "free" "size class 48: the address is inside a block, not at its beginning" |heap| {
        let page = take(heap, 48) & !0x3fff;
        free(heap, page + 0x4000 - 16);
    };

    inside_a_page_run "free" "no size class: the address is inside a block, not at its beginning" |heap| {
        let run = take(heap, 100_000);
        free(heap, run + 0x4000);
    };

    inside_a_large_block "free" "no size class: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 5 << 20);
        free(heap, block + (2 << 20));
    };

    freed_twice "free" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 48);
        give(heap, block);
        free(heap, block);
    };

    freed_twice_with_a_million_between
        "free" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 48);
        let _keeps_the_page = take(heap, 48);
        give(heap, block);
        let blocks: Vec<_> = (0..1_000_000).map(|_| take(heap, 48)).collect();
        for &other in &blocks {
            give(heap, other);
        }
        free(heap, block);
    };

    freed_twice_a_medium_block
        "free" "size class 1024: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 1000);
        give(heap, block);
        free(heap, block);
    };

    freed_twice_a_page_run
        "free" "no size class: nothing live begins at the address (freed twice?)" |heap| {
        let run = take(heap, 100_000);
        give(heap, run);
        free(heap, run);
    };

    freed_twice_a_large_block
        "free" "no size class: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 5 << 20);
        give(heap, block);
        free(heap, block);
    };

    freed_twice_by_another_thread
        "free" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let blocks: Vec<_> = (0..1000).map(|_| take(heap, 48)).collect();
        give(heap, blocks[7]);
        let address = blocks[7];
        std::thread::spawn(move || {
            let mut heap = space().acquire().expect("memory");
            free(&mut heap, address);
        })
        .join()
        .expect("the process ends before");
    };

    freed_by_two_other_threads "free" "size class 48: two threads freed the block" |heap| {
        let block = take(heap, 48);
        for tells in [false, true] {
            std::thread::spawn(move || {
                let mut heap = space().acquire().expect("memory");
                if tells { free(&mut heap, block) } else { give(&mut heap, block) }
            })
            .join()
            .expect("the process ends before");
        }
    };

    sized_free_by_two_other_threads "sized free" "size class 48: two threads freed the block" |heap| {
        let block = take(heap, 48);
        for tells in [false, true] {
            std::thread::spawn(move || {
                let mut heap = space().acquire().expect("memory");
                if tells { free_sized(&mut heap, block, 48) } else { give(&mut heap, block) }
            })
            .join()
            .expect("the process ends before");
        }
    };

    freed_by_another_thread_and_then_by_the_owner
        "free" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 48);
        let _keeps_the_page = take(heap, 48);
        std::thread::spawn(move || {
            let mut heap = space().acquire().expect("memory");
            give(&mut heap, block);
        })
        .join()
        .expect("the block is live");
        free(heap, block);
    };

    freed_twice_when_the_page_has_another_class
        "free" "size class 48: the address is inside a block, not at its beginning" |heap| {
        // The whole page, given back; the next page is the same one.
        let blocks: Vec<_> = (0..16_384 / 32).map(|_| take(heap, 32)).collect();
        for &block in &blocks {
            give(heap, block);
        }
        heap.trim();
        let other = take(heap, 48);
        assert_eq!(other & !0x3fff, blocks[1] & !0x3fff, "the page is used again");
        free(heap, blocks[1]);
    };

    wrong_size "sized free" "size class 48: freed with a size of 100 bytes, which another class has" |heap| {
        let block = take(heap, 48);
        free_sized(heap, block, 100);
    };

    wrong_size_of_a_page_run
        "sized free" "size class 114688: freed with a size of 48 bytes, which another class has" |heap| {
        let run = take(heap, 100_000);
        free_sized(heap, run, 48);
    };

    wrong_size_of_a_block_of_a_span
        "sized free" "size class 20480: freed with a size of 17000 bytes, which another class has" |heap| {
        let block = take(heap, 20_000);
        free_sized(heap, block, 17_000);
    };

    block_of_a_span_freed_twice
        "sized free" "size class 20480: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 20_000);
        free_sized(heap, block, 20_000);
        free_sized(heap, block, 20_000);
    };

    inside_a_block_of_a_span
        "free" "size class 20480: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 20_000);
        free(heap, block + 4096);
    };

    wrong_size_of_a_long_page_run
        "sized free" "size class 212992: freed with a size of 100000 bytes, which another class has" |heap| {
        let run = take(heap, 200_000);
        free_sized(heap, run, 100_000);
    };

    wrong_size_of_a_large_block
        "sized free" "size class 5000000: freed with a size of 5000001 bytes, which another class has" |heap| {
        let block = take(heap, 5_000_000);
        free_sized(heap, block, 5_000_001);
    };

    sized_free_of_a_long_page_run_twice
        "sized free" "no size class: nothing live begins at the address (freed twice?)" |heap| {
        let run = take(heap, 200_000);
        free_sized(heap, run, 200_000);
        free_sized(heap, run, 200_000);
    };

    sized_free_inside_a_long_page_run
        "sized free" "no size class: the address is inside a block, not at its beginning" |heap| {
        let run = take(heap, 200_000);
        free_sized(heap, run + 16_384, 200_000);
    };

    sized_free_twice
        "sized free" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 48);
        free_sized(heap, block, 48);
        free_sized(heap, block, 48);
    };

    freed_by_another_thread_and_then_by_the_owner_with_its_size
        "sized free" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 48);
        std::thread::spawn(move || {
            let mut heap = space().acquire().expect("memory");
            give(&mut heap, block);
        })
        .join()
        .expect("the block is live");
        free_sized(heap, block, 48);
        // The same place for two owners: what the check is there to prevent.
        let (first, rest) = (take(heap, 48), take(heap, 40_000));
        println!("handed out again: {}, {rest:#x}", first == block);
    };

    resized_after_it_was_freed
        "reallocate" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 48);
        give(heap, block);
        tell(block);
        // SAFETY: as in `free`.
        unsafe { heap.reallocate(NonNull::new(block as *mut u8).expect("not null"), 100) };
    };

    resized_within_its_class_after_it_was_freed
        "reallocate" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let block = take(heap, 48);
        give(heap, block);
        tell(block);
        // SAFETY: as in `free`.
        unsafe { heap.reallocate(NonNull::new(block as *mut u8).expect("not null"), 40) };
    };

    resized_inside_a_block
        "reallocate" "size class 48: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 48);
        tell(block + 16);
        // SAFETY: as in `free`.
        unsafe { heap.reallocate(NonNull::new((block + 16) as *mut u8).expect("not null"), 100) };
    };

    inside_a_block_of_a_page_in_which_others_freed
        "free" "size class 48: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 48);
        in_pending_page(heap, move |other| free(other, block + 16));
    };

    wrong_size_in_a_page_in_which_others_freed
        "sized free" "size class 48: freed with a size of 100 bytes, which another class has" |heap| {
        let block = take(heap, 48);
        in_pending_page(heap, move |other| free_sized(other, block, 100));
    };

    freed_by_the_owner_of_a_page_in_which_others_freed
        "sized free" "size class 48: nothing live begins at the address (freed twice?)" |heap| {
        let (block, keeps) = (take(heap, 48), take(heap, 48));
        give(heap, block);
        std::thread::spawn(move || {
            let mut heap = space().acquire().expect("memory");
            give(&mut heap, keeps);
            free_sized(&mut heap, block, 48);
        })
        .join()
        .expect("the process ends before");
    };

    without_a_heap_of_its_own
        "free" "size class 48: the address is inside a block, not at its beginning" |heap| {
        let block = take(heap, 48);
        tell(block + 16);
        // SAFETY: as in `free`.
        unsafe { space().free(NonNull::new((block + 16) as *mut u8).expect("not null")) };
    };

    global_allocator_freed_twice
        "sized free" "size class 48: nothing live begins at the address (freed twice?)" |_| {
        let layout = Layout::new::<[u64; 6]>();
        // SAFETY: the layout is not empty; the second free is refused.
        unsafe {
            let block = GlobalHeap.alloc(layout);
            tell(block as usize);
            GlobalHeap.dealloc(block, layout);
            GlobalHeap.dealloc(block, layout);
        }
    };

    global_allocator_wrong_layout
        "sized free" "size class 48: freed with a size of 64 bytes, which another class has" |_| {
        // SAFETY: the layouts are not empty; the free is refused.
        unsafe {
            let block = GlobalHeap.alloc(Layout::new::<[u64; 6]>());
            tell(block as usize);
            GlobalHeap.dealloc(block, Layout::new::<[u64; 8]>());
        }
    };

    global_allocator_foreign_address "sized free" "the address is not from this heap" |_| {
        let own = Box::new([0_u64; 6]);
        let address = (&raw const *own).cast_mut().cast();
        tell(address as usize);
        // SAFETY: refused.
        unsafe { GlobalHeap.dealloc(address, Layout::new::<[u64; 6]>()) };
    };
}
