//! What this host must have for an experiment, asked before anything is measured.

use super::variant::Refusal;
use crate::output::bytes;
use hugeheap_os::Facts;

/// The size of a huge page in bytes.
///
/// # Errors
/// When this kernel has none.
pub(crate) fn huge_page(facts: &impl Facts) -> Result<usize, Refusal> {
    let none = || Refusal::Unsupported("this kernel has no transparent huge pages".to_owned());
    facts.page_sizes().huge.ok_or_else(none)
}

/// Whether `needed` bytes of memory are `available`. `what` needs them, and `option` makes it less. A host that
/// does not say what it has is believed to have enough.
///
/// # Errors
/// When they are not.
pub(crate) fn memory(available: Option<u64>, what: &str, needed: u64, option: &str) -> Result<(), Refusal> {
    match available {
        Some(available) if needed > available => Err(Refusal::Unsupported(format!(
            "{what} needs about {} of memory, and {} are available; choose less with {option}",
            bytes(needed),
            bytes(available)
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_not_is_refused_with_what_makes_it_less() {
        let Err(Refusal::Unsupported(why)) = memory(Some(1 << 30), "churn", 2 << 30, "--size") else {
            panic!("not refused")
        };
        assert_eq!(
            why,
            "churn needs about 2.0 GiB of memory, and 1.0 GiB are available; choose less with --size"
        );
        assert!(memory(Some(1 << 30), "churn", 1 << 30, "--size").is_ok());
        assert!(memory(None, "churn", u64::MAX, "--size").is_ok());
    }
}
