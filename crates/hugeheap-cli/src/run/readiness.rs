//! Whether this host can give the huge pages a policy wants, and merges equal pages where that is asked for:
//! one line per obstacle, with the fix.
//!
//! What cannot be read is no obstacle: the preload library finds out itself and counts it.

use hugeheap::arena::Policy;
use hugeheap_os::{ErrorKind, Facts, ThpDisabled, ThpMode};

/// The obstacle for `--merge`.
pub(crate) fn merging(facts: &impl Facts) -> Option<String> {
    let why = match facts.merges() {
        Ok(true) => return None,
        Ok(false) => {
            "this host does not merge equal pages (KSM is off): nothing is made alike; fix: 'echo 1 > \
             /sys/kernel/mm/ksm/run' (as root, for the whole host)"
        }
        Err(error) if error.kind() == ErrorKind::Missing => {
            "this kernel cannot merge equal pages (CONFIG_KSM): nothing is made alike"
        }
        Err(_) => {
            "/sys/kernel/mm/ksm/run cannot be read, so nothing is made alike; fix: make /sys readable for the command"
        }
    };
    Some(why.to_owned())
}

/// The obstacles for `policy`.
pub(crate) fn warnings(facts: &impl Facts, policy: Policy) -> Vec<String> {
    let mut warnings = Vec::new();
    if policy == Policy::Base {
        return warnings;
    }
    let huge = facts.page_sizes().huge;
    let mut pool_serves = false;
    if policy == Policy::Hugetlb {
        let page = huge.unwrap_or(2 << 20);
        match facts.hugetlb_pool(page) {
            Ok(Some(pool)) if pool.available() > 0 => pool_serves = true,
            Ok(Some(pool)) => warnings.push(format!(
                "the pool of {} KiB pages has none left ({} in all): policy hugetlb works as thp; enlarge it with \
                 'sysctl vm.nr_hugepages=N' (N pages; as root)",
                page >> 10,
                pool.total
            )),
            Ok(None) => warnings.push(format!(
                "this kernel has no pool of {} KiB pages: policy hugetlb works as thp",
                page >> 10
            )),
            Err(_) => {}
        }
    }
    // Pool pages do not depend on the THP mode. A collapse on demand works in mode never (dense, and what auto becomes
    // there), but not with the process's own switch off.
    let collapses = policy == Policy::Dense || policy == Policy::Auto && facts.capabilities().collapse;
    if !pool_serves && !collapses {
        if let Ok(thp) = facts.thp() {
            if thp.mode == ThpMode::Never {
                warnings.push(
                    "transparent huge pages are off on this host (mode never): the heap stays on OS pages; fix: \
                     'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' (as root), or use --policy dense"
                        .to_owned(),
                );
            }
        }
    }
    if !pool_serves && matches!(facts.thp_disabled(), Ok(ThpDisabled::Completely)) {
        warnings.push(
            "this process has transparent huge pages switched off (prctl PR_SET_THP_DISABLE, inherited by the \
             command): the heap stays on OS pages; fix: start from a shell or service manager without that switch"
                .to_owned(),
        );
    }
    warnings
}
