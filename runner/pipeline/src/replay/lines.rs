use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Maximum length of a dead letter, in bytes: it is held in memory while it is decoded, in a buffer of at most twice this capacity.
pub const MAX_LETTER_BYTES: usize = 256 << 20;

/// Number of bytes that are read for one line: a dead letter, and the line break or a byte too many.
const MOST_READ: u64 = MAX_LETTER_BYTES as u64 + 1;

/// Reads lines of a file one at a time, none of them longer than [`MAX_LETTER_BYTES`].
#[derive(Debug)]
pub(super) struct LetterLines {
    file: BufReader<File>,
    number: u64,
    line: Vec<u8>,
}

/// One line of a file of dead letters.
#[derive(Debug)]
pub(super) struct LetterLine<'a> {
    /// Line number, from 1.
    pub(super) number: u64,
    /// Text without the line break; `None` when the line is too long.
    pub(super) text: Option<&'a [u8]>,
    /// Set if the line ends with a line break; the last line may lack it if its writer was killed.
    pub(super) has_end: bool,
}

impl LetterLines {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufReader::with_capacity(1 << 20, File::open(path)?), number: 0, line: Vec::new() })
    }

    /// Reads the next line; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<LetterLine<'_>>> {
        self.number += 1;
        // Memory taken for one long line is released before the following short ones.
        self.line.clear();
        self.line.shrink_to(1 << 20);
        let mut is_too_long = false;
        let mut read = self.file.by_ref().take(MOST_READ).read_until(b'\n', &mut self.line)? as u64;
        let has_begun = read > 0;
        // The rest of a line that is too long is passed over.
        while read == MOST_READ && !self.line.ends_with(b"\n") {
            is_too_long = true;
            self.line.clear();
            read = self.file.by_ref().take(MOST_READ).read_until(b'\n', &mut self.line)? as u64;
        }
        let has_end = self.line.pop_if(|last| *last == b'\n').is_some();
        let text = (!is_too_long).then_some(self.line.as_slice());
        Ok(has_begun.then_some(LetterLine { number: self.number, text, has_end }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_numbered_and_a_line_that_is_too_long_has_no_text() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"one\n\n").unwrap();
        // A sparse file takes no space on the disk for the bytes that are not written.
        file.as_file().set_len(5 + MAX_LETTER_BYTES as u64 + 1).unwrap();
        let mut end = std::fs::OpenOptions::new().append(true).open(file.path()).unwrap();
        end.write_all(b"\nlast").unwrap();
        let mut lines = LetterLines::open(file.path()).unwrap();
        let mut seen = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            seen.push((line.number, line.text.map(<[u8]>::to_vec), line.has_end));
        }
        assert_eq!(
            seen,
            [
                (1, Some(b"one".to_vec()), true),
                (2, Some(Vec::new()), true),
                (3, None, true),
                (4, Some(b"last".to_vec()), false),
            ]
        );
        assert!(lines.line.capacity() <= 2 << 20);
    }
}
