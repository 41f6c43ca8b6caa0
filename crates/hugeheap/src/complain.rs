//! Lines on stderr from places where nothing may be allocated.

use core::fmt::{self, Write};

/// A line in a buffer of fixed size; what does not fit is cut.
pub(crate) struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        // All newlines: one comes behind whatever is written.
        Self { bytes: [b'\n'; 512], length: 0 }
    }
}

impl Line {
    /// What was written; of a line that was cut inside of a character nothing.
    pub(crate) fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }

    /// The same with a newline.
    pub(crate) fn ended(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte stays free for the end of the line.
        let room = self.bytes.len() - 1 - self.length;
        let take = text.len().min(room);
        self.bytes[self.length..self.length + take].copy_from_slice(&text.as_bytes()[..take]);
        self.length += take;
        Ok(())
    }
}

/// Writes `hugeheap: …` to stderr in one call. Does not allocate.
pub fn line(text: fmt::Arguments<'_>) {
    let mut line = Line::default();
    let _ = write!(line, "hugeheap: {text}");
    hugeheap_os::linux::write_to_stderr(line.ended());
}

/// Says what was violated and ends the process: memory that is freed wrongly is not guessed about.
pub fn abort(text: fmt::Arguments<'_>) -> ! {
    line(text);
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}
