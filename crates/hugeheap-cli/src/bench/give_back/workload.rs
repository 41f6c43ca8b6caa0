//! The workloads, and what the reference measured with the first.
//!
//! The reference is Evan Jones's patch that made CPython give arenas back (python-dev, January 2005): a million
//! instances with one attribute are made, freed, made again, before and after the patch. Its author called that
//! the worst case for an allocator that gives memory back, and wished for one that tunes itself to programs
//! that need the same memory again and again: the second workload.

/// One workload. Its program is in `workloads.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Instances,
    Cycle,
}

impl Workload {
    pub(crate) const ALL: [Self; 2] = [Self::Instances, Self::Cycle];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::Cycle => "cycle",
        }
    }

    pub(crate) const fn description(self) -> &'static str {
        match self {
            Self::Instances => "a million instances with one attribute, made and freed again and again",
            Self::Cycle => "a gigabyte of objects of 16 sizes, made and freed again and again",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == text)
    }
}

/// Published seconds: real, user, system; without giving back, then with.
pub(crate) const REFERENCE: [[f64; 3]; 2] = [[16.304, 16.016, 0.257], [16.062, 15.593, 0.450]];

/// The program of all workloads.
pub(crate) const PROGRAM: &str = include_str!("workloads.py");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_its_function() {
        for workload in Workload::ALL {
            assert!(PROGRAM.contains(&format!("def {}(", workload.name())), "{}", workload.name());
            assert_eq!(Workload::parse(workload.name()), Some(workload));
        }
        assert_eq!(Workload::parse("nothing"), None);
    }
}
