//! Keys of the shards of a data set.

use std::sync::Arc;

use penstock_engine::ports::SourceFault;
use penstock_storage::{BoundedStore, Wanted};

/// Shards that a document names.
#[derive(Clone, Debug)]
pub enum Shards {
    /// Keys, in order.
    Keys(Vec<Arc<str>>),
    /// Keys of a listing, sorted by their bytes.
    Listed(Wanted),
}

impl Shards {
    /// Keys of the shards, in order; at least one.
    pub async fn keys(&self, store: &BoundedStore) -> Result<Vec<Arc<str>>, SourceFault> {
        match self {
            Self::Keys(keys) => Ok(keys.clone()),
            Self::Listed(wanted) => {
                let keys = wanted.list(store, |_| {}).await?;
                Ok(keys.iter().map(Arc::from).collect())
            }
        }
    }
}

/// Maximum number of shards that a pattern may name.
pub const MAX_SHARDS: usize = 1_000_000;

/// Reason why a pattern names no shards. Each is the end of a sentence about the pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternFault {
    /// A brace is not closed or not opened.
    #[error("has a `{{` without its `}}`, or the reverse")]
    Braces,
    /// A pair of braces contains neither a range nor a list.
    #[error("has `{{{0}}}`, which is neither a range such as `{{000..127}}` nor a list such as `{{a,b}}`")]
    Choice(String),
    /// The pattern names too many shards.
    #[error("names more than {MAX_SHARDS} shards")]
    TooMany,
}

/// Keys that a pattern names: `{000..127}` stands for each number of the range, with as many digits, and `{a,b}` for each word.
pub fn expand(pattern: &str) -> Result<Vec<Arc<str>>, PatternFault> {
    let mut keys = vec![String::new()];
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, braces) = rest.split_at(at);
        let (choice, after) =
            braces.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or(PatternFault::Braces)?;
        let words = words(choice)?;
        if keys.len().saturating_mul(words.len()) > MAX_SHARDS {
            return Err(PatternFault::TooMany);
        }
        keys = keys
            .iter()
            .flat_map(|key| words.iter().map(move |word| format!("{key}{before}{word}")))
            .collect();
        rest = after;
    }
    Ok(keys.into_iter().map(|key| Arc::from(key + rest)).collect())
}

fn words(choice: &str) -> Result<Vec<String>, PatternFault> {
    let fault = || PatternFault::Choice(choice.chars().take(40).collect());
    if let Some((first, last)) = choice.split_once("..") {
        let number = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
        };
        let (Some(from), Some(to)) = (number(first), number(last)) else { return Err(fault()) };
        if to < from {
            return Err(fault());
        }
        if to - from >= MAX_SHARDS as u64 {
            return Err(PatternFault::TooMany);
        }
        // Numbers have the digits of the first one, as in a shell.
        let digits = first.len();
        return Ok((from..=to).map(|number| format!("{number:0digits$}")).collect());
    }
    match choice.contains(',') && !choice.contains('{') {
        true => Ok(choice.split(',').map(str::to_owned).collect()),
        false => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists_name_each_shard() {
        let expand = |pattern| expand(pattern).unwrap().iter().map(|key| key.to_string()).collect::<Vec<_>>();
        assert_eq!(expand("a-{008..011}.tar"), ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]);
        assert_eq!(expand("{x,y}/{0..1}"), ["x/0", "x/1", "y/0", "y/1"]);
        assert_eq!(expand("one.tar"), ["one.tar"]);
        assert_eq!(expand("{9..10}"), ["9", "10"]);
    }

    #[test]
    fn patterns_without_a_meaning_are_refused() {
        for (pattern, fault) in [
            ("a{0..9", PatternFault::Braces),
            ("a}", PatternFault::Braces),
            ("{a}", PatternFault::Choice("a".to_owned())),
            ("{}", PatternFault::Choice(String::new())),
            ("{9..1}", PatternFault::Choice("9..1".to_owned())),
            ("{0..99999999999999999999}", PatternFault::Choice("0..99999999999999999999".to_owned())),
            ("{0..1000000}", PatternFault::TooMany),
            ("{0..9999}{0..9999}", PatternFault::TooMany),
        ] {
            assert_eq!(expand(pattern), Err(fault), "{pattern}");
        }
    }
}
