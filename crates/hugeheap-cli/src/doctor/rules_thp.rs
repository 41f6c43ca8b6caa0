//! The findings about the knobs of transparent huge pages. Pure.
//!
//! ```text
//!   can they be read? ── no ──▶ HH-THP-MISSING, HH-THP-CLOSED, and none of the others
//!          │ yes
//!          ├──▶ mode, and the mode of the huge page's own size, which has the last word
//!          ├──▶ defrag: whether a fault waits for a huge page, or does not try
//!          ├──▶ khugepaged: whether it makes huge ones of small pages, and how soon
//!          └──▶ smaller sizes
//! ```

use super::codes::{Code, Finding};
use super::rules::add;
use super::situation::Situation;
use crate::output::bytes;
use crate::thp::catalogue::short_size;
use hugeheap_os::{ErrorKind, ThpDefrag, ThpMode};

/// khugepaged should look at all memory within a day: what starts in the morning is huge before the next.
const SCAN_SECONDS: f64 = 86_400.0;

pub(super) fn thp(situation: &Situation, found: &mut Vec<Finding>) {
    let thp = match &situation.thp {
        Ok(thp) => thp,
        Err(error) if error.kind() == ErrorKind::Missing => {
            return add(
                found,
                Code::ThpMissing,
                "this kernel has no transparent huge pages, or a container hides /sys",
                "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE, or mount /sys in the container",
            );
        }
        Err(error) => {
            return add(
                found,
                Code::ThpClosed,
                format!("the knobs of transparent huge pages cannot be read: {error}"),
                "run hugeheap doctor on the host, or as root",
            );
        }
    };
    let huge = situation.huge_page.unwrap_or(2 << 20);
    let own = situation.sizes.iter().find(|(size, _)| *size == huge).map(|(_, word)| word.as_str());
    let mode = situation.mode.as_deref();
    if thp.mode == ThpMode::Never {
        if own == Some("never") && mode.is_some_and(|mode| mode != "never") {
            let size = short_size(huge);
            add(
                found,
                Code::ThpSizeNever,
                format!("pages of {size} are off by a knob of their own, whatever the mode says"),
                format!("hugeheap thp set size.{size}=inherit --persist"),
            );
        } else {
            add(
                found,
                Code::ThpNever,
                "transparent huge pages are off on this host (mode never): only an explicit collapse makes some",
                "hugeheap thp set mode=madvise --persist",
            );
        }
    }
    if thp.mode == ThpMode::Always {
        add(
            found,
            Code::ThpAlways,
            "every program gets huge pages, asked or not (mode always): sparse memory grows",
            "hugeheap thp set mode=madvise --persist",
        );
    }
    match thp.defrag {
        ThpDefrag::Always => add(
            found,
            Code::DefragAlways,
            "every page fault may compact memory and wait for it (defrag always)",
            "hugeheap thp set defrag=madvise --persist",
        ),
        ThpDefrag::Never | ThpDefrag::Defer => add(
            found,
            Code::DefragNone,
            "a page fault takes only what huge pages are free (defrag never or defer): on a fragmented host, none",
            "hugeheap thp set defrag=defer+madvise --persist",
        ),
        ThpDefrag::Madvise | ThpDefrag::DeferMadvise => {}
    }
    if let Some(daemon) = thp.khugepaged {
        let pause = daemon.scan_sleep.as_secs_f64();
        let rate = daemon.pages_to_scan as f64 * situation.os_page as f64 / pause.max(0.001);
        if let Some(total) = situation.total.filter(|&total| total as f64 / rate > SCAN_SECONDS) {
            add(
                found,
                Code::KhugepagedSlow,
                format!(
                    "khugepaged looks at {}/s: {:.0} hours for the {} of this host",
                    bytes(rate as u64),
                    total as f64 / rate / 3600.0,
                    bytes(total)
                ),
                format!("hugeheap thp set khugepaged.pages_to_scan={}", daemon.pages_to_scan * 8),
            );
        }
        if !daemon.defrag {
            add(
                found,
                Code::KhugepagedNoDefrag,
                "khugepaged may not compact memory: on a fragmented host it makes no huge pages",
                "hugeheap thp set khugepaged.defrag=1 --persist",
            );
        }
        if daemon.max_ptes_none + 1 >= huge / situation.os_page {
            add(
                found,
                Code::KhugepagedFills,
                format!(
                    "khugepaged makes memory huge of which one OS page of {} is used: it grows",
                    huge / situation.os_page
                ),
                format!("hugeheap thp set khugepaged.max_ptes_none={}", huge / situation.os_page / 8),
            );
        }
    }
    let smaller: Vec<_> = situation
        .sizes
        .iter()
        .filter(|(size, word)| {
            *size < huge && (word != "never") && !(word == "inherit" && mode == Some("never"))
        })
        .map(|(size, _)| short_size(*size))
        .collect();
    if !smaller.is_empty() {
        let knobs: Vec<_> = smaller.iter().map(|size| format!("size.{size}=never")).collect();
        add(
            found,
            Code::MthpOn,
            format!(
                "smaller sizes are on ({}): what they give does not show in AnonHugePages",
                smaller.join(", ")
            ),
            format!("nothing, if that is meant; else hugeheap thp set {}", knobs.join(" ")),
        );
    }
}
