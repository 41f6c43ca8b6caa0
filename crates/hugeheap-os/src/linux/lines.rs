//! A text line by line, through a window of fixed size.
//!
//! ```text
//!   source ──▶ ├ handed out ┼ start … end: read, not handed out ┼ room ┤ N bytes
//!                             a line ends there: it is handed out, within the window
//! ```
//!
//! A line that is longer than the window is handed out *cut*, as far as the window goes, and its rest is skipped.

use super::read::Source;
use crate::Result;

/// One line, without its newline.
pub(super) struct Line<'a> {
    /// The line, or its beginning.
    pub(super) bytes: &'a [u8],
    /// Whether the line is longer than the window and `bytes` only its beginning.
    pub(super) cut: bool,
}

/// The lines of a source, through a window of `N` bytes.
pub(super) struct Lines<S, const N: usize> {
    source: S,
    window: [u8; N],
    /// What is read and not handed out: `window[start..end]`.
    start: usize,
    end: usize,
    /// The rest of a line that was handed out cut is still to be skipped.
    skipping: bool,
    ended: bool,
}

impl<S: Source, const N: usize> Lines<S, N> {
    pub(super) const fn new(source: S) -> Self {
        Self { source, window: [0; N], start: 0, end: 0, skipping: false, ended: false }
    }

    /// The next line; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>> {
        loop {
            let unread = self.start..self.end;
            if let Some(length) = self.window[unread].iter().position(|&byte| byte == b'\n') {
                let line = self.start..self.start + length;
                self.start = line.end + 1;
                if !core::mem::take(&mut self.skipping) {
                    return Ok(Some(Line { bytes: &self.window[line], cut: false }));
                }
            } else if self.skipping {
                self.start = self.end;
                if !self.refill()? {
                    return Ok(None);
                }
            } else if self.end - self.start == N {
                self.skipping = true;
                self.start = self.end;
                return Ok(Some(Line { bytes: &self.window, cut: true }));
            } else if !self.refill()? {
                // The last line may lack its newline.
                let line = self.start..self.end;
                self.start = self.end;
                let bytes = &self.window[line];
                return Ok((!bytes.is_empty()).then_some(Line { bytes, cut: false }));
            }
        }
    }

    /// Moves the unread part to the front and reads behind it. False at the end of the source.
    fn refill(&mut self) -> Result<bool> {
        self.window.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if !self.ended {
            let count = self.source.read(&mut self.window[self.end..])?;
            self.end += count;
            self.ended = count == 0;
        }
        Ok(!self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hands out at most `step` bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Source for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
            let step = self.1.min(buffer.len());
            self.0.read(&mut buffer[..step])
        }
    }

    fn collect<const N: usize>(text: &[u8], step: usize) -> Vec<(Vec<u8>, bool)> {
        let mut lines = Lines::<_, N>::new(Slow(text, step));
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push((line.bytes.to_vec(), line.cut));
        }
        assert!(lines.next().unwrap().is_none(), "stays at the end");
        all
    }

    #[test]
    fn lines_longer_than_the_window_are_cut_and_the_next_is_whole() {
        let lines = collect::<4>(b"abcdefghij\nxy\n\nabcd\nz", 3);
        let expected: [(&[u8], bool); 5] =
            [(b"abcd", true), (b"xy", false), (b"", false), (b"abcd", true), (b"z", false)];
        assert_eq!(lines, expected.map(|(text, cut)| (text.to_vec(), cut)));
    }

    proptest! {
        #[test]
        fn lines_are_those_of_split(text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200), step in 1_usize..40) {
            let mut expected: Vec<_> = text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
            if expected.last().is_some_and(Vec::is_empty) {
                expected.pop();
            }
            let lines: Vec<_> = collect::<256>(&text, step).into_iter().map(|(line, cut)| { assert!(!cut); line }).collect();
            prop_assert_eq!(&lines, &expected);
            let short = collect::<8>(&text, step);
            prop_assert_eq!(short.len(), expected.len());
            for ((line, cut), whole) in short.iter().zip(&expected) {
                prop_assert_eq!(*cut, whole.len() >= 8);
                prop_assert!(whole.starts_with(line));
            }
        }
    }
}
