//! Circular imports between the files of a crate stay small.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use penstock_tests::workspace_metadata;

/// Maximum number of files in a circle of imports.
const MAX_CIRCLE: usize = 3;

/// Files of one crate by module path, e.g. `["history", "runs"]`; the root of the crate is the empty path.
struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
}

struct Module {
    file: PathBuf,
    /// All paths in the file, without tests, relative to the root of the crate.
    names: BTreeSet<Vec<String>>,
    /// Paths re-exported by `pub use`, by their exported names.
    hands_on: BTreeMap<String, Vec<String>>,
}

impl Crate {
    fn read(src: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let mut folders = vec![(src.to_owned(), Vec::new())];
        while let Some((folder, path)) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
                let file = entry.path();
                let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
                let child = || path.iter().cloned().chain([stem.clone()]).collect::<Vec<_>>();
                if file.is_dir() {
                    folders.push((file.clone(), child()));
                } else if file.extension().is_some_and(|ending| ending == "rs") && stem != "tests" {
                    let path = if path.is_empty() && stem == "lib" { Vec::new() } else { child() };
                    modules.insert(path.clone(), Module::read(file, &path));
                }
            }
        }
        Self { modules }
    }

    /// Module that defines the item at `path`: re-exports are followed.
    fn home(&self, path: &[String], steps: usize) -> Option<&Vec<String>> {
        let depth = (0..=path.len()).rev().find(|depth| self.modules.contains_key(&path[..*depth]))?;
        let (at, module) = self.modules.get_key_value(&path[..depth])?;
        match path.get(depth).and_then(|name| module.hands_on.get(name)) {
            Some(further) if steps > 0 && further != path => self.home(further, steps - 1),
            _ => Some(at),
        }
    }

    fn imports(&self) -> BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> {
        let of = |(path, module): (&'_ Vec<String>, &'_ Module)| {
            let homes = module.names.iter().filter_map(|name| self.home(name, 8));
            let (path, _) = self.modules.get_key_value(path).unwrap();
            (path, homes.filter(|home| *home != path && !home.is_empty()).collect())
        };
        self.modules.iter().map(of).collect()
    }

    /// Groups of two or more files that import each other, directly or through others of the group.
    fn circles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let reached = |from: &Vec<String>| {
            let mut seen = BTreeSet::new();
            let mut waiting = vec![from];
            while let Some(at) = waiting.pop() {
                waiting.extend(imports[at].iter().filter(|next| seen.insert((**next).clone())).copied());
            }
            seen
        };
        let reach: BTreeMap<_, _> = imports.keys().map(|path| (*path, reached(path))).collect();
        let circle = |path: &&Vec<String>| -> BTreeSet<String> {
            let mutual = reach[*path].iter().filter(|other| reach[*other].contains(*path));
            mutual.map(|path| path.join("::")).collect()
        };
        let circles: BTreeSet<_> = imports.keys().map(circle).filter(|circle| circle.len() > 1).collect();
        circles.into_iter().map(|circle| circle.into_iter().collect()).collect()
    }
}

impl Module {
    fn read(file: PathBuf, path: &[String]) -> Self {
        let text = fs::read_to_string(&file).unwrap();
        // Unit tests are at the end of their file.
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code: String = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .flat_map(|line| [line, "\n"])
            .collect();
        let mut module = Self { file, names: BTreeSet::new(), hands_on: BTreeMap::new() };
        for (start, _) in code.match_indices("::") {
            let head = code[..start].rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
            let root = match head.unwrap() {
                "crate" => Vec::new(),
                "self" => path.to_vec(),
                "super" if !code[..start].ends_with("super::super") => path[..path.len().max(1) - 1].to_vec(),
                _ => continue,
            };
            let statement = code[..start].rsplit(['\n', ';', '}']).next().unwrap();
            let is_handed_on = statement.trim_start().starts_with("pub") && statement.contains("use ");
            for found in tree(&code[start + 2..], &root).1 {
                if is_handed_on {
                    let name = found.last().cloned().unwrap_or_default();
                    module.hands_on.insert(name, found);
                } else {
                    module.names.insert(found);
                }
            }
        }
        module
    }
}

/// Paths of a use tree (`a::{b, c::d}`) below `root`, and the number of bytes read.
fn tree(text: &str, root: &[String]) -> (usize, Vec<Vec<String>>) {
    let word = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    let mut path = root.to_vec();
    match &text[..word] {
        "" => {}
        "super" => drop(path.pop()),
        "self" => {}
        name => path.push(name.to_owned()),
    }
    let rest = &text[word..];
    if let Some(further) = rest.strip_prefix("::") {
        let (taken, found) = tree(further, &path);
        return (word + 2 + taken, found);
    }
    if !rest.starts_with('{') || word > 0 {
        return (word, vec![path]);
    }
    let (mut at, mut found) = (1, Vec::new());
    while let Some(letter) = rest[at..].chars().next().filter(|letter| *letter != '}') {
        if letter.is_alphanumeric() || letter == '_' {
            let (taken, more) = tree(&rest[at..], &path);
            found.extend(more);
            at += taken.max(1);
            // A new name (`x as y`) is not part of the path.
            if let Some(renamed) = rest[at..].strip_prefix(" as ") {
                let name = renamed.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                at += 4 + name.unwrap_or(0);
            }
        } else {
            at += letter.len_utf8();
        }
    }
    (at + 1, found)
}

#[test]
fn no_circle_of_imports_has_more_than_three_files() {
    let metadata = workspace_metadata();
    let root = metadata["workspace_root"].as_str().unwrap();
    let mut seen = 0;
    let mut large = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let src = manifest.parent().unwrap().join("src");
        if !src.is_dir() {
            continue;
        }
        let read = Crate::read(&src);
        seen += read.imports().values().map(BTreeSet::len).sum::<usize>();
        let circles = read.circles().into_iter().filter(|circle| circle.len() > MAX_CIRCLE);
        large.extend(circles.map(|circle| format!("{}: {}", package["name"], circle.join(", "))));
    }
    assert!(seen > 300, "only {seen} imports were found below {root}");
    assert!(large.is_empty(), "files that import each other in a circle:\n{}", large.join("\n"));
}

#[test]
fn circles_of_imports_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod a; mod b; mod c; mod d;\npub use a::A;\n");
    write("a.rs", "use crate::b::{B, Other as Another};\n// use crate::d::D;\n");
    write("b.rs", "pub use super::c::C;\nfn f() { crate::c::g(); }\n");
    write("c.rs", "use crate::{a::A, b};\n#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}\n");
    write("d.rs", "use crate::b::C;\n");
    let read = Crate::read(folder.path());
    assert_eq!(read.circles(), [["a", "b", "c"]]);
    let d = read.imports()[&vec!["d".to_owned()]].clone();
    assert_eq!(d, [&vec!["c".to_owned()]].into(), "a re-export is resolved to its definition");
    assert!(read.modules.values().all(|module| module.file.exists()));
}
