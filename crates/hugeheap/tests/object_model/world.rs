//! Failures around the heaps.

use super::Machine;
use hugeheap_os::simulated::Call;

/// The calls that get memory, and those with which the arenas keep it in order.
const CALLS: [Call; 9] = [
    Call::Reserve,
    Call::Map,
    Call::Reserve,
    Call::Map,
    Call::Unmap,
    Call::Decommit,
    Call::Advise,
    Call::Relocate,
    Call::Name,
];

impl Machine {
    pub(super) fn inject(&mut self, a: u8, b: u8, c: u8) {
        let kernel = &self.world.kernel;
        let call = CALLS[a as usize % CALLS.len()];
        let errors = call.plausible_errors();
        let code = errors[b as usize % errors.len()];
        match c % 5 {
            0 => kernel.fail_no_more(),
            1 => kernel.fail_next(call, code, u64::from(c >> 2) + 1),
            2 => kernel.fail_every(call, u64::from(c >> 2 & 7), code),
            3 => kernel.fail_randomly(u64::from(a) << 8 | u64::from(b), u32::from(c)),
            _ => {
                let limit = (kernel.charge() >> 20) + u64::from(b);
                kernel.set_cgroup_max((b % 4 != 0).then_some(limit << 20));
            }
        }
    }
}
