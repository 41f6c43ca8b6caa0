//! Recomputes everything that is kept: lists, order, counters. For tests and for debugging; walks all arenas
//! and allocates.

use super::arenas::pages_bytes;
use super::list::{ArenaId, List};
use super::offer::Offer;
use super::record::{Arena, Made, State};
use super::{ARENA_BYTES, Arenas};
use crate::large::used_pages;
use core::fmt::Write;
use hugeheap_os::Os;
use std::collections::BTreeMap;

/// The list an arena is in, or should be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Empty,
    GivenBack,
    Partial,
    Broken,
}

impl<O: Os> Arenas<O> {
    /// Compares every list, bitmap and counter of this heap with what its records say.
    ///
    /// # Errors
    /// What does not agree: a defect of this crate.
    pub fn verify(&self) -> Result<(), String> {
        let mut problems = String::new();
        let mut places = BTreeMap::new();
        let mut walk = |list: &List, place: Place, problems: &mut String| {
            let (mut id, mut previous) = (list.head, ArenaId::NONE);
            while id.is_some() {
                let arena = self.arena(id);
                if arena.previous != previous {
                    let _ = writeln!(problems, "{id:?}: broken link in {place:?}");
                }
                if places.insert(id.0, place).is_some() {
                    let _ = writeln!(problems, "{id:?}: in a list twice, the second time in {place:?}");
                    return;
                }
                (previous, id) = (id, arena.next);
            }
            if list.tail != previous {
                let _ = writeln!(problems, "{place:?} ends at {:?}, not at {previous:?}", list.tail);
            }
        };
        for list in self.empty.lists() {
            walk(list, Place::Empty, &mut problems);
        }
        walk(&self.given_back, Place::GivenBack, &mut problems);
        for (order, place) in [(&self.partial, Place::Partial), (&self.broken, Place::Broken)] {
            order.each_list(|list| walk(list, place, &mut problems));
            if let Err(problem) = order.verify(&self.table) {
                let _ = writeln!(problems, "{place:?}: {problem}");
            }
        }
        for id in self.table.used() {
            let place = places.remove(&id.0);
            if let Err(problem) = self.verify_arena(id, place) {
                let arena = self.arena(id);
                let _ = writeln!(problems, "{id:?} {:?} {:?}: {problem}", arena.state, arena.made);
            }
        }
        for (id, place) in places {
            let _ = writeln!(problems, "arena {id} in {place:?} was never used");
        }
        self.verify_counters(&mut problems);
        if let Err(problem) = self.table.check_barren() {
            let _ = writeln!(problems, "{problem}");
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn verify_arena(&self, id: ArenaId, place: Option<Place>) -> Result<(), String> {
        let arena = self.arena(id);
        let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        let expected = match arena.state {
            _ if arena.busy || arena.apart => None,
            State::Empty => Some(Place::Empty),
            State::GivenBack => Some(Place::GivenBack),
            State::Partial if arena.made == Made::Broken => Some(Place::Broken),
            State::Partial => Some(Place::Partial),
            _ => None,
        };
        check(place == expected, &format!("is in {place:?}, should be in {expected:?}"))?;
        check(arena.apart == (id == self.small), "apart, and not the arena for small runs")?;
        check(arena.in_use & !arena.touched == 0, "in_use is not in touched")?;
        check(arena.starts & !arena.in_use == 0, "starts is not in in_use")?;
        check(!arena.huge || arena.touched == u128::MAX, "huge, and not touched throughout")?;
        check(!arena.huge || !matches!(arena.made, Made::Nothing | Made::Base | Made::Broken), "made huge?")?;
        check(arena.made != Made::Hugetlb || arena.huge, "from the pool and not huge")?;
        let offers = arena.state == State::Empty && arena.made != Made::Hugetlb && !arena.apart;
        check(offers == (arena.offer != Offer::No), "whether the kernel may take it")?;
        check(!arena.unsplit || arena.touched != 0, "not split, and nothing is resident")?;
        let has_memory = !matches!(arena.state, State::Unmapped | State::GivenBack);
        check(has_memory == (arena.touched != 0), "its state does not say whether it has memory")?;
        check(!has_memory || arena.made != Made::Nothing, "has memory and is not mapped")?;
        match arena.state {
            State::Unmapped => check(arena.made == Made::Nothing && !arena.busy, "never used, but made"),
            State::GivenBack | State::Empty => {
                check(arena.in_use == 0, "has live runs")?;
                check(
                    arena.made != Made::Broken || arena.state == State::Empty,
                    "nothing is left to be broken",
                )
            }
            State::Partial | State::Full => {
                check(arena.in_use != 0, "has no live runs")?;
                check((arena.in_use == u128::MAX) == (arena.state == State::Full), "full or not?")?;
                // A page in use whose predecessor is free begins a run.
                let begins = arena.in_use & !(arena.in_use << 1);
                check(begins & !arena.starts == 0, "a run has no beginning")
            }
            State::Large => self.verify_block(id, arena),
            State::LargeRest => {
                let before = ArenaId(id.0.wrapping_sub(1));
                let state = self.table.used().find(|&other| other == before).map(|id| self.arena(id).state);
                check(matches!(state, Some(State::Large | State::LargeRest)), "the rest of no block")
            }
        }
    }

    fn verify_block(&self, first: ArenaId, head: &Arena) -> Result<(), String> {
        let (bytes, count) = (head.large_bytes as usize, head.large_arenas);
        if count as usize != bytes.max(1).div_ceil(ARENA_BYTES) {
            return Err(format!("{bytes} bytes in {count} arenas"));
        }
        let mut id = first;
        for index in 0..count {
            let arena = self.arena(id);
            let starts = u128::from(index == 0);
            if arena.in_use != used_pages(bytes, index) || arena.starts != starts {
                return Err(format!("the bitmaps of arena {index} of {count} are wrong"));
            }
            if index > 0 && arena.state != State::LargeRest {
                return Err(format!("arena {index} of {count} is {:?}", arena.state));
            }
            match self.table.after(id) {
                Some(next) => id = next,
                None if index + 1 == count => return Ok(()),
                None => return Err("the block reaches over its region".to_owned()),
            }
        }
        if self.arena(id).state == State::LargeRest { Err("the block goes on".to_owned()) } else { Ok(()) }
    }

    fn verify_counters(&self, problems: &mut String) {
        let (mut live, mut retained, mut large, mut arenas, mut guesses) = (0, 0, 0, 0, 0);
        let mut waiting = 0;
        for id in self.table.used() {
            let arena = self.arena(id);
            live += pages_bytes(arena.in_use);
            retained += pages_bytes(arena.touched & !arena.in_use);
            if matches!(arena.state, State::Large | State::LargeRest) {
                large += pages_bytes(arena.in_use);
            }
            waiting += u64::from(arena.offer == Offer::Waits);
            guesses += u64::from(arena.guess);
            arenas += u64::from(!matches!(arena.state, State::Unmapped | State::GivenBack));
        }
        let counters = &self.counters;
        for (name, kept, found) in [
            ("live", counters.live, live),
            ("retained", counters.retained, retained),
            ("large", counters.large, large),
            ("arenas", counters.arenas, arenas),
            ("guesses", self.guesses, guesses),
            ("waiting", self.offers.waiting, waiting),
            ("metadata", counters.metadata, self.table.metadata_bytes() as u64),
        ] {
            if kept != found {
                let _ = writeln!(problems, "{name}: kept {kept}, found {found}");
            }
        }
        if counters.live > counters.live_peak || counters.arenas > counters.arenas_peak {
            let _ = writeln!(problems, "a peak is below the present");
        }
        if self.settled > counters.retained {
            let _ = writeln!(problems, "more was settled than is retained");
        }
    }
}

impl super::order::Order {
    /// Calls `look` for every list.
    fn each_list(&self, mut look: impl FnMut(&List)) {
        self.lists.iter().flatten().for_each(&mut look);
    }

    /// Compares the bitmaps over the lists, and each member's place, with the records.
    fn verify(&self, table: &super::table::Table) -> Result<(), String> {
        for (length, lists) in self.lists.iter().enumerate() {
            for (class, list) in lists.iter().enumerate() {
                let marked = self.classes[length] >> class & 1 == 1;
                if marked == list.is_empty() {
                    return Err(format!("length {length} class {class}: marked {marked}"));
                }
                let mut id = list.head;
                while id.is_some() {
                    let arena = table.arena(id);
                    let key = super::order::key_of(arena.in_use, arena.runs());
                    if key != (length, class) {
                        return Err(format!("{id:?} belongs to {key:?}, is in {:?}", (length, class)));
                    }
                    id = arena.next;
                }
            }
            if (self.lengths >> length & 1 == 1) != (self.classes[length] != 0) {
                return Err(format!("length {length} is marked wrong"));
            }
        }
        Ok(())
    }
}
