//! Which strings are keys. The same for every store, so that a pipeline does not depend on what keeps its objects.

/// Most bytes of a key, as in S3.
pub const MAX_KEY_BYTES: usize = 1024;

/// Whether `key` may name an object; else what is wrong with it.
///
/// A key is relative and `/`-separated; it has no NUL and no segment that is empty, `.` or `..`, for those mean
/// something else to a file system than to a bucket. Everything else is a plain character, `\` and `%` included.
pub fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        return Err("it is empty");
    }
    check_characters(key)?;
    key.split('/').try_for_each(check_segment)
}

/// Whether keys may start with `prefix`; else what is wrong with it. The last segment may be empty or a part of one.
pub fn check_prefix(prefix: &str) -> Result<(), &'static str> {
    check_characters(prefix)?;
    match prefix.rsplit_once('/') {
        Some((folders, _)) => folders.split('/').try_for_each(check_segment),
        None => Ok(()),
    }
}

fn check_characters(text: &str) -> Result<(), &'static str> {
    if text.len() > MAX_KEY_BYTES {
        Err("it is longer than 1024 bytes")
    } else if text.starts_with('/') {
        Err("it starts with `/`; keys are relative to the store")
    } else if text.contains('\0') {
        Err("it has a NUL character")
    } else {
        Ok(())
    }
}

fn check_segment(segment: &str) -> Result<(), &'static str> {
    match segment {
        "" => Err("it has an empty segment: `//`, or `/` at its end"),
        "." | ".." => Err("it has a segment `.` or `..`; keys name objects directly"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_system_reads_differently_is_no_key() {
        for bad in ["", "/etc/passwd", "..", "../x", "a/../b", "a/./b", "./a", "a//b", "a/", "a\0b", "a/.."] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
        assert!(check_key(&"k".repeat(1025)).is_err());
    }

    #[test]
    fn everything_else_is_one() {
        for good in
            ["a", "a/b.jpg", "...", ".hidden", "..a", "%2e%2e/x", "a\\b", "naïve café", "~", "C:x", "-rf"]
        {
            assert_eq!(check_key(good), Ok(()), "{good:?}");
        }
        assert_eq!(check_key(&"k".repeat(1024)), Ok(()));
    }

    #[test]
    fn a_prefix_may_end_anywhere_but_not_climb() {
        for good in ["", "a", "a/", "a/b", ".", "..", "a/.."] {
            assert_eq!(check_prefix(good), Ok(()), "{good:?}");
        }
        for bad in ["/", "../", "a/../b", "a//", "./a", "\0"] {
            assert!(check_prefix(bad).is_err(), "{bad:?}");
        }
    }
}
