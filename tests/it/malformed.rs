//! Malformed documents and command lines: each is refused with exit code 2, with all its faults, their pointers, the found values
//! and remedies; within two seconds of CPU time and half a GiB of memory, enforced by the kernel.

use std::process::{Command, Stdio};

use penstock_tests::{Call, Finished, Folder, shown};

/// Runs a call within the limits, through a shell that sets the limits for itself and then replaces itself by the binary.
fn bounded(call: &Call) -> Finished {
    let command = call.command();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -t 2 && ulimit -d 524288 && exec \"$0\" \"$@\""]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    call.finished(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Output of a call with bad input.
fn said(call: &Call) -> String {
    let finished = bounded(call).exits(2);
    assert!(finished.stdout.is_empty(), "{}", finished.stdout);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    finished.stderr
}

/// Output of `check` for a document, without its first line, which names the file and counts the faults.
fn refused(document: &[u8], modules: &[&str]) -> String {
    let folder = Folder::new();
    let path = folder.write("pipeline.json", document);
    let mut call = Call::check(&path).store("here", folder.path());
    for module in modules {
        call = call.module(module.trim_start_matches("guest-"), module);
    }
    let said = said(&call);
    let (head, faults) = said.split_once('\n').unwrap();
    let count = faults.lines().count();
    let counted = if count == 1 { "1 fault:".to_owned() } else { format!("{count} faults:") };
    assert!(head.ends_with(&format!("pipeline.json` cannot run as written, {counted}")), "{head}");
    assert!(faults.len() < 32 << 10, "{} bytes of faults", faults.len());
    faults.to_owned()
}

/// Table of the documents, which are one per line, each followed by its faults.
fn table(documents: &str, modules: &[&str]) -> String {
    let lines = documents.lines().map(str::trim).filter(|line| !line.is_empty());
    let told = |document: &str| format!("{document}\n{}", refused(document.as_bytes(), modules));
    lines.map(told).collect::<Vec<_>>().join("\n")
}

/// Names of documents that cannot be printed, each followed by its faults.
fn named(documents: Vec<(&str, Vec<u8>)>) -> String {
    let told = |(name, document): (&str, Vec<u8>)| format!("{name}\n{}", refused(&document, &[]));
    documents.into_iter().map(told).collect::<Vec<_>>().join("\n")
}

macro_rules! assert_table {
    ($table:expr) => {
        shown().bind(|| insta::assert_snapshot!($table))
    };
}

const GOOD: &str = r#"{"source":{"range":{"count":1}}}"#;

#[test]
fn errors_of_invalid_json_state_the_position() {
    assert_table!(table(
        r#"
        {
        {"source":
        {"source":{"range":{"count":1}}
        {"source":{"range":{"count":1}}} {}
        {"source":{"range":{"count":1}},}
        {source:{"range":{"count":1}}}
        {'source':{'range':{'count':1}}}
        {"source" {"range":{"count":1}}}
        {"source":{"range":{"count":1}}} // one
        {"source":{"range":{"count":nul}}}
        {"source":{"range":{"count":NaN}}}
        {"source":{"range":{"count":-Infinity}}}
        {"source":{"range":{"count":1e999}}}
        {"source":{"range":{"count":+1}}}
        {"source":{"range":{"count":01}}}
        {"source":{"range":{"count":.5}}}
        {"source":{"range":{"count":0x10}}}
        {"source":{"range":{"count":1_000}}}
        {"name":"\ud800","source":{"range":{"count":1}}}
        {"name":"\udc00\ud800","source":{"range":{"count":1}}}
        {"name":"\x41","source":{"range":{"count":1}}}
        source: { range: { count: 1 } }
        <html><body>404 Not Found</body></html>
        "#,
        &[],
    ));
}

#[test]
fn bytes_that_are_not_utf8_are_reported() {
    let utf16 = |order: fn(u16) -> [u8; 2]| GOOD.encode_utf16().flat_map(order).collect::<Vec<u8>>();
    let within = |bytes: &[u8]| [br#"{"name":""#, bytes, br#"","source":{"range":{"count":1}}}"#].concat();
    assert_table!(named(vec![
        ("nothing", Vec::new()),
        ("white space", b" \r\n\t".to_vec()),
        ("a byte order mark before a good document", [b"\xef\xbb\xbf", GOOD.as_bytes()].concat()),
        ("UTF-16, little-endian, with its mark", [b"\xff\xfe".to_vec(), utf16(u16::to_le_bytes)].concat()),
        ("UTF-16, big-endian, without a mark", utf16(u16::to_be_bytes)),
        ("a NUL", b"\0".to_vec()),
        ("a NUL behind a good document", [GOOD.as_bytes(), b"\0"].concat()),
        ("a NUL in a text", within(b"a\0b")),
        ("a line feed in a text", within(b"a\nb")),
        ("a byte that is no UTF-8 in a text", within(b"caf\xe9")),
        ("a surrogate in UTF-8", within(b"\xed\xa0\x80")),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0".to_vec()),
        ("WebAssembly", b"\0asm\x01\0\0\0".to_vec()),
    ]));
}

#[test]
fn documents_that_are_too_large_or_too_deep_have_short_errors() {
    let nested = |open: &str, close: &str, levels: usize| {
        format!(
            r#"{{"source":{{"range":{{"count":1}}}},"stages":[{{"wasm":{{"module":"m","params":{{"p":{}1{}}}}}}}]}}"#,
            open.repeat(levels),
            close.repeat(levels)
        )
        .into_bytes()
    };
    let stages = |count: usize, stage: &str| {
        format!(r#"{{"source":{{"range":{{"count":1}}}},"stages":[{}]}}"#, vec![stage; count].join(","))
            .into_bytes()
    };
    let long = "n".repeat(1_000_000);
    assert_table!(named(vec![
        ("10 MB of params", nested(&format!(r#"{{"{}":"#, "p".repeat(10 << 20)), "}", 1)),
        ("lists 10,000 deep", nested("[", "]", 10_000)),
        ("objects 10,000 deep", nested(r#"{"a":"#, "}", 10_000)),
        ("lists 1,000,000 deep that never end", vec![b'['; 1_000_000]),
        ("objects 61 deep in params, 65 in all", nested(r#"{"a":"#, "}", 60)),
        ("10,000 stages", stages(10_000, r#"{"sleep":{"mean_ms":0}}"#)),
        ("257 stages, each with two faults", stages(257, r#"{"sleep":{"mean_ms":-1,"on":"cpu"}}"#)),
        ("200,000 empty stages", stages(200_000, "{}")),
        ("a member with a name of a million letters", format!(r#"{{"{long}":1}}"#).into_bytes()),
        ("a member with that name twice", format!(r#"{{"{long}":1,"{long}":1}}"#).into_bytes()),
        (
            "a text of a million letters",
            format!(r#"{{"name":"{long}","source":{{"range":{{"count":1}}}}}}"#).into_bytes()
        ),
        ("100,000 unknown members", {
            let members: Vec<String> = (0..100_000).map(|number| format!(r#""m{number}":0"#)).collect();
            format!("{{{}}}", members.join(",")).into_bytes()
        }),
        ("50,000 members twice", format!("{{{}}}", vec![r#""a":0"#; 50_000].join(",")).into_bytes()),
    ]));
}

#[test]
fn numbers_out_of_range_are_quoted_as_written() {
    assert_table!(table(
        r#"
        {"source":{"range":{"count":-0}}}
        {"source":{"range":{"count":1.0}}}
        {"source":{"range":{"count":1e3}}}
        {"source":{"range":{"count":18446744073709551616}}}
        {"source":{"range":{"count":"10"}}}
        {"source":{"range":{"count":true}}}
        {"source":{"range":{"count":1}},"seed":-9223372036854775809}
        {"source":{"range":{"count":1}},"threads":4294967297}
        {"source":{"range":{"count":1}},"interval_s":1e-300}
        {"source":{"range":{"count":1}},"interval_s":1e308}
        {"source":{"range":{"count":1}},"buffer_mib":0}
        {"source":{"range":{"count":1}},"buffer_mib":99999999999}
        {"source":{"range":{"count":1,"epochs":0}}}
        {"source":{"range":{"count":1,"limit":-1}}}
        {"source":{"range":{"count":1}},"stages":[{"aggregate":{"size":0}}]}
        {"source":{"range":{"count":1}},"stages":[{"aggregate":{"size":1e9}}]}
        {"source":{"range":{"count":1}},"stages":[{"sleep":{"mean_ms":1,"concurrency":0,"queue":0}}]}
        {"source":{"range":{"count":1}},"stages":[{"sleep":{"mean_ms":-0.5,"jitter":1.5,"fail_rate":-1}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"m","deadline_ms":0,"memory_mib":0}}]}
        {"source":{"range":{"count":1}},"max_failures":{"rate":0}}
        {"source":{"range":{"count":1}},"max_failures":{"count":-1}}
        "#,
        &[],
    ));
}

#[test]
fn errors_of_wrong_types_name_the_found_value() {
    assert_table!(table(
        r#"
        true
        "pipeline"
        [{"source":{"range":{"count":1}}}]
        {"name":null,"seed":"7","threads":[],"interval_s":{},"buffer_mib":"1 GB","source":[],"stages":"none","sink":3,"consumer":[],"max_failures":0.1}
        {"source":{"range":null}}
        {"source":{"range":{"count":null}}}
        {"source":{"list":{"store":7,"prefix":null,"suffix":["jpg","png"],"shuffle":1,"shard":0,"epochs":"all","limit":{}}}}
        {"source":{"range":{"count":1}},"stages":[[],1,"sleep",null,{"sleep":1},{"sleep":null},{"sleep":[]}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":{"name":"m"},"params":"size=3","assets":[]}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"m","assets":{"words":"here/words.txt","table":{}}}}]}
        {"source":{"range":{"count":1}},"consumer":{"simulate":30}}
        {"source":{"range":{"count":1}},"consumer":{"discard":{"step_ms":1}}}
        "#,
        &[],
    ));
}

#[test]
fn misspelt_names_get_a_suggestion() {
    assert_table!(table(
        r#"
        {"Source":{"range":{"count":1}}}
        {"source":{"rang":{"count":1}}}
        {"source":{"range":{"cuont":1}}}
        {"source":{"range":{"count":1}},"stage":[]}
        {"source":{"range":{"count":1}},"stages":[{"aggregrate":{"size":2}},{"collat":{}},{"tranfer":{}},{"Fetch":{}}]}
        {"source":{"range":{"count":1}},"stages":[{"aggregate":{"siez":2}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"modul":"m","memory_mb":64,"deadline":5}}]}
        {"source":{"range":{"count":1}},"stages":[{"sleep":{"mean_ms":1,"on_error":"Skip","order":"inputs"}}]}
        {"source":{"range":{"count":1}},"stages":[{"sleep":{"mean_ms":1},"fetch":{}}]}
        {"source":{"range":{"count":1}},"stages":[{"sleep":{"mean_ms":1,"\u001b[31mred\u202e":1}}]}
        {"source":{"range":{"count":1,"shard":{"rank":0,"word":1}}}}
        "#,
        &[],
    ));
}

#[test]
fn names_cannot_be_paths() {
    assert_table!(table(
        r#"
        {"source":{"list":{"store":"../here"}}}
        {"source":{"list":{"store":"/etc"}}}
        {"source":{"list":{"store":""}}}
        {"source":{"list":{"store":"here\u0000"}}}
        {"source":{"list":{"store":"s3://bucket/photos"}}}
        {"name":"../../etc/cron.d/penstock","source":{"range":{"count":1}}}
        {"source":{"records":{"store":"here","key":"a\u0000b"}}}
        {"source":{"range":{"count":1}},"stages":[{"sleep":{"mean_ms":1,"name":"a/b"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"./decode.wasm"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"m@"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"@1"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"sha256:ABCDEF"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"m","assets":{"../words":{"store":"..","key":""}}}}]}
        "#,
        &[],
    ));
}

#[test]
fn incompatible_settings_are_reported_with_a_remedy() {
    assert_table!(table(
        r#"
        {"source":{"range":{"count":1}},"stages":[{"collate":{}}]}
        {"source":{"range":{"count":1}},"stages":[{"disaggregate":{}}]}
        {"source":{"range":{"count":1}},"stages":[{"aggregate":{"size":2}},{"aggregate":{"size":2}}]}
        {"source":{"range":{"count":1}},"stages":[{"aggregate":{"size":2}},{"collate":{}},{"aggregate":{"size":2}}]}
        {"source":{"range":{"count":1}},"stages":[{"aggregate":{"size":2}},{"collate":{}},{"collate":{}}]}
        {"source":{"range":{"count":1}},"stages":[{"fetch":{}}]}
        {"source":{"list":{"store":"here"}},"stages":[{"aggregate":{"size":2}},{"collate":{}},{"fetch":{}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"batch"}}]}
        {"source":{"range":{"count":1}},"stages":[{"aggregate":{"size":2}},{"wasm":{"module":"stateful"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"stateful","concurrency":4}}]}
        {"source":{"range":{"count":1,"shard":{"rank":2,"world":2}}}}
        {"source":{"range":{"count":1,"shard":{"rank":0,"world":0}}}}
        "#,
        &["guest-batch", "guest-stateful"],
    ));
}

#[test]
fn modules_stores_and_params_are_checked_before_the_run() {
    assert_table!(table(
        r#"
        {"source":{"list":{"store":"hre"}},"stages":[{"fetch":{"store":"nowhere"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"imag"}},{"wasm":{"module":"image@9"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}}]}
        {"source":{"range":{"count":1}},"stages":[{"wasm":{"module":"image","assets":{"words":{"store":"there","key":"w"}}}}]}
        {"source":{"list":{"store":"here"}},"stages":[{"fetch":{}},{"wasm":{"module":"image","params":{"draft":"big","Draft":1,"a\u001b[31m":[]}}}]}
        {"source":{"list":{"store":"here"}},"stages":[{"aggregate":{"size":2}},{"wasm":{"module":"batch","params":{"x":1}}}]}
        "#,
        &["image", "guest-batch"],
    ));
}

#[test]
fn at_most_a_hundred_faults_are_listed() {
    let stages = vec![r#"{"sleep":{"mean_ms":-1}}"#; 150].join(",");
    let told =
        refused(format!(r#"{{"source":{{"range":{{"count":1}}}},"stages":[{stages}]}}"#).as_bytes(), &[]);
    assert_eq!(told.lines().count(), 100);
    assert_eq!(
        told.lines().last(),
        Some("  /stages/99/sleep/mean_ms: found `-1`, expected a number from 0 to 3600000")
    );
}

#[test]
fn errors_of_the_command_line_suggest_a_remedy() {
    let folder = Folder::new();
    let good = folder.write("pipeline.json", GOOD);
    let file = folder.write("file", "");
    let run = || Call::run(&good);
    let on = |path: &str| Call::run(path.as_ref());
    let calls = [
        ("no command", Call::new(&[])),
        ("an unknown command", Call::new(&["runn"])),
        ("run without a document", Call::new(&["run"])),
        ("two documents", run().argument(&good)),
        ("a folder as the document", Call::run(folder.path())),
        ("a device without an end as the document", on("/dev/zero")),
        ("an empty device as the document", on("/dev/null")),
        ("a store without a folder", run().argument("--store").argument("a=")),
        ("a store without a name", run().argument("--store").argument("=a")),
        ("a store twice", run().store("a", folder.path()).store("a", folder.path())),
        ("a file as a store", run().store("a", &file)),
        ("a module twice", run().module("m", "guest-batch").module("m", "guest-batch")),
        ("an empty file as a module", run().module_at("m", &file)),
        ("a folder as a module", run().module_at("m", folder.path())),
        ("a device without an end as a module", run().module_at("m", "/dev/zero".as_ref())),
        ("a setting without a value", run().set("/seed")),
        ("a setting into nothing", run().set("/stages/0/sleep/mean_ms=1")),
        ("a setting that is no JSON", run().set("/stages=[{")),
        ("letters for a number of threads", run().argument("--threads=many")),
        ("more threads than a number holds", run().argument("--threads=99999999999")),
        ("more threads than allowed", run().threads(1025)),
        ("a time without a unit", run().argument("--for=10")),
        ("a negative time", run().argument("--for=-1s")),
        ("a file where a folder is wanted", run().out(&file)),
        ("a folder below a file", run().out(&file.join("out"))),
    ];
    let told: Vec<String> =
        calls.into_iter().map(|(name, call)| format!("{name}\n{}", said(&call))).collect();
    assert_table!(told.join("\n"));
}
