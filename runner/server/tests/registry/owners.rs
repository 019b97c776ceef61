//! Names of modules belong to tokens.

use std::path::Path;

use penstock_server::{
    ANYONE, AuditQuery, ModuleQuery, ModuleUpload, OPERATOR, Runs, RunsError, VersionQuery,
};
use tokio::task::JoinSet;

use crate::support::{Kind, guest, open, open_with, stores};

/// Bytes of a module with the name `batch`; each number gives other bytes.
fn version(number: u8) -> Vec<u8> {
    let mut bytes = guest("guest-batch");
    bytes.extend([0, 3, 1, b'x', number]);
    bytes
}

/// Handle of a token with the role `run`.
fn runner(runs: &Runs, name: &str) -> Runs {
    runs.for_token(&name.into(), false)
}

async fn upload(runs: &Runs, number: u8) -> Result<ModuleUpload, RunsError> {
    let mut draft = runs.begin_upload().await.unwrap();
    draft.write(&version(number)).await.unwrap();
    draft.finish(None).await
}

async fn owner(runs: &Runs) -> Option<String> {
    let listed = runs.modules(ModuleQuery { text: Some("batch".to_owned()), ..ModuleQuery::default() });
    let owner = listed.await.unwrap().items[0].owner.clone();
    assert_eq!(runs.module("batch", VersionQuery::default()).await.unwrap().owner, owner);
    owner
}

/// Removes the owners of all names, as in a history of an earlier version without an audit log.
fn forget_owners(data: &Path) {
    let file = rusqlite::Connection::open(data.join("penstock.sqlite")).unwrap();
    assert_eq!(file.execute("UPDATE module_names SET owner = NULL", []).unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_token_and_admins_upload_versions_of_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    let (own, other) = (runner(&runs, "ci"), runner(&runs, "ci-2"));
    upload(&own, 1).await.unwrap();
    let refused = upload(&other, 2).await.unwrap_err();
    assert_eq!(refused.kind(), "not-owner");
    let told = refused.to_string();
    assert!(
        ["`batch`", "the token `ci`", "`admin`", "`module_owners`"].iter().all(|word| told.contains(word)),
        "{told}"
    );
    assert_eq!(std::fs::read_dir(data.join("modules/sha256")).unwrap().count(), 1, "nothing is left of it");
    assert_eq!(std::fs::read_dir(data.join("modules/drafts")).unwrap().count(), 0);
    // Bytes that are stored already change nothing, whoever sends them.
    assert!(!upload(&other, 1).await.unwrap().created);
    assert_eq!(upload(&own, 2).await.unwrap().version.version, 2);
    // An admin may upload, which does not change the owner; nor does the removal of all versions.
    assert_eq!(upload(&runs.for_token(&"boss".into(), true), 3).await.unwrap().version.version, 3);
    assert_eq!(owner(&runs).await.as_deref(), Some("ci"));
    for number in ["1", "2", "3"] {
        runs.delete_module("batch", number).await.unwrap();
    }
    assert_eq!(upload(&other, 4).await.unwrap_err().kind(), "not-owner");
    assert_eq!(upload(&own, 4).await.unwrap().version.version, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_tokens_that_upload_a_new_name_at_once_one_owns_it() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    let mut uploads = JoinSet::new();
    for number in 1..=6 {
        let own = runner(&runs, &format!("token-{number}"));
        uploads.spawn(async move { upload(&own, number).await.map_err(|error| error.kind()) });
    }
    let uploads = uploads.join_all().await;
    assert_eq!(uploads.iter().filter(|upload| upload.is_ok()).count(), 1);
    assert!(uploads.iter().flat_map(|upload| upload.as_ref().err()).all(|kind| *kind == "not-owner"));
    assert!(owner(&runs).await.unwrap().starts_with("token-"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_without_an_owner_goes_to_the_next_run_token_which_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open(&data, stores(folder.path()));
    assert_eq!(upload(&runs, 1).await.unwrap().version.version, 1);
    assert_eq!(owner(&runs).await.as_deref(), Some(OPERATOR));
    forget_owners(&data);
    // Neither known bytes nor the upload of an admin give it away.
    upload(&runner(&runs, "reader"), 1).await.unwrap();
    upload(&runs, 2).await.unwrap();
    assert_eq!(owner(&runs).await, None);
    assert!(runs.audit(AuditQuery::default()).await.unwrap().items.is_empty());
    upload(&runner(&runs, "ci"), 3).await.unwrap();
    assert_eq!(owner(&runs).await.as_deref(), Some("ci"));
    assert_eq!(upload(&runner(&runs, "ci-2"), 4).await.unwrap_err().kind(), "not-owner");
    let logged = runs.audit(AuditQuery::default()).await.unwrap().items;
    let logged: Vec<_> = logged.iter().map(|entry| (&*entry.token, &*entry.action, &*entry.target)).collect();
    assert_eq!(logged, [("ci", "own_module", "modules/batch")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_to_a_server_without_tokens_leave_names_without_owners() {
    let folder = tempfile::tempdir().unwrap();
    let runs = open(&folder.path().join("data"), stores(folder.path()));
    upload(&runs.for_token(&ANYONE.into(), true), 1).await.unwrap();
    assert_eq!(owner(&runs).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_module_owners_every_token_uploads_versions_of_every_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runs = open_with(&data, stores(folder.path()), |settings| settings.module_owners = false);
    upload(&runner(&runs, "ci"), 1).await.unwrap();
    assert_eq!(upload(&runner(&runs, "ci-2"), 2).await.unwrap().version.version, 2);
    assert_eq!(owner(&runs).await.as_deref(), Some("ci"));
    forget_owners(&data);
    upload(&runner(&runs, "ci-2"), 3).await.unwrap();
    assert_eq!(owner(&runs).await, None);
}
