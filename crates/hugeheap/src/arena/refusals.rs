//! Refused address space, and when the system is asked for it again.
//!
//! ```text
//!   refused ─▶ the next 63 small runs without room ─▶ refused unasked ─▶ the next one asks ─▶ refused ─▶ …
//! ```
//!
//! At its limit on address space a program has each small block from the allocator below, if there is one, and
//! each is asked for here first: three attempts to make a region of a size that is still to be had, and the
//! reading of the limit, for 50 bytes. To fill 400 MiB with blocks of 100 bytes, after others had been there,
//! took 16 to 22 s, on stock less than one.
//!
//! Only where somebody below serves what is refused here. For an embedder's heap each refusal is the program's:
//! it is told what the system says now.

/// Small runs that are refused unasked after the system refused one. With it all of
/// `docs/measurements/limited.py 400` takes 9 s at level `objects`, as on stock, and 16 s before; what others
/// have freed is found within 64 blocks.
const UNASKED: u32 = 63;

/// What is remembered of the last refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusals {
    has_below: bool,
    unasked: u32,
}

impl Refusals {
    /// Nobody below, and nothing refused.
    pub(crate) const NONE: Self = Self { has_below: false, unasked: 0 };

    /// From now on there is an allocator below.
    pub(crate) fn pass_on(&mut self) {
        self.has_below = true;
    }

    /// Whether the system is asked now.
    pub(crate) fn may_ask(&mut self) -> bool {
        let may = self.unasked == 0;
        self.unasked = self.unasked.saturating_sub(1);
        may
    }

    /// The system was asked.
    pub(crate) fn note(&mut self, refused: bool) {
        self.unasked = if refused && self.has_below { UNASKED } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(mut refusals: Refusals, requests: u32) -> u32 {
        let mut asked = 0;
        for _ in 0..requests {
            if refusals.may_ask() {
                refusals.note(true);
                asked += 1;
            }
        }
        asked
    }

    /// Each small block at the limit cost three attempts to make a region.
    #[test]
    fn with_an_allocator_below_few_refused_requests_ask_the_system() {
        let mut refusals = Refusals::NONE;
        refusals.pass_on();
        assert_eq!(asked(refusals, 64 * 5), 5);
    }

    #[test]
    fn what_was_had_is_asked_for_at_once() {
        let mut refusals = Refusals::NONE;
        refusals.pass_on();
        assert!(refusals.may_ask());
        refusals.note(true);
        refusals.note(false);
        assert!(refusals.may_ask());
    }

    #[test]
    fn without_an_allocator_below_each_request_asks() {
        assert_eq!(asked(Refusals::NONE, 100), 100);
    }
}
