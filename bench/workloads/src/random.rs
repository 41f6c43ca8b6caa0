//! Random numbers that are the same in every run: what a workload does depends on its seed alone.

/// splitmix64: one addition and three multiplications, so that little of a workload's time is spent here.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A sequence of its own for every `stream` (a thread, a round).
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    /// At least 0, less than `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// From `least` to `most`, both included.
    pub(crate) fn within(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most.saturating_sub(least) + 1)
    }
}

/// The mixing step of splitmix64.
pub(crate) fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Sizes of which small ones are much more frequent than large ones: density ~ size to the power of `exponent`.
/// Drawn from a table, because powers are slower than an allocation.
#[derive(Debug)]
pub(crate) struct Sizes(Box<[u32]>);

impl Sizes {
    const ENTRIES: usize = 4096;

    /// With `most` below `least`, all are `least`.
    pub(crate) fn power_law(least: usize, most: usize, exponent: f64) -> Self {
        let most = most.max(least);
        // The distribution function's inverse. Exponent -1 has a logarithm there: avoided by its neighbour.
        let power = if exponent == -1.0 { 1e-6 } else { exponent + 1.0 };
        let (low, high) = ((least as f64).powf(power), (most as f64).powf(power));
        let size = |entry: usize| {
            let share = (entry as f64 + 0.5) / Self::ENTRIES as f64;
            ((low + share * (high - low)).powf(1.0 / power).round() as u32).clamp(least as u32, most as u32)
        };
        Self((0..Self::ENTRIES).map(size).collect())
    }

    pub(crate) fn draw(&self, random: &mut Random) -> usize {
        self.0[(random.next() >> 32) as usize % Self::ENTRIES] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_a_stream_others() {
        let numbers = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next()]
        };
        assert_eq!(numbers(1, 0), numbers(1, 0));
        assert_ne!(numbers(1, 0), numbers(1, 1));
        assert_ne!(numbers(1, 0), numbers(2, 0));
    }

    #[test]
    fn limits_are_kept_and_reached() {
        let mut random = Random::new(3, 0);
        let seen: Vec<usize> = (0..1000).map(|_| random.within(5, 8)).collect();
        for value in 5..=8 {
            assert!(seen.contains(&value));
        }
        assert!(seen.iter().all(|value| (5..=8).contains(value)));
    }

    #[test]
    fn small_sizes_are_more_frequent() {
        let sizes = Sizes::power_law(8, 32768, -1.0);
        let mut random = Random::new(5, 0);
        let drawn: Vec<usize> = (0..20_000).map(|_| sizes.draw(&mut random)).collect();
        let small = drawn.iter().filter(|&&size| size <= 512).count();
        // With density 1/size every doubling is as likely as another: 6 of 12 lie below 512.
        assert!((9_500..10_500).contains(&small), "{small}");
        assert!(drawn.iter().all(|size| (8..=32768).contains(size)));
        assert!(drawn.iter().any(|&size| size > 30_000));
    }
}
