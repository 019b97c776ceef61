//! Which strings are keys. The same for every store, so that a pipeline does not depend on what keeps its objects.

/// Most bytes of a key, as in S3.
pub const MAX_KEY_BYTES: usize = 1024;

/// Prefix of unfinished files in a folder's store; 16 hex digits follow. Plain ASCII: some file systems take no name that
/// is not UTF-8.
const DRAFT: &str = ".penstock-draft-";

/// Checks that `key` may name an object. A key is relative and `/`-separated; it has no NUL and no segment that is empty,
/// `.` or `..`, since those differ between file systems and buckets, nor one that is the name of an unfinished write.
/// Everything else is a plain character, `\` and `%` included.
pub fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        return Err("it is empty");
    }
    check_characters(key)?;
    key.split('/').try_for_each(check_segment)
}

/// Checks that keys may start with `prefix`. The last segment may be empty or a part of one.
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
        draft if is_draft(draft) => Err("it has the name of an unfinished write, which is no object"),
        _ => Ok(()),
    }
}

pub(crate) fn draft_name(number: u64) -> String {
    format!("{DRAFT}{number:016x}")
}

pub(crate) fn is_draft(name: &str) -> bool {
    let number = name.strip_prefix(DRAFT).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.is_some_and(|number| draft_name(number) == name)
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
    fn an_unfinished_write_has_a_name_that_is_no_key() {
        let draft = draft_name(7);
        assert!(is_draft(&draft) && check_key(&draft).is_err());
        assert!(check_key(&format!("a/{draft}")).is_err() && check_prefix(&format!("{draft}/a")).is_err());
        for plain in [".penstock-draft-", ".penstock-draft-7", &draft.to_uppercase(), &format!("{draft}0")] {
            assert!(!is_draft(plain) && check_key(plain) == Ok(()), "{plain}");
        }
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
