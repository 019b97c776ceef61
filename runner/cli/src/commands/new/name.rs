//! Rules for the name of a stage's crate.

use anyhow::Result;

use crate::input::bad;

/// Keywords of the current and of later editions of Rust.
const KEYWORDS: &str = "abstract as async await become box break const continue crate do dyn else enum extern false final fn \
    for gen if impl in let loop macro match mod move mut override priv pub ref return self static struct \
    super trait true try type typeof union unsafe unsized use virtual where while yield macro_rules";

/// Names that cargo, the compiler or the new crate itself use for something else.
const TAKEN: &str =
    "alloc build core deps examples incremental penstock-guest penstock-guest-macros proc-macro std test";

const MAX_LETTERS: usize = 64;

/// Checks that the name is valid for a crate and a module.
pub(super) fn check(name: &str) -> Result<()> {
    refusal(name).map_or(Ok(()), |reason| Err(bad(format!("`{name}` cannot name a stage: {reason}"))))
}

fn refusal(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the name is empty; use a name such as `crop-faces`".to_owned());
    }
    if name.contains(['/', '\\']) || name.starts_with('.') {
        return Some(
            "the name is a path; use a name without `/`, since the new folder is created in the current folder".to_owned(),
        );
    }
    if name.len() > MAX_LETTERS {
        return Some(format!(
            "the name has {} characters, but at most {MAX_LETTERS} are allowed",
            name.len()
        ));
    }
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter);
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.chars().all(fits) {
        let rule = "use letters a-z, digits, `-` and `_`, starting with a letter";
        return Some(match proposal(name) {
            Some(other) => format!("{rule}, e.g. `{other}`"),
            None => rule.to_owned(),
        });
    }
    if KEYWORDS.split(' ').any(|word| word == name) {
        return Some(format!("the name is a keyword of Rust; use e.g. `{name}-stage`"));
    }
    let is_taken = TAKEN.split(' ').any(|word| word == name.replace('_', "-"));
    is_taken.then(|| format!("the name is in use by cargo or the SDK; use e.g. `{name}-stage`"))
}

fn proposal(name: &str) -> Option<String> {
    let letters: String = name
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' })
        .collect();
    let trimmed = letters.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
    let proposal = trimmed.trim_start_matches(|first: char| !first.is_ascii_lowercase());
    refusal(proposal).is_none().then(|| proposal.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cargo_takes_are_taken() {
        for name in ["a", "crop-faces", "mix_up2", "testing"] {
            assert_eq!(refusal(name), None, "{name}");
        }
    }

    #[test]
    fn a_near_name_is_proposed() {
        assert_eq!(proposal("Resize Images").as_deref(), Some("resize-images"));
        assert_eq!(proposal("3d-crop").as_deref(), Some("d-crop"));
        assert_eq!(proposal("größe!").as_deref(), Some("gr--e"));
        assert_eq!(proposal("日本"), None);
    }

    #[test]
    fn a_name_is_as_long_as_it_may_be() {
        assert_eq!(refusal(&"a".repeat(64)), None);
        assert!(check(&"a".repeat(65)).is_err());
    }
}
