//! What the program needed lately, and so how much memory to keep: the retention rule.
//!
//! Terms: *demand* is the bytes live at a moment. The *short window* is the decay time (1 s unless set). A *regret*
//! is memory that was given back and needed again within the *long window* (30 decay times). A *pause* is the
//! time between the moment when memory was in use last and the moment when it is needed again.
//!
//! The rule: keep resident what the highest demand of the short window would need. When memory was regretted,
//! keep as many bytes as were regretted, up to the highest demand since then, for twice the longest pause of
//! late since they were in use last. Never longer than the long window after the last regret, or after the
//! demand fell and rose that far again. Everything above is given back.
//!
//! ```text
//!   demand   ▁▂▅█▇█▁▁▁▁▁▁        one burst: kept 1 s, then given back
//!   demand   ▁█▁▁█▁▁█▁▁▁▁▁▁▁▁▁▁  pauses longer than the short window: the second cycle is a regret, from then on the peak
//!                   └keep┘       is kept, until twice the pause passes without one
//! ```
//!
//! Why not one long window for all, as tcmalloc's 60 s and 300 s: a service that starts, builds its tables and
//! drops the scaffolding would be charged for minutes for a demand that never returns. A regret is evidence
//! that it does; it costs one refault, once. The question goes back to Evan Jones' "self-tuned to the
//! application" (python-dev, 2005).
//!
//! Why the pause decides: with the long window for everything that was regretted, a program with cycles of a
//! second held its whole peak for half a minute after the last one. Twice the pause forgives a cycle that is
//! late by one pause. A longer one costs one regret, and that teaches its length.
//!
//! Pure: time comes in as nanoseconds.

/// Parts of the short window. 8 make the forgetting error one eighth of the decay time.
const PARTS: usize = 8;

/// The long window in decay times. A cycle with a pause below it is recognised; 30 s cover a request burst or a
/// batch step, and after them an idle process holds nothing.
const LONG_WINDOW: u64 = 30;

/// Pauses that recurring memory is kept for. With one, a pause a little longer than all before would be a
/// regret every time.
const KEPT_PAUSES: u64 = 2;

/// Highest demand of the recent past, in parts of the window.
#[derive(Clone, Copy, Debug)]
struct Peaks {
    peaks: [u64; PARTS],
    /// Number of the current part since the start of time.
    part: u64,
    /// When it ends, so that most records need no division.
    ends: u64,
}

/// The longest pause of late: of this spell of one long window, and of the one before it, so that a single long
/// pause is forgotten again. Turns over when a pause is noted, never by itself.
#[derive(Clone, Copy, Debug)]
struct Pauses {
    longest: u64,
    before: u64,
    /// When this spell began.
    since: u64,
}

impl Pauses {
    const NONE: Self = Self { longest: 0, before: 0, since: 0 };

    fn note(&mut self, now: u64, pause: u64, spell: u64) {
        let age = now.saturating_sub(self.since);
        if age > spell {
            self.before = if age > spell.saturating_mul(2) { 0 } else { self.longest };
            self.longest = 0;
            self.since = now;
        }
        self.longest = self.longest.max(pause);
    }

    fn longest(&self) -> u64 {
        self.longest.max(self.before)
    }
}

/// What to keep. See the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    decay: u64,
    now_live: u64,
    recorded_at: u64,
    window: Peaks,
    /// Bytes regretted in this spell of recurrence: what is kept above the demand. At most `level`.
    allowance: u64,
    /// The demand up to which they are kept: the highest since they were regretted.
    level: u64,
    /// Least demand since the last evidence of recurrence.
    low: u64,
    /// When there was evidence last; `None`: no recurrence known.
    recurred_at: Option<u64>,
    /// When nearly all of the allowance was in use last, unless it is now.
    used_at: u64,
    pauses: Pauses,
    /// Bytes given back that would be a regret if they were needed now, and when the last of them went.
    outstanding: u64,
    given_back_at: u64,
    /// When the bytes outstanding were in use last, as far as is known.
    unused_since: u64,
    /// When recurring memory was kept no longer, and when it was in use last.
    let_go: Option<(u64, u64)>,
    regretted: u64,
}

impl Demand {
    /// No demand yet; `decay` in nanoseconds.
    pub(crate) const fn new(decay: u64) -> Self {
        Self {
            decay,
            now_live: 0,
            recorded_at: 0,
            window: Peaks { peaks: [0; PARTS], part: 0, ends: 0 },
            allowance: 0,
            level: 0,
            low: 0,
            recurred_at: None,
            used_at: 0,
            pauses: Pauses::NONE,
            outstanding: 0,
            given_back_at: 0,
            unused_since: 0,
            let_go: None,
            regretted: 0,
        }
    }

    /// Without past demand, and with another decay time. What was regretted was regretted.
    pub(crate) const fn restarted(&self, decay: u64) -> Self {
        Self { regretted: self.regretted, ..Self::new(decay) }
    }

    /// The decay time in nanoseconds.
    pub(crate) const fn decay(&self) -> u64 {
        self.decay
    }

    /// Total of bytes regretted.
    pub(crate) const fn regretted(&self) -> u64 {
        self.regretted
    }

    fn long_window(&self) -> u64 {
        self.decay.saturating_mul(LONG_WINDOW)
    }

    fn roll(&mut self, now: u64) {
        if now < self.window.ends {
            return;
        }
        let length = (self.decay / PARTS as u64).max(1);
        let part = now / length;
        self.window.ends = part.saturating_add(1).saturating_mul(length);
        let gone = part.saturating_sub(self.window.part);
        if gone == 0 {
            return;
        }
        // Parts in which nothing was recorded had the demand of the last record throughout.
        for step in 1..=gone.min(PARTS as u64) {
            self.window.peaks[((self.window.part + step) % PARTS as u64) as usize] = self.now_live;
        }
        self.window.part = part;
    }

    /// Whether nearly all of the allowance is in use at a demand of `live`.
    fn is_used(&self, live: u64) -> bool {
        live >= self.level - self.allowance / 8
    }

    /// The last moment at which the allowance is kept, if nothing happens; `None`: no recurrence known.
    fn kept_until(&self) -> Option<u64> {
        let at = self.recurred_at?;
        let last = at.saturating_add(self.long_window());
        if self.is_used(self.now_live) {
            return Some(last);
        }
        let time = self.pauses.longest().saturating_mul(KEPT_PAUSES).max(self.decay);
        Some(self.used_at.saturating_add(time).min(last))
    }

    /// Forgets a recurrence that did not go on.
    fn expire(&mut self, now: u64) {
        if self.kept_until().is_some_and(|last| now > last) {
            let used_at = if self.is_used(self.now_live) { now } else { self.used_at };
            self.let_go = Some((now, used_at));
            self.allowance = 0;
            self.level = 0;
            self.recurred_at = None;
            self.pauses = Pauses::NONE;
        }
    }

    /// The demand is `live` bytes from now on.
    pub(crate) fn record(&mut self, now: u64, live: u64) {
        self.roll(now);
        self.expire(now);
        let was = core::mem::replace(&mut self.now_live, live);
        self.recorded_at = now;
        let peak = &mut self.window.peaks[(self.window.part % PARTS as u64) as usize];
        *peak = (*peak).max(live);
        if self.recurred_at.is_some() {
            self.record_recurring(now, was, live);
        }
    }

    /// The demand was `was` bytes and is `live` from now on, and it is known to recur.
    fn record_recurring(&mut self, now: u64, was: u64, live: u64) {
        if self.is_used(was) {
            self.used_at = now;
        }
        self.low = self.low.min(live);
        // The kept memory was used again: the cycle goes on, though it costs nothing any more.
        let fell = self.low.saturating_add(self.allowance / 2) <= self.level;
        if fell && self.is_used(live) {
            self.recurs(now, now.saturating_sub(self.used_at), live);
        }
        // A growing program's dips are below a peak that is higher each time.
        self.level = self.level.max(live);
    }

    /// There is evidence that the demand recurs, after a pause.
    fn recurs(&mut self, now: u64, pause: u64, live: u64) {
        self.pauses.note(now, pause, self.long_window());
        self.recurred_at = Some(now);
        self.used_at = now;
        self.low = live;
    }

    /// `bytes` were given back.
    pub(crate) fn gave_back(&mut self, now: u64, bytes: u64) {
        self.outstanding += bytes;
        self.given_back_at = now;
        // What the short window alone kept was in use a decay time ago.
        self.unused_since = match self.let_go {
            Some((at, used_at)) if now.saturating_sub(at) <= self.decay => used_at,
            _ => now.saturating_sub(self.decay),
        };
    }

    /// `bytes` had to be had from the system on top of a demand of `live`.
    pub(crate) fn grew(&mut self, now: u64, bytes: u64, live: u64) {
        self.expire(now);
        if now.saturating_sub(self.given_back_at) > self.long_window() {
            self.outstanding = 0;
        }
        if self.outstanding > 0 {
            let regretted = bytes.min(self.outstanding);
            self.outstanding -= regretted;
            self.regretted += regretted;
            self.level = self.level.max(live.saturating_add(bytes));
            self.allowance = (self.allowance + regretted).min(self.level);
            self.recurs(now, now.saturating_sub(self.unused_since), live);
        }
    }

    /// Bytes to keep resident in all, live ones included.
    pub(crate) fn target(&mut self, now: u64) -> u64 {
        self.roll(now);
        self.expire(now);
        let short = self.window.peaks.iter().copied().max().unwrap_or(0);
        let long = match self.recurred_at {
            Some(_) => self.now_live.saturating_add(self.allowance).min(self.level),
            None => 0,
        };
        short.max(long)
    }

    /// Whether the target may fall long before the moment `look` for what was recorded last.
    pub(crate) fn may_fall_before(&self, look: u64) -> bool {
        // The short window forgets within a decay time; another for the time that a look takes and is late.
        let soon = self.recorded_at.saturating_add(self.decay.saturating_mul(2));
        look > soon && self.next_change(self.recorded_at).is_some_and(|next| next < soon)
    }

    /// When the target may fall next if nothing happens: the end of the current part, or nothing left to forget.
    pub(crate) fn next_change(&self, now: u64) -> Option<u64> {
        let length = (self.decay / PARTS as u64).max(1);
        if self.window.peaks.iter().any(|&peak| peak > self.now_live) {
            return Some((now / length + 1) * length);
        }
        let until = self.kept_until().filter(|_| self.level > self.now_live)?;
        Some(until.saturating_add(1).max(now + 1))
    }
}

#[cfg(test)]
mod tests;
