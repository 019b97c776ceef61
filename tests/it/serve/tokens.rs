//! Authentication and authorisation of clients of a server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use penstock_tests::{Answer, Call, Folder, Served, Serving, module, photos, repository};
use serde_json::{Value, json};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Requests the list of runs with only these headers.
fn runs(served: &Served, headers: &[(&str, &str)]) -> Answer {
    served.ask("GET", "/api/v1/runs", None, headers)
}

/// A call of `penstock` by the user whose server keeps its data in `data`.
fn call(data: &Path, arguments: &[&str], address: impl std::fmt::Display) -> Call {
    let state = data.join("state");
    Call::new(arguments).argument(format!("--server=http://{address}")).variable("XDG_STATE_HOME", state)
}

fn token(data: &Path) -> String {
    fs::read_to_string(data.join("token")).unwrap().trim().to_owned()
}

/// Signs in with the code of a link; returns the response.
fn use_link(served: &Served, link: &str) -> Answer {
    let (page, code) =
        link.split_once("#sign-in=").unwrap_or_else(|| panic!("`{link}` is not a sign-in link"));
    assert_eq!(page, format!("http://{}/", served.address()));
    served.post("/session", &json!({ "code": code }))
}

fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

#[test]
fn a_server_without_a_given_token_creates_one_and_keeps_it() {
    let folder = Folder::new();
    let data = folder.join("data");
    let served = Serving::over(&data).with_own_token().start();
    assert_eq!(fs::metadata(data.join("token")).unwrap().permissions().mode() & 0o777, 0o600);
    let bearer = format!("Bearer {}", token(&data));
    runs(&served, &[]).is(401);
    runs(&served, &[("authorization", &bearer)]).is(200);
    assert_eq!(served.end().1, Some(0));
    let again = Serving::over(&data).with_own_token().start();
    runs(&again, &[("authorization", &bearer)]).is(200);
    drop(again);
    fs::set_permissions(data.join("token"), fs::Permissions::from_mode(0o644)).unwrap();
    let told = Call::new(&["serve", "--listen=127.0.0.1:0", "--data-dir"]).argument(&data).finish().exits(1);
    assert!(told.stderr.contains("other users may read"), "{}", told.stderr);
}

#[test]
fn a_link_signs_one_browser_in_and_contains_no_token() {
    let served = Serving::default().with_own_token().start();
    let link = served.link().to_owned();
    assert!(!link.contains(&token(served.data())), "{link}");
    let signed = use_link(&served, &link).is(204);
    runs(&served, &[("cookie", &cookie(&signed))]).is(200);
    use_link(&served, &link).is(401);
    // A session cannot create another one.
    served.ask("POST", "/api/v1/session/code", None, &[("cookie", &cookie(&signed))]).is(403);
    served.ask("POST", "/api/v1/session/code", None, &[]).is(401);
    let printed = call(served.data(), &["token", "link"], served.address()).finish().exits(0).stdout;
    use_link(&served, printed.trim()).is(204);
    served.post("/session", &json!({})).is(401);
}

#[test]
fn commands_find_the_token_of_their_users_server() {
    let served = Serving::default().with_own_token().start();
    let (data, address) = (served.data(), served.address());
    assert_eq!(call(data, &["runs"], address).finish().exits(0).stdout, "none yet\n");
    // A token in the environment takes precedence over the token of the user's server.
    let wrong = call(data, &["runs"], address).variable("PENSTOCK_TOKEN", "another-0123456789");
    assert!(wrong.finish().exits(2).stderr.contains("Unauthorized"));
    // A host name may resolve to another machine, so the command sends no token to it.
    call(data, &["runs"], format!("localhost:{}", address.port())).finish().exits(2);
    let stranger = Folder::new();
    call(stranger.path(), &["runs"], address).finish().exits(2);
}

#[test]
fn the_token_is_not_sent_to_another_program_at_the_address_of_a_killed_server() {
    let folder = Folder::new();
    let data = folder.join("data");
    let served = Serving::over(&data).with_own_token().start();
    let address = served.address();
    served.kill();
    let left: Vec<_> = fs::read_dir(data.join("state/penstock/servers")).unwrap().collect();
    assert_eq!(left.len(), 1, "a killed server leaves its announcement");
    let stranger = TcpListener::bind(address).unwrap();
    let asking = call(&data, &["runs"], address);
    let child = asking.start();
    let (stream, _) = stranger.accept().unwrap();
    let head: Vec<String> =
        BufReader::new(&stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    drop(stream);
    drop(stranger);
    asking.finished(child).exits(1);
    assert!(head.len() > 1 && !head.iter().any(|line| line.to_lowercase().contains("bearer")), "{head:?}");
}

#[test]
fn a_server_on_all_addresses_creates_a_token_and_is_found_on_its_machine() {
    let served = Serving::default().with_own_token().listening("0.0.0.0:0").start();
    let here = format!("127.0.0.1:{}", served.address().port());
    assert!(served.link().starts_with(&format!("http://{here}/#sign-in=")), "{}", served.link());
    call(served.data(), &["runs"], here).finish().exits(0);
}

#[test]
fn runs_write_only_to_stores_that_the_configuration_permits() {
    let folder = Folder::new();
    folder.write("in/a.json", "{}");
    for name in ["closed", "open", "flag"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let stores = json!({
        "in": { "folder": { "root": "in" } },
        "closed": { "folder": { "root": "closed" } },
        "open": { "folder": { "root": "open", "writable": true } },
    });
    let config = folder.write("penstock.json", json!({ "stores": stores }).to_string());
    let document = |store: &str| {
        json!({
            "source": { "list": { "store": "in" } },
            "stages": [{ "fetch": { "order": "input" } }, { "aggregate": { "size": 1 } }, { "collate": {} }],
            "consumer": { "files": { "store": store, "prefix": "run" } }
        })
    };
    let served =
        Serving::default().argument("--config").argument(&config).store("flag", &folder.join("flag")).start();
    for store in ["closed", "flag", "in"] {
        let refused = served.post("/runs", &document(store)).is(422).json();
        let faults = refused["errors"].as_array().unwrap();
        assert_eq!((faults.len(), &faults[0]["pointer"]), (1, &json!("/consumer/files/store")), "{refused}");
        let told = faults[0]["detail"].as_str().unwrap();
        assert!(told.contains(&format!("may not write to the store `{store}`")), "{told}");
        assert!(told.contains("`\"writable\": true`"), "{told}");
    }
    let missing = served.post("/runs", &document("opne")).is(422).json();
    assert_eq!(missing["errors"].as_array().unwrap().len(), 1, "{missing}");
    let run = served.over(&served.submit(&document("open")));
    assert_eq!(run["state"], "completed", "{run}");
    assert!(folder.join("open/run/batch-00000000.safetensors").is_file());
    // Commands of the operator write to any store.
    let run = Call::run(&folder.document(&document("closed"))).argument("--config").argument(&config);
    run.finish().exits(0);
}

/// Creates a named token of a server's data directory, and returns it as a header.
fn named(data: &Path, name: &str, more: &[&str]) -> String {
    let made = Call::new(&["token", "add", name, "--data-dir"]).argument(data);
    let made = more.iter().fold(made, |call, argument| call.argument(argument)).finish().exits(0).stdout;
    format!("Bearer {}", made.trim())
}

/// Repeats a request until the response has this status: a change of the tokens takes effect within a second.
fn until(served: &Served, bearer: &str, status: u16) {
    for _ in 0..600 {
        if runs(served, &[("authorization", bearer)]).status == status {
            return;
        }
        super::pause(50);
    }
    panic!("no answer with {status}");
}

/// Sends a request with an authorization header to the API, with a JSON body if there is one.
fn asked(served: &Served, bearer: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let text = body.map(Value::to_string);
    let content = text.as_ref().map(|text| ("application/json", text.as_bytes()));
    served.ask(method, &format!("/api/v1{path}"), content, &[("authorization", bearer)])
}

#[test]
fn a_token_takes_neither_sign_in_links_nor_sessions_nor_keys_of_another() {
    let served = Serving::default().with_own_token().start();
    let reader = named(served.data(), "reader", &["--role", "read"]);
    let runners = ["one", "other"].map(|name| named(served.data(), name, &["--role", "run"]));
    until(&served, &runners[1], 200);
    let link = served.link().to_owned();
    for _ in 0..20 {
        asked(&served, &reader, "POST", "/session/code", None).is(200);
    }
    let mine = cookie(&use_link(&served, &link).is(204));
    let secret = reader.trim_start_matches("Bearer ");
    for _ in 0..1_001 {
        served.post("/session", &json!({ "token": secret })).is(204);
    }
    runs(&served, &[("cookie", &mine)]).is(200);

    let document = super::sleepy(1, 0.0).to_string();
    let submit = |bearer: &str| {
        let content = Some(("application/json", document.as_bytes()));
        let headers = [("authorization", bearer), ("idempotency-key", "nightly")];
        served.ask("POST", "/api/v1/runs", content, &headers)
    };
    let made = runners.each_ref().map(|bearer| submit(bearer).is(201).json()["id"].clone());
    assert_ne!(made[0], made[1]);
    for (bearer, id) in runners.iter().zip(&made) {
        assert_eq!(submit(bearer).is(200).json()["id"], *id);
    }
}

#[test]
fn no_operation_is_open_to_an_insufficient_role() {
    let served = Serving::default().with_own_token().start();
    let roles = ["read", "run", "admin"];
    let bearers = roles.map(|role| named(served.data(), role, &["--role", role]));
    until(&served, &bearers[2], 200);
    let described = served.ask("GET", "/api/openapi.json", None, &[("authorization", &bearers[0])]).is(200);
    let described = described.json();
    let paths = described["paths"].as_object().unwrap().iter();
    let operations = paths
        .flat_map(|(path, all)| all.as_object().unwrap().iter().map(move |(method, it)| (path, method, it)));
    let mut refused = 0;
    for (path, method, operation) in operations {
        let id = operation["operationId"].as_str().unwrap();
        if path == "/api/v1/session" {
            assert_eq!(operation["security"], json!([{}]), "{id}");
            continue;
        }
        // Operations that read reveal no secrets; those that change objects of others require an administrator.
        let least = match (&**method, id) {
            (_, "list_audit") => 2,
            (_, "show_stream" | "set_tags" | "set_settings") => 1,
            (_, "predict_run" | "make_code") | ("get", _) => 0,
            ("post", _) => 1,
            _ => 2,
        };
        assert_eq!(operation["x-role"], roles[least], "{id}");
        let parts = path.split('/').map(|part| if part.starts_with('{') { "1" } else { part });
        let address = parts.collect::<Vec<_>>().join("/");
        let ask = |headers: &[(&str, &str)]| served.ask(&method.to_uppercase(), &address, None, headers);
        ask(&[]).is(401);
        for (rank, bearer) in bearers.iter().enumerate() {
            // The request would be permitted, and the response is a stream that does not end.
            if rank >= least && id == "events" {
                continue;
            }
            let answer = ask(&[("authorization", bearer)]);
            assert_eq!(answer.status == 403, rank < least, "{id} as {}: {}", roles[rank], answer.text());
            if rank < least {
                assert_eq!(answer.json()["type"], "/problems/role-too-low", "{id}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused} were refused");
}

#[test]
fn each_token_does_what_its_role_allows_until_it_is_removed() {
    let served = Serving::default().with_own_token().store("photos", photos()).start();
    let data = served.data();
    let [reader, runner, admin] = ["read", "run", "admin"].map(|role| named(data, role, &["--role", role]));
    let kept = fs::read_to_string(data.join("tokens.json")).unwrap();
    assert!(!kept.contains(reader.trim_start_matches("Bearer ")), "{kept}");
    until(&served, &admin, 200);
    let document = super::sleepy(1, 0.0);
    let refused = asked(&served, &reader, "POST", "/runs", Some(&document)).is(403);
    assert!(
        refused.text().contains("the role `read`, but this operation requires `run`"),
        "{}",
        refused.text()
    );
    let run = asked(&served, &runner, "POST", "/runs", Some(&document)).is(201).json();
    let path = format!("/runs/{}", run["id"].as_str().unwrap());
    asked(&served, &runner, "POST", &format!("{path}/stop"), None).is(200);
    // Quotas count by token, not by address.
    let long = super::sleepy(1_000_000, 10.0);
    let run = asked(&served, &runner, "POST", "/runs", Some(&long)).is(201).json();
    let system = asked(&served, &admin, "GET", "/system", None).json();
    assert_eq!(system["clients"][0]["client"], "token run", "{system:#}");
    asked(&served, &runner, "POST", &format!("/runs/{}/stop", run["id"].as_str().unwrap()), None).is(200);
    asked(&served, &reader, "GET", &path, None).is(200);
    asked(&served, &runner, "DELETE", &path, None).is(403);
    asked(&served, &admin, "DELETE", &path, None).is(204);
    // An upload that moves an alias changes the module that documents of others run.
    let upload = |path: &str| {
        let wasm = fs::read(module("mu-law")).unwrap();
        let content = Some(("application/wasm", &*wasm));
        served.ask("POST", &format!("/api/v1/modules{path}"), content, &[("authorization", &runner)])
    };
    upload("?alias=stable").is(403);
    upload("").is(201);

    let signed = served.post("/session", &json!({ "token": reader.trim_start_matches("Bearer ") })).is(204);
    let cookie = cookie(&signed);
    let session = served.ask("GET", "/api/v1/session", None, &[("cookie", &cookie)]).json();
    assert_eq!((&session["name"], &session["role"]), (&json!("read"), &json!("read")));
    Call::new(&["token", "remove", "read", "--data-dir"]).argument(data).finish().exits(0);
    until(&served, &reader, 401);
    // A session ends with its token.
    runs(&served, &[("cookie", &cookie)]).is(401);
    let listed = Call::new(&["token", "list", "--data-dir"]).argument(data).finish().exits(0).stdout;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names[names.len() - 2..], ["run", "admin"], "{listed}");
    Call::new(&["token", "remove", "read", "--data-dir"]).argument(data).finish().exits(2);
    Call::new(&["token", "add", "operator", "--data-dir"]).argument(data).finish().exits(1);
}

#[test]
fn an_expired_token_is_refused_with_a_reason() {
    let served = Serving::default().with_own_token().start();
    let ended = named(served.data(), "ended", &["--expires=0s"]);
    let other = named(served.data(), "other", &["--expires=1h"]);
    until(&served, &other, 200);
    let refused = runs(&served, &[("authorization", &ended)]).is(401);
    assert!(refused.text().contains("the token `ended` expired at 2"), "{}", refused.text());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test compares times of one run, as a client sees them")]
fn wrong_tokens_are_delayed_everywhere_and_correct_ones_are_not() {
    let folder = Folder::new();
    let log = folder.join("log");
    let served = Serving::default().with_own_token().logging_to(&log, "trace").start();
    let own = token(served.data());
    let wrong = "CanaryOfAWrongToken-0123456789";
    let (mut slow, mut quick) = (Duration::ZERO, Duration::ZERO);
    for path in ["/api/v1/runs", "/api/v1/session", "/metrics"] {
        for (offered, status, took) in [(wrong, 401, &mut slow), (&*own, 200, &mut quick)] {
            let start = Instant::now();
            served.ask("GET", path, None, &[("authorization", &format!("Bearer {offered}"))]).is(status);
            *took += start.elapsed();
        }
    }
    // The responses to the wrong token are delayed by 0.3, 0.6 and 1.2 s.
    assert!(slow >= Duration::from_millis(2_100) && quick < slow, "{slow:?} {quick:?}");
    served.post("/session", &json!({ "token": wrong })).is(401);
    served.post("/session", &json!({ "token": own })).is(204);
    served.end();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("received a wrong token") && log.contains("127.0.0.1"), "{log}");
    assert!(!log.contains(&own) && !log.contains(wrong), "a token is in the log");
}

#[test]
fn a_token_gives_access_to_its_stores_only() {
    let folder = Folder::new();
    folder.write("secret.ndjson", "{\"key\": \"a\", \"text\": \"b\"}\n");
    let served = Serving::default()
        .with_own_token()
        .store("photos", photos())
        .store("other", folder.path())
        .argument("--module")
        .argument(module("text-filter"))
        .start();
    let own = format!("Bearer {}", token(served.data()));
    let limited = named(served.data(), "ci", &["--role=run", "--store=photos"]);
    until(&served, &limited, 200);
    let stores = asked(&served, &limited, "GET", "/stores", None).is(200).json();
    assert_eq!(
        (stores["items"].as_array().unwrap().len(), &stores["items"][0]["name"]),
        (1, &json!("photos"))
    );
    asked(&served, &limited, "GET", "/stores/photos/keys", None).is(200);
    asked(&served, &limited, "GET", "/stores/other/keys", None).is(404);

    let secret = json!({ "records": { "store": "other", "key": "secret.ndjson" } });
    let wasm = |assets: Value| json!({ "wasm": { "module": "text-filter", "assets": assets } });
    let batched = json!([{ "aggregate": { "size": 1 } }, { "collate": {} }]);
    for (pointer, source, stages, consumer) in [
        ("/source/records/store", secret.clone(), json!([]), json!({ "discard": {} })),
        ("/source/list/store", json!({ "list": { "store": "other" } }), json!([]), json!({ "discard": {} })),
        (
            "/source/index/store",
            json!({ "index": { "store": "other", "index": "i" } }),
            json!([]),
            json!({ "discard": {} }),
        ),
        (
            "/stages/0/fetch/store",
            json!({ "list": { "store": "photos" } }),
            json!([{ "fetch": { "store": "other" } }]),
            json!({ "discard": {} }),
        ),
        (
            "/stages/0/wasm/assets/x/store",
            json!({ "range": { "count": 1 } }),
            json!([wasm(json!({ "x": { "store": "other", "key": "secret.ndjson" } }))]),
            json!({ "discard": {} }),
        ),
        (
            "/consumer/files/store",
            json!({ "range": { "count": 1 } }),
            batched.clone(),
            json!({ "files": { "store": "other" } }),
        ),
    ] {
        let document = json!({ "source": source, "stages": stages, "consumer": consumer });
        for path in ["/runs", "/runs?validate_only=true"] {
            let refused = asked(&served, &limited, "POST", path, Some(&document)).is(422).json();
            let faults = refused["errors"].as_array().unwrap();
            let found = faults.iter().find(|fault| fault["pointer"] == pointer);
            let found = found.unwrap_or_else(|| panic!("{pointer}: {refused:#}"))["detail"].as_str().unwrap();
            assert!(found.contains("there is no store `other`: known: `photos`"), "{found}");
        }
    }
    let keys = json!({ "from": { "store": "other", "keys": ["secret.ndjson"] } });
    asked(&served, &limited, "POST", "/modules/text-filter/versions/1/try", Some(&keys)).is(404);

    // Runs of others over the other store are not visible either.
    let submit = |bearer: &str, document: Value| {
        let run = asked(&served, bearer, "POST", "/runs", Some(&document)).is(201).json();
        format!("/runs/{}", run["id"].as_str().unwrap())
    };
    let over = |path: &str| {
        for _ in 0..600 {
            let run = asked(&served, &own, "GET", path, None).is(200).json();
            if run["state"] == "completed" || run["state"] == "failed" {
                return;
            }
            super::pause(50);
        }
        panic!("{path} is not over");
    };
    let mut plain = super::sleepy(1, 0.0);
    let range = submit(&limited, plain.clone());
    over(&range);
    let set = json!({ "set": { "/source": secret } });
    asked(&served, &own, "POST", &format!("{range}/predict"), Some(&set)).is(200);
    asked(&served, &limited, "POST", &format!("{range}/predict"), Some(&set)).is(422);
    asked(&served, &limited, "POST", &format!("{range}/predict"), Some(&json!({ "set": {} }))).is(200);

    plain["source"] = secret.clone();
    plain["stages"][0]["sleep"]["fail_rate"] = json!(1);
    plain["stages"][0]["sleep"]["on_error"] = json!("dead_letter");
    let failed = submit(&own, plain);
    over(&failed);
    asked(&served, &limited, "POST", &format!("{failed}/clone"), None).is(422);
    asked(&served, &limited, "POST", &format!("{failed}/resume"), None).is(422);
    asked(&served, &limited, "POST", &format!("{failed}/replay"), None).is(404);
    asked(&served, &own, "POST", &format!("{failed}/replay"), None).is(200);

    let stream = json!({ "source": secret, "stages": batched, "consumer": { "stream": {} } });
    let stream = submit(&own, stream);
    let address = format!("{stream}/stream");
    let given = (0..600).find(|_| {
        super::pause(50);
        asked(&served, &own, "GET", &address, None).status == 200
    });
    assert!(given.is_some(), "the operator may read the stream");
    asked(&served, &limited, "GET", &address, None).is(404);
    asked(&served, &own, "POST", &format!("{stream}/stop"), None).is(200);
}

#[test]
fn signing_out_ends_the_session_and_its_event_streams() {
    let served = Serving::default().with_own_token().start();
    let own = token(served.data());
    let signed = served.post("/session", &json!({ "token": own })).is(204);
    assert!(!signed.header("set-cookie").contains("Secure"));
    let cookie = cookie(&signed);
    runs(&served, &[("cookie", &cookie)]).is(200);
    let mut events = TcpStream::connect(served.address()).unwrap();
    events.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let host = served.address();
    write!(events, "GET /api/v1/events HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n\r\n").unwrap();
    let mut events = BufReader::new(events).lines().map_while(Result::ok);
    assert!(events.any(|line| line.starts_with("event: hello")));
    served.ask("DELETE", "/api/v1/session", None, &[("cookie", &cookie)]).is(204);
    // A copy of the cookie is not accepted either.
    runs(&served, &[("cookie", &cookie)]).is(401);
    asked(&served, &format!("Bearer {own}"), "POST", "/runs", Some(&super::sleepy(1, 0.0))).is(201);
    // The rest of the stream up to its end contains no events of runs.
    assert!(!events.any(|line| line.starts_with("event: runs")));
    // An `https` origin, as behind a proxy that terminates TLS, makes the cookie secure.
    let body = json!({ "token": own }).to_string();
    let content = Some(("application/json", body.as_bytes()));
    let origin = format!("https://{}", served.address());
    let signed = served.ask("POST", "/api/v1/session", content, &[("origin", &origin)]).is(204);
    assert!(signed.header("set-cookie").contains("Secure"), "{}", signed.header("set-cookie"));
}

#[test]
fn every_change_is_in_the_audit_log_with_its_author() {
    let folder = Folder::new();
    let log = folder.join("log");
    let served = Serving::default().with_own_token().logging_to(&log, "trace").start();
    let own = format!("Bearer {}", token(served.data()));
    let runner = named(served.data(), "ci", &["--role", "run"]);
    until(&served, &runner, 200);
    let ask = |bearer: &str, method: &str, path: &str, body: Option<Value>| {
        asked(&served, bearer, method, path, body.as_ref())
    };
    let document = super::sleepy(1, 0.0);
    ask(&runner, "POST", "/runs?validate_only=true", Some(document.clone())).is(200);
    ask(&runner, "POST", "/runs", Some(json!({}))).is(422);
    let run = ask(&runner, "POST", "/runs", Some(document)).is(201).json()["id"].as_str().unwrap().to_owned();
    let wasm = fs::read(module("mu-law")).unwrap();
    let headers = [("authorization", &*own)];
    served.ask("POST", "/api/v1/modules?alias=stable", Some(("application/wasm", &wasm)), &headers).is(201);
    ask(&runner, "POST", &format!("/runs/{run}/stop"), None).is(200);
    ask(&runner, "PUT", &format!("/runs/{run}/tags"), Some(json!({ "tags": ["a"] }))).is(200);
    ask(&runner, "DELETE", &format!("/runs/{run}"), None).is(403);
    ask(&own, "PUT", "/modules/mu-law/aliases/best", Some(json!({ "version": 1 }))).is(200);
    ask(&own, "DELETE", "/modules/mu-law/aliases/best", None).is(204);
    ask(&own, "DELETE", &format!("/runs/{run}"), None).is(204);

    let first = ask(&own, "GET", "/audit?limit=4", None).is(200).json();
    let cursor = first["next"].as_str().unwrap();
    let rest = ask(&own, "GET", &format!("/audit?cursor={cursor}"), None).is(200).json();
    let entries = first["items"].as_array().unwrap().iter().chain(rest["items"].as_array().unwrap());
    let found: Vec<String> = entries
        .map(|entry| {
            assert_eq!(entry["address"], "127.0.0.1");
            let text = |name: &str| entry[name].as_str().unwrap().to_owned();
            format!("{} {} {} {}", text("token"), text("action"), text("target"), entry["status"])
        })
        .collect();
    let expected = [
        format!("operator delete_run runs/{run} 204"),
        "operator remove_alias modules/mu-law/aliases/best 204".to_owned(),
        "operator set_alias modules/mu-law/aliases/best 200".to_owned(),
        format!("ci set_tags runs/{run}/tags 200"),
        format!("ci stop_run runs/{run}/stop 200"),
        "operator upload_module modules?alias=stable -> modules/mu-law/versions/1 201".to_owned(),
        format!("ci submit_run runs -> runs/{run} 201"),
    ];
    assert_eq!(found, expected);

    served.end();
    let log = fs::read_to_string(log).unwrap();
    let line =
        log.lines().find(|line| line.contains("penstock_server::audit") && line.contains("delete_run"));
    assert!(line.is_some_and(|line| line.contains("operator") && line.contains("127.0.0.1")), "{log}");
}

#[test]
fn a_server_speaks_tls() {
    let tls = |file: &str| repository().join("tests/data/tls").join(file);
    let serving =
        Serving::default().with_own_token().argument("--tls-certificate").argument(tls("certificate.pem"));
    let served = serving.argument("--tls-key").argument(tls("key.pem")).start();
    let base = format!("https://{}", served.address());
    assert!(served.link().starts_with(&format!("{base}/#sign-in=")), "{}", served.link());
    let mut silent = TcpStream::connect(served.address()).unwrap();

    let authority = Certificate::from_pem(&fs::read(tls("authority.pem")).unwrap()).unwrap();
    let config = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[authority])).build();
    let agent = Agent::config_builder().tls_config(config).build().new_agent();
    let health = agent.get(format!("{base}/health")).call().unwrap().body_mut().read_to_string().unwrap();
    assert_eq!(health, "ok\n");
    let code = served.link().split_once('=').unwrap().1;
    let signed = agent.post(format!("{base}/api/v1/session")).send_json(json!({ "code": code })).unwrap();
    let cookie = signed.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("; Secure"), "{cookie}");
    // A response that is larger than one TLS record buffer.
    let cookie = cookie.split(';').next().unwrap();
    let described = agent.get(format!("{base}/api/openapi.json")).header("cookie", cookie).call().unwrap();
    let described: Value = described.into_body().read_json().unwrap();
    assert_eq!(described["openapi"], "3.1.0");

    let plain = Agent::config_builder().timeout_global(Some(Duration::from_secs(60))).build().new_agent();
    assert!(plain.get(format!("http://{}/health", served.address())).call().is_err());
    // A client that does not start a TLS handshake is disconnected.
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}

#[test]
fn an_unusable_certificate_is_reported_at_the_start() {
    let folder = Folder::new();
    let wrong = folder.write("wrong.pem", "not a certificate");
    let good = repository().join("tests/data/tls/certificate.pem");
    let told = |certificate: &Path, key: &Path| {
        let call = Call::new(&["serve", "--no-token", "--listen=127.0.0.1:0", "--data-dir"]);
        let call = call.argument(folder.join("data")).argument("--tls-certificate").argument(certificate);
        call.argument("--tls-key").argument(key).finish().exits(1).stderr
    };
    assert!(told(&wrong, &wrong).contains("cannot read a certificate as PEM from"));
    assert!(told(&good, &good).contains("cannot read a key as PEM from"));
    assert!(told(&folder.join("none"), &good).contains("cannot read a certificate as PEM from"));
}
