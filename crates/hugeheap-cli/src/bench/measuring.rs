//! What measuring consists of whatever is measured, for `bench/`, the comparison of allocators: a workspace of
//! its own, which cannot have it otherwise. Not an interface: it changes with the commands.

pub use super::charge::Group;
pub use super::goal::Goal;
pub use super::report::estimate;
pub use crate::output::{Output, bytes, counted, grouped, seconds};
pub use crate::statistics::{Estimate, geometric_mean_of_ratios, half_spread, median, ratio_of_medians};

/// Facts about the host for reports.
pub mod host {
    pub use crate::host::{facts, line};
}

/// Signals that end a measurement early.
pub mod interrupt {
    pub use crate::bench::interrupt::{noted, watch};
}

/// Tables for a terminal.
pub mod table {
    pub use crate::bench::table::{NONE, new, or_none, row, titled};
}

/// Touching free memory before it is needed.
pub mod touch {
    pub use crate::bench::touch::{need, touch_and_free, touch_once, touchable};
}
