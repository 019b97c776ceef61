//! Filters of texts, as those by which corpora are cleaned.

use std::collections::HashSet;

use penstock_guest::prelude::*;
use regex::{Regex, RegexBuilder};

use crate::Settings;

/// Bounds of texts; texts outside are dropped.
#[derive(Debug)]
pub(crate) struct Filter {
    settings: Settings,
    contains: Option<Regex>,
    lacks: Option<Regex>,
}

impl Filter {
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let compiled = |name: &str, written: &Option<String>| {
            let compiled = written.as_deref().map(|written| RegexBuilder::new(written).build()).transpose();
            compiled.map_err(|error| Error::new(format_args!("`{name}`: {error}")))
        };
        Ok(Self {
            contains: compiled("contains", &settings.contains)?,
            lacks: compiled("lacks", &settings.lacks)?,
            settings: settings.clone(),
        })
    }

    /// True if the text is within all bounds.
    pub(crate) fn admits(&self, text: &str) -> bool {
        let Settings { min_chars, max_chars, min_letters, max_repeated_lines, .. } = self.settings;
        let chars = text.chars().count();
        chars >= min_chars as usize
            && max_chars.is_none_or(|most| chars <= most as usize)
            && (min_letters == 0.0 || letters(text) >= min_letters)
            && (max_repeated_lines == 1.0 || repeated_lines(text) <= max_repeated_lines)
            && self.contains.as_ref().is_none_or(|wanted| wanted.is_match(text))
            && self.lacks.as_ref().is_none_or(|refused| !refused.is_match(text))
    }
}

/// Share of letters among the characters that are not white space; 0 if there are none.
fn letters(text: &str) -> f64 {
    let shown = text.chars().filter(|letter| !letter.is_whitespace());
    let (all, letters) = shown.fold((0_usize, 0_usize), |(all, letters), letter| {
        (all + 1, letters + usize::from(letter.is_alphabetic()))
    });
    letters as f64 / all.max(1) as f64
}

/// Share of lines that repeat an earlier line, among those that are not blank; white space at their ends does not count.
fn repeated_lines(text: &str) -> f64 {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let distinct = lines().collect::<HashSet<_>>().len();
    let all = lines().count();
    (all - distinct) as f64 / all.max(1) as f64
}
