//! `push` and `pull` with Debian's registry, and with registries that lie.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use penstock_tests::{Call, Folder, module, target};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The user `penstock` with the password `open sesame`.
const USERS: &str = "penstock:$2b$04$StveSZ0bNA2ToPebOIizDOqVClIqRJ08URyg0O1WcZxDGk/emWf/y\n";
const PAIR: &str = "cGVuc3RvY2s6b3BlbiBzZXNhbWU=";

/// Debian's registry on a free port; killed on drop.
struct Registry {
    child: Child,
    host: String,
    folder: Folder,
    /// Kept open: the program ends when it cannot write its log.
    _log: BufReader<ChildStderr>,
}

impl Registry {
    /// Panics if `make docker-registry` has not been run.
    fn start(auth: &str) -> Self {
        let program = target().join("docker-registry/usr/bin/docker-registry");
        assert!(program.exists(), "`{}` is missing: run `make docker-registry` first", program.display());
        let folder = Folder::new();
        folder.write("users", USERS);
        let root = folder.path().display();
        let config = folder.write(
            "config.yml",
            format!(
                "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\n\
                 storage: {{filesystem: {{rootdirectory: {root}}}}}\nhttp: {{addr: '127.0.0.1:0'}}\n{auth}"
            )
            .replace("USERS", &format!("{root}/users")),
        );
        let mut child = Command::new(program)
            .arg("serve")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let line = log.by_ref().lines().map_while(Result::ok).find(|line| line.contains("listening on "));
        let line = line.expect("the registry logs its address");
        let host = line.split("listening on ").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        Self { child, host: host.to_owned(), folder, _log: log }
    }

    /// The only file of a blob in the registry's storage.
    fn blob(&self, digest: &str) -> PathBuf {
        let digits = digest.trim_start_matches("sha256:");
        self.folder.join(&format!("docker/registry/v2/blobs/sha256/{}/{digits}/data", &digits[..2]))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A call without credentials of the machine, and with the registry allowed.
fn call(arguments: &[&str], host: &str) -> Call {
    Call::new(arguments).variable("DOCKER_CONFIG", "/dev/null").argument("--registry").argument(host)
}

fn push(host: &str, name: &str) -> Call {
    call(&["push"], host).argument(module("mixup")).argument(format!("oci://{host}/{name}")).json()
}

fn pull(host: &str, reference: &str, file: &Path) -> Call {
    call(&["pull"], host).argument(reference).argument("--output").argument(file).json()
}

fn told(call: &Call) -> Value {
    serde_json::from_str(&call.finish().exits(0).stdout).unwrap()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

#[test]
fn a_module_makes_a_round_trip_by_tag_and_by_digest() {
    let registry = Registry::start("");
    let (host, folder) = (&registry.host, Folder::new());
    let bytes = fs::read(module("mixup")).unwrap();
    let pushed = told(&push(host, "team/mixup:v1"));
    assert_eq!(pushed["digest"], digest(&bytes));
    assert_eq!(pushed["size_bytes"], bytes.len());
    // The same file makes the same image.
    assert_eq!(told(&push(host, "team/mixup:v2"))["pinned"], pushed["pinned"]);

    let file = folder.write("by-tag.wasm", b"an older version");
    let pulled = told(&pull(host, &format!("oci://{host}/team/mixup:v1"), &file));
    assert_eq!((&pulled["digest"], &pulled["pinned"]), (&pushed["digest"], &pushed["pinned"]));
    assert_eq!(fs::read(&file).unwrap(), bytes);
    let mut by_digest = call(&["pull"], host).argument(pushed["pinned"].as_str().unwrap()).command();
    let by_digest = by_digest.current_dir(folder.path()).output().unwrap();
    assert!(by_digest.status.success(), "{}", String::from_utf8_lossy(&by_digest.stderr));
    let shown = String::from_utf8(by_digest.stdout).unwrap();
    assert!(shown.starts_with("mixup.wasm sha256:") && shown.lines().count() == 2, "{shown}");
    assert_eq!(fs::read(folder.join("mixup.wasm")).unwrap(), bytes);
    let mut left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["by-tag.wasm", "mixup.wasm"]);

    let read = |path: &str| -> Value {
        let request = ureq::get(format!("http://{host}/v2/team/mixup/{path}")).header("accept", MANIFEST);
        request.call().unwrap().body_mut().read_json().unwrap()
    };
    let manifest = read("manifests/v1");
    assert_eq!(manifest["layers"][0]["mediaType"], "application/wasm");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    let mut config = read(&format!("blobs/{}", manifest["config"]["digest"].as_str().unwrap()));
    let created = config["created"].take();
    assert!(created.as_str().is_some_and(|time| time.len() == 20 && time.ends_with('Z')), "{created}");
    let layers = json!([pushed["digest"]]);
    let expected = json!({ "created": null, "architecture": "wasm", "os": "wasip1", "layerDigests": layers });
    assert_eq!(config, expected);
}

#[test]
fn what_a_registry_has_changed_is_refused_and_no_file_is_touched() {
    let registry = Registry::start("");
    let (host, folder) = (&registry.host, Folder::new());
    let pushed = told(&push(host, "decode:v1"));
    let file = folder.write("kept.wasm", b"kept");
    let refused = |reference: &str, code: i32| {
        let stderr = pull(host, reference, &file).finish().exits(code).stderr;
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        stderr
    };
    let unknown = refused(&format!("oci://{host}/decode:v2"), 2);
    assert!(unknown.contains("with status 404: MANIFEST_UNKNOWN"), "{unknown}");
    let other = format!("oci://{host}/decode@{}", digest(b""));
    assert!(refused(&other, 2).contains("MANIFEST_UNKNOWN"));

    let (pinned, layer) = (pushed["pinned"].as_str().unwrap(), pushed["digest"].as_str().unwrap());
    let blob = registry.blob(layer);
    let mut bytes = fs::read(&blob).unwrap();
    bytes[1000] ^= 1;
    fs::write(&blob, &bytes).unwrap();
    let changed = refused(&format!("oci://{host}/decode:v1"), 1);
    assert!(changed.contains(&format!("other bytes than `{layer}`: their digest is")), "{changed}");
    bytes.truncate(1000);
    fs::write(&blob, &bytes).unwrap();
    let cut = refused(pinned, 1);
    assert!(cut.contains("sent 1000 of the"), "{cut}");

    // The registry reads no digest of a manifest again, but the client does.
    let blob = registry.blob(pinned.rsplit('@').next().unwrap());
    let manifest = fs::read_to_string(&blob).unwrap();
    fs::write(&blob, manifest.replace(layer, &digest(b"evil"))).unwrap();
    let changed = refused(pinned, 1);
    assert!(changed.contains("another manifest than"), "{changed}");
}

#[test]
fn a_registry_with_users_takes_the_credentials_of_the_environment_or_of_docker() {
    let registry = Registry::start("auth: {htpasswd: {realm: penstock, path: USERS}}\n");
    let (host, folder) = (&registry.host, Folder::new());
    let refused = push(host, "decode").finish().exits(2).stderr;
    assert!(refused.contains(&format!("requires credentials; run `docker login {host}`")), "{refused}");
    let user = |password: &str| {
        let call = push(host, "decode").variable("PENSTOCK_REGISTRY_USER", "penstock");
        call.variable("PENSTOCK_REGISTRY_PASSWORD", password)
    };
    let refused = user("open barley").finish().exits(2).stderr;
    assert!(refused.contains("status 401") && !refused.contains("barley"), "{refused}");
    told(&user("open sesame"));
    folder.write("config.json", json!({ "auths": { host: { "auth": PAIR } } }).to_string());
    let pulled = pull(host, &format!("oci://{host}/decode"), &folder.join("decode.wasm"));
    told(&pulled.variable("DOCKER_CONFIG", folder.path()));
}

#[test]
fn only_modules_are_pushed_and_only_to_tags_of_registries_on_the_list() {
    let liar = Liar::start(|_, _| panic!("no request may arrive"));
    let folder = Folder::new();
    let text = folder.write("text.wasm", b"not a module");
    let refused = |call: Call| call.finish().exits(2).stderr;
    let host = liar.host.as_str();
    let junk = refused(call(&["push"], host).argument(&text).argument(format!("oci://{host}/a")));
    assert!(junk.contains("text.wasm`: "), "{junk}");
    let pinned = refused(push(host, &format!("a@{}", digest(b""))));
    assert!(pinned.contains("a module is pushed to a tag"), "{pinned}");
    let other = refused(call(&["pull", &format!("oci://{host}/a")], "registry.example.org"));
    let wanted = format!("`{host}` is not a registry that this command may send requests to; allow it with");
    assert!(other.contains(&wanted), "{other}");
    let listed = folder.write("penstock.json", json!({ "registries": ["ghcr.io"] }).to_string());
    let config = Call::new(&["pull", &format!("oci://{host}/a"), "--config"]).argument(listed);
    assert!(refused(config).contains(&wanted));
    assert_eq!(liar.requests(), [""; 0]);
}

/// Server that answers each request by a function; one connection for each request, one at a time. Its thread ends with the process.
struct Liar {
    host: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Liar {
    fn start(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let serve = move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                let head = head.join("\n");
                seen.lock().unwrap().push(head.clone());
                // The client hangs up as soon as it has seen enough.
                answer(&head, &mut stream).unwrap_or_default();
            }
        };
        Builder::new().name("liar".to_owned()).spawn(serve).unwrap();
        Self { host, requests }
    }

    /// Heads of the requests so far.
    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn refused(&self, reference: &str, code: i32) -> String {
        let folder = Folder::new();
        let file = folder.join("pulled.wasm");
        let stderr =
            pull(&self.host, &format!("oci://{}/{reference}", self.host), &file).finish().exits(code).stderr;
        assert!(!file.exists());
        stderr
    }
}

fn respond(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n")?;
    stream.write_all(body)
}

/// Manifest of an image with one layer.
fn manifest(layer: &[u8], size: u64) -> Vec<u8> {
    let blob = |kind: &str, size: u64| json!({ "mediaType": kind, "digest": digest(layer), "size": size });
    let config = blob("application/vnd.wasm.config.v0+json", 2);
    let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [blob("application/wasm", size)] });
    manifest.to_string().into_bytes()
}

/// Sends bytes until the client hangs up, and reports their number.
fn endless(stream: &mut TcpStream, headers: &str, sent: &Mutex<u64>) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}\r\n")?;
    let part = [b'a'; 1 << 16];
    for _ in 0..1 << 14 {
        stream.write_all(&part)?;
        *sent.lock().unwrap() += part.len() as u64;
    }
    Ok(())
}

#[test]
fn endless_responses_are_cut_off() {
    let sent = Arc::new(Mutex::new(0));
    let count = sent.clone();
    let liar = Liar::start(move |head, stream| match head {
        head if head.contains("/manifests/endless") => endless(stream, "", &count),
        head if head.contains("/manifests/huge") => respond(stream, "200 OK", "", &manifest(b"", 1 << 40)),
        head if head.contains("/manifests/") => respond(stream, "200 OK", "", &manifest(b"", 1000)),
        head if head.contains("/long/") => endless(stream, "content-length: 1073741824\r\n", &count),
        _ => endless(stream, "", &count),
    });
    let huge = liar.refused("a:huge", 2);
    assert!(huge.contains("at most 33554432 are allowed (`limits.modules.module_bytes`)"), "{huge}");
    assert_eq!(liar.requests().len(), 1, "no blob was requested");
    for name in ["a", "long/a"] {
        let long = liar.refused(name, 1);
        assert!(long.contains("more than the 1000 bytes of the module"), "{long}");
    }
    let endless = liar.refused("a:endless", 1);
    assert!(endless.contains("the manifest of") && endless.contains("cannot be read"), "{endless}");
    // Three responses: what the client read, and what fits into the buffers of the connections.
    let sent = *sent.lock().unwrap();
    assert!(sent < 64 << 20, "{sent} bytes were sent");
}

#[test]
fn redirects_lead_to_listed_hosts_only_and_take_no_credentials_there() {
    let bytes = fs::read(module("text-filter")).unwrap();
    let (layer, size) = (bytes.clone(), bytes.len() as u64);
    let storage = Liar::start(move |_, stream| respond(stream, "200 OK", "", &layer));
    let (elsewhere, layer) = (storage.host.clone(), bytes.clone());
    let registry = Liar::start(move |head, stream| {
        if !head.contains("authorization: Bearer t0k") {
            return respond(
                stream,
                "401 Unauthorized",
                "www-authenticate: Bearer realm=\"https://x/\"\r\n",
                b"",
            );
        }
        let location = match head {
            head if head.contains("/manifests/") => {
                return respond(stream, "200 OK", "", &manifest(&layer, size));
            }
            head if head.contains("/loop/") => "/v2/loop/again".to_owned(),
            head if head.contains("/plain/") => "http://registry.example.org/blob".to_owned(),
            _ => format!("http://{elsewhere}/blob?signature=secret"),
        };
        respond(stream, "307 Temporary Redirect", &format!("location: {location}\r\n"), b"")
    });
    let folder = Folder::new();
    let file = folder.join("pulled.wasm");
    let pulled = |name: &str, hosts: &[&str]| {
        let call = pull(&registry.host, &format!("oci://{}/{name}", registry.host), &file);
        let call = call.variable("PENSTOCK_REGISTRY_TOKEN", "t0k");
        hosts.iter().fold(call, |call, host| call.argument("--registry").argument(*host)).finish()
    };
    let refused = pulled("a", &[]).exits(2).stderr;
    let wanted = format!("`{}` refers to `{1}`: `{1}` is not a registry", registry.host, storage.host);
    assert!(refused.contains(&wanted) && !refused.contains("secret"), "{refused}");
    assert_eq!(storage.requests(), [""; 0]);
    let plain = pulled("plain/a", &["registry.example.org"]).exits(2).stderr;
    assert!(plain.contains("only this machine is reached over `http://`"), "{plain}");
    let looped = pulled("loop/a", &[]).exits(1).stderr;
    assert!(looped.contains("redirects the request for the module too often"), "{looped}");
    assert!(!file.exists());

    pulled("a", &[&storage.host]).exits(0);
    assert_eq!(fs::read(&file).unwrap(), bytes);
    let [request] = &storage.requests()[..] else { panic!("one request") };
    assert!(!request.to_lowercase().contains("authorization"), "{request}");
}

#[test]
fn tokens_come_from_the_service_that_the_registry_names() {
    let bytes = fs::read(module("text-filter")).unwrap();
    let tokens = Liar::start(|head, stream| {
        let known = head.contains(&format!("authorization: Basic {PAIR}"));
        let scope = "GET /token?service=a%20registry&scope=repository%3Aa%3Apull ";
        let token = if known && head.starts_with(scope) { "t0k" } else { "none" };
        respond(stream, "200 OK", "", json!({ "token": token, "access_token": token }).to_string().as_bytes())
    });
    let realm = format!("http://{}/token", tokens.host);
    let layer = bytes.clone();
    let registry = Liar::start(move |head, stream| match head {
        head if !head.contains("authorization: Bearer t0k") => {
            let challenge =
                format!("Bearer realm=\"{realm}\",service=\"a registry\",scope=\"repository:a:pull\"");
            respond(stream, "401 Unauthorized", &format!("www-authenticate: {challenge}\r\n"), b"")
        }
        head if head.contains("/manifests/") => {
            respond(stream, "200 OK", "", &manifest(&layer, layer.len() as u64))
        }
        _ => respond(stream, "200 OK", "", &layer),
    });
    let folder = Folder::new();
    folder.write("config.json", json!({ "auths": { &registry.host: { "auth": PAIR } } }).to_string());
    let reference = format!("oci://{}/a", registry.host);
    let call =
        || pull(&registry.host, &reference, &folder.join("a.wasm")).variable("DOCKER_CONFIG", folder.path());
    let refused = call().finish().exits(2).stderr;
    assert!(refused.contains(&format!("`{}` is not a registry", tokens.host)), "{refused}");
    assert_eq!(tokens.requests(), [""; 0]);
    let listed = call().argument("--registry").argument(&tokens.host);
    told(&listed);
    assert_eq!(fs::read(folder.join("a.wasm")).unwrap(), bytes);
    // One request of the refused call; then the challenge, the manifest and the module.
    assert_eq!((tokens.requests().len(), registry.requests().len()), (1, 1 + 3));
    let stranger = listed.variable("DOCKER_CONFIG", "/dev/null").finish().exits(2).stderr;
    assert!(stranger.contains("status 401"), "{stranger}");
}
