//! The manuals: each command runs, each document and configuration is valid, each option and flag exists.
//!
//! Blocks of a manual run in order in one shell, in a copy of the repository as `make` leaves it. A note after the language of a
//! block defines how the block is used: `not-run: REASON`, `in-another-terminal`, or the name of the file whose content it is.

mod reference;
mod run;

use std::fmt::Write as _;
use std::fs;

use penstock_tests::repository;

const README: &str = "README.md";
const RUNNER: &str = "runner/README.md";
const WEB: &str = "web/README.md";
const PYTHON: &str = "runner/python/README.md";
const BENCH: &str = "runner/bench/README.md";
const GUEST: &str = "guest-sdk/README.md";
const TRAIN: &str = "examples/train/README.md";
const RAY: &str = "examples/ray/README.md";
const VARIANTS: &str = "tests/variants/README.md";
const MANUALS: [&str; 6] = [README, RUNNER, WEB, PYTHON, BENCH, GUEST];

/// All manuals and READMEs with shell blocks.
const WITH_SHELL: [&str; 9] = [README, RUNNER, WEB, PYTHON, BENCH, GUEST, TRAIN, RAY, VARIANTS];

/// A fenced code block.
struct Block {
    line: usize,
    language: String,
    /// Note after the language.
    note: String,
    text: String,
}

impl Block {
    fn is_shell(&self) -> bool {
        self.language == "sh"
    }

    fn reason(&self) -> Option<&str> {
        self.note.strip_prefix("not-run: ")
    }

    fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    /// Name of the file whose content the block is, if any.
    fn file(&self) -> Option<&str> {
        let is_file = !self.is_shell() && self.reason().is_none() && !self.note.is_empty();
        is_file.then_some(self.note.as_str())
    }
}

fn text(manual: &str) -> String {
    fs::read_to_string(repository().join(manual)).unwrap()
}

fn blocks(manual: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text(manual).lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let (language, note) = info.split_once(' ').unwrap_or((info, ""));
                let (language, note) = (language.to_owned(), note.to_owned());
                open = Some(Block { line: number + 1, language, note, text: String::new() });
            }
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => writeln!(block.text, "{line}").unwrap(),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{manual}: a block has no end");
    blocks
}

/// Text of a manual outside of code blocks.
fn prose(manual: &str) -> String {
    text(manual).split("```").step_by(2).collect()
}

/// Inline code of a manual, without code blocks.
fn spans(manual: &str) -> Vec<String> {
    prose(manual).lines().flat_map(|line| line.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Text of a manual from this heading to the next.
fn section(manual: &str, heading: &str) -> String {
    let text = prose(manual);
    let lines =
        text.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with('#'));
    let section: String = lines.flat_map(|line| [line, "\n"]).collect();
    assert!(!section.is_empty(), "{manual} has no `{heading}`");
    section
}

/// Rows of tables, without the backticks around cells.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(|cell| cell.trim().trim_matches('`').to_owned()).collect()).collect()
}
