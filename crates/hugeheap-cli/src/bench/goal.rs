//! A goal: what hugeheap claims, checked against what was just measured.
//!
//! A goal is about medians; where it is missed by less than the confidence interval is wide, that is said,
//! because more runs may tell.

use crate::statistics::Estimate;
use serde_json::{Value, json};

/// One goal and what became of it.
#[derive(Debug)]
pub struct Goal {
    /// Whether it holds.
    pub met: bool,
    /// Missed, but the interval holds the goal.
    pub unsure: bool,
    /// What is claimed.
    pub name: String,
    /// What was measured.
    pub detail: String,
}

impl Goal {
    /// A goal that is met or not.
    pub fn new(met: bool, name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { met, unsure: false, name: name.into(), detail: detail.into() }
    }

    /// A ratio that must be at most `limit`.
    pub fn at_most(
        estimate: Estimate,
        limit: f64,
        name: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let met = estimate.value <= limit;
        Self { met, unsure: !met && estimate.low <= limit, name: name.into(), detail: detail.into() }
    }

    /// The goal in a report.
    pub fn json(&self) -> Value {
        json!({"goal": self.name, "met": self.met, "unsure": self.unsure, "detail": self.detail})
    }

    /// The goal in a line below tables.
    pub fn line(&self) -> String {
        let mark = match (self.met, self.unsure) {
            (true, _) => "met   ",
            (false, true) => "unsure",
            (false, false) => "missed",
        };
        format!("  {mark}  {}: {}", self.name, self.detail)
    }
}

/// All goals below a heading; nothing when there are none. `ours`: the variant they are about.
pub(crate) fn text(goals: &[Goal], ours: &str) -> String {
    listed(goals, &format!("Goals of hugeheap's policy {ours}"))
}

/// All goals below `heading`; nothing when there are none.
pub(crate) fn listed(goals: &[Goal], heading: &str) -> String {
    if goals.is_empty() {
        return String::new();
    }
    let met = goals.iter().filter(|goal| goal.met).count();
    let mut text = format!("\n{heading}: {met} of {} met\n", goals.len());
    for goal in goals {
        text += &goal.line();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_missed_within_the_interval_is_unsure() {
        let estimate = Estimate { value: 0.71, low: 0.68, high: 0.75 };
        let goal = Goal::at_most(estimate, 0.70, "time", "");
        assert!(!goal.met && goal.unsure);
        assert!(!Goal::at_most(estimate, 0.60, "time", "").unsure);
        assert!(Goal::at_most(estimate, 0.72, "time", "").met);
    }
}
