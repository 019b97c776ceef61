//! Calls of the binary, as a user makes them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use penstock_types::run::RunSnapshot;

use crate::files::kept;
use crate::programs::{module, penstock};

/// One call of `penstock`, put together step by step.
#[derive(Debug)]
pub struct Call {
    arguments: Vec<OsString>,
    out: Option<PathBuf>,
    variables: Vec<(String, OsString)>,
}

/// What a call left.
#[derive(Debug)]
pub struct Finished {
    /// The exit code; `None` when a signal ended the process.
    pub code: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
    out: Option<PathBuf>,
}

impl Call {
    /// `penstock` with these arguments.
    pub fn new(arguments: &[&str]) -> Self {
        Self { arguments: arguments.iter().map(OsString::from).collect(), out: None, variables: Vec::new() }
    }

    /// `penstock run FILE`.
    pub fn run(document: &Path) -> Self {
        Self::new(&["run"]).argument(document)
    }

    /// `penstock check FILE`.
    pub fn check(document: &Path) -> Self {
        Self::new(&["check"]).argument(document)
    }

    /// One more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// `--store NAME=DIR`.
    #[must_use]
    pub fn store(self, name: &str, folder: &Path) -> Self {
        self.argument("--store").argument(pair(name, folder))
    }

    /// `--module NAME=PATH` for a module that `make guests` built from the crate `guest`.
    #[must_use]
    pub fn module(self, name: &str, guest: &str) -> Self {
        let path = module(guest);
        self.module_at(name, &path)
    }

    /// `--module NAME=PATH`.
    #[must_use]
    pub fn module_at(self, name: &str, path: &Path) -> Self {
        self.argument("--module").argument(pair(name, path))
    }

    /// `--set /POINTER=VALUE`.
    #[must_use]
    pub fn set(self, setting: &str) -> Self {
        self.argument("--set").argument(setting)
    }

    /// `--threads N`.
    #[must_use]
    pub fn threads(self, threads: u32) -> Self {
        self.argument(format!("--threads={threads}"))
    }

    /// A variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// `--out DIR`.
    #[must_use]
    pub fn out(mut self, folder: &Path) -> Self {
        self.out = Some(folder.to_owned());
        self.argument("--out").argument(folder)
    }

    /// `--json`.
    #[must_use]
    pub fn json(self) -> Self {
        self.argument("--json")
    }

    /// The process, not yet started. Nothing of the machine's or the user's settings gets into it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(penstock());
        command.args(&self.arguments).stdin(Stdio::null());
        clean(&mut command);
        command.env("PENSTOCK_CACHE_DIR", kept("cache"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it and gives the process.
    pub fn start(&self) -> Child {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary can be started")
    }

    /// Runs it to its end.
    pub fn finish(&self) -> Finished {
        self.finished(self.start())
    }

    /// Waits for a process that [`Self::start`] gave.
    pub fn finished(&self, child: Child) -> Finished {
        let Output { status, stdout, stderr } =
            child.wait_with_output().expect("the process can be waited for");
        let text = |bytes| String::from_utf8(bytes).expect("the binary writes UTF-8");
        Finished { code: status.code(), stdout: text(stdout), stderr: text(stderr), out: self.out.clone() }
    }
}

impl Finished {
    /// This call after a check of its exit code.
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "\n{}\n{}", self.stdout, self.stderr);
        self
    }

    /// The last snapshot, from `snapshot.json` or else from standard output, after a check that its books balance.
    pub fn snapshot(&self) -> RunSnapshot {
        let text = match &self.out {
            Some(out) => fs::read_to_string(out.join("snapshot.json")).expect("the run was written down"),
            None => self.stdout.clone(),
        };
        let snapshot: RunSnapshot =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}\n{}", self.stderr));
        assert!(snapshot.ledger.balanced, "{:#?}", snapshot.ledger);
        snapshot
    }

    /// The part of the report between the line that begins with `title` and the next empty line.
    pub fn section(&self, title: &str) -> String {
        let after = self.stdout.lines().skip_while(|line| !line.starts_with(title)).skip(1);
        after.take_while(|line| !line.is_empty()).map(str::trim_start).collect::<Vec<_>>().join("\n")
    }
}

/// Takes all settings of the machine's and the user's out of a command's environment.
pub(crate) fn clean(command: &mut Command) {
    let ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"PENSTOCK_");
    env::vars_os().map(|(name, _)| name).filter(ours).for_each(|name| {
        command.env_remove(name);
    });
    // Servers of this user that run beside the tests are not found.
    command.env("XDG_STATE_HOME", "/dev/null");
}

fn pair(name: &str, path: &Path) -> OsString {
    let mut pair = OsString::from(format!("{name}="));
    pair.push(path);
    pair
}
