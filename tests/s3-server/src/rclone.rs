//! `rclone serve s3`: a second implementation of S3.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A running server over a folder whose subfolders are the buckets. Killed on drop.
pub struct Rclone {
    child: Child,
    endpoint: String,
    log: Option<JoinHandle<()>>,
}

impl Rclone {
    /// Serves `root` on a free port to clients with this key. Panics if `make rclone` has not been run.
    pub fn serve(root: &Path, access_key_id: &str, secret_access_key: &str) -> Self {
        let mut rclone = Command::new(program());
        rclone.args(["serve", "s3", "--config", "/dev/null", "--addr", "127.0.0.1:0"]).arg(root);
        // The variable is a list in CSV: the quotes make the id and the secret one entry.
        rclone.env("RCLONE_AUTH_KEY", format!("\"{access_key_id},{secret_access_key}\""));
        let mut child = rclone.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("rclone starts");
        let mut lines = BufReader::new(child.stderr.take().expect("its standard error is piped")).lines();
        let endpoint = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let address = line.split_once("Starting s3 server on [")?.1;
            Some(address.trim_end_matches(']').trim_end_matches('/').to_owned())
        });
        let endpoint = endpoint.expect("rclone logs its address");
        // Drains its output; otherwise it would block on a full pipe.
        let log = std::thread::Builder::new().name("rclone's log".to_owned());
        let log = log.spawn(move || lines.for_each(drop)).expect("a thread starts");
        Self { child, endpoint, log: Some(log) }
    }

    /// Address of the server, e.g. `http://127.0.0.1:40123`.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}

impl Drop for Rclone {
    fn drop(&mut self) {
        self.child.kill().expect("rclone is a child of this process");
        self.child.wait().expect("rclone is a child of this process");
        if let Some(log) = self.log.take() {
            log.join().expect("its reader does not panic");
        }
    }
}

/// Path where `make rclone` installs the program, relative to the profile of the running test,
/// `TARGET/PROFILE/deps/storage-0123`.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let target = test.ancestors().nth(3).expect("a test lies in its target folder");
    let program = target.join("rclone/bin/rclone");
    assert!(program.is_file(), "`{}` is missing: run `make rclone` first", program.display());
    program
}
