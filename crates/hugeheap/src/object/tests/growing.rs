//! What grows little by little, where much is retained: it has pages to spare.

use super::resizing::{bytes_by_the_arenas, check_contents, grow_by_turns, resize, write};
use super::threads::random;
use super::*;
use crate::arena::HEAP_PAGE_BYTES;
use hugeheap_os::simulated::Call;

/// Texts and lists that grow at once.
const COUNT: usize = 200;

/// Something that is built piece by piece.
struct Growing {
    block: NonNull<u8>,
    /// Bytes that it was asked for.
    bytes: usize,
    /// Bytes that it needs, and will need when it is complete.
    needs: usize,
    most: usize,
    is_list: bool,
}

impl Growing {
    /// Up to a megabyte: as many of each doubling.
    fn new(heap: &mut Heap<World>, seed: &mut u64, is_list: bool) -> Self {
        let least = 64 << (random(seed) % 14);
        Self {
            block: heap.take(64),
            bytes: 64,
            needs: 64,
            most: least + random(seed) as usize % least,
            is_list,
        }
    }

    /// Appends a piece. Answers how many bytes were copied for it.
    fn append(&mut self, heap: &mut Heap<World>, seed: &mut u64) -> usize {
        self.needs += 8 + random(seed) as usize % 193;
        if self.needs <= self.bytes {
            return 0;
        }
        let had =
            std::mem::replace(&mut self.bytes, self.needs + if self.is_list { self.needs / 8 } else { 0 });
        let resized = resize(heap, self.block, self.bytes);
        if std::mem::replace(&mut self.block, resized) == resized { 0 } else { had }
    }
}

/// What came of it, with bytes in the mean of the second half of the pieces.
struct Grown {
    all: Vec<NonNull<u8>>,
    /// Bytes that were appended, and that were copied.
    appended: usize,
    copied: usize,
    /// Bytes that the texts and lists needed, that were resident, and that were huge pages.
    needed: u64,
    resident: u64,
    huge: u64,
}

fn grow_at_random(space: &Space<World>, heap: &mut Heap<World>, pieces: usize) -> Grown {
    let mut seed = 7;
    let mut all: Vec<_> = (0..COUNT).map(|number| Growing::new(heap, &mut seed, number % 2 == 0)).collect();
    let mut grown = Grown { all: Vec::new(), appended: 0, copied: 0, needed: 0, resident: 0, huge: 0 };
    let mut looks = 0;
    for piece in 0..pieces {
        let one = &mut all[random(&mut seed) as usize % COUNT];
        let before = one.needs;
        if before < one.most {
            grown.copied += one.append(heap, &mut seed);
            grown.appended += one.needs - before;
        } else {
            let next = Growing::new(heap, &mut seed, one.is_list);
            heap.give(std::mem::replace(one, next).block).expect("live");
        }
        if piece > pieces / 2 && piece % 20_000 == 0 {
            let arenas = space.source().arenas.lock();
            let now = arenas.snapshot();
            grown.needed += all.iter().map(|one| one.needs as u64).sum::<u64>();
            grown.resident += now.live + now.retained;
            grown.huge += arenas.residency().expect("it can be asked").huge();
            looks += 1;
        }
    }
    for sum in [&mut grown.needed, &mut grown.resident, &mut grown.huge] {
        *sum /= looks;
    }
    grown.all = all.into_iter().map(|one| one.block).collect();
    grown
}

/// Three quarters were on OS pages, because what found no room had an arena to itself, which others had
/// afterwards; and 1.8 times what they needed was resident.
#[test]
fn what_grew_at_random_was_on_os_pages_and_left_as_much_behind_as_it_needed() {
    let (space, mut heap) = heap();
    let grown = grow_at_random(space, &mut heap, 2_000_000);
    let part = |part: u64, whole: u64| part as f64 / whole as f64;
    let (resident, huge) = (part(grown.resident, grown.needed), part(grown.huge, grown.resident));
    let copied = part(grown.copied as u64, grown.appended as u64);
    assert!(
        resident < 1.45 && huge > 0.9 && copied < 4.5,
        "{resident:.2} of what is needed resident, {huge:.3} of that huge, each byte copied {copied:.2} times"
    );
    heap.check();
    heap.give_all(grown.all);
    heap.check_empty();
}

/// In a heap of objects there is room behind what grows, as long as little is retained: it costs nothing then.
#[test]
fn a_list_that_grows_in_a_heap_of_objects_is_seldom_copied() {
    let (_, mut heap) = heap();
    let mut objects = heap.take_many(500_000, 64);
    let (mut list, mut bytes, mut copied) = (heap.take(60_000), 60_000, 0);
    while bytes < 1 << 20 {
        let had = bytes;
        bytes += bytes / 8;
        objects.extend(heap.take_many((bytes - had) / 8, 64));
        let resized = resize(&mut heap, list, bytes);
        copied += if std::mem::replace(&mut list, resized) == resized { 0 } else { had };
    }
    assert!(copied < 24 * bytes / 5, "{copied} bytes copied for {bytes}");
    heap.give(list).expect("live");
    heap.give_all(objects);
    heap.check_empty();
}

/// Each that was alone took two mebibytes of the limit for as many hundred KiB: of 150 MiB of address space, or
/// of data, texts of 38 MB had all.
#[test]
fn texts_that_grow_by_turns_find_room_under_a_limit() {
    const LIMIT: u64 = 150 << 20;
    for data in [false, true] {
        let limit = Some(LIMIT);
        let config = if data {
            Config { data_limit: limit, ..Config::default() }
        } else {
            Config { address_space_limit: limit, ..Config::default() }
        };
        let space = space_with(config, if data { 512 << 20 } else { 16 << 20 });
        let mut heap = space.acquire().expect("memory");
        let mut seed = 1;
        let mut texts: Vec<_> = (0..120).map(|_| (heap.take(64), 64)).collect();
        let (mut bytes, mut most) = (0, 0);
        for _ in 0..60_000 {
            let (text, had) = &mut texts[random(&mut seed) as usize % 120];
            let mut becomes = *had + 200 + *had / 100;
            if becomes > 700_000 {
                heap.give(*text).expect("live");
                (*text, becomes) = (heap.take(64), 64);
            } else {
                // SAFETY: live, and its old address is of no use to the test.
                let resized = unsafe { heap.try_reallocate(*text, becomes) }.expect("live");
                *text = resized.unwrap_or_else(|| panic!("refused beside {bytes} bytes, data: {data}"));
            }
            bytes = bytes + becomes - std::mem::replace(had, becomes);
            most = most.max(bytes);
        }
        assert!(most as u64 > LIMIT / 3, "{most}");
        heap.check();
        heap.give_all(texts.into_iter().map(|(text, _)| text));
        heap.check_empty();
    }
}

/// A text that has pages to spare, of a heap in which much is retained; what else there is is in the way.
fn text_with_spare(space: &Space<World>, heap: &mut Heap<World>) -> (NonNull<u8>, usize, Vec<NonNull<u8>>) {
    let mut others = heap.take_many(60, 40 * HEAP_PAGE_BYTES);
    others.drain(..20).for_each(|run| heap.give(run).expect("live"));
    let (mut text, mut bytes) = (heap.take(300_000), 300_000);
    write(text, bytes);
    while bytes_by_the_arenas(space, text) < bytes + 2 * HEAP_PAGE_BYTES {
        bytes += 100;
        assert!(bytes < 1 << 20, "none to spare");
        text = resize(heap, text, bytes);
    }
    (text, bytes, others)
}

#[test]
fn what_has_pages_to_spare_stays_where_it_is_until_they_are_used_up() {
    let (space, mut heap) = heap();
    let (text, bytes, others) = text_with_spare(space, &mut heap);
    let usable = heap.usable_size(text).expect("live");
    assert_eq!(usable, bytes_by_the_arenas(space, text));
    space.source().when_asked(|| {});
    for bytes in (bytes..=usable).step_by(100).chain([usable, bytes]) {
        assert_eq!(resize(&mut heap, text, bytes), text);
        assert_eq!(heap.usable_size(text), Ok(usable));
    }
    assert!(!space.source().asked(), "text that grows by a few bytes is no event each time");
    heap.check();
    // Shorter than it was with none to spare: these pages are others' now.
    let shorter = resize(&mut heap, text, bytes - HEAP_PAGE_BYTES);
    assert_eq!(
        heap.usable_size(shorter).expect("live"),
        (bytes - HEAP_PAGE_BYTES).next_multiple_of(HEAP_PAGE_BYTES)
    );
    check_contents(shorter, 280_000);
    heap.check();
    heap.give(shorter).expect("live");
    heap.give_all(others);
    heap.check_empty();
}

#[test]
fn a_size_that_what_has_pages_to_spare_cannot_have_is_a_mistake() {
    for way in 0..3 {
        let (space, mut heap) = heap();
        let (text, bytes, others) = text_with_spare(space, &mut heap);
        let usable = heap.usable_size(text).expect("live");
        for given in [bytes, bytes + HEAP_PAGE_BYTES, usable] {
            assert_eq!(space.check_size(at(text), given), Ok(()));
        }
        for given in [usable + 1, bytes - HEAP_PAGE_BYTES, 100, 0] {
            assert_eq!(space.check_size(at(text), given), Err(Mistake::WrongSize { bytes: usable, given }));
        }
        if way == 0 {
            heap.give(text).expect("live");
        } else {
            // SAFETY: live, and not used any more.
            unsafe { heap.free_sized(text, if way == 1 { bytes } else { usable }) };
        }
        // What lies there next has none.
        let next = heap.take_many(200, usable);
        assert!(next.contains(&text));
        assert_eq!(
            space.check_size(at(text), bytes),
            Err(Mistake::WrongSize { bytes: usable, given: bytes })
        );
        heap.give_all(next);
        heap.give_all(others);
        heap.check_empty();
    }
}

/// Its length was forgotten, with what it has to spare: the size that it was asked for with was a mistake
/// afterwards, which ended the process.
#[test]
fn what_has_pages_to_spare_lost_them_when_it_could_not_grow() {
    for (way, absurd) in [(0, usize::MAX / 2), (1, usize::MAX - 5), (0, 1 << 40), (1, 50 << 20)] {
        let (space, mut heap) = heap();
        let (text, bytes, others) = text_with_spare(space, &mut heap);
        let usable = heap.usable_size(text).expect("live");
        space.source().kernel.fail_every(Call::Map, 1, libc::ENOMEM);
        // SAFETY: live.
        let refused = unsafe { heap.try_reallocate(text, absurd) };
        assert_eq!(refused, Ok(None), "{absurd}");
        assert_eq!(heap.usable_size(text), Ok(usable));
        for given in [bytes, usable] {
            assert_eq!(space.check_size(at(text), given), Ok(()));
        }
        // From inside of it nothing is forgotten either.
        // SAFETY: nothing begins there, and nothing is changed.
        assert!(unsafe { heap.try_reallocate(pointer(at(text) + 16), 2 << 20) }.is_err());
        assert_eq!(space.check_size(at(text), bytes), Ok(()));
        check_contents(text, 300_000);
        space.source().kernel.fail_no_more();
        if way == 0 {
            heap.give(text).expect("live");
        } else {
            // SAFETY: live, and not used any more.
            unsafe { heap.free_sized(text, bytes) };
        }
        heap.give_all(others);
        heap.check_empty();
    }
}

/// Sizes of blocks passed as that of a page that was longer once.
#[test]
fn what_shrinks_to_a_page_is_no_block_and_takes_none_of_their_sizes() {
    let (space, mut heap) = heap();
    let (text, _, others) = text_with_spare(space, &mut heap);
    let run = resize(&mut heap, text, 10_000);
    assert_eq!(heap.usable_size(run), Ok(HEAP_PAGE_BYTES));
    for given in [8_193, 10_000, HEAP_PAGE_BYTES] {
        assert_eq!(space.check_size(at(run), given), Ok(()));
    }
    for given in [0, 1, 16, 4_096] {
        let mistake = Mistake::WrongSize { bytes: HEAP_PAGE_BYTES, given };
        assert_eq!(space.check_size(at(run), given), Err(mistake));
    }
    let block = resize(&mut heap, run, 5_000);
    assert!(block != run && heap.usable_size(block).expect("live") < HEAP_PAGE_BYTES);
    check_contents(block, 5_000);
    heap.give(block).expect("live");
    heap.give_all(others);
    heap.check_empty();
}

/// A page of marks stayed for each arena that ever was one of what is alone.
#[test]
fn what_was_alone_left_its_metadata_behind() {
    let (space, mut heap) = heap();
    let (all, _) = grow_by_turns(space, &mut heap, 60, 600_000);
    let is_alone = |list: &NonNull<u8>| space.source().arenas.lock().large_bytes(at(*list)).is_ok();
    let (alone, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_alone);
    assert!(alone.len() > 10, "{}", alone.len());
    for list in alone {
        let (metadata, arenas) = (space.metadata_bytes(), space.source().arenas.lock().snapshot().arenas);
        heap.give(list).expect("live");
        assert!(space.metadata_bytes() < metadata);
        assert_eq!(space.source().arenas.lock().snapshot().arenas, arenas - 1);
        heap.check();
    }
    heap.give_all(others);
    heap.check_empty();
}

/// A vector that doubles was one of the arenas' from 48 KiB on, and each that was taken or freed took their lock.
#[test]
fn what_doubles_is_its_heaps_as_long_as_it_is_short() {
    let (space, mut heap) = heap();
    let mut vector = heap.take(16 << 10);
    for kib in [32, 64, 128] {
        vector = resize(&mut heap, vector, kib << 10);
        assert!(space.owner(at(vector)).is_some(), "{kib} KiB");
    }
    let mut text = heap.take(16 << 10);
    for bytes in (20_000..100_000).step_by(400) {
        text = resize(&mut heap, text, bytes);
    }
    assert_eq!(space.owner(at(text)), None, "it would be copied for each heap page");
    heap.give(vector).expect("live");
    assert_eq!(heap.take(128 << 10), vector);
    heap.give(vector).expect("live");
    heap.give(text).expect("live");
    heap.check_empty();
}
