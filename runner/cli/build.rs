//! Embeds the templates of stages and the guest SDK's sources in the binary, for `penstock new`: the SDK is in no registry, so every
//! new stage gets a copy. Values that the manifests of the SDK inherit from the workspace are written out.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

/// Parts of the SDK that are needed to build a stage; the tests of the SDK are left out.
const PARTS: [&str; 6] = ["Cargo.toml", "README.md", "setup-target.sh", "src", "wit", "macros"];

fn main() -> Result<()> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let sdk = root.join("guest-sdk");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", root.join("Cargo.toml").display());
    let workspace = table(&root.join("Cargo.toml"))?;

    let mut files = BTreeMap::new();
    for part in PARTS {
        println!("cargo::rerun-if-changed={}", sdk.join(part).display());
        collect(&sdk, Path::new(part), &mut files)?;
    }
    println!("cargo::rerun-if-changed={}", root.join("LICENSE").display());
    files.insert("LICENSE".to_owned(), root.join("LICENSE"));
    for (name, path) in files.iter_mut().filter(|(name, _)| name.ends_with("Cargo.toml")) {
        let manifest = standalone(table(path)?, &workspace, Path::new("guest-sdk").join(name).parent())
            .with_context(|| format!("cannot detach `{}` from the workspace", path.display()))?;
        *path = out.join(name.replace('/', "-"));
        fs::write(&*path, toml::to_string(&manifest)?)?;
    }
    write_list(&out.join("sdk.rs"), &files)?;

    let mut templates = BTreeMap::new();
    println!("cargo::rerun-if-changed=template");
    collect(&root.join("runner/cli/template"), Path::new(""), &mut templates)?;
    write_list(&out.join("templates.rs"), &templates)
}

/// Writes an array of the names and contents of files, as Rust.
fn write_list(list: &Path, files: &BTreeMap<String, PathBuf>) -> Result<()> {
    let mut code = String::from("[\n");
    for (name, path) in files {
        let path = path.to_str().context("a path that is not UTF-8")?;
        writeln!(code, "    ({name:?}, include_str!({path:?})),")?;
    }
    fs::write(list, code + "]\n").map_err(Into::into)
}

/// Collects the file `part` of a folder, or all files in `part`, by their paths within the folder.
fn collect(folder: &Path, part: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let path = folder.join(part);
    if path.is_dir() {
        for entry in fs::read_dir(&path)? {
            let name = entry?.file_name();
            // Tools leave `__pycache__` and the like.
            if !name.to_string_lossy().starts_with(['_', '.']) {
                collect(folder, &part.join(name), files)?;
            }
        }
    } else {
        let name = part.to_str().context("a file's name is not UTF-8")?;
        files.insert(name.to_owned(), path);
    }
    Ok(())
}

fn table(path: &Path) -> Result<Table> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    text.parse().with_context(|| format!("`{}` is not TOML", path.display()))
}

/// Returns the manifest of the package in `folder`, with each `workspace = true` replaced by the value in the workspace.
fn standalone(mut manifest: Table, workspace: &Table, folder: Option<&Path>) -> Result<Table> {
    let shared = workspace["workspace"]
        .as_table()
        .context("`workspace` is not a table in the manifest of the workspace")?;
    let of = |section: &str| shared.get(section).and_then(Value::as_table).cloned().unwrap_or_default();
    if manifest.get("lints").is_some_and(inherits) {
        manifest.insert("lints".into(), of("lints").into());
    }
    let folder = folder.context("the package has no folder")?;
    for section in ["package", "dependencies"] {
        let shared = of(section);
        for (name, value) in manifest[section].as_table_mut().context("a section is not a table")? {
            if inherits(value) {
                let shared = shared.get(name).with_context(|| format!("no `{name}` to inherit"))?;
                *value = if section == "package" { shared.clone() } else { dependency(shared, folder)? };
            }
        }
    }
    Ok(manifest)
}

/// True for `{ workspace = true }`. The SDK adds nothing to what it inherits, and inherits nothing in the sections of targets; tests of
/// `penstock new` fail if that changes.
fn inherits(value: &Value) -> bool {
    *value == Value::Table(Table::from_iter([("workspace".to_owned(), Value::Boolean(true))]))
}

/// Dependency of the workspace as a package in `folder` writes it: a path is relative to that folder.
fn dependency(shared: &Value, folder: &Path) -> Result<Value> {
    let mut whole = match shared {
        Value::String(version) => Table::from_iter([("version".to_owned(), Value::String(version.clone()))]),
        Value::Table(table) => table.clone(),
        other => bail!("`{other}` is neither a version nor a table"),
    };
    if let Some(path) = whole.get("path").and_then(Value::as_str) {
        let within = Path::new(path)
            .strip_prefix(folder)
            .context("the SDK depends on a path outside of its own folder")?;
        let within = within.to_str().context("a path that is not UTF-8")?.to_owned();
        whole.insert("path".into(), Value::String(within));
    }
    Ok(Value::Table(whole))
}
