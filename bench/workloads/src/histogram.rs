//! How often which latency was seen: buckets of one sixteenth of a power of two, so quantiles are exact to 6 %.
//!
//! Without allocation, because it is used between allocations that are measured.

/// Buckets per power of two.
const FINE: usize = 16;
/// Powers of two: up to 2^36 ticks, twenty seconds and more.
const POWERS: usize = 36;

/// Counts per bucket.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: [u64; FINE * POWERS],
    most: u64,
}

impl Histogram {
    pub(crate) const fn new() -> Self {
        Self { counts: [0; FINE * POWERS], most: 0 }
    }

    pub(crate) fn add(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.most = self.most.max(value);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.most = self.most.max(other.most);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// The value that `share` of all values do not exceed: the upper end of its bucket.
    pub(crate) fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return highest(bucket).min(self.most);
            }
        }
        self.most
    }
}

fn bucket(value: u64) -> usize {
    if value < FINE as u64 {
        return value as usize;
    }
    let power = value.ilog2() as usize;
    let fine = (value >> (power - FINE.ilog2() as usize)) as usize - FINE;
    ((power - FINE.ilog2() as usize + 1) * FINE + fine).min(FINE * POWERS - 1)
}

/// The largest value of a bucket.
fn highest(bucket: usize) -> u64 {
    if bucket < FINE {
        return bucket as u64;
    }
    let shift = bucket / FINE - 1;
    (((FINE + bucket % FINE + 1) as u64) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_its_bucket() {
        for value in (0..5000).chain([1 << 20, (1 << 30) + 12345]) {
            let bucket = bucket(value);
            assert!(highest(bucket) >= value);
            assert!(bucket == 0 || highest(bucket - 1) < value, "{value}");
            assert!(highest(bucket) as f64 <= value as f64 * (1.0 + 1.0 / FINE as f64));
        }
        assert_eq!(bucket(u64::MAX), FINE * POWERS - 1);
    }

    #[test]
    fn quantiles_are_of_all_values() {
        let mut left = Histogram::new();
        let mut right = Histogram::new();
        (1..=500).for_each(|value| left.add(value));
        (501..=1000).for_each(|value| right.add(value));
        left.merge(&right);
        assert_eq!(left.count(), 1000);
        assert_eq!(left.most(), 1000);
        assert_eq!(left.quantile(1.0), 1000);
        let median = left.quantile(0.5);
        assert!((500..=531).contains(&median), "{median}");
    }
}
