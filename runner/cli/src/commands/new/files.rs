//! Files of a new stage: templates, and the SDK.

use crate::args::{NewArgs, NewLanguage, NewMode};

/// Files of the SDK by name, as the build script collected them.
const SDK: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/sdk.rs"));

/// Files of the folder `template` by name. A stage has those of `all`, of its mode, of its language, and of both together.
const TEMPLATES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// File of the SDK, embedded as it is.
macro_rules! sdk {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest-sdk/", $file))
    };
}

const CONTRACT: (&str, &str) = ("wit/stage.wit", sdk!("wit/stage.wit"));
const PYTHON: &[(&str, &str)] = &[("penstock_guest.py", sdk!("python/penstock_guest.py")), CONTRACT];
const JS: &[(&str, &str)] = &[
    ("penstock_guest.js", sdk!("javascript/penstock_guest.js")),
    ("entry.js", sdk!("javascript/entry.js")),
    CONTRACT,
];
const GO: &[(&str, &str)] = &[("penstock.go", sdk!("go/penstock.go"))];
const C: &[(&str, &str)] = &[("penstock.c", sdk!("c/penstock.c")), ("penstock.h", sdk!("c/penstock.h"))];

/// Returns all files of the new stage, with their paths within its folder.
pub(super) fn of(args: &NewArgs) -> Vec<(String, String)> {
    let (mode, what, params) = about(args.mode);
    let (language, sdk) = match args.lang {
        NewLanguage::Rust => ("rust", SDK),
        NewLanguage::Python => ("python", PYTHON),
        NewLanguage::Js => ("js", JS),
        NewLanguage::Go => ("go", GO),
        NewLanguage::C => ("c", C),
    };
    let both = format!("{language}-{mode}");
    let folders = ["all", mode, language, &both];
    let own = TEMPLATES.iter().filter_map(|(path, text)| {
        let (folder, file) = path.split_once('/')?;
        folders.contains(&folder).then_some((file, text))
    });
    let filled = own.map(|(file, text)| {
        // Under these names, the files would have an effect on the folder of templates.
        let file = match file {
            "gitignore" => ".gitignore",
            "cargo-config.toml" => ".cargo/config.toml",
            other => other,
        };
        let text = text
            .replace("{{name}}", &args.name)
            .replace("{{library}}", &args.name.replace('-', "_"))
            .replace("{{rust}}", env!("CARGO_PKG_RUST_VERSION"))
            .replace("{{what}}", what)
            .replace("{{params}}", params);
        (file.to_owned(), text)
    });
    let within = if args.lang == NewLanguage::Rust { "penstock-guest/" } else { "" };
    let sdk = sdk.iter().map(|(file, text)| (format!("{within}{file}"), (*text).to_owned()));
    filled.chain(sdk).collect()
}

/// Name of a mode, its description, and params of the stage for it.
pub(super) fn about(mode: NewMode) -> (&'static str, &'static str, &'static str) {
    match mode {
        NewMode::Sample => (
            "sample",
            "A stage of mode `sample`: called with one sample at a time. It keeps the first words of a text file.",
            r#"{"words": 3}"#,
        ),
        NewMode::Batch => (
            "batch",
            "A stage of mode `batch`: called with all samples of a batch. It makes rows of equal length.",
            r#"{"longest": 16}"#,
        ),
        NewMode::Stateful => (
            "stateful",
            "A stage of mode `stateful`: the only instance of its run, which remembers. It packs files into sequences.",
            r#"{"length": 100}"#,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in_and_the_sdk_stands_alone() {
        for mode in [NewMode::Sample, NewMode::Batch, NewMode::Stateful] {
            for (file, text) in of(&NewArgs { name: "first-words".into(), mode, lang: NewLanguage::Rust }) {
                // Files of the SDK are not templates: their code may contain `{{`, which is not a placeholder.
                let is_template = !file.starts_with("penstock-guest/");
                assert!(!(is_template && text.contains("{{")), "{file}:\n{text}");
                assert!(
                    !file.ends_with("Cargo.toml") || !text.contains("workspace = true"),
                    "{file}:\n{text}"
                );
            }
        }
    }

    #[test]
    fn the_sdk_is_whole() {
        for file in ["Cargo.toml", "macros/Cargo.toml", "src/lib.rs", "wit/stage.wit", "setup-target.sh"] {
            assert!(SDK.iter().any(|(name, _)| *name == file), "`{file}` is missing");
        }
    }
}
