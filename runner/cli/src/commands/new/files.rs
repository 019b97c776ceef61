//! Files of a new stage: a template for each mode, and the SDK.

use crate::args::{NewArgs, NewLanguage, NewMode};

/// Files of the SDK by name, as the build script collected them.
const SDK: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/sdk.rs"));

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/template/", $file))
    };
}

/// Files of a stage in any language.
const SHARED: [(&str, &str); 3] = [
    ("samples/blank.txt", template!("samples/blank.txt")),
    ("samples/penstock.txt", template!("samples/penstock.txt")),
    ("samples/short.txt", template!("samples/short.txt")),
];

/// File of the SDK, embedded as it is.
macro_rules! sdk {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest-sdk/", $file))
    };
}

const PYTHON: [(&str, &str); 8] = [
    ("stage.py", template!("python/stage.py")),
    ("test_stage.py", template!("python/test_stage.py")),
    ("build.sh", template!("python/build.sh")),
    ("README.md", template!("python/README.md")),
    (".gitignore", template!("python/gitignore")),
    ("pipeline.json", template!("sample/pipeline.json")),
    ("penstock_guest.py", sdk!("python/penstock_guest.py")),
    ("wit/stage.wit", sdk!("wit/stage.wit")),
];

const JS: [(&str, &str); 10] = [
    ("stage.js", template!("js/stage.js")),
    ("stage.test.js", template!("js/stage.test.js")),
    ("package.json", template!("js/package.json")),
    ("build.sh", template!("js/build.sh")),
    ("README.md", template!("js/README.md")),
    (".gitignore", template!("js/gitignore")),
    ("pipeline.json", template!("sample/pipeline.json")),
    ("penstock_guest.js", sdk!("javascript/penstock_guest.js")),
    ("entry.js", sdk!("javascript/entry.js")),
    ("wit/stage.wit", sdk!("wit/stage.wit")),
];

const GO: [(&str, &str); 8] = [
    ("stage.go", template!("go/stage.go")),
    ("manifest.json", template!("go/manifest.json")),
    ("go.mod", template!("go/go.mod")),
    ("build.sh", template!("go/build.sh")),
    ("README.md", template!("go/README.md")),
    (".gitignore", template!("go/gitignore")),
    ("pipeline.json", template!("sample/pipeline.json")),
    ("penstock.go", sdk!("go/penstock.go")),
];

const C: [(&str, &str); 8] = [
    ("stage.c", template!("c/stage.c")),
    ("manifest.json", template!("c/manifest.json")),
    ("build.sh", template!("c/build.sh")),
    ("README.md", template!("c/README.md")),
    (".gitignore", template!("c/gitignore")),
    ("pipeline.json", template!("sample/pipeline.json")),
    ("penstock.c", sdk!("c/penstock.c")),
    ("penstock.h", sdk!("c/penstock.h")),
];

const COMMON: [(&str, &str); 5] = [
    ("Cargo.toml", template!("Cargo.toml")),
    (".cargo/config.toml", template!("cargo-config.toml")),
    (".gitignore", template!("gitignore")),
    ("README.md", template!("README.md")),
    ("build.sh", template!("build.sh")),
];

struct Variant {
    source: &'static str,
    pipeline: &'static str,
    what: &'static str,
    params: &'static str,
}

/// Returns all files of the new stage, with their paths within its folder.
pub(super) fn of(args: &NewArgs) -> Vec<(String, String)> {
    let variant = variant(args.mode);
    let fill = |text: &str| {
        text.replace("{{name}}", &args.name)
            .replace("{{library}}", &args.name.replace('-', "_"))
            .replace("{{rust}}", env!("CARGO_PKG_RUST_VERSION"))
            .replace("{{what}}", variant.what)
            .replace("{{params}}", variant.params)
    };
    let own = [("src/lib.rs", variant.source), ("pipeline.json", variant.pipeline)];
    let (files, sdk): (Vec<_>, _) = match args.lang {
        NewLanguage::Rust => (COMMON.into_iter().chain(own).collect(), SDK),
        NewLanguage::Python => (PYTHON.into(), [].as_slice()),
        NewLanguage::Js => (JS.into(), [].as_slice()),
        NewLanguage::Go => (GO.into(), [].as_slice()),
        NewLanguage::C => (C.into(), [].as_slice()),
    };
    let filled = files.into_iter().chain(SHARED).map(|(file, text)| (file.to_owned(), fill(text)));
    let sdk = sdk.iter().map(|(file, text)| (format!("penstock-guest/{file}"), (*text).to_owned()));
    filled.chain(sdk).collect()
}

fn variant(mode: NewMode) -> Variant {
    match mode {
        NewMode::Sample => Variant {
            source: template!("sample/lib.rs"),
            pipeline: template!("sample/pipeline.json"),
            what: "A stage of mode `sample`: called with one sample at a time. It keeps the first words of a text file.",
            params: r#"{"words": 3}"#,
        },
        NewMode::Batch => Variant {
            source: template!("batch/lib.rs"),
            pipeline: template!("batch/pipeline.json"),
            what: "A stage of mode `batch`: called with all samples of a batch. It makes rows of equal length.",
            params: r#"{"longest": 16}"#,
        },
        NewMode::Stateful => Variant {
            source: template!("stateful/lib.rs"),
            pipeline: template!("stateful/pipeline.json"),
            what: "A stage of mode `stateful`: the only instance of its run, which remembers. It packs files into sequences.",
            params: r#"{"length": 100}"#,
        },
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
