//! Whether a difference between two series of runs is one, or what chance makes of equal ones.
//!
//! Wilcoxon's rank-sum test (Mann and Whitney's U): if both series came from one distribution, every choice of
//! ranks for the first would be equally likely. It assumes nothing about the distribution, takes ties as they
//! are, and is exact: the sums of ranks of all choices are counted. Only for long series, where counting takes
//! too long and the normal distribution is as good, that is used.
//!
//! Who tests twenty figures finds one that differs by chance at the usual one in twenty: [`holm`] makes a
//! probability as large as it is for all tests together.

/// Runs of both series together up to which choices are counted: some twenty million additions at most.
const COUNTED: usize = 80;

/// The probability of a difference in ranks as large as this, in either direction, between series from one
/// distribution. `None` without runs.
pub(crate) fn rank_sum(first: &[f64], second: &[f64]) -> Option<f64> {
    if first.is_empty() || second.is_empty() {
        return None;
    }
    let (ranks, ties) = doubled_ranks(first, second);
    let observed: usize = ranks[..first.len()].iter().sum();
    let (total, count) = (ranks.iter().sum::<usize>() as f64, ranks.len() as f64);
    // Of doubled ranks, as all here.
    let mean = total * first.len() as f64 / count;
    let distance = (observed as f64 - mean).abs();
    if ranks.len() <= COUNTED {
        return Some(counted(&ranks, first.len(), mean, distance));
    }
    let (one, other) = (first.len() as f64, second.len() as f64);
    // The variance with ties, times four for doubled ranks; half a rank of continuity.
    let variance = one * other / 3.0 * ((count + 1.0) - ties / (count * (count - 1.0)));
    if variance <= 0.0 {
        return Some(1.0);
    }
    Some(libm::erfc((distance - 1.0).max(0.0) / (2.0 * variance).sqrt()))
}

/// Twice the ranks, of the first series and then of the second (equal values share the mean of their ranks,
/// which may be a half), and the sum of t³ − t over groups of t equal values.
fn doubled_ranks(first: &[f64], second: &[f64]) -> (Vec<usize>, f64) {
    let all: Vec<f64> = first.iter().chain(second).copied().collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|&one, &other| all[one].total_cmp(&all[other]));
    let (mut ranks, mut ties, mut begin) = (vec![0; all.len()], 0.0, 0);
    for group in order.chunk_by(|&one, &other| all[one] == all[other]) {
        let end = begin + group.len();
        for &place in group {
            ranks[place] = begin + 1 + end;
        }
        let size = group.len() as f64;
        ties += size * size * size - size;
        begin = end;
    }
    (ranks, ties)
}

/// The share of all choices of `chosen` among `ranks` whose sum is at least `distance` from `mean`.
fn counted(ranks: &[usize], chosen: usize, mean: f64, distance: f64) -> f64 {
    let most: usize = ranks.iter().sum();
    // By how many were chosen and their sum.
    let mut ways = vec![vec![0.0f64; most + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for taken in (1..=chosen).rev() {
            let (before, after) = ways.split_at_mut(taken);
            for sum in rank..=most {
                after[0][sum] += before[taken - 1][sum - rank];
            }
        }
    }
    let all: f64 = ways[chosen].iter().sum();
    let far =
        ways[chosen].iter().enumerate().filter(|(sum, _)| (*sum as f64 - mean).abs() >= distance - 1e-9);
    far.map(|(_, ways)| ways).sum::<f64>() / all
}

/// Probabilities for several tests together, by Holm: below a level with them, none of what differs by chance
/// is found in so many of all *reports*, not of all tests.
pub(crate) fn holm(probabilities: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut order: Vec<(usize, f64)> =
        probabilities.iter().enumerate().filter_map(|(place, it)| Some((place, (*it)?))).collect();
    order.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut adjusted = vec![None; probabilities.len()];
    let mut most = 0.0f64;
    for (rank, (place, probability)) in order.iter().enumerate() {
        most = most.max(probability * (order.len() - rank) as f64).min(1.0);
        adjusted[*place] = Some(most);
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-4)
    }

    #[test]
    fn probabilities_are_those_of_the_tables() {
        // All of one below the other: two of the 184,756 choices of ten among twenty.
        let (low, high): (Vec<f64>, Vec<f64>) =
            (0..10).map(|run| (f64::from(run), f64::from(run + 10))).unzip();
        assert!(near(rank_sum(&low, &high), 2.0 / 184_756.0));
        // Two of twenty choices of three among six.
        assert!(near(rank_sum(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1));
        assert_eq!(rank_sum(&[], &[1.0]), None);
    }

    #[test]
    fn equal_runs_are_not_different_and_constant_ones_are() {
        assert_eq!(rank_sum(&[5.0; 10], &[5.0; 10]), Some(1.0));
        assert_eq!(rank_sum(&[5.0; 50], &[5.0; 50]), Some(1.0));
        assert!(rank_sum(&[5.0; 10], &[6.0; 10]).unwrap() < 1e-4);
    }

    #[test]
    fn counting_and_the_normal_distribution_agree() {
        let series = |len: usize, shift: f64| -> Vec<f64> {
            (0..len).map(|run| ((run * 37) % 41) as f64 + shift).collect()
        };
        let (short, long) =
            (rank_sum(&series(40, 0.0), &series(40, 4.5)), rank_sum(&series(41, 0.0), &series(41, 4.5)));
        assert!((short.unwrap() - long.unwrap()).abs() < 0.02, "{short:?} {long:?}");
    }

    #[test]
    fn several_tests_are_judged_together() {
        let adjusted = holm(&[Some(0.01), None, Some(0.04), Some(0.03)]);
        assert!(near(adjusted[0], 0.03) && adjusted[1].is_none());
        assert!(near(adjusted[3], 0.06) && near(adjusted[2], 0.06), "{adjusted:?}");
    }
}
