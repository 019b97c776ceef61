//! Rules for keys, the same for every store, so that a pipeline does not depend on the kind of its store.

/// Maximum length of a key in bytes, as in S3.
pub const MAX_KEY_BYTES: usize = 1024;

/// Prefix of unfinished files in a folder's store, followed by 16 hex digits. Plain ASCII: some file systems reject names that
/// are not UTF-8.
const DRAFT: &str = ".penstock-draft-";

/// Checks that `key` is a valid name of an object. A key is relative and `/`-separated. It contains no NUL. No segment is
/// empty, `.` or `..`, since file systems and buckets treat them differently. No segment is the name of an unfinished write. All
/// other characters are allowed and have no special meaning, including `\` and `%`.
pub fn check_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        return Err("it is empty");
    }
    check_characters(key)?;
    key.split('/').try_for_each(check_segment)
}

/// Checks that valid keys may start with `prefix`. The last segment of the prefix may be empty or incomplete.
pub fn check_prefix(prefix: &str) -> Result<(), &'static str> {
    check_characters(prefix)?;
    match prefix.rsplit_once('/') {
        Some((folders, _)) => folders.split('/').try_for_each(check_segment),
        None => Ok(()),
    }
}

/// Checks that a bucket may have an object `key` that can be read: like [`check_key`], but segments may be empty, also the first and the
/// last one. Segments `.` and `..` stay invalid, because a proxy before the service may resolve them.
pub(crate) fn check_bucket_key(key: &str) -> Result<(), &'static str> {
    if key.is_empty() {
        return Err("it is empty");
    }
    check_bucket_prefix(key)?;
    key.rsplit('/').next().filter(|last| !last.is_empty()).map_or(Ok(()), check_segment)
}

/// Checks that keys of a bucket may start with `prefix`: like [`check_prefix`], but segments may be empty.
pub(crate) fn check_bucket_prefix(prefix: &str) -> Result<(), &'static str> {
    check_length(prefix)?;
    let folders = prefix.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders.split('/').filter(|segment| !segment.is_empty()).try_for_each(check_segment)
}

/// Checks a key that a document or an index names, if its store may be a bucket: see [`check_key`]. Segments may be empty, but an address
/// such as `s3://bucket/key` is not a key.
pub fn check_named_key(key: &str) -> Result<(), &'static str> {
    if key.contains("://") { check_key(key) } else { check_bucket_key(key) }
}

/// Checks a prefix like [`check_named_key`].
pub fn check_named_prefix(prefix: &str) -> Result<(), &'static str> {
    if prefix.contains("://") { check_prefix(prefix) } else { check_bucket_prefix(prefix) }
}

fn check_characters(text: &str) -> Result<(), &'static str> {
    if text.starts_with('/') && text.len() <= MAX_KEY_BYTES {
        return Err("it starts with `/`; keys are relative to the store");
    }
    check_length(text)
}

fn check_length(text: &str) -> Result<(), &'static str> {
    if text.len() > MAX_KEY_BYTES {
        Err("it is longer than 1024 bytes")
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
        draft if is_draft(draft) => Err("it is the name of an unfinished write, which is not an object"),
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
    fn paths_that_file_systems_interpret_are_not_valid_keys() {
        for bad in ["", "/etc/passwd", "..", "../x", "a/../b", "a/./b", "./a", "a//b", "a/", "a\0b", "a/.."] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
        assert!(check_key(&"k".repeat(1025)).is_err());
    }

    #[test]
    fn keys_of_buckets_may_have_empty_segments() {
        for good in ["a//b", "/a", "//", "a/", "/", "a///b/", "..a//x"] {
            assert_eq!((check_bucket_key(good), check_bucket_prefix(good)), (Ok(()), Ok(())), "{good:?}");
            assert!(check_key(good).is_err() && check_named_key(good).is_ok(), "{good:?}");
        }
        let long = "k".repeat(1025);
        for bad in ["", "a//../b", "/..", "./", "a/./b", ".", "a//\0", &long] {
            assert!(check_bucket_key(bad).is_err(), "{bad:?}");
        }
        assert!(check_bucket_prefix("//..//").is_err() && check_bucket_prefix("").is_ok());
        assert!(check_named_key("s3://bucket/a").is_err() && check_named_prefix("s3://bucket/").is_err());
    }

    #[test]
    fn the_name_of_an_unfinished_write_is_not_a_valid_key() {
        let draft = draft_name(7);
        assert!(is_draft(&draft) && check_key(&draft).is_err());
        assert!(check_key(&format!("a/{draft}")).is_err() && check_prefix(&format!("{draft}/a")).is_err());
        for plain in [".penstock-draft-", ".penstock-draft-7", &draft.to_uppercase(), &format!("{draft}0")] {
            assert!(!is_draft(plain) && check_key(plain) == Ok(()), "{plain}");
        }
    }

    #[test]
    fn all_other_names_are_valid_keys() {
        for good in
            ["a", "a/b.jpg", "...", ".hidden", "..a", "%2e%2e/x", "a\\b", "naïve café", "~", "C:x", "-rf"]
        {
            assert_eq!(check_key(good), Ok(()), "{good:?}");
        }
        assert_eq!(check_key(&"k".repeat(1024)), Ok(()));
    }

    #[test]
    fn a_prefix_may_end_within_a_segment_but_not_lead_upwards() {
        for good in ["", "a", "a/", "a/b", ".", "..", "a/.."] {
            assert_eq!(check_prefix(good), Ok(()), "{good:?}");
        }
        for bad in ["/", "../", "a/../b", "a//", "./a", "\0"] {
            assert!(check_prefix(bad).is_err(), "{bad:?}");
        }
    }
}
