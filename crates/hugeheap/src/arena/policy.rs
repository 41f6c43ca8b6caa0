//! The backing policies a heap can have, by name.

use core::fmt;

/// What arenas are made of. Set per heap, and changeable while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Policy {
    /// No huge pages.
    Base = 0,
    /// Advise every new arena for transparent huge pages.
    Thp = 1,
    /// Never advise; collapse arenas once they are dense.
    Dense = 2,
    /// Take pages from the explicit pool first; fall back to `thp` and count it.
    Hugetlb = 3,
    /// The cheapest that works here; small runs on OS pages of their own.
    #[default]
    Auto = 4,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Thp, Self::Dense, Self::Hugetlb, Self::Base];

    /// The name on the command line, in the environment and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Thp => "thp",
            Self::Dense => "dense",
            Self::Hugetlb => "hugetlb",
            Self::Auto => "auto",
        }
    }

    /// The policy of a name, or `None`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text)
    }

    /// The policy of its number in a snapshot.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&policy| policy as u32 == number)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_back() {
        for policy in Policy::ALL {
            assert_eq!(Policy::parse(policy.name()), Some(policy));
            assert_eq!(Policy::from_number(policy as u32), Some(policy));
        }
        assert_eq!(Policy::parse("THP"), None);
    }
}
