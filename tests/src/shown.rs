//! Output of the program, without the parts that differ from run to run.

use std::env;
use std::path::Path;

use insta::Settings;

use crate::programs::{repository, target};

/// Settings for snapshots of the binary's output: digests, ids, times of day and paths are replaced by placeholders.
pub fn shown() -> Settings {
    let mut settings = Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    let temporary = format!(r"{}/\.tmp\w+", literally(&env::temp_dir()));
    for (found, word) in [
        (temporary.as_str(), "[TMP]"),
        (&literally(&target()), "[TARGET]"),
        (&literally(&repository()), "[REPOSITORY]"),
        (r"sha256:[0-9a-f]{64}", "[DIGEST]"),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "[ID]"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", "[START]"),
        (r"src/lib\.rs:\d+:\d+", "src/lib.rs:[LINE]"),
        // The memory already in use, and so the requested amount, depends on the allocator.
        (r"requested 2[5-9]\d MiB", "requested [N] MiB"),
    ] {
        settings.add_filter(found, word);
    }
    settings
}

/// Settings of [`shown`] that also replace every measured figure.
pub fn without_figures() -> Settings {
    let mut settings = shown();
    settings.add_filter(r"\d[\d,]*(\.\d+)? \[(us|ms|sec)\]", "[TIME]");
    settings.add_filter(r"QPS: \d+\.\d+", "QPS: [RATE]");
    settings
}

/// A regular expression that matches exactly this path.
fn literally(path: &Path) -> String {
    let mut pattern = String::new();
    for letter in path.to_string_lossy().chars() {
        if letter.is_ascii_punctuation() {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}
