//! The screen as text, at many sizes.

use super::*;
use crate::map::view::tests::view;
use crate::ps::row::tests::row;
use crate::top::heap::tests::HEAP;
use crate::top::host::Host;
use crate::top::sampler::{Sample, Watched};
use crate::top::state::tests::{press, state, three};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;
use std::sync::Arc;

const PLAIN: Look = Look { colours: false, ascii: false };
const COLOURED: Look = Look { colours: true, ascii: false };
const MIB: u64 = 1 << 20;

fn drawn(state: &mut State, width: u16, height: u16, look: Look) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, look)).unwrap();
    terminal
}

fn lines(state: &mut State, width: u16, height: u16) -> Vec<String> {
    let terminal = drawn(state, width, height, PLAIN);
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// A state that watches the process of the map's tests.
fn watching() -> State {
    let mut state = state(vec![row(7, 64 * MIB, Some(2 * MIB), Some(4 * MIB))]);
    press(&mut state, &[KeyCode::Enter]);
    let limits = hugeheap_os::MemoryLimits {
        version: hugeheap_os::CgroupVersion::V2,
        max: Some(512 * MIB),
        high: None,
        charge: 100 * MIB,
        anonymous: None,
    };
    for charge in [100, 200] {
        let limits = Some(hugeheap_os::MemoryLimits { charge: charge * MIB, ..limits });
        let watched = Some(Arc::new(Watched { id: 7, view: Ok(view()), limits, heap: Some(HEAP) }));
        let rows = vec![row(7, 64 * MIB, Some(2 * MIB), Some(4 * MIB))];
        state.refresh(Sample { rows, watched, complete: true, ..Sample::default() });
    }
    state
}

#[test]
fn the_list_has_the_columns_of_ps() {
    let lines = lines(&mut state(three()), 100, 10);
    assert!(lines[0].starts_with("hugeheap top, every 1 s   3 processes   no THP"), "{lines:#?}");
    let heads: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(heads, ["PID", "USER", "RSS▼", "HUGE", "COVERAGE", "ELIGIBLE", "STRANDED", "THP", "NAME"]);
    let cells: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(cells.join(" "), "20 0 32.0 MiB 32.0 MiB 100.0 % 0 B 9 B on Python");
    assert!(lines[4].contains('–'), "what is not known is a dash: {lines:#?}");
    assert!(lines[9].contains("q quit"));
}

#[test]
fn a_narrow_screen_keeps_what_matters_and_the_column_that_is_sorted_by() {
    let mut state = state(three());
    let narrow = lines(&mut state, 40, 10);
    let heads = narrow.iter().find(|line| line.contains("PID")).unwrap();
    assert!(heads.contains("RSS▼") && heads.contains("NAME") && !heads.contains("ELIGIBLE"), "{narrow:#?}");
    press(&mut state, &[KeyCode::Char('6')]);
    let narrow = lines(&mut state, 40, 10);
    assert!(narrow.iter().any(|line| line.contains("ELIGIBLE▼")), "{narrow:#?}");
}

#[test]
fn no_size_is_too_small_to_draw() {
    for mut state in [state(three()), state(Vec::new()), watching()] {
        for help in [false, true] {
            for width in [1, 2, 23, 24, 31, 60, 79, 80, 132, 300] {
                for height in [1, 2, 4, 5, 6, 9, 24, 60] {
                    state.help = help;
                    let lines = lines(&mut state, width, height);
                    assert!(lines.iter().any(|line| !line.is_empty()), "{width} × {height}");
                }
            }
        }
    }
    assert!(lines(&mut state(three()), 20, 4)[0].starts_with("needs 24 × 5"));
}

#[test]
fn the_selected_process_is_on_the_screen() {
    let rows = (1..=100).map(|id| row(id, u64::from(id) * MIB, None, None)).collect();
    let mut state = state(rows);
    let shown = |state: &mut State, id: u32| {
        let lines = lines(state, 100, 12);
        lines.iter().any(|line| line.split_whitespace().next() == Some(&id.to_string()))
    };
    assert!(shown(&mut state, 100) && !shown(&mut state, 50));
    press(&mut state, &[KeyCode::End]);
    assert!(shown(&mut state, 1) && !shown(&mut state, 100));
    press(&mut state, &[KeyCode::PageUp, KeyCode::PageUp]);
    let selected = state.selected.unwrap();
    assert!(shown(&mut state, selected));
    assert_eq!(state.shown().count(), state.page);
}

#[test]
fn a_process_has_its_history_reasons_and_map() {
    let mut state = watching();
    let wide = lines(&mut state, 110, 40);
    let all = wide.join("\n");
    for part in [
        "app (7)   user 0   THP on",
        "cgroup limit 512 MiB",
        "on hugeheap, policy thp: 3.0 MiB allocated, 3 arenas",
        "· nothing in memory",
        "charge    200 MiB (100 MiB to 200 MiB)",
        "4.0 MiB not huge: not advised",
        "→ hugeheap collapse 0, where dense",
        "█x",
        "… 384 MiB without anything …",
        "part of a huge page",
        "Esc back",
    ] {
        assert!(all.contains(part), "{part}:\n{all}");
    }
    assert!(wide.iter().any(|line| line.starts_with("RSS       64.0 MiB") && line.ends_with('█')), "{all}");
    let narrow = lines(&mut state, 60, 40);
    let line = narrow.iter().position(|line| line.contains("not huge: not advised")).unwrap();
    assert_eq!(narrow[line + 1].trim(), "→ hugeheap collapse 0, where dense", "{narrow:#?}");
    // Scrolling ends where the map does.
    press(&mut state, &[KeyCode::End]);
    let small = lines(&mut state, 60, 14).join("\n");
    assert!(small.contains("legend") || small.contains("huge page"), "{small}");
    assert!(state.scroll < 1000);
    press(&mut state, &[KeyCode::Home]);
    assert_eq!(state.scroll, 0);
}

#[test]
fn a_process_that_ends_or_is_closed_is_said_so() {
    let mut state = watching();
    state.refresh(Sample { complete: true, ..Sample::default() });
    assert!(lines(&mut state, 80, 20).join("\n").contains("process 7 has ended (Esc: back to the list)"));
    let mut state = watching();
    let watched = Some(Arc::new(Watched {
        id: 7,
        view: Err("needs CAP_SYS_PTRACE".to_owned()),
        limits: None,
        heap: None,
    }));
    let rows = vec![row(7, 64 * MIB, None, None)];
    state.refresh(Sample { rows, watched, complete: true, ..Sample::default() });
    assert!(lines(&mut state, 80, 20).join("\n").contains("needs CAP_SYS_PTRACE"));
}

#[test]
fn without_colours_there_are_none_and_with_them_there_are() {
    let coloured = |state: &mut State, look| {
        let terminal = drawn(state, 110, 40, look);
        terminal
            .backend()
            .buffer()
            .content
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    for mut state in [state(three()), watching()] {
        assert!(!coloured(&mut state, PLAIN));
        assert!(coloured(&mut state, COLOURED));
    }
}

#[test]
fn in_ascii_everything_is() {
    let mut rows = three();
    rows[0].status.name = "größe".to_owned();
    for mut state in [state(rows), watching()] {
        for help in [false, true] {
            state.help = help;
            let terminal = drawn(&mut state, 110, 40, Look { colours: true, ascii: true });
            let buffer = terminal.backend().buffer();
            assert!(buffer.content.iter().all(|cell| cell.symbol().is_ascii()));
        }
    }
}

#[test]
fn what_cannot_be_seen_is_said_with_the_way_to_it() {
    let mut rows = three();
    rows[2].sums = Err(crate::ps::row::Unread::Permission);
    let mut state = state(Vec::new());
    let sample = Sample { rows, sees_folios: Some(false), complete: true, ..Sample::default() };
    state.refresh(sample.clone());
    let text = lines(&mut state, 120, 20).join("\n");
    assert!(text.contains("1 not readable (needs CAP_SYS_PTRACE)"), "{text}");
    assert!(text.contains("stranded per process needs CAP_SYS_ADMIN"), "{text}");
    // Each was named also where it was there, or does not help.
    state.refresh(Sample { may_look: true, root: true, ..sample });
    let text = lines(&mut state, 120, 20).join("\n");
    assert!(text.contains("1 not readable (not for lack of a capability)"), "{text}");
    assert!(text.contains("stranded per process does not show with --root"), "{text}");
}

/// It said that `q` quits, which goes back from a process, and nothing of Esc, which quits the list.
#[test]
fn help_says_what_esc_and_q_do_where() {
    let mut state = state(three());
    press(&mut state, &[KeyCode::Char('?')]);
    let text = lines(&mut state, 80, 24).join("\n");
    assert!(text.contains("back: from a process, from a filter; else quit"), "{text}");
    assert!(text.contains("quit; from a process: back"), "{text}");
}

#[test]
fn the_filter_shows_while_it_is_typed_and_after() {
    let mut state = state(three());
    press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('p'), KeyCode::Char('y')]);
    assert_eq!(lines(&mut state, 80, 10)[9], "name or number: py");
    press(&mut state, &[KeyCode::Enter]);
    let shown = lines(&mut state, 80, 10);
    assert!(
        shown[9].starts_with("only 'py' (Esc: all)") && shown[0].contains("1 of 3 processes"),
        "{shown:#?}"
    );
    press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('?'), KeyCode::Enter]);
    assert!(lines(&mut state, 80, 10).join("\n").contains("no process passes the filter"));
}

#[test]
fn pieces_flow_into_lines_and_the_host_never_takes_the_list_away() {
    let pieces = || ["one", "two", "three"].map(str::to_owned).to_vec();
    assert_eq!(flow(pieces(), 9, 3), ["one   two", "three"]);
    assert_eq!(flow(pieces(), 4, 1), ["one"]);
    assert_eq!(flow(pieces(), 4, 3), ["one", "two", "thr…"]);
    let mut state = state(three());
    if let Some(sample) = &mut state.sample {
        sample.host = Host { stranded: Some(0), total: Some(1), available: Some(1), ..Host::default() };
    }
    let small = lines(&mut state, 24, 6);
    assert!(small.iter().any(|line| line.contains("PID")), "{small:#?}");
    assert_eq!(small.iter().filter(|line| line.contains("MiB")).count(), 3, "{small:#?}");
}
