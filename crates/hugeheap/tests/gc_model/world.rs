//! Where the machine's heap lives, its settings, and failures around it.

use super::{Machine, Start};
use hugeheap::arena::{Arenas, Settings as ArenaSettings};
use hugeheap::gc::{Checks, Settings};
use hugeheap::lock::Lock;
use hugeheap::object::Source;
use hugeheap_os::simulated::{Call, Config, Kernel};
use hugeheap_os::{Os, ThpMode};
use std::num::NonZeroU32;
use std::time::Duration;

/// Arenas over an operating system, behind a lock.
pub(crate) struct World<O> {
    pub(super) arenas: Lock<Arenas<O>>,
    os: O,
}

impl<O: Os + Send + Sync + 'static> Source for World<O> {
    type Os = O;
    fn with<R>(&'static self, work: impl FnOnce(&mut Arenas<O>) -> R) -> R {
        work(&mut self.arenas.lock())
    }
    fn os(&self) -> &O {
        &self.os
    }
}

/// The calls that get memory, and those with which arenas and nurseries are kept in order.
const CALLS: [Call; 9] = [
    Call::Reserve,
    Call::Map,
    Call::Unmap,
    Call::Decommit,
    Call::Advise,
    Call::Name,
    Call::Protect,
    Call::Populate,
    Call::Relocate,
];

/// The host of a machine.
pub(super) fn host(start: Start) -> Kernel {
    let mode = [ThpMode::Madvise, ThpMode::Always, ThpMode::Never];
    let mut config = Config::default().with_thp_mode(mode[start[4] as usize % 3]);
    config.log_capacity = 16;
    Kernel::new(config)
}

impl<O: Os + Clone + Send + Sync + 'static> World<O> {
    pub(super) fn new(os: O) -> Self {
        let settings = ArenaSettings { region: Some(64 << 20), ..ArenaSettings::DEFAULT };
        Self { arenas: Lock::new(Arenas::new(os.clone(), settings)), os }
    }
}

/// The settings of a machine's heap: every check, and each with every other. What looks through the whole heap
/// in each collection is off now and then, because more operations fit into the same time then; the machine
/// itself looks, too.
pub(super) fn settings([a, b, c, ..]: Start) -> Settings {
    let checks = Checks {
        verify: c % 8 < 4,
        barriers: b % 16 < 8,
        poison: a % 2 == 0,
        moving: c % 2 == 0,
        rotate: a % 5 == 0,
        stress: NonZeroU32::new([0, 1, 13, 3, 40, 5, 200, 7][b as usize % 8]),
    };
    Settings {
        nursery: Some(64 << 10),
        maximum: (c % 3 == 0).then_some((256 << 10) + usize::from(c) * (8 << 10)),
        growth: Some(110 + u32::from(a)),
        evacuate: (b % 3 == 0).then_some(101),
        step: (a % 3 == 0).then_some(Duration::ZERO),
        checks,
    }
}

impl<O: Os + Send + Sync + 'static> Machine<O> {
    /// Has calls fail from now on, or no more.
    pub(super) fn fail(&mut self, a: u8, b: u8, c: u8) {
        let Some(kernel) = self.kernel.as_ref().filter(|_| self.faulty) else { return };
        let call = CALLS[a as usize % CALLS.len()];
        let errors = call.plausible_errors();
        let code = errors[c as usize % errors.len()];
        match b % 5 {
            0 => kernel.fail_no_more(),
            1 => kernel.fail_next(call, code, u64::from(c) + 1),
            2 => kernel.fail_every(call, u64::from(b >> 3 & 3) + 1, code),
            3 => kernel.fail_randomly(u64::from(a) << 8 | u64::from(c), u32::from(b) * 2),
            _ => {
                let limit = (kernel.charge() >> 20) + u64::from(c % 16);
                kernel.set_cgroup_max((c % 4 != 0).then_some(limit << 20));
            }
        }
    }

    /// Nothing fails any more.
    pub(super) fn mend(&self) {
        if let Some(kernel) = &self.kernel {
            kernel.fail_no_more();
            kernel.set_cgroup_max(None);
        }
    }

    /// Lets time pass, and the arenas do what is due.
    pub(super) fn wait(&self, milliseconds: u64) {
        if let Some(kernel) = &self.kernel {
            kernel.advance(Duration::from_millis(milliseconds));
            self.world.arenas.lock().maintain();
        }
    }
}
