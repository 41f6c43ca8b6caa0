//! Lines on stderr from places where nothing may be allocated.

use core::fmt::{self, Write};

/// A line in a buffer of fixed size; what does not fit is cut.
struct Line {
    bytes: [u8; 512],
    length: usize,
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
    let mut line = Line { bytes: [0; 512], length: 0 };
    let _ = write!(line, "hugeheap: {text}");
    line.bytes[line.length] = b'\n';
    hugeheap_os::linux::write_to_stderr(&line.bytes[..=line.length]);
}

/// Says what was violated and ends the process: memory that is freed wrongly is not guessed about.
pub fn abort(text: fmt::Arguments<'_>) -> ! {
    line(text);
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}
