//! Manifest and config of a module in a registry.

use std::time::SystemTime;

use anyhow::Result;
use penstock_types::text::printable;
use penstock_wasm::{ModuleKind, ModuleReport};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::input::bad;

/// Media type of the manifest of an image.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.wasm.config.v0+json";
const LAYER: &str = "application/wasm";
/// Maximum number of bytes that a message shows of a text of the manifest.
const MAX_SHOWN: usize = 100;

/// Manifest of an image that has a module as its only layer.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u32,
    media_type: Option<String>,
    config: Blob,
    layers: Vec<Blob>,
}

/// Type, digest and size in bytes of a blob.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Blob {
    media_type: String,
    /// `sha256:` and the hexadecimal digest of the bytes.
    pub(crate) digest: String,
    pub(crate) size: u64,
}

impl Manifest {
    pub(crate) fn new(config: &[u8], module: &[u8]) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(MANIFEST.to_owned()),
            config: Blob::new(CONFIG, config),
            layers: vec![Blob::new(LAYER, module)],
        }
    }

    /// Module of the image. The error states why there is none.
    pub(crate) fn module(&self) -> Result<&Blob> {
        if self.schema_version != 2 || self.media_type.as_deref().is_some_and(|kind| kind != MANIFEST) {
            return Err(bad(format!("the manifest is not of the type `{MANIFEST}`")));
        }
        let [layer] = &self.layers[..] else {
            return Err(bad(format!("the image has {} layers, and a module has one", self.layers.len())));
        };
        if layer.media_type != LAYER {
            let found = printable(&layer.media_type, MAX_SHOWN);
            return Err(bad(format!(
                "the layer is of the type `{found}`, and that of a module is `{LAYER}`"
            )));
        }
        if !is_digest(&layer.digest) {
            let found = printable(&layer.digest, MAX_SHOWN);
            let rule = "not `sha256:` and 64 hexadecimal digits";
            return Err(bad(format!("the digest of the layer is `{found}`, {rule}")));
        }
        Ok(layer)
    }
}

impl Blob {
    fn new(media_type: &str, bytes: &[u8]) -> Self {
        Self { media_type: media_type.to_owned(), digest: digest(bytes), size: bytes.len() as u64 }
    }
}

fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// `sha256:` and the hexadecimal digest of the bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// Config of the image of a module whose file was last written at `written`. Pushing the same file again makes the same image.
pub(crate) fn config(report: &ModuleReport, written: SystemTime) -> Value {
    let mut config = json!({
        "created": humantime::format_rfc3339_seconds(written).to_string(),
        "architecture": "wasm",
        "os": "wasip1",
        "layerDigests": [report.digest],
    });
    if report.kind == ModuleKind::Component {
        config["os"] = json!("wasip2");
        config["component"] = json!({ "exports": report.exports, "imports": report.imports });
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_the_layout_of_the_cncf() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let written = serde_json::to_value(Manifest::new(b"{}", b"")).unwrap();
        let config = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        let expected = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": { "mediaType": "application/vnd.wasm.config.v0+json", "digest": config, "size": 2 },
            "layers": [{ "mediaType": "application/wasm", "digest": empty, "size": 0 }],
        });
        assert_eq!(written, expected);
        let read: Manifest = serde_json::from_value(written).unwrap();
        assert_eq!(read.module().unwrap().digest, empty);
    }

    #[test]
    fn the_config_of_a_component_lists_its_interfaces() {
        let report = json!({
            "digest": "sha256:00", "size_bytes": 8, "kind": "component", "imports": ["penstock:stage/log@0.1.0"],
            "exports": ["penstock:stage/transform@0.1.0"], "functions": 1, "code_bytes": 1,
            "manifest": { "name": "a", "version": "0.1.0", "mode": "sample" },
        });
        let report: ModuleReport = serde_json::from_value(report).unwrap();
        let expected = json!({
            "created": "1970-01-01T00:00:00Z", "architecture": "wasm", "os": "wasip2", "layerDigests": ["sha256:00"],
            "component": { "exports": ["penstock:stage/transform@0.1.0"], "imports": ["penstock:stage/log@0.1.0"] },
        });
        assert_eq!(config(&report, SystemTime::UNIX_EPOCH), expected);
    }

    #[test]
    fn other_images_are_refused_with_a_reason() {
        let refused = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = Manifest::new(b"", b"");
            change(&mut manifest);
            manifest.module().unwrap_err().to_string()
        };
        assert!(refused(&|manifest| manifest.schema_version = 1).contains("not of the type"));
        let docker = "application/vnd.docker.distribution.manifest.v2+json";
        assert!(refused(&|manifest| manifest.media_type = Some(docker.into())).contains("not of the type"));
        assert!(refused(&|manifest| manifest.layers.clear()).contains("0 layers"));
        assert!(refused(&|manifest| manifest.layers.push(Blob::new(LAYER, b""))).contains("2 layers"));
        let path = "sha256:../../v2/other/blobs";
        assert!(refused(&|manifest| manifest.layers[0].digest = path.into()).contains(path));
        let tar = "application/vnd.oci.image.layer.v1.tar";
        assert!(refused(&|manifest| manifest.layers[0].media_type = tar.into()).contains(tar));
    }
}
