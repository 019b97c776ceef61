//! Calls of the binary, as users make them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use penstock_types::run::RunSnapshot;

use crate::contradictions::Figures;
use crate::files::kept;
use crate::programs::{module, penstock};

/// A call of `penstock`, configured step by step.
#[derive(Debug)]
pub struct Call {
    arguments: Vec<OsString>,
    out: Option<PathBuf>,
    variables: Vec<(String, OsString)>,
}

/// Result of a finished call.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    out: Option<PathBuf>,
}

impl Call {
    /// Creates a call of `penstock` with these arguments.
    pub fn new(arguments: &[&str]) -> Self {
        Self { arguments: arguments.iter().map(OsString::from).collect(), out: None, variables: Vec::new() }
    }

    /// Creates a call of `penstock run FILE`.
    pub fn run(document: &Path) -> Self {
        Self::new(&["run"]).argument(document)
    }

    /// Creates a call of `penstock check FILE`.
    pub fn check(document: &Path) -> Self {
        Self::new(&["check"]).argument(document)
    }

    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    #[must_use]
    pub fn store(self, name: &str, folder: &Path) -> Self {
        self.argument("--store").argument(pair(name, folder))
    }

    /// Adds `--module NAME=PATH` for a module that `make guests` built from the crate `guest`.
    #[must_use]
    pub fn module(self, name: &str, guest: &str) -> Self {
        let path = module(guest);
        self.module_at(name, &path)
    }

    #[must_use]
    pub fn module_at(self, name: &str, path: &Path) -> Self {
        self.argument("--module").argument(pair(name, path))
    }

    #[must_use]
    pub fn set(self, setting: &str) -> Self {
        self.argument("--set").argument(setting)
    }

    #[must_use]
    pub fn threads(self, threads: u32) -> Self {
        self.argument(format!("--threads={threads}"))
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    #[must_use]
    pub fn out(mut self, folder: &Path) -> Self {
        self.out = Some(folder.to_owned());
        self.argument("--out").argument(folder)
    }

    /// Adds the flag `--json`.
    #[must_use]
    pub fn json(self) -> Self {
        self.argument("--json")
    }

    /// Creates the command, not yet started. Removes settings of the machine and the user from its environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(penstock());
        command.args(&self.arguments).stdin(Stdio::null());
        clean(&mut command);
        command.env("PENSTOCK_CACHE_DIR", kept("cache"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn start(&self) -> Child {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary can be started")
    }

    /// Runs the process to its end.
    pub fn finish(&self) -> Finished {
        self.finished(self.start())
    }

    /// Waits for a process started by [`Self::start`].
    pub fn finished(&self, child: Child) -> Finished {
        let Output { status, stdout, stderr } =
            child.wait_with_output().expect("the process can be waited for");
        let text = |bytes| String::from_utf8(bytes).expect("the binary writes UTF-8");
        Finished { code: status.code(), stdout: text(stdout), stderr: text(stderr), out: self.out.clone() }
    }
}

impl Finished {
    /// Checks the exit code.
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "\n{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Last snapshot, from `snapshot.json` or else from standard output, after a check that its ledger balances.
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

    /// Last snapshot, after a check that its figures do not contradict its verdict.
    pub fn checked_snapshot(&self) -> RunSnapshot {
        let snapshot = self.snapshot();
        let found = contradictions(&snapshot);
        assert!(found.is_empty(), "{found:#?}\n{snapshot:#?}");
        snapshot
    }

    /// Part of the report between the line that begins with `title` and the next empty line.
    pub fn section(&self, title: &str) -> String {
        let after = self.stdout.lines().skip_while(|line| !line.starts_with(title)).skip(1);
        after.take_while(|line| !line.is_empty()).map(str::trim_start).collect::<Vec<_>>().join("\n")
    }
}

/// Statements of the verdict of a finished run that its figures contradict.
pub fn contradictions(snapshot: &RunSnapshot) -> Vec<String> {
    let Some(verdict) = &snapshot.verdict else { return Vec::new() };
    let measured = (verdict.to_s - verdict.from_s) / snapshot.elapsed_s.max(f64::MIN_POSITIVE);
    let figures = Figures {
        stages: &snapshot.stages,
        queues: &snapshot.queues,
        cores: snapshot.machine.map(|machine| machine.cores.into()),
        // The parts of a pipeline begin and end some time apart.
        apart: (1.0 - measured).max(0.02),
    };
    figures.contradictions(verdict)
}

/// Removes settings of the machine and the user from a command's environment.
pub(crate) fn clean(command: &mut Command) {
    let ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"PENSTOCK_");
    env::vars_os().map(|(name, _)| name).filter(ours).for_each(|name| {
        command.env_remove(name);
    });
    // Hides other servers of this user from the call.
    command.env("XDG_STATE_HOME", "/dev/null");
}

fn pair(name: &str, path: &Path) -> OsString {
    let mut pair = OsString::from(format!("{name}="));
    pair.push(path);
    pair
}
