//! Crates depend only on crates of lower floors, the layers listed in ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};

use penstock_tests::{dependency_features, workspace_metadata};
use serde_json::Value;

/// Workspace crates that each crate may depend on.
const FLOORS: [(&str, &[&str]); 17] = [
    ("penstock-types", &[]),
    ("penstock-engine", &["penstock-types"]),
    ("penstock-wasm", &["penstock-types", "penstock-engine"]),
    ("penstock-storage", &["penstock-types", "penstock-engine"]),
    ("penstock-formats", &["penstock-types", "penstock-engine", "penstock-storage"]),
    ("penstock-device", &["penstock-types", "penstock-engine"]),
    (
        "penstock-pipeline",
        &[
            "penstock-types",
            "penstock-engine",
            "penstock-wasm",
            "penstock-storage",
            "penstock-formats",
            "penstock-device",
        ],
    ),
    ("penstock-stream", &["penstock-types", "penstock-engine"]),
    ("penstock-bench", &["penstock-types", "penstock-engine", "penstock-storage", "penstock-formats"]),
    (
        "penstock-server",
        &[
            "penstock-types",
            "penstock-engine",
            "penstock-wasm",
            "penstock-storage",
            "penstock-formats",
            "penstock-pipeline",
            "penstock-stream",
            "penstock-bench",
        ],
    ),
    (
        "penstock-web",
        &["penstock-types", "penstock-pipeline", "penstock-stream", "penstock-bench", "penstock-server"],
    ),
    (
        "penstock",
        &[
            "penstock-types",
            "penstock-engine",
            "penstock-wasm",
            "penstock-storage",
            "penstock-formats",
            "penstock-pipeline",
            "penstock-bench",
            "penstock-server",
            "penstock-web",
        ],
    ),
    (
        "penstock-python",
        &[
            "penstock-types",
            "penstock-engine",
            "penstock-wasm",
            "penstock-device",
            "penstock-pipeline",
            "penstock-stream",
            "penstock",
        ],
    ),
    ("penstock-guest", &["penstock-guest-macros"]),
    ("penstock-guest-macros", &[]),
    ("make-data", &[]),
    ("penstock-s3-server", &["penstock-types", "penstock-engine"]),
];

/// Heavy dependencies, and the only crates that may depend on them.
const HEAVY: [(&str, &[&str]); 10] = [
    ("wasmtime", &["penstock-wasm"]),
    ("cap-std", &["penstock-storage"]),
    ("cudarc", &["penstock-device"]),
    ("nvml-wrapper", &["penstock-device"]),
    ("aws-sdk-s3", &["penstock-storage"]),
    ("clap", &["penstock", "make-data", "penstock-s3-server"]),
    ("comfy-table", &["penstock"]),
    ("rusqlite", &["penstock-server"]),
    ("axum", &["penstock-web"]),
    ("pyo3", &["penstock-python"]),
];

/// Dependencies that the crate `penstock-types` must not have.
const NOT_IN_TYPES: [&str; 6] = ["tokio", "futures", "crossbeam-channel", "rustix", "tracing", "uuid"];

/// A crate of this workspace.
struct Package {
    name: String,
    /// Path below the root of the repository, e.g. `examples/stages/table`.
    place: String,
    /// Dependencies without those of tests; `dev` has those of tests and benches.
    normal: BTreeSet<String>,
    dev: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let metadata = workspace_metadata();
    let root = text(&metadata["workspace_root"]);
    let read = |package: &Value| {
        let dependencies = package["dependencies"].as_array().expect("packages have dependencies");
        let of = |dev: bool| {
            let wanted = move |dependency: &&Value| (dependency["kind"] == "dev") == dev;
            dependencies
                .iter()
                .filter(wanted)
                .map(|dependency| text(&dependency["name"]).to_owned())
                .collect()
        };
        let manifest = text(&package["manifest_path"]);
        let place = manifest.strip_prefix(root).and_then(|path| path.strip_suffix("/Cargo.toml"));
        Package {
            name: text(&package["name"]).to_owned(),
            place: place.expect("members lie in the workspace").trim_start_matches('/').to_owned(),
            normal: of(false),
            dev: of(true),
        }
    };
    metadata["packages"].as_array().expect("a workspace has packages").iter().map(read).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected a text: {value}"))
}

/// Crates of this workspace among `dependencies`.
fn ours<'a>(dependencies: &'a BTreeSet<String>, packages: &[Package]) -> BTreeSet<&'a str> {
    let is_ours = |name: &&str| packages.iter().any(|package| package.name == *name);
    dependencies.iter().map(String::as_str).filter(is_ours).collect()
}

fn is_stage(package: &Package) -> bool {
    package.place.starts_with("examples/stages/")
}

#[test]
fn crates_depend_on_lower_floors_only() {
    let packages = packages();
    let floors = BTreeMap::from(FLOORS);
    let mut unplaced = Vec::new();
    for package in &packages {
        let allowed: BTreeSet<&str> = match floors.get(package.name.as_str()) {
            Some(allowed) => allowed.iter().copied().collect(),
            None if is_stage(package) || package.place.starts_with("tests/guests/") => {
                ["penstock-guest"].into()
            }
            None if ["tests", "tests/fuzz"].contains(&package.place.as_str()) => continue,
            None => {
                unplaced.push(&package.name);
                continue;
            }
        };
        let found = ours(&package.normal, &packages);
        let upwards: Vec<_> = found.difference(&allowed).collect();
        assert!(upwards.is_empty(), "`{}` may not depend on {upwards:?}, only on {allowed:?}", package.name);
    }
    assert!(unplaced.is_empty(), "add a floor for {unplaced:?} to ARCHITECTURE.md and this test");
    for (name, _) in FLOORS {
        assert!(
            packages.iter().any(|package| package.name == name),
            "`{name}` no longer exists; remove its floor"
        );
    }
}

#[test]
fn a_run_without_a_server_links_no_sqlite() {
    let packages = packages();
    for start in ["penstock-pipeline", "penstock-stream", "penstock-bench"] {
        let mut linked = BTreeSet::from([start]);
        let mut waiting = vec![start];
        while let Some(name) = waiting.pop() {
            let package = packages.iter().find(|package| package.name == name).unwrap();
            assert!(!package.normal.contains("rusqlite"), "`{start}` links SQLite by `{name}`");
            waiting.extend(ours(&package.normal, &packages).into_iter().filter(|found| linked.insert(found)));
        }
        assert!(linked.contains("penstock-engine"), "`{start}` was not resolved: {linked:?}");
    }
}

#[test]
fn tests_of_a_crate_depend_on_no_higher_floor() {
    let packages = packages();
    for (name, allowed) in FLOORS {
        let package = packages.iter().find(|package| package.name == name).unwrap();
        // The crate may also depend on itself, and in tests on the test server.
        let own = [name, "penstock-s3-server"];
        let upwards: Vec<_> = ours(&package.dev, &packages)
            .into_iter()
            .filter(|found| !allowed.contains(found) && !own.contains(found))
            .collect();
        assert!(upwards.is_empty(), "tests of `{name}` may not depend on {upwards:?}");
    }
}

#[test]
fn heavy_dependencies_belong_to_one_crate() {
    for package in packages() {
        for (heavy, doors) in HEAVY {
            let is_door = doors.contains(&package.name.as_str());
            assert!(is_door || !package.normal.contains(heavy), "`{}` depends on `{heavy}`", package.name);
        }
    }
}

#[test]
fn types_are_pure() {
    let packages = packages();
    let types = packages.iter().find(|package| package.name == "penstock-types").unwrap();
    for impure in NOT_IN_TYPES {
        assert!(!types.normal.contains(impure), "`penstock-types` depends on `{impure}`");
    }
}

#[test]
fn stages_depend_on_the_sdk_and_nothing_native() {
    let packages = packages();
    let stages: Vec<_> = packages.iter().filter(|package| is_stage(package)).collect();
    assert!(stages.len() >= 3);
    for stage in stages {
        assert!(stage.normal.contains("penstock-guest"), "`{}` must depend on the SDK", stage.name);
    }
}

/// If the features of a dependency differ between cargo's selections of packages, each selection compiles it again, with all its
/// dependents.
#[test]
fn every_selection_of_packages_has_the_same_features() {
    let all = dependency_features(&[
        "--workspace",
        "--exclude=guest-*",
        "--exclude=text",
        "--edges=normal,build,dev",
    ]);
    let command = dependency_features(&["--package=penstock", "--package=make-data", "--edges=normal,build"]);
    let wheel = dependency_features(&["--package=penstock-python", "--edges=normal,build"]);
    assert!(command.len() > 300);
    let only_in = |part: &BTreeSet<String>, whole| part.difference(whole).cloned().collect::<Vec<_>>();
    assert_eq!(only_in(&command, &all), [""; 0], "the command and its tests differ in features");
    assert_eq!(only_in(&wheel, &all), [""; 0], "the wheel and the tests differ in features");
    let own = |line: &str| line.starts_with("make-data ") || line.starts_with("jpeg-encoder ");
    let missing: Vec<_> = only_in(&command, &wheel).into_iter().filter(|line| !own(line)).collect();
    assert_eq!(missing, [""; 0], "the command and the wheel differ in features");
}
