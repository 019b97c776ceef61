//! Names of files in WebDataset's convention: `KEY.FIELD`, with one sample in neighbouring files of the same key.

use penstock_types::left_out::LeftOutReason;

/// Key and field of a file: the field is what follows the first dot of the last part of the path, in lower case. A reason for files that
/// belong to no sample: without a field, hidden, or with a part `__NAME__`.
pub(crate) fn split(name: &str) -> Result<(&str, String), LeftOutReason> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = last + name[last..].find('.').ok_or(LeftOutReason::NoField)?;
    let is_meta = |part: &str| part.len() >= 4 && part.starts_with("__") && part.ends_with("__");
    let (key, field) = (&name[..dot], &name[dot + 1..]);
    if dot == last || name.split('/').any(is_meta) {
        return Err(LeftOutReason::Hidden);
    }
    if field.is_empty() { Err(LeftOutReason::NoField) } else { Ok((key, field.to_lowercase())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_ends_at_the_first_dot_of_the_last_part() {
        let split = |name| split(name).map(|(key, field)| format!("{key} | {field}"));
        for (name, expected) in [
            ("a.jpg", "a | jpg"),
            ("x/y.z/a.b.JPG", "x/y.z/a | b.jpg"),
            ("./a.cls", "a | cls"),
            ("a..jpg", "a | .jpg"),
        ] {
            assert_eq!(split(name).as_deref(), Ok(expected), "{name}");
        }
        for name in ["a", "x.y/a", "a.", ""] {
            assert_eq!(split(name), Err(LeftOutReason::NoField), "{name}");
        }
        for name in [".hidden", "x/.hidden.jpg", "__meta__/a.jpg"] {
            assert_eq!(split(name), Err(LeftOutReason::Hidden), "{name}");
        }
    }
}
