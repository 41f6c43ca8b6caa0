//! What the user sees and does: keys in, actions out; refreshes in, lines out. Pure.
//!
//! ```text
//!              Enter                        ? h
//!   list ◀───────────────▶ one process     help over both; any key takes it away
//!     │         Esc q
//!     └ /  typing a filter: Enter keeps it, Esc takes it back
//! ```
//!
//! The selection is a process and not a line: it stays on its process when the order changes. While nobody has
//! moved it, it is the first line.

use super::arguments::{LONGEST, SHORTEST, Units};
use super::history::History;
use super::sampler::Sample;
use crate::ps::arguments::Sort;
use crate::ps::row::{self, Row};
use core::time::Duration;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Columns in the order of the screen, as they are sorted by.
pub(crate) const COLUMNS: [Sort; 9] = [
    Sort::Pid,
    Sort::User,
    Sort::Rss,
    Sort::Huge,
    Sort::Coverage,
    Sort::Eligible,
    Sort::Stranded,
    Sort::Thp,
    Sort::Name,
];

/// What is to be done outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    None,
    Quit,
    /// Give the terminal to the shell.
    Suspend,
    /// Draw everything again.
    Redraw,
    /// Look at this process, or at none.
    Watch(Option<u32>),
    /// Refresh so often; `None`: not at all.
    Interval(Option<Duration>),
}

/// Everything the screen is drawn from.
pub(crate) struct State {
    pub(crate) sort: Sort,
    pub(crate) reversed: bool,
    pub(crate) filter: String,
    /// The filter before it was changed, while it is being typed.
    pub(crate) typing: Option<String>,
    pub(crate) units: Units,
    pub(crate) interval: Duration,
    pub(crate) paused: bool,
    pub(crate) help: bool,
    /// The process that is shown alone.
    pub(crate) detail: Option<u32>,
    /// First line that is shown of its map.
    pub(crate) scroll: usize,
    pub(crate) selected: Option<u32>,
    /// The last refresh; its rows are all there are.
    pub(crate) sample: Option<Sample>,
    /// Rows of the list: filtered, sorted.
    pub(crate) rows: Vec<Row>,
    pub(crate) history: History,
    /// Rows that fit the screen, and the first of them: drawing says so.
    pub(crate) page: usize,
    pub(crate) first: usize,
}

impl State {
    pub(crate) fn new(sort: Sort, filter: &str, units: Units, interval: Duration) -> Self {
        Self {
            sort,
            reversed: false,
            filter: filter.to_owned(),
            typing: None,
            units,
            interval,
            paused: false,
            help: false,
            detail: None,
            scroll: 0,
            selected: None,
            sample: None,
            rows: Vec::new(),
            history: History::default(),
            page: 1,
            first: 0,
        }
    }

    /// A refresh.
    pub(crate) fn refresh(&mut self, sample: Sample) {
        if sample.complete {
            self.history.add(&sample);
        }
        self.sample = Some(sample);
        self.arrange();
    }

    /// Whether a row passes the filter.
    fn passes(&self, row: &Row) -> bool {
        let filter = self.filter.to_lowercase();
        filter.is_empty()
            || row.status.name.to_lowercase().contains(&filter)
            || row.id.to_string().starts_with(&filter)
    }

    /// Filters and sorts.
    fn arrange(&mut self) {
        let Some(sample) = &self.sample else { return };
        let line = self.line();
        let mut rows: Vec<Row> = sample.rows.iter().filter(|row| self.passes(row)).cloned().collect();
        row::sort(&mut rows, self.sort);
        if self.reversed {
            rows.reverse();
        }
        // The selected process has ended: its place is the next one's.
        if self.selected.is_some_and(|id| !rows.iter().any(|row| row.id == id)) {
            self.selected = rows.get(line.min(rows.len().saturating_sub(1))).map(|row| row.id);
        }
        self.rows = rows;
    }

    /// The selected line.
    pub(crate) fn line(&self) -> usize {
        let line = self.selected.and_then(|id| self.rows.iter().position(|row| row.id == id));
        line.unwrap_or(0)
    }

    /// The row of a process, whether the filter lets it pass or not.
    pub(crate) fn row(&self, id: u32) -> Option<&Row> {
        self.sample.as_ref()?.rows.iter().find(|row| row.id == id)
    }

    fn select(&mut self, line: usize) {
        self.selected = self.rows.get(line.min(self.rows.len().saturating_sub(1))).map(|row| row.id);
    }

    /// The rows that are on the screen.
    pub(crate) fn shown(&self) -> impl Iterator<Item = u32> {
        self.rows.iter().skip(self.first).take(self.page).map(|row| row.id)
    }

    /// A key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('l') => Action::Redraw,
                _ => Action::None,
            };
        }
        if self.typing.is_some() {
            self.edit(key.code);
            return Action::None;
        }
        if std::mem::take(&mut self.help) {
            return if key.code == KeyCode::Char('q') { Action::Quit } else { Action::None };
        }
        match key.code {
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('u') => self.units = self.units.next(),
            KeyCode::Char('+') => return self.set_interval(2.0),
            KeyCode::Char('-') => return self.set_interval(0.5),
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                return Action::Interval((!self.paused).then_some(self.interval));
            }
            code if self.detail.is_some() => return self.key_of_detail(code),
            code => return self.key_of_list(code),
        }
        Action::None
    }

    fn key_of_list(&mut self, code: KeyCode) -> Action {
        let (line, page) = (self.line(), self.page.max(1));
        match code {
            KeyCode::Char('q') | KeyCode::Esc if self.filter.is_empty() || code != KeyCode::Esc => {
                return Action::Quit;
            }
            KeyCode::Esc => {
                self.filter.clear();
                self.arrange();
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(line.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(line + 1),
            KeyCode::PageUp => self.select(line.saturating_sub(page)),
            KeyCode::PageDown => self.select(line + page),
            // Back to the first line, whatever process that will be.
            KeyCode::Home | KeyCode::Char('g') => self.selected = None,
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Left | KeyCode::Char('<') => self.sort_by(-1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Char(digit @ '1'..='9') => {
                self.sort = COLUMNS[digit as usize - '1' as usize];
                self.reversed = false;
                self.arrange();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            KeyCode::Char('/') => self.typing = Some(self.filter.clone()),
            KeyCode::Enter => {
                let Some(row) = self.rows.get(line) else { return Action::None };
                (self.detail, self.selected, self.scroll) = (Some(row.id), Some(row.id), 0);
                return Action::Watch(self.detail);
            }
            _ => {}
        }
        Action::None
    }

    fn key_of_detail(&mut self, code: KeyCode) -> Action {
        let page = self.page.max(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => {
                self.detail = None;
                return Action::Watch(None);
            }
            // Drawing takes back what is too far.
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyCode::PageDown => self.scroll += page,
            KeyCode::Home | KeyCode::Char('g') => self.scroll = 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll = usize::MAX / 2,
            _ => {}
        }
        Action::None
    }

    /// A key while the filter is typed.
    fn edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => self.filter = self.typing.take().unwrap_or_default(),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(character) => self.filter.push(character),
            _ => return,
        }
        self.arrange();
    }

    fn sort_by(&mut self, step: isize) {
        let at = COLUMNS.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = COLUMNS[at.saturating_add_signed(step).min(COLUMNS.len() - 1)];
        self.reversed = false;
        self.arrange();
    }

    fn set_interval(&mut self, factor: f64) -> Action {
        let seconds = (self.interval.as_secs_f64() * factor).clamp(SHORTEST, LONGEST);
        self.interval = Duration::from_secs_f64(seconds);
        self.paused = false;
        Action::Interval(Some(self.interval))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ps::row::tests::row;

    const MIB: u64 = 1 << 20;

    pub(crate) fn state(rows: Vec<Row>) -> State {
        let mut state = State::new(Sort::Rss, "", Units::Auto, Duration::from_secs(1));
        state.page = 10;
        state.refresh(Sample { rows, complete: true, ..Sample::default() });
        state
    }

    pub(crate) fn three() -> Vec<Row> {
        let mut rows = vec![
            row(1, 64 * MIB, Some(0), Some(0)),
            row(20, 32 * MIB, Some(32 * MIB), Some(9)),
            row(300, 16 * MIB, None, None),
        ];
        rows[1].status.name = "Python".to_owned();
        rows
    }

    pub(crate) fn press(state: &mut State, keys: &[KeyCode]) -> Action {
        keys.iter()
            .map(|code| state.key(KeyEvent::new(*code, KeyModifiers::NONE)))
            .last()
            .unwrap_or(Action::None)
    }

    fn ids(state: &State) -> Vec<u32> {
        state.rows.iter().map(|row| row.id).collect()
    }

    #[test]
    fn every_column_can_be_sorted_by_and_reversed() {
        let mut state = state(three());
        assert_eq!(ids(&state), [1, 20, 300]);
        press(&mut state, &[KeyCode::Right]);
        assert_eq!((state.sort, ids(&state)), (Sort::Huge, vec![20, 1, 300]));
        press(&mut state, &[KeyCode::Char('r')]);
        assert_eq!(ids(&state), [300, 1, 20]);
        for (index, column) in COLUMNS.into_iter().enumerate() {
            press(&mut state, &[KeyCode::Char(char::from(b'1' + index as u8))]);
            assert_eq!((state.sort, state.reversed), (column, false));
        }
        press(&mut state, &[KeyCode::Right]);
        assert_eq!(state.sort, Sort::Name, "the last column is the last");
        press(&mut state, &[KeyCode::Left; 20]);
        assert_eq!((state.sort, ids(&state)), (Sort::Pid, vec![1, 20, 300]));
    }

    #[test]
    fn the_selection_stays_on_its_process_until_that_ends() {
        let mut state = state(three());
        assert_eq!(state.line(), 0);
        press(&mut state, &[KeyCode::Down]);
        assert_eq!(state.selected, Some(20));
        press(&mut state, &[KeyCode::Right]);
        assert_eq!((state.selected, state.line()), (Some(20), 0));
        let mut rows = three();
        rows.remove(1);
        state.refresh(Sample { rows, complete: true, ..Sample::default() });
        assert_eq!(state.selected, Some(1));
        press(&mut state, &[KeyCode::End, KeyCode::Down]);
        assert_eq!(state.line(), 1);
        press(&mut state, &[KeyCode::Home]);
        assert_eq!(state.selected, None);
        state.refresh(Sample { rows: Vec::new(), complete: true, ..Sample::default() });
        assert_eq!(press(&mut state, &[KeyCode::Down, KeyCode::PageDown, KeyCode::Enter]), Action::None);
    }

    #[test]
    fn a_filter_is_typed_kept_and_taken_back() {
        let mut state = state(three());
        let word = ['/', 'p', 'Y', 't'].map(KeyCode::Char);
        press(&mut state, &word);
        assert_eq!(ids(&state), [20]);
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Action::None, "it is a letter now");
        press(&mut state, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!((state.filter.as_str(), state.typing.is_none()), ("pYt", true));
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Esc]);
        assert_eq!(state.filter, "pYt");
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Action::None);
        assert_eq!(ids(&state).len(), 3);
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('3'), KeyCode::Enter]);
        assert_eq!(ids(&state), [300]);
        assert_eq!(press(&mut state, &[KeyCode::Esc, KeyCode::Esc]), Action::Quit);
    }

    #[test]
    fn a_process_is_watched_and_left() {
        let mut state = state(three());
        assert_eq!(press(&mut state, &[KeyCode::Down, KeyCode::Enter]), Action::Watch(Some(20)));
        press(&mut state, &[KeyCode::Down, KeyCode::Down]);
        assert_eq!((state.scroll, state.selected), (2, Some(20)));
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Action::Watch(None));
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Action::Quit);
    }

    #[test]
    fn the_pace_is_set_and_stopped() {
        let mut state = state(three());
        assert_eq!(press(&mut state, &[KeyCode::Char('+')]), Action::Interval(Some(Duration::from_secs(2))));
        assert_eq!(press(&mut state, &[KeyCode::Char(' ')]), Action::Interval(None));
        assert_eq!(press(&mut state, &[KeyCode::Char(' ')]), Action::Interval(Some(Duration::from_secs(2))));
        press(&mut state, &[KeyCode::Char('-'); 20]);
        assert_eq!(state.interval, Duration::from_secs_f64(SHORTEST));
    }

    #[test]
    fn help_is_taken_away_by_any_key_and_control_works_everywhere() {
        let mut state = state(three());
        press(&mut state, &[KeyCode::Char('?')]);
        assert!(state.help);
        assert_eq!(press(&mut state, &[KeyCode::Down]), Action::None);
        assert!(!state.help && state.selected.is_none());
        press(&mut state, &[KeyCode::Char('/')]);
        for (letter, action) in [('c', Action::Quit), ('z', Action::Suspend), ('l', Action::Redraw)] {
            assert_eq!(state.key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)), action);
        }
    }
}
