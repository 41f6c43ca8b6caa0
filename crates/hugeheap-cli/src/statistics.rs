//! Statistics of repeated measurements: medians, spread, and how sure a change is.
//!
//! Times of programs are skewed to the right (something disturbs, nothing speeds up), so the median stands for
//! the typical run and the interquartile range for the spread. How sure the ratio of two medians is, is told by
//! the bootstrap: draw as many runs with replacement as there were, take the ratio, do that often; 95 % of the
//! ratios lie in the interval. It assumes nothing about the distribution. The random numbers are seeded: the
//! same measurements give the same report.

/// Draws per interval. More do not change the third digit.
const DRAWS: usize = 4000;

/// A value and the interval it lies in with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value itself.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// The `share` quantile (0 to 1) with linear interpolation; `None` without values.
pub(crate) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_sorted(&sorted, share)
}

fn quantile_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = share.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    let fraction = position - below as f64;
    Some(sorted[below] + (sorted[above] - sorted[below]) * fraction)
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Half the interquartile range: the typical run lies within the median and plus or minus this.
pub fn half_spread(values: &[f64]) -> Option<f64> {
    Some((quantile(values, 0.75)? - quantile(values, 0.25)?) / 2.0)
}

/// The ratio of the medians of `values` and `base`.
pub fn ratio_of_medians(values: &[f64], base: &[f64]) -> Option<Estimate> {
    geometric_mean_of_ratios(&[(values, base)])
}

/// The geometric mean over the pairs' ratios of medians. `None` without pairs, or when a median is not above zero.
pub fn geometric_mean_of_ratios(pairs: &[(&[f64], &[f64])]) -> Option<Estimate> {
    let value = combine(pairs.iter().map(|(values, base)| Some(median(values)? / median(base)?)))?;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut scratch = Vec::new();
    let mut draws: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            combine(pairs.iter().map(|(values, base)| {
                Some(
                    random.median_of_draw(values, &mut scratch)?
                        / random.median_of_draw(base, &mut scratch)?,
                )
            }))
        })
        .collect();
    draws.sort_unstable_by(f64::total_cmp);
    Some(Estimate {
        value,
        low: quantile_sorted(&draws, 0.025).unwrap_or(value),
        high: quantile_sorted(&draws, 0.975).unwrap_or(value),
    })
}

/// The geometric mean of `ratios`.
fn combine(ratios: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for ratio in ratios {
        let ratio = ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0)?;
        sum += ratio.ln();
        count += 1;
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// A small generator (splitmix64): draws need no more quality, and every report shall be repeatable.
pub(crate) struct Random(u64);

impl Random {
    /// Draws that begin anew from the same `seed` are the same.
    #[cfg(test)]
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * limit as u128) >> 64) as usize
    }

    fn median_of_draw(&mut self, values: &[f64], scratch: &mut Vec<f64>) -> Option<f64> {
        scratch.clear();
        scratch.extend((0..values.len()).map(|_| values[self.below(values.len())]));
        scratch.sort_unstable_by(f64::total_cmp);
        quantile_sorted(scratch, 0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), Some(2.0));
        assert_eq!(half_spread(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(1.0));
    }

    #[test]
    fn identical_runs_leave_no_doubt() {
        let estimate = ratio_of_medians(&[2.0; 5], &[4.0; 5]).unwrap();
        assert_eq!(estimate, Estimate { value: 0.5, low: 0.5, high: 0.5 });
    }

    #[test]
    fn the_interval_holds_the_ratio_and_widens_with_the_spread() {
        let quiet: Vec<f64> = (0..10).map(|run| 1.0 + 0.001 * f64::from(run)).collect();
        let noisy: Vec<f64> = (0..10).map(|run| 1.0 + 0.1 * f64::from(run)).collect();
        let narrow = ratio_of_medians(&quiet, &quiet).unwrap();
        let wide = ratio_of_medians(&noisy, &quiet).unwrap();
        assert!(narrow.low <= 1.0 && narrow.high >= 1.0);
        assert!(wide.high - wide.low > 10.0 * (narrow.high - narrow.low));
        assert!(wide.low <= wide.value && wide.value <= wide.high);
        assert_eq!(wide, ratio_of_medians(&noisy, &quiet).unwrap(), "repeatable");
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        // Two samples of one distribution: the true ratio is 1. With 12 runs the bootstrap of a median is a bit off
        // 95 %; far off would be a mistake.
        let mut random = Random(7);
        let mut sample =
            || -> Vec<f64> { (0..12).map(|_| 1.0 + random.below(1000) as f64 / 1000.0).collect() };
        let covered = (0..100)
            .filter(|_| {
                let estimate = ratio_of_medians(&sample(), &sample()).unwrap();
                estimate.low <= 1.0 && 1.0 <= estimate.high
            })
            .count();
        assert!((88..=100).contains(&covered), "{covered}");
    }

    #[test]
    fn the_geometric_mean_is_of_ratios() {
        let estimate =
            geometric_mean_of_ratios(&[(&[1.0], &[2.0]), (&[4.0], &[1.0]), (&[1.0], &[1.0])]).unwrap();
        assert!((estimate.value - 2f64.powf(1.0 / 3.0)).abs() < 1e-12);
        assert_eq!(geometric_mean_of_ratios(&[]), None);
        assert_eq!(geometric_mean_of_ratios(&[(&[1.0], &[0.0])]), None);
    }
}
