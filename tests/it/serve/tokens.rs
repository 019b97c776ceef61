//! Who is let in, and what for.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use penstock_tests::{Answer, Call, Folder, Served, Serving};
use serde_json::json;

/// Asks for the list of runs with these headers alone.
fn runs(served: &Served, headers: &[(&str, &str)]) -> Answer {
    served.ask("GET", "/api/v1/runs", None, headers)
}

/// A call of a program of the user whose server keeps its data there.
fn call(data: &Path, arguments: &[&str], address: impl std::fmt::Display) -> Call {
    let state = data.join("state");
    Call::new(arguments).argument(format!("--server=http://{address}")).variable("XDG_STATE_HOME", state)
}

fn token(data: &Path) -> String {
    fs::read_to_string(data.join("token")).unwrap().trim().to_owned()
}

/// Signs in with the code of a link; gives the answer.
fn use_link(served: &Served, link: &str) -> Answer {
    let (page, code) = link.split_once("#sign-in=").unwrap_or_else(|| panic!("`{link}` is no link"));
    assert_eq!(page, format!("http://{}/", served.address()));
    served.post("/session", &json!({ "code": code }))
}

fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

#[test]
fn a_server_without_a_given_token_makes_one_that_stays() {
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
fn a_link_signs_one_browser_in_and_holds_no_token() {
    let served = Serving::default().with_own_token().start();
    let link = served.link().to_owned();
    assert!(!link.contains(&token(served.data())), "{link}");
    let signed = use_link(&served, &link).is(204);
    runs(&served, &[("cookie", &cookie(&signed))]).is(200);
    use_link(&served, &link).is(401);
    // A session opens no other one.
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
    // A given one wins.
    let wrong = call(data, &["runs"], address).variable("PENSTOCK_TOKEN", "another-0123456789");
    assert!(wrong.finish().exits(2).stderr.contains("Unauthorized"));
    // A name may lead elsewhere.
    call(data, &["runs"], format!("localhost:{}", address.port())).finish().exits(2);
    let stranger = Folder::new();
    call(stranger.path(), &["runs"], address).finish().exits(2);
}

#[test]
fn the_token_is_not_sent_to_what_answers_in_place_of_a_server_that_is_gone() {
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
fn a_server_for_all_addresses_makes_a_token_too_and_is_found_on_its_own_machine() {
    let served = Serving::default().with_own_token().listening("0.0.0.0:0").start();
    let here = format!("127.0.0.1:{}", served.address().port());
    assert!(served.link().starts_with(&format!("http://{here}/#sign-in=")), "{}", served.link());
    call(served.data(), &["runs"], here).finish().exits(0);
}

#[test]
fn runs_write_only_to_stores_that_the_configuration_says_they_may() {
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
    // The operator's own commands write where they are told to.
    let run = Call::run(&folder.document(&document("closed"))).argument("--config").argument(&config);
    run.finish().exits(0);
}
