//! Finding mistakes, of the program and of the collector.
//!
//! | check | when | finds |
//! |---|---|---|
//! | verify | after each collection | a slot or a root that holds no object; bookkeeping that contradicts the pages |
//! | barriers | before each collection | a reference into the nursery in an object that is not remembered |
//! | poison | in each collection | what is used after its end: free memory is no object, and no number that anyone wrote |
//! | moving | in each whole collection | addresses that are held where the collector does not see them |
//! | rotate | after each minor collection | addresses in the nursery that are kept over a collection |
//! | stress | every n allocations a collection | references that are held where the collector does not see them |
//!
//! A mistake ends the process with one line that says what, where and which type.

use super::header::{CARDS, Header, OBJECT_ALIGN, TRACKED};
use super::heap::{Heap, MAX_YOUNG};
use super::types::{Types, Visit};
use super::window::Window;
use crate::object::Source;
use core::fmt;
use core::num::NonZeroU32;

/// What freed memory is overwritten with: no header that can be (bits that are zero are not), and as a slot no
/// reference.
pub const POISON: u64 = 0xdead_beef_dead_bee2;

/// The same as a word of a slot.
const POISONED: usize = POISON as usize;

const _: () = assert!(!Header(POISON).is_clean() && Header(POISON).target().is_none());
const _: () = assert!(POISONED % OBJECT_ALIGN != 0);

/// What is checked while the program runs. All cost time; none changes what a correct program computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Verify the whole heap after each collection.
    pub verify: bool,
    /// Look for missing barriers before each collection.
    pub barriers: bool,
    /// Overwrite what is freed.
    pub poison: bool,
    /// Move all objects of the old generation that can move in each whole collection, and in every other one in steps.
    pub moving: bool,
    /// Use another nursery after each collection, and protect the last three: an address in them that was kept
    /// is a fault at once.
    pub rotate: bool,
    /// Collect every so many allocations; the window is kept empty, so that each allocation is counted.
    pub stress: Option<NonZeroU32>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A word that should be a reference to a live object is not.
    Reference {
        /// The object it is in; `None`: it is a root.
        object: Option<usize>,
        /// Offset in the object.
        offset: usize,
        /// The word.
        word: usize,
    },
    /// The header of an object is not one.
    Header {
        /// The object.
        object: usize,
        /// What is there.
        word: u64,
    },
    /// An object has not the room that it says it needs.
    Length {
        /// The object.
        object: usize,
        /// The number of its type.
        id: u32,
        /// The length that stands in it.
        length: usize,
        /// Bytes that it has room for.
        room: usize,
    },
    /// A reference was written without the barrier.
    Barrier {
        /// The object it was written into.
        object: usize,
        /// Offset in the object.
        offset: usize,
        /// The number of the object's type.
        id: u32,
    },
    /// The collector's own bookkeeping contradicts itself.
    Books(String),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reference { object: Some(object), offset, word: POISONED } => write!(
                f,
                "the slot at offset {offset} of the object at {object:#x} holds {POISONED:#x}, with which freed memory is overwritten: it \
                 was never written, or got what was read of a freed object"
            ),
            Self::Reference { object: Some(object), offset, word } => {
                write!(
                    f,
                    "the slot at offset {offset} of the object at {object:#x} holds {word:#x}, which is no live object"
                )
            }
            Self::Reference { object: None, word, .. } => {
                write!(f, "a root holds {word:#x}, which is no live object")
            }
            Self::Header { object, word } => {
                write!(
                    f,
                    "the object at {object:#x} begins with {word:#x}, which is no header: it was overwritten"
                )
            }
            Self::Length { object, id, length, room } => write!(
                f,
                "the object at {object:#x} (type {id}) has a length of {length}, for which its {room} bytes are too few: it was overwritten"
            ),
            Self::Barrier { object, offset, id } => write!(
                f,
                "the slot at offset {offset} of the object at {object:#x} (type {id}) was written without the barrier"
            ),
            Self::Books(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Mistake {}

/// Looks for slots that should not be as they are.
struct Search<F: FnMut(usize, usize) -> bool> {
    /// Whether a word in a slot is a mistake.
    wrong: F,
    found: Option<(usize, usize)>,
}

impl<F: FnMut(usize, usize) -> bool> Visit for Search<F> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: visited slots can be read.
        let word = unsafe { slot.read() };
        // By its low bits the poison is none: the collector leaves it alone, and a slot that nobody wrote was
        // never found.
        let reference = word != 0 && word % OBJECT_ALIGN == 0 || word == POISONED;
        if reference && self.found.is_none() && (self.wrong)(slot as usize, word) {
            self.found = Some((slot as usize, word));
        }
    }
}

fn check_header(types: &Types, object: usize) -> Result<Header, Mistake> {
    // SAFETY: the callers name live objects.
    let header = unsafe { Header::of(object) };
    if header.is_clean() && types.get(header.id()).is_some() {
        Ok(header)
    } else {
        Err(Mistake::Header { object, word: header.0 })
    }
}

/// After [`check_header`]: whether an object's length is one that it can have. Its slots are not looked for
/// before: they would be anywhere.
fn check_length(types: &Types, object: usize, room: usize) -> Result<(), Mistake> {
    // SAFETY: the callers name live objects with a header that names a type.
    let (ty, id) = unsafe { (types.of(object), Header::of(object).id()) };
    // SAFETY: as above.
    if unsafe { ty.exceeds(object, room) } {
        // SAFETY: as above.
        let length = unsafe { ty.length(object) };
        return Err(Mistake::Length { object, id, length, room });
    }
    Ok(())
}

impl<S: Source> Heap<S> {
    /// Checks everything: bookkeeping, headers, and that each root and slot holds a live object, 0, or a word
    /// that is no reference. Between two collections an object of the nursery counts as live wherever it seems
    /// to begin with a header.
    ///
    /// # Errors
    /// The first mistake.
    pub fn verify(&mut self, frame: &mut [usize]) -> Result<(), Mistake> {
        self.old.check().map_err(Mistake::Books)?;
        let Self { types, nursery, old, roots, .. } = self;
        let dead = |_slot: usize, word: usize| {
            if word == POISONED {
                // Without the check it is a number like any other.
                return old.poison.is_some();
            }
            let live =
                if nursery.contains(word) { check_header(types, word).is_ok() } else { old.is_live(word) };
            !live
        };
        let mut search = Search { wrong: dead, found: None };
        roots.each(frame, &mut search);
        if let Some((_, word)) = search.found {
            return Err(Mistake::Reference { object: None, offset: 0, word });
        }
        let mut result = Ok(());
        let mut look_into = |object: usize, room: usize| {
            if result.is_ok() {
                result = check_header(types, object).and_then(|_| check_length(types, object, room));
            }
            if result.is_ok() {
                // SAFETY: a live object with a header that names a type.
                unsafe { types.of(object).each_slot(object, &mut search) };
                if let Some((slot, word)) = search.found {
                    result = Err(Mistake::Reference { object: Some(object), offset: slot - object, word });
                }
            }
        };
        old.each_live(|object| look_into(object, old.room_of(object)));
        let mut staying = nursery.next_staying(nursery.start());
        while let Some(object) = staying {
            look_into(object, MAX_YOUNG);
            staying = nursery.next_staying(object + OBJECT_ALIGN);
        }
        result
    }

    /// Looks for references into the nursery in objects that no barrier remembered.
    ///
    /// # Errors
    /// The first one.
    pub fn verify_barriers(&self) -> Result<(), Mistake> {
        let Self { types, nursery, old, remembered, .. } = self;
        let mut result = Ok(());
        if remembered.lost {
            return result;
        }
        old.each_live(|object| {
            if result.is_err() {
                return;
            }
            let checked = check_header(types, object);
            let header = match checked
                .and_then(|header| check_length(types, object, old.room_of(object)).map(|()| header))
            {
                Ok(header) => header,
                Err(mistake) => return result = Err(mistake),
            };
            let forgotten = |slot: usize, word: usize| {
                nursery.contains(word)
                    && (header.has(TRACKED)
                        || header.has(CARDS) && !old.is_dirty(slot) && !remembered.has_slot(slot))
            };
            let mut search = Search { wrong: forgotten, found: None };
            // SAFETY: a live object with a header that names a type.
            unsafe { types.of(object).each_slot(object, &mut search) };
            if let Some((slot, _)) = search.found {
                result = Err(Mistake::Barrier { object, offset: slot - object, id: header.id() });
            }
        });
        result
    }

    /// After a collection: an object in the nursery that does not stay is none.
    fn verify_after(&mut self) -> Result<(), Mistake> {
        self.verify(&mut [])?;
        let Self { types, nursery, old, roots, .. } = self;
        let gone = |_slot: usize, word: usize| nursery.contains(word) && !nursery.is_staying(word);
        let mut search = Search { wrong: gone, found: None };
        roots.each(&mut [], &mut search);
        if let Some((_, word)) = search.found {
            return Err(Mistake::Reference { object: None, offset: 0, word });
        }
        let mut result = Ok(());
        old.each_live(|object| {
            // SAFETY: a live object; the headers were checked above.
            unsafe { types.of(object).each_slot(object, &mut search) };
            if let (Ok(()), Some((slot, word))) = (&result, search.found) {
                result = Err(Mistake::Reference { object: Some(object), offset: slot - object, word });
            }
        });
        result
    }

    #[inline(always)]
    pub(super) fn before_collection(&mut self) {
        if self.checks.barriers {
            self.check_barriers();
        }
    }

    #[cold]
    fn check_barriers(&mut self) {
        if let Err(mistake) = self.verify_barriers() {
            crate::complain::abort(format_args!("{mistake}"));
        }
    }

    #[inline(always)]
    pub(super) fn checked(&mut self, after: &str) {
        if self.checks.verify {
            self.check(after);
        }
    }

    #[cold]
    fn check(&mut self, after: &str) {
        if let Err(mistake) = self.verify_after() {
            crate::complain::abort(format_args!("after {after}: {mistake}"));
        }
    }

    /// Counts an allocation, and collects when it is time.
    pub(super) fn count_allocation(&mut self, window: &mut Window, frame: &mut [usize]) {
        self.allocations += 1;
        if self.checks.stress.is_some_and(|every| self.allocations >= every.get()) {
            self.collect_some(window, frame);
        }
    }
}
