//! One run: a program in a cgroup of its own, and the limit that falls.
//!
//! ```text
//!   limit falls ──▶ the kernel reclaims ──▶ a round of the program ──▶ charge, RSS ──▶ limit falls …
//!                                              └─ killed: the end
//! ```

use super::program::{self, BUILT, Memory, ROUND, Shape};
use crate::bench::charge::Group;
use crate::bench::forked::{Forked, pipe};
use crate::descriptors::told;
use serde::Serialize;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A step that was survived. Bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) limit: u64,
    pub(crate) charge: u64,
    /// What setting the limit and the round took.
    pub(crate) seconds: f64,
}

/// What a run tells.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    /// Charge right after it built what it holds, and after it did nothing for a while.
    pub(crate) built: u64,
    pub(crate) idle: u64,
    pub(crate) survived: Vec<Step>,
    /// The limit at which it was killed; `None`: it survived all.
    pub(crate) killed_at: Option<u64>,
    /// Not killed, but the kernel could not reclaim enough to set the limit: version 2 kills there.
    pub(crate) refused: bool,
}

/// Of the full size, the first limit; each next is lower by [`SQUEEZE`].
const FIRST: f64 = 1.5;
const SQUEEZE: f64 = 0.7;
/// The last limit: below this the program itself is more than what is looked at.
const LEAST: u64 = 4 << 20;
/// Time that a program is given, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Before the first step, without work.
    pub(crate) idle: f64,
    /// From one step to the next.
    pub(crate) step: f64,
}

/// How often a limit is tried: as often as version 2 reclaims before it kills (MAX_RECLAIM_RETRIES).
const TRIES: u32 = 16;

/// The limits, falling.
pub(crate) fn limits(full: u64) -> Vec<u64> {
    let page = |bytes: f64| (bytes as u64) & !0xFFFF;
    let steps = std::iter::successors(Some(full as f64 * FIRST), |limit| Some(limit * SQUEEZE));
    steps.map(page).take_while(|&limit| limit >= LEAST.max(full / 16)).collect()
}

/// Measures.
///
/// # Errors
/// When there is no group, or the program did not even build what it holds.
pub(crate) fn measure(
    shape: Shape,
    memory: Memory,
    huge_pages: u64,
    limits: &[u64],
    times: Times,
) -> Result<Run, String> {
    let group = Group::create()?;
    group.without_swap();
    let (mut orders, mut order) =
        pipe().map_err(|error| format!("no pipe: {error}", error = told(&error)))?;
    let mut child = Forked::start(Some(&group), |told| {
        // A copy of the writing end would keep the orders open after their end.
        // SAFETY: the child's descriptor; the parent's is its own.
        unsafe { libc::close(order.as_raw_fd()) };
        program::run(shape, memory, huge_pages, &mut orders, told)
    })?;
    if child.line().as_deref() != Some(BUILT) {
        return child
            .end::<()>()
            .and(Err("did not begin".to_owned()))
            .map_err(|why| format!("did not begin: {why}"));
    }
    let mut run = Run {
        built: group.charge().unwrap_or(0),
        idle: 0,
        survived: Vec::new(),
        killed_at: None,
        refused: false,
    };
    std::thread::sleep(Duration::from_secs_f64(times.idle));
    run.idle = group.charge().unwrap_or(0);
    for &limit in limits {
        let start = Instant::now();
        if !squeeze(&group, limit)? {
            return Ok(Run { killed_at: Some(limit), refused: true, ..run });
        }
        let lives = order.write_all(b"1").is_ok() && child.line().as_deref() == Some(ROUND);
        if super::super::interrupt::noted().is_some() {
            return Err("interrupted".to_owned());
        }
        if !lives {
            // Killed by the kernel, and nothing else: another end is a mistake.
            return match child.end::<()>() {
                Err(why) if why == "was killed" => Ok(Run { killed_at: Some(limit), ..run }),
                Err(why) => Err(why),
                Ok(()) => Err("ended early".to_owned()),
            };
        }
        let charge = group.charge().unwrap_or(0);
        run.survived.push(Step { limit, charge, seconds: start.elapsed().as_secs_f64() });
        std::thread::sleep(Duration::from_secs_f64(times.step).saturating_sub(start.elapsed()));
    }
    drop(order);
    match child.end::<()>() {
        Ok(()) => Ok(run),
        // Ending takes a little memory, too.
        Err(why) if why == "was killed" => Ok(Run { killed_at: limits.last().copied(), ..run }),
        Err(why) => Err(why),
    }
}

/// Sets the limit; whether the kernel could. Where it cannot reclaim that much, version 2 kills, and version 1
/// refuses after one try.
fn squeeze(group: &Group, limit: u64) -> Result<bool, String> {
    for _ in 0..TRIES {
        match group.limit(limit) {
            Ok(()) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => {
                return Err(format!("the limit could not be set to {limit}: {error}", error = told(&error)));
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fall_to_a_sixteenth() {
        let limits = limits(1 << 30);
        assert!(limits[0] == 3 << 29 && limits.windows(2).all(|pair| pair[1] < pair[0]));
        assert!(*limits.last().unwrap() >= (1 << 30) / 16 && limits.len() == 9, "{limits:?}");
    }

    #[test]
    fn a_limit_below_what_is_live_kills() {
        if let Err(why) = Group::create() {
            eprintln!("nothing to test: {why}");
            return;
        }
        let times = Times { idle: 0.0, step: 0.0 };
        let run = measure(Shape::Freed, Memory::OsPages, 16, &[64 << 20, 128 << 10], times).unwrap();
        assert_eq!((run.survived.len(), run.killed_at), (1, Some(128 << 10)));
        let run = measure(Shape::Freed, Memory::OsPages, 16, &[64 << 20], times).unwrap();
        assert_eq!((run.survived.len(), run.killed_at), (1, None));
    }
}
