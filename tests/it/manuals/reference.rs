//! Documents, tables, flags and links of the manuals, compared with the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use penstock_tests::{Call, repository};
use penstock_types::config::{Config, Limits};
use penstock_types::spec::Spec;
use serde_json::{Value, json};

use super::{Block, MANUALS, RUNNER, WEB, WITH_SHELL, blocks, prose, rows, section, spans, text};

#[test]
fn what_is_not_run_names_targets_and_commands_that_exist() {
    let makefile = text("Makefile");
    let help = help();
    for manual in WITH_SHELL {
        let not_run = blocks(manual).into_iter().filter(|block| block.is_shell() && block.reason().is_some());
        let lines: Vec<String> =
            not_run.flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        for words in
            spans(manual).iter().chain(&lines).flat_map(|code| code.split("&&").map(str::split_whitespace))
        {
            let words: Vec<&str> = words.collect();
            let targets = words.strip_prefix(&["make"]).unwrap_or_default();
            for target in targets.iter().filter(|word| !word.contains('=')) {
                assert!(
                    makefile.contains(&format!("\n{target}:")),
                    "{manual}: `make` has no target `{target}`"
                );
            }
            if let Some([command, ..]) = words.strip_prefix(&["penstock"])
                && command.starts_with(|letter: char| letter.is_ascii_lowercase())
            {
                let is_it = |path: &&String| path.split(' ').next() == Some(command);
                assert!(
                    help.keys().any(|path| is_it(&path)),
                    "{manual}: `penstock` has no command `{command}`"
                );
                let known: BTreeSet<&String> =
                    help.iter().filter(|(path, _)| is_it(path)).flat_map(|(_, flags)| flags).collect();
                let flags = words.iter().filter(|word| word.starts_with("--"));
                for flag in flags.map(|flag| flag.split('=').next().unwrap_or(flag).to_owned()) {
                    assert!(known.contains(&flag), "{manual}: `penstock {command}` has no flag `{flag}`");
                }
            }
        }
    }
}

/// Flags of each command, by its path, e.g. `bench storage`, as `--help` lists them.
fn help() -> BTreeMap<String, BTreeSet<String>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![String::new()]);
    while let Some(path) = open.pop() {
        let words: Vec<&str> = path.split_whitespace().chain(["--help"]).collect();
        let help = Call::new(&words).finish().exits(0).stdout;
        let commands =
            help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        // Continuation lines are indented further.
        let names = commands
            .filter(|line| !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next());
        open.extend(
            names.filter(|name| *name != "help").map(|name| format!("{path} {name}").trim().to_owned()),
        );
        let options = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let flags =
            options.flat_map(|line| line.split([' ', ',', '='])).filter(|word| word.starts_with("--"));
        found.insert(path, flags.map(str::to_owned).collect());
    }
    found
}

#[test]
fn each_flag_of_the_manuals_exists_and_each_flag_is_in_a_manual() {
    let help = help();
    let known: BTreeSet<&str> = help.values().flatten().map(String::as_str).collect();
    let mut named = BTreeSet::new();
    for manual in MANUALS {
        for span in spans(manual) {
            for word in span.split([' ', ',', '=', '`']).filter(|word| word.starts_with("--")) {
                named.insert(word.to_owned());
                let is_known = known.contains(word);
                assert!(is_known, "{manual}: no command has the flag `{word}` of `{span}`");
            }
        }
        let shell = blocks(manual).into_iter().filter(Block::is_shell);
        named.extend(
            shell.flat_map(|block| block.text.split([' ', '\n', '`']).map(str::to_owned).collect::<Vec<_>>()),
        );
    }
    let of_everybody = ["--help", "--version"];
    let missing: Vec<_> =
        known.iter().filter(|flag| !named.contains(**flag) && !of_everybody.contains(flag)).collect();
    assert!(missing.is_empty(), "no manual has {missing:?}");
    let commands = help
        .keys()
        .filter(|path| !path.is_empty() && !["bench", "module", "index", "token"].contains(&path.as_str()));
    let all: String = MANUALS.iter().map(|manual| text(manual)).collect();
    let missing: Vec<_> = commands.filter(|path| !all.contains(&format!("penstock {path}"))).collect();
    assert!(missing.is_empty(), "no manual has {missing:?}");
}

#[test]
fn each_document_and_configuration_of_the_manuals_is_read() {
    let mut seen = 0;
    for manual in MANUALS {
        for block in blocks(manual).iter().filter(|block| block.language == "json") {
            let place = format!("{manual}:{}", block.line);
            let document: Value =
                serde_json::from_str(&block.text).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(block.file().is_some(), "{place}: the block names no file, so no command reads it");
            if document.get("stores").is_some() {
                Config::read(block.text.as_bytes()).unwrap_or_else(|faults| panic!("{place}: {faults:?}"));
            } else if document.get("source").is_some() && document.get("actions").is_none() {
                Spec::from_value(document).unwrap_or_else(|faults| panic!("{place}: {faults:?}"));
            }
            seen += 1;
        }
        // Inline code with a part of a document must be valid JSON: `{ "fetch": {} }`, `"consumer": {...}`.
        for span in spans(manual)
            .iter()
            .filter(|span| span.contains('{') && span.contains("\": ") && !span.contains("..."))
        {
            let span = span.strip_prefix("-p '").and_then(|span| span.strip_suffix('\'')).unwrap_or(span);
            let whole = if span.starts_with('{') { span.to_owned() } else { format!("{{{span}}}") };
            serde_json::from_str::<Value>(&whole)
                .unwrap_or_else(|error| panic!("{manual}: `{span}`: {error}"));
        }
    }
    assert!(seen >= 7, "{seen}");
}

/// Part of the document's schema, with a `$ref` resolved.
fn resolved<'a>(schema: &'a Value, part: &'a Value) -> &'a Value {
    let Some(reference) = part["$ref"].as_str() else { return part };
    schema.pointer(reference.trim_start_matches('#')).unwrap()
}

#[test]
fn the_reference_has_each_kind_and_option_with_its_default() {
    let schema: Value = serde_json::from_str(&Call::new(&["schema"]).finish().exits(0).stdout).unwrap();
    // Cells of the row for this option of this kind, without the kind; if there is none, of the row for this option of all
    // kinds.
    let find = |rows: &[Vec<String>], kind: &str, option: &str| -> Vec<String> {
        let own = rows.iter().find(|row| row[0] == kind && row.len() == 4 && row[1] == option);
        let shared = || rows.iter().find(|row| row[0] == option && row.len() == 3);
        own.map(|row| row[1..].to_vec())
            .or_else(|| shared().cloned())
            .unwrap_or_else(|| panic!("{RUNNER} has no row for `{option}` of `{kind}`"))
    };
    let check = |rows: &[Vec<String>], kind: &str, part: &Value| {
        let options = part["properties"].as_object().into_iter().flatten();
        let required: Vec<&Value> = part["required"].as_array().into_iter().flatten().collect();
        for (option, described) in options {
            let cells = find(rows, kind, option);
            if required.contains(&&json!(option)) {
                assert_eq!(cells[1], "required", "`{option}` of `{kind}`");
            } else if let Some(default) = described.get("default").filter(|default| !default.is_null()) {
                let written: Value = serde_json::from_str(&cells[1]).unwrap_or_else(|error| {
                    panic!("the default of `{option}` of `{kind}`, `{}`: {error}", cells[1])
                });
                assert_eq!(&written, default, "the default of `{option}` of `{kind}`");
            }
        }
    };
    check(&rows(&section(RUNNER, "## The document")), "document", &schema);
    let mut kinds = 0;
    for (part, heading) in [("Source", "### Sources"), ("Stage", "### Stages"), ("Consumer", "### Consumers")]
    {
        let rows = rows(&section(RUNNER, heading));
        for variant in schema["$defs"][part]["oneOf"].as_array().unwrap() {
            for (kind, described) in variant["properties"].as_object().unwrap() {
                assert!(rows.iter().any(|row| row[0] == *kind), "{RUNNER} has no row for `{kind}`");
                check(&rows, kind, resolved(&schema, described));
                kinds += 1;
            }
        }
    }
    assert!(kinds >= 15, "{kinds}");
}

#[test]
fn the_reference_has_each_limit_of_the_configuration_with_its_default() {
    let mut written = json!({});
    let mut keys = Vec::new();
    for row in rows(&prose(RUNNER)).into_iter().chain(rows(&prose(WEB))) {
        let Some(path) = row[0].strip_prefix("limits.").filter(|_| row.len() == 3) else { continue };
        let (group, key) = path.rsplit_once('.').unwrap_or(("", path));
        keys.push(key.to_owned());
        if row[1] == "none" {
            continue;
        }
        let value = serde_json::from_str(&row[1]).unwrap_or_else(|_| json!(row[1]));
        let object = if group.is_empty() { &mut written } else { &mut written[group] };
        object[key] = value;
    }
    let config = Config::read(json!({ "limits": written }).to_string().as_bytes());
    assert_eq!(config.unwrap().limits, Limits::default());
    let fields = format!("{:?}", Limits::default());
    let missing: Vec<&str> = fields
        .split([' ', '{', '('])
        .filter_map(|word| word.strip_suffix(':'))
        .filter(|field| !["modules", "compile", "runs", "clients"].contains(field))
        .filter(|field| !keys.iter().any(|key| key == field))
        .collect();
    assert!(missing.is_empty(), "no manual has {missing:?}");
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let documents = MANUALS.iter().copied().chain([
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "examples/train/README.md",
        "examples/pipelines/seeds/README.md",
        "web/ui/README.md",
    ]);
    for document in documents {
        let folder = repository().join(document).parent().unwrap().to_owned();
        let prose = prose(document);
        let links = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { repository().join(document) } else { folder.join(path) };
            assert!(target.exists(), "{document}: `{link}` leads nowhere");
            if !anchor.is_empty() {
                let text = fs::read_to_string(&target).unwrap();
                let found =
                    text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
                assert!(found, "{document}: `{link}` names a heading that is not there");
            }
        }
    }
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let letters = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = letters.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}
