//! `penstock serve` under test.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ureq::Agent;
use ureq::http::{Method, Request};

use crate::call::clean;
use crate::files::Folder;
use crate::programs::penstock;

/// Maximum time that a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Settings of a server to start. Its data is in a new folder, or in an existing one.
pub struct Serving {
    command: Command,
    data: PathBuf,
    own: Option<Folder>,
    listen: &'static str,
    makes_token: bool,
}

/// A running server. Killed on drop.
pub struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
    agent: Agent,
    token: Option<String>,
    link: String,
    data: PathBuf,
    _own: Option<Folder>,
}

/// Response of a server.
pub struct Answer {
    /// Status of the response.
    pub status: u16,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body of the response.
    pub bytes: Vec<u8>,
}

impl Default for Serving {
    fn default() -> Self {
        let own = Folder::new();
        Self { own: Some(own), ..Self::over(Path::new("")) }.placed()
    }
}

impl Serving {
    /// Creates settings for a server over an existing or new data directory.
    pub fn over(data: &Path) -> Self {
        let mut command = Command::new(penstock());
        command.arg("serve");
        clean(&mut command);
        Self { command, data: data.to_owned(), own: None, listen: "127.0.0.1:0", makes_token: false }
    }

    fn placed(mut self) -> Self {
        if let Some(own) = &self.own {
            self.data = own.join("data");
        }
        self
    }

    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Maps a store name to a folder.
    #[must_use]
    pub fn store(self, name: &str, folder: &Path) -> Self {
        self.argument("--store").argument(format!("{name}={}", folder.display()))
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Appends the server's log, from this level on, to a file.
    #[must_use]
    pub fn logging_to(mut self, file: &Path, level: &str) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(file).expect("a log can be written");
        self.command.stderr(log);
        self.variable("PENSTOCK_LOG", level)
    }

    /// Makes the server listen at this address instead of a loopback address.
    #[must_use]
    pub fn listening(self, listen: &'static str) -> Self {
        Self { listen, ..self }
    }

    /// Lets the server create its own token, as it does by default.
    #[must_use]
    pub fn with_own_token(self) -> Self {
        Self { makes_token: true, ..self }
    }

    /// Starts the server, and waits until it listens. It requires a token only if the test sets one, or lets the server create
    /// one.
    pub fn start(mut self) -> Served {
        self.command.args(["--listen", self.listen]).arg("--data-dir").arg(&self.data);
        // Folder in which the server announces itself to programs of its user.
        self.command.env("XDG_STATE_HOME", self.data.join("state"));
        let is_given =
            self.command.get_envs().any(|(name, value)| name == "PENSTOCK_TOKEN" && value.is_some())
                || self.command.get_args().any(|argument| argument == "--token-file");
        if !is_given && !self.makes_token {
            self.command.arg("--no-token");
        }
        let token =
            self.command.get_envs().find(|(name, _)| *name == "PENSTOCK_TOKEN").and_then(|(_, value)| value);
        let token = token.map(|token| token.to_string_lossy().into_owned());
        let mut child = self.command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its standard output is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it writes");
        let mut link = String::new();
        if self.makes_token {
            stdout.read_line(&mut link).expect("it writes");
        }
        let address = line.split_once("://").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let Some(address) = address else {
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap_or_default();
            panic!("the server printed `{line}{rest}` instead of its address");
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE));
        let agent = config.build().new_agent();
        let link = link.trim().trim_start_matches("sign in ").to_owned();
        Served { child, stdout, address, agent, token, link, data: self.data, _own: self.own }
    }
}

impl Served {
    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Data directory of the server.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Sign-in link, if the server has created its own token.
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Process id of the server.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request with the token, if there is one and `headers` do not replace it.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        content: Option<(&str, &[u8])>,
        headers: &[(&str, &str)],
    ) -> Answer {
        self.try_ask(method, path, content, headers).expect("the server answers")
    }

    /// Sends a request to a server that may be gone. `None` if the server is gone, or does not respond in time.
    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        content: Option<(&str, &[u8])>,
        headers: &[(&str, &str)],
    ) -> Option<Answer> {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).expect("a method"));
        request = request.uri(format!("http://{}{path}", self.address));
        let is_given = headers.iter().any(|(name, _)| *name == "authorization");
        if let Some(token) = self.token.as_ref().filter(|_| !is_given) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some((kind, _)) = content {
            request = request.header("content-type", kind);
        }
        let body = content.map_or(&b""[..], |(_, bytes)| bytes);
        let mut answer = self.agent.run(request.body(body).expect("a request")).ok()?;
        let headers = answer.headers().iter();
        let headers = headers
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        let headers = headers.collect();
        let status = answer.status().as_u16();
        Some(Answer { status, headers, bytes: answer.body_mut().read_to_vec().ok()? })
    }

    /// Exit status of the server, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the server is a child of this process")
    }

    /// Kills the server while clients still send requests.
    pub fn strike(&self) {
        let process = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id")).expect("not zero");
        kill_process(process, Signal::KILL).expect("the server is alive");
    }

    /// Sends a GET request to a path of the API.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", &format!("/api/v1{path}"), None, &[])
    }

    /// Sends a POST request with JSON to a path of the API.
    pub fn post(&self, path: &str, document: &Value) -> Answer {
        let bytes = document.to_string();
        self.ask("POST", &format!("/api/v1{path}"), Some(("application/json", bytes.as_bytes())), &[])
    }

    /// Uploads the bytes of a module.
    pub fn upload(&self, bytes: &[u8]) -> Answer {
        self.ask("POST", "/api/v1/modules", Some(("application/wasm", bytes)), &[])
    }

    /// Submits a valid document; returns the id of the run.
    pub fn submit(&self, document: &Value) -> String {
        let run = self.post("/runs", document).is(201).json();
        run["id"].as_str().expect("a run has an id").to_owned()
    }

    /// Waits until a run is over; returns its detail.
    pub fn over(&self, id: &str) -> Value {
        self.until(id, |run| {
            !["queued", "running", "draining"].contains(&run["state"].as_str().unwrap_or_default())
        })
    }

    /// Waits until a run meets a condition; returns its detail.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test observes a server from outside, with a separate clock"
    )]
    pub fn until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let run = self.get(&format!("/runs/{id}")).is(200).json();
            if wanted(&run) {
                return run;
            }
            assert!(start.elapsed() < PATIENCE, "the run did not reach the expected state: {run:#}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Shuts the server down with SIGINT, as Ctrl-C does; returns the duration of the shutdown, and the exit code.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test observes a server from outside, with a separate clock"
    )]
    pub fn end(mut self) -> (Duration, Option<i32>) {
        let start = Instant::now();
        let process = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id")).expect("not zero");
        kill_process(process, Signal::INT).expect("the server is alive");
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("it wrote text");
        let code = self.child.wait().expect("the server is a child of this process").code();
        (start.elapsed(), code)
    }

    /// Kills the server, to simulate a crash of the machine.
    pub fn kill(mut self) {
        self.child.kill().expect("the server is a child of this process");
        self.child.wait().expect("the server is a child of this process");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|code| code.is_none()) {
            self.child.kill().expect("the server is a child of this process");
            self.child.wait().expect("the server is a child of this process");
        }
    }
}

impl Answer {
    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// Parses the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Value of a header, empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }
}
