//! A forked child of a process with arenas from a pool survives writing to everything.
//!
//! The child's heap is this one with the child's handle of the kernel: the records are shared real memory, so
//! the test goes on as the child and looks at the parent through the kernel only.

use super::*;
use hugeheap_os::Facts;
use hugeheap_os::simulated::Call;

/// Full arenas from a pool that has no further page.
fn pool_of(count: u64) -> (World, Vec<usize>) {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(count));
    let arenas = world.take_arenas(count as usize);
    assert_eq!(world.heap.snapshot().arenas_hugetlb, count);
    (world, arenas)
}

fn write_everything(kernel: &Kernel, arenas: &[usize]) {
    for &arena in arenas {
        kernel.touch(AddressRange::new(arena, ARENA_BYTES)).expect("a process may write to its memory");
    }
}

/// Forks and goes on as the child, which has copies of everything. Returns the parent's handle.
fn become_child(world: &mut World, between: impl FnOnce(&Kernel, &Kernel)) -> Kernel {
    let (parent, shared) = become_some_child(world, between);
    assert_eq!(shared, 0);
    parent
}

/// The same of any child, with how many arenas it still shares.
fn become_some_child(world: &mut World, between: impl FnOnce(&Kernel, &Kernel)) -> (Kernel, usize) {
    let copies = world.heap.before_fork();
    let parent = world.kernel.clone();
    let child = parent.fork();
    between(&parent, &child);
    world.kernel = child.clone();
    world.heap.os = child;
    (parent, world.heap.after_fork_in_child(copies))
}

#[test]
fn a_child_survives_writing_to_everything_with_an_empty_pool() {
    let (mut world, arenas) = pool_of(5);
    let parent = become_child(&mut world, |_, _| {});
    write_everything(&world.kernel, &arenas);
    write_everything(&parent, &arenas);
    write_everything(&world.kernel, &arenas);
    assert_eq!(world.kernel.events().buses, 0);
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.arenas_hugetlb, snapshot.arenas), (0, 5));
    world.check();
}

#[test]
fn a_parent_that_writes_first_does_not_hurt_the_child() {
    let (mut world, arenas) = pool_of(3);
    let parent = become_child(&mut world, |parent, _| write_everything(parent, &arenas));
    write_everything(&world.kernel, &arenas);
    write_everything(&parent, &arenas);
    assert_eq!(world.kernel.events().buses, 0);
    world.check();
}

#[test]
fn without_the_handlers_the_child_dies() {
    // What the copies are for; it also shows that the tests above test something.
    let (world, arenas) = pool_of(2);
    let child = world.kernel.fork();
    assert!(child.touch(AddressRange::new(arenas[0], ARENA_BYTES)).is_err());
}

#[test]
fn empty_arenas_from_the_pool_are_not_copied_and_not_used_by_the_child() {
    let (mut world, arenas) = pool_of(4);
    world.free(arenas[1], HEAP_PAGES);
    world.free(arenas[3], HEAP_PAGES);
    let copies = world.heap.before_fork();
    assert_eq!(copies.arenas, 2);
    world.heap.after_fork_in_parent(copies);
    let parent = become_child(&mut world, |_, _| {});
    let snapshot = world.heap.snapshot();
    assert_eq!((snapshot.arenas, snapshot.retained, snapshot.arenas_hugetlb), (2, 0, 0));
    let again = world.heap.allocate(HEAP_PAGES).expect("there is memory").get();
    write_everything(&world.kernel, &[arenas[0], arenas[2], again]);
    write_everything(&parent, &arenas);
    assert_eq!(world.kernel.events().buses, 0);
    world.check();
}

/// With no copy to make, the child kept the empty ones: its first write to one took a page that the pool did not have.
#[test]
fn empty_arenas_from_the_pool_are_not_used_by_the_child_where_no_other_is_live() {
    let (mut world, arenas) = pool_of(2);
    world.free_arenas(&arenas);
    let parent = become_child(&mut world, |_, _| {});
    assert_eq!((world.heap.snapshot().arenas, world.heap.snapshot().retained), (0, 0));
    let again = world.heap.allocate(HEAP_PAGES).expect("there is memory").get();
    write_everything(&world.kernel, &[again]);
    write_everything(&parent, &arenas);
    assert_eq!(world.kernel.events().buses, 0);
    world.check();
}

#[test]
fn a_child_does_not_hold_what_its_parent_only_keeps() {
    for policy in [Policy::Thp, Policy::Base, Policy::Auto] {
        let mut world = World::new(policy, Config::default());
        let arenas = world.take_arenas(20);
        let part = world.take(20);
        world.free_arenas(&arenas[5..]);
        become_child(&mut world, |_, _| {});
        let snapshot = world.heap.snapshot();
        assert_eq!(snapshot.arenas, 6, "{policy:?}");
        assert!(snapshot.retained < ARENA, "{policy:?}: {} bytes", snapshot.retained);
        let residency = world.heap.residency().expect("the kernel can be asked");
        assert_eq!(residency.resident, snapshot.live + snapshot.retained);
        // To need it now is no regret: the child never used it.
        world.take_arenas(15);
        assert_eq!(world.heap.snapshot().regretted, 0);
        world.check_contents(part, 20 * HEAP_PAGE_BYTES);
        world.check();
    }
}

#[test]
fn copies_are_what_the_arenas_were_each_in_its_place() {
    let (mut world, arenas) = pool_of(3);
    world.free(arenas[1], HEAP_PAGES);
    let part = world.take(5);
    let copies = world.heap.before_fork();
    let reservation = world.kernel.mapping_list().last().expect("the copies").range;
    for (index, arena) in [arenas[0], part & !(ARENA_BYTES - 1), arenas[2]].into_iter().enumerate() {
        let live = world.heap.arena(world.heap.table.find(arena).expect("ours")).in_use;
        for page in (0..HEAP_PAGES as usize).filter(|page| live >> page & 1 == 1) {
            let offset = page * HEAP_PAGE_BYTES;
            world.check_moved(
                arena + offset,
                reservation.start + index * ARENA_BYTES + offset,
                HEAP_PAGE_BYTES,
            );
        }
    }
    world.heap.after_fork_in_parent(copies);
    world.check();
}

#[test]
fn an_arena_that_cannot_be_replaced_does_not_shift_the_copies_of_the_others() {
    let (mut world, arenas) = pool_of(3);
    let (parent, shared) =
        become_some_child(&mut world, |_, child| child.fail_next(Call::Unmap, libc::ENOMEM, 1));
    assert_eq!(shared, 1, "it is told");
    let moves: Vec<_> =
        parent.log().into_iter().filter(|entry| entry.call == Call::Relocate && entry.code == 0).collect();
    let copies = moves.iter().map(|entry| entry.range.start).collect::<Vec<_>>();
    assert_eq!(copies.len(), 2);
    let reserved = parent.mapping_list().last().expect("the copies, in the parent").range.start;
    assert_eq!(copies, [reserved + ARENA_BYTES, reserved + 2 * ARENA_BYTES]);
    write_everything(&world.kernel, &arenas[1..]);
    world.check();
}

#[test]
fn where_the_kernel_cannot_move_pages_the_child_copies() {
    let (mut world, arenas) = pool_of(3);
    let capabilities = world.kernel.capabilities();
    world.kernel.set_capabilities(hugeheap_os::Capabilities { relocate: false, ..capabilities });
    let parent = become_child(&mut world, |_, _| {});
    write_everything(&world.kernel, &arenas);
    write_everything(&parent, &arenas);
    assert_eq!(world.kernel.events().buses, 0);
    arenas.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    world.check();
}

/// What was refused then was told as mapped, and the child's next access was its last.
#[test]
fn where_pages_cannot_be_moved_what_is_kept_goes_for_the_arenas() {
    let (mut world, arenas) = pool_of(3);
    let kept = world.take_arenas(4);
    world.free_arenas(&kept);
    let parent = become_child(&mut world, |_, child| {
        child.fail_next(Call::Relocate, libc::EOPNOTSUPP, 3);
        child.fail_next(Call::Map, libc::ENOMEM, 1);
    });
    write_everything(&world.kernel, &arenas);
    write_everything(&parent, &arenas);
    arenas.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    let plain = world.heap.table.used().filter(|&id| world.heap.arena(id).made == Made::Plain);
    assert_eq!(plain.count(), 3);
    world.check();
}

/// Under strict overcommit there may be no memory for all arenas beside all copies.
#[test]
fn where_pages_cannot_be_moved_a_copy_goes_as_soon_as_it_has_served() {
    let (mut world, arenas) = pool_of(5);
    let capabilities = world.kernel.capabilities();
    world.kernel.set_capabilities(hugeheap_os::Capabilities { relocate: false, ..capabilities });
    let parent = become_child(&mut world, |_, child| child.clear_log());
    let calls: Vec<_> = parent.log().into_iter().map(|entry| entry.call).collect();
    let of_one = [Call::Unmap, Call::Relocate, Call::Map, Call::Unmap];
    assert_eq!(calls[..20], of_one.repeat(5));
    arenas.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    world.check();
}

/// In a process of its own.
#[test]
fn a_child_without_memory_for_a_live_arena_ends_with_a_line_that_says_so() {
    const NAME: &str =
        "arena::tests::forks::a_child_without_memory_for_a_live_arena_ends_with_a_line_that_says_so";
    const CHILD: &str = "HUGEHEAP_TEST_CHILD_WITHOUT_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        let (mut world, _) = pool_of(3);
        let _parent = become_child(&mut world, |_, child| {
            child.fail_next(Call::Relocate, libc::EOPNOTSUPP, 3);
            child.fail_every(Call::Map, 2, libc::ENOMEM);
        });
        // The heap takes it for mapped.
        std::process::exit(0);
    }
    let output = std::process::Command::new(std::env::current_exe().expect("this binary has a path"))
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env(CHILD, "")
        .output()
        .expect("this binary runs again");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(libc::SIGABRT), "{said}");
    assert!(said.starts_with("hugeheap: no memory in a forked child for 0x"), "{said}");
    assert!(said.contains(&format!("failed with error {}; use policy thp", libc::ENOMEM)), "{said}");
}

#[test]
fn the_parent_keeps_its_pages_and_takes_no_more_from_the_pool() {
    let (mut world, arenas) = pool_of(3);
    world.kernel.set_pool(10);
    let charge = world.kernel.charge();
    let copies = world.heap.before_fork();
    world.heap.after_fork_in_parent(copies);
    assert_eq!(world.kernel.charge(), charge, "the copies are gone");
    assert_eq!(world.heap.snapshot().arenas_hugetlb, 3);
    arenas.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    world.take_arenas(2);
    assert_eq!(world.fallbacks(), [(Fallback::PoolForks, 2)]);
    assert_eq!(world.huge_bytes(), 5 * ARENA);
    assert_eq!(world.heap.snapshot().forks, 1);
    world.check();
}

#[test]
fn a_fork_without_memory_for_copies_goes_on_and_says_so() {
    for call in [Call::Reserve, Call::Map] {
        let (mut world, _) = pool_of(2);
        world.kernel.fail_every(call, 1, libc::ENOMEM);
        let copies = world.heap.before_fork();
        assert_eq!((copies.arenas, copies.left), (0, 2));
        world.kernel.fail_no_more();
        world.heap.after_fork_in_parent(copies);
        world.check();
    }
}

#[test]
fn copies_on_os_pages_do_when_huge_ones_are_refused() {
    let (mut world, arenas) = pool_of(2);
    world.kernel.fail_next(Call::Map, libc::EINVAL, 1);
    let _parent = become_child(&mut world, |_, _| {});
    write_everything(&world.kernel, &arenas);
    assert_eq!(world.huge_bytes(), 0);
    // Dense and not huge: collapsed later, also in the child.
    world.run(3.0);
    assert_eq!(world.huge_bytes(), 2 * ARENA);
}

#[test]
fn a_fork_of_a_process_without_pool_pages_copies_nothing() {
    let mut world = World::new(Policy::Thp, Config::default());
    world.take_arenas(2);
    let reserved = world.kernel.calls(Call::Reserve);
    let copies = world.heap.before_fork();
    assert_eq!(world.kernel.calls(Call::Reserve), reserved);
    world.heap.after_fork_in_parent(copies);
    world.heap.after_fork_in_child(copies);
    world.check();
}

#[test]
fn blocks_from_the_pool_are_copied_too() {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(6));
    let bytes = 5 * ARENA_BYTES + 1234;
    let block = world.heap.allocate_large(bytes, true).expect("there is memory").address.get();
    world.use_all(block, bytes);
    assert_eq!(world.heap.snapshot().arenas_hugetlb, 6);
    let parent = become_child(&mut world, |_, _| {});
    for kernel in [&world.kernel, &parent, &world.kernel] {
        kernel.touch(AddressRange::new(block, bytes)).expect("a process may write to its memory");
    }
    assert_eq!(world.heap.large_bytes(block), Ok(bytes));
    world.check();
}

/// A child had all copies, or shared all pages for the rest of its life: it died at the first write with an empty pool.
#[test]
fn where_there_is_room_for_some_copies_the_child_makes_the_others() {
    for (count, room) in [(9, 1), (9, 5), (16, 3), (2, 1), (5, 4)] {
        let (mut world, arenas) = pool_of(count);
        world.kernel.set_data_limit(Some(world.kernel.data() + room * ARENA));
        let copies = world.heap.before_fork();
        assert!(copies.arenas as u64 * 2 >= room && copies.left > 0, "{copies:?}");
        world.heap.after_fork_in_parent(copies);
        let parent = become_child(&mut world, |_, _| {});
        for kernel in [&world.kernel, &parent, &world.kernel] {
            write_everything(kernel, &arenas);
        }
        assert_eq!(world.kernel.events().buses, 0);
        arenas.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
        assert_eq!(world.heap.snapshot().arenas_hugetlb, 0);
        world.check();
    }
}

#[test]
fn a_child_without_room_for_any_copy_shares_and_knows() {
    let (mut world, arenas) = pool_of(3);
    world.kernel.set_data_limit(Some(world.kernel.data()));
    let (_parent, shared) = become_some_child(&mut world, |_, _| {});
    assert_eq!(shared, 3);
    arenas.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
    world.check();
}

/// Copies count against the limit, and so does what is kept: children died of their parents' pages while there
/// was room.
#[test]
fn what_is_kept_goes_where_a_limit_on_data_leaves_no_room_for_copies() {
    let mut world = World::new(Policy::Hugetlb, Config::default().with_pool(30));
    let arenas = world.take_arenas(20);
    let (live, kept) = arenas.split_at(8);
    world.free_arenas(kept);
    world.kernel.set_data_limit(Some(world.kernel.data() + 4 * ARENA));
    let parent = become_child(&mut world, |_, _| {});
    write_everything(&world.kernel, live);
    write_everything(&parent, live);
    assert_eq!(world.kernel.events().buses, 0);
    live.iter().for_each(|&arena| world.check_contents(arena, ARENA_BYTES));
}
