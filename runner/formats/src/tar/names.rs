//! Names of files in WebDataset's convention: `KEY.FIELD`, with one sample in neighbouring files of the same key.

/// Key and field of a file: the field is what follows the first dot of the last part of the path, in lower case. `None` for files that
/// belong to no sample: without a dot, hidden, or with a part `__NAME__`.
pub(crate) fn split(name: &str) -> Option<(&str, String)> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = last + name[last..].find('.')?;
    let is_meta = |part: &str| part.len() >= 4 && part.starts_with("__") && part.ends_with("__");
    let (key, field) = (&name[..dot], &name[dot + 1..]);
    (dot > last && !field.is_empty() && !name.split('/').any(is_meta)).then(|| (key, field.to_lowercase()))
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
            assert_eq!(split(name).as_deref(), Some(expected), "{name}");
        }
        for name in ["a", "x.y/a", ".hidden", "x/.hidden.jpg", "a.", "__meta__/a.jpg", ""] {
            assert_eq!(split(name), None, "{name}");
        }
    }
}
