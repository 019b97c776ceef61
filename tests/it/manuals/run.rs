//! Shell blocks of the manuals, run as written.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use penstock_s3_server::{Server, Settings};
use penstock_tests::{Call, Folder, make_data, module, penstock, photos, repository};

use super::{BENCH, GUEST, PYTHON, RAY, README, RUNNER, TRAIN, VARIANTS, WEB, WITH_SHELL, blocks, text};
use crate::new::as_author;

/// Shell blocks that no test of this file runs: file, first line, reason.
const NOT_RUN: &[(&str, &str, &str)] = &[
    (README, "make demo", "builds the release binary and the modules"),
    (README, "make test", "runs for about twenty minutes"),
    (
        RUNNER,
        "penstock index create --tar --store shards=s3://bucket/train --upload train.index",
        "needs shards",
    ),
    (
        RUNNER,
        "penstock index create --tfrecord --store records=s3://bucket/train --upload train.index",
        "needs files",
    ),
    (
        RUNNER,
        "penstock push crop_faces.wasm oci://ghcr.io/team/crop-faces:v1 --registry ghcr.io",
        "needs an account of a registry",
    ),
    (WEB, "make serve", "builds the pages with npm and the binary"),
    (
        PYTHON,
        "make wheel photos && pip install target/wheels/release/penstock-*.whl",
        "builds the wheel, the pages and the photos, optimised",
    ),
    (PYTHON, "penstock compare runs/epoch-5 runs/epoch-6", "run by tests/python/test_examples.py"),
    (
        TRAIN,
        "make wheel photos && python3 -m venv target/train && target/train/bin/pip install torch numpy target/wheels/release/penstock-*.whl",
        "needs PyTorch",
    ),
    (TRAIN, "target/train/bin/pip install notebook", "needs Jupyter"),
    (
        TRAIN,
        "target/train/bin/pip install torchvision                    # for the first script alone",
        "needs PyTorch and torchvision",
    ),
    (RAY, "make wheel photos && python3 -m venv target/ray-example", "needs Ray"),
    (VARIANTS, "pip install -r requirements.txt", "needs the packages"),
];

/// Creates a folder with what the repository contains after `make`.
fn built() -> Folder {
    let folder = Folder::new();
    let link = |from: &Path, name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(from, path).unwrap();
    };
    link(&penstock(), "target/release/penstock");
    link(&make_data(), "target/release/make-data");
    let guests = module("image").parent().unwrap().to_owned();
    link(&guests, "target/wasm32-unknown-unknown/guest");
    link(photos(), "demo/photos");
    for name in ["examples", "tests"] {
        link(&repository().join(name), name);
    }
    folder
}

/// Creates the folder `demo/try` with the files that the README puts there.
fn tried(built: &Folder) {
    let folder = built.join("demo/try");
    fs::create_dir_all(&folder).unwrap();
    symlink("../photos", folder.join("photos")).unwrap();
    let documents = blocks(README).into_iter().filter(|block| block.file().is_some());
    for block in documents {
        fs::write(folder.join(block.file().unwrap()), &block.text).unwrap();
    }
}

/// Returns a free port below the range from which the system assigns ports to connections.
fn free_port() -> u16 {
    let from = 20_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    (from..32_000).find(is_free).expect("a port below 32,000 is free")
}

/// Runs a script, for five minutes at most, and checks that it succeeds. Returns its output.
fn bash(script: &str, folder: &Path, built: &Folder, port: u16, variables: &[(&str, String)]) -> String {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "300", "bash", "-euo", "pipefail", "-c", script]).current_dir(folder);
    as_author(&mut command);
    let own = Call::new(&[]).command();
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let path = format!("{}:{}", built.join("target/release").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path);
    command.env("XDG_STATE_HOME", built.join("state")).env("XDG_DATA_HOME", built.join("data"));
    command.env("PENSTOCK_LISTEN", format!("127.0.0.1:{port}"));
    command.env("PENSTOCK_SERVER", format!("http://127.0.0.1:{port}"));
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let [said, wrong] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}\n{said}\n{wrong}", output.status);
    said + &wrong
}

/// Defines `_block`, which prints the position of the next block to standard error, and `_serve`, which stops the previous
/// server, starts one in the background, and waits until it prints its first line: then the server is listening.
const PRELUDE: &str = r#"
_block() { echo "==> $1" >&2; }
_server=
_leave() { [ -z "$_server" ] || { kill -INT -- "-$_server"; wait "$_server" || true; _server=; }; }
trap _leave EXIT
_serve() {
  _leave
  rm -f server.out
  set -m; bash -euo pipefail -c "$1" > server.out 2> server.err & _server=$!; set +m
  until [ -s server.out ]; do
    kill -0 "$_server" || { cat server.err >&2; exit 1; }
    sleep 0.1
  done
}
"#;

/// Joins the blocks of a manual to one script.
fn script(manual: &str) -> String {
    let mut script = PRELUDE.to_owned();
    for block in blocks(manual).iter().filter(|block| block.reason().is_none()) {
        let text = &block.text;
        let body = match (block.is_shell(), block.note.as_str()) {
            (true, "") => text.clone(),
            (true, "in-another-terminal") => format!("_serve \"$(cat <<'END'\n{text}END\n)\"\n"),
            (true, note) => panic!("{manual}:{}: the note `{note}` is unknown", block.line),
            (false, "") => continue,
            (false, file) => format!("cat > '{file}' <<'END'\n{text}END\n"),
        };
        write!(script, "_block '{manual}:{}'\n{body}", block.line).unwrap();
    }
    script
}

/// Runs the blocks of a manual in `folder` of a built repository; returns their output.
fn run_in(built: &Folder, folder: &str, manual: &str, variables: &[(&str, String)]) -> String {
    let port = free_port();
    let script = script(manual).replace("7700", &port.to_string());
    bash(&script, &built.join(folder), built, port, variables)
}

/// Starts a server with a bucket `bucket` that has the photos below `train/`; returns it with the environment variables of its
/// clients.
fn bucket() -> (Server, Vec<(&'static str, String)>) {
    let server = Server::start(Settings { bucket: "bucket".to_owned(), ..Settings::default() }).unwrap();
    for group in fs::read_dir(photos()).unwrap() {
        let group = group.unwrap();
        for photo in fs::read_dir(group.path()).unwrap() {
            let photo = photo.unwrap();
            let key = format!("train/{}/{}", group.file_name().display(), photo.file_name().display());
            server.put(&key, fs::read(photo.path()).unwrap());
        }
    }
    let settings = Settings::default();
    let variables = vec![
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_ACCESS_KEY_ID", settings.access_key_id),
        ("AWS_SECRET_ACCESS_KEY", settings.secret_access_key),
        ("AWS_REGION", "us-east-1".to_owned()),
    ];
    (server, variables)
}

/// Words of a line of output, without figures, units and dashes, which differ from run to run.
fn words(line: &str) -> Vec<&str> {
    let is_figure = |word: &&str| {
        let least = word.trim_matches(|letter: char| "%.,:".contains(letter));
        least.is_empty()
            || ["-", "us", "ms", "s"].contains(&least)
            || least.starts_with(|letter: char| letter.is_ascii_digit()) && !least.contains(':')
    };
    line.split_whitespace().filter(|word| !is_figure(word)).collect()
}

/// Checks that each line of output that a manual quotes occurs in `output`, apart from figures.
fn quotes(manual: &str, output: &str) {
    let lines: BTreeSet<Vec<&str>> = output.lines().map(words).collect();
    for block in blocks(manual).iter().filter(|block| block.language == "text") {
        for line in block.text.lines() {
            assert!(lines.contains(&words(line)), "{manual}:{}: no output has the line `{line}`", block.line);
        }
    }
}

#[test]
fn the_readme_leads_to_a_running_pipeline_and_quotes_the_demo() {
    let built = built();
    let said = run_in(&built, "", README, &[]);
    assert!(said.contains("photos completed after"), "{said}");
    let demo = Call::run(&repository().join("examples/pipelines/photos.json")).store("photos", photos());
    // With slow steps, the consumer is the limit on a busy machine, too.
    let demo = demo.set("/consumer/simulate/step_ms=200");
    let demo = demo.finish().exits(0);
    quotes(README, &demo.stdout);
    assert!(text(README).lines().count() <= 150, "the README has at most 150 lines");
}

#[test]
fn the_manual_of_the_runner_runs() {
    let (built, (server, variables)) = (built(), bucket());
    tried(&built);
    let said = run_in(&built, "demo/try", RUNNER, &variables);
    assert!(said.contains("1 still fail") && said.contains("batch-00000003.safetensors"), "{said}");
    assert!(server.keys().contains(&"train/keys.json".to_owned()), "{:?}", server.keys());
    quotes(RUNNER, &said);
}

#[test]
fn the_manual_of_the_server_runs() {
    let built = built();
    tried(&built);
    let said = run_in(&built, "demo/try", WEB, &[]);
    for expected in [
        "#sign-in=",
        "photos completed after",
        "is stopped",
        "event: sample",
        "\"balanced\":true",
        "/source/range/count",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    quotes(WEB, &said);
}

#[test]
fn the_manual_of_the_benchmark_runs() {
    let (built, (_server, variables)) = (built(), bucket());
    tried(&built);
    let said = run_in(&built, "demo/try", BENCH, &variables);
    assert!(said.contains("The fastest load is"), "{said}");
    quotes(BENCH, &said);
}

#[test]
fn the_manual_of_stages_leads_from_an_empty_folder_to_a_pipeline() {
    let (built, folder) = (built(), Folder::new());
    let script = script(GUEST);
    let said = bash(&script, folder.path(), &built, free_port(), &[("CARGO_NET_OFFLINE", "true".to_owned())]);
    assert!(said.contains("letters_become_capitals ... ok"), "{said}");
    quotes(GUEST, &said);
}

#[test]
fn shell_blocks_that_are_not_run_are_listed_with_their_reason() {
    let mut found = Vec::new();
    let all = WITH_SHELL.map(|document| (document, blocks(document)));
    for (document, blocks) in &all {
        for block in blocks.iter().filter(|block| block.is_shell()) {
            if let Some(reason) = block.reason() {
                found.push((*document, block.first_line(), reason));
            }
        }
    }
    assert_eq!(found, NOT_RUN);
    let mut with_shell = BTreeSet::new();
    documents_with_shell(&repository(), "", &mut with_shell);
    assert_eq!(with_shell, WITH_SHELL.map(str::to_owned).into());
}

/// Collects the documents below a folder that have shell blocks.
fn documents_with_shell(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        let name = name.to_string_lossy();
        let is_foreign =
            ["node_modules", "target", "demo", "dist"].contains(&&*name) || name.starts_with('.');
        if path.is_dir() && !is_foreign {
            documents_with_shell(&path, &format!("{prefix}{name}/"), found);
        } else if name.ends_with(".md") && fs::read_to_string(&path).unwrap().contains("\n```sh") {
            found.insert(format!("{prefix}{name}"));
        }
    }
}
