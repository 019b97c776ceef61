//! `rclone serve s3`: a second opinion on what S3 is.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A running server over a folder whose folders are the buckets. Dropping it kills it.
pub struct Rclone {
    child: Child,
    endpoint: String,
    log: Option<JoinHandle<()>>,
}

impl Rclone {
    /// Serves `root` on a free port to whoever has this key. Panics when `make rclone` has not been run.
    pub fn serve(root: &Path, access_key_id: &str, secret_access_key: &str) -> Self {
        let mut rclone = Command::new(program());
        rclone.args(["serve", "s3", "--config", "/dev/null", "--addr", "127.0.0.1:0"]).arg(root);
        // A list of pairs, as in CSV.
        rclone.env("RCLONE_AUTH_KEY", format!("\"{access_key_id},{secret_access_key}\""));
        let mut child = rclone.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("rclone starts");
        let mut lines = BufReader::new(child.stderr.take().expect("it was asked for")).lines();
        let endpoint = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let address = line.split_once("Starting s3 server on [")?.1;
            Some(address.trim_end_matches(']').trim_end_matches('/').to_owned())
        });
        let endpoint = endpoint.expect("rclone says where it listens");
        // Somebody has to read what it writes, or it would wait for room.
        let log = std::thread::Builder::new().name("rclone's log".to_owned());
        let log = log.spawn(move || lines.for_each(drop)).expect("the machine gives a thread");
        Self { child, endpoint, log: Some(log) }
    }

    /// Its address, e.g. `http://127.0.0.1:40123`.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}

impl Drop for Rclone {
    fn drop(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
        if let Some(log) = self.log.take() {
            log.join().expect("its reader does not panic");
        }
    }
}

/// Where `make rclone` puts it: beside the profile in which the test was built that is running, `TARGET/PROFILE/deps/storage-0123`.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a file");
    let target = test.ancestors().nth(3).expect("a test lies in its target folder");
    let program = target.join("rclone/bin/rclone");
    assert!(program.is_file(), "`{}` is not there: run `make rclone` first", program.display());
    program
}
