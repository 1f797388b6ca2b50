//! Documents of an image (OCI image spec, "Image Manifest", "Image Index"): distinguishes the two, and decodes and validates the
//! used part of a manifest.

use oci_spec::image::{Arch, Os};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::limits::MAX_LAYERS;
use super::{ImageError, Result, digest};

/// A manifest. Unused parts such as annotations are skipped without memory.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// A manifest's blob descriptor. The digest may be any text: [`check`](super::digest::check) it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
}

impl Manifest {
    pub(super) fn parse(what: &str, json: &[u8]) -> Result<Manifest> {
        parse(what, json)
    }

    /// Transferred bytes: config and layers.
    pub(super) fn size(&self) -> u64 {
        self.layers.iter().fold(self.config.size, |sum, layer| sum.saturating_add(layer.size))
    }
}

/// The fields that distinguish an index from a manifest; only these are decoded.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DocumentKind {
    pub schema_version: Option<u32>,
    media_type: Option<String>,
    manifests: Option<IgnoredAny>,
    config: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
}

/// `(media type, whether it is an index)`; OCI's and Docker's.
const MEDIA_TYPES: [(&str, bool); 4] = [
    ("application/vnd.oci.image.index.v1+json", true),
    ("application/vnd.docker.distribution.manifest.list.v2+json", true),
    ("application/vnd.oci.image.manifest.v1+json", false),
    ("application/vnd.docker.distribution.manifest.v2+json", false),
];

impl DocumentKind {
    /// Whether it is an index. A document that is both, by its fields or by its media type, is rejected: one digest would be two
    /// images (CVE-2021-41190).
    pub(super) fn is_index(&self) -> Result<bool> {
        let is_index = self.manifests.is_some();
        let said = self.media_type.as_deref().and_then(|said| MEDIA_TYPES.iter().find(|(known, _)| *known == said));
        let both = is_index && (self.config.is_some() || self.layers.is_some());
        match both || said.is_some_and(|(_, index)| *index != is_index) {
            true => Err(ImageError::Invalid("a document that is both an index and a manifest".into())),
            false => Ok(is_index),
        }
    }
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(what: &str, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|e| ImageError::Invalid(format!("{what}: {e}")))
}

/// Whether an index's entry is for this host.
pub(super) fn fits_host(descriptor: &oci_spec::image::Descriptor) -> bool {
    descriptor.platform().as_ref().is_some_and(|p| *p.os() == Os::Linux && *p.architecture() == Arch::default())
}

/// As many layers as diffIDs, each a valid digest, as it may become a path.
pub(super) fn check_layers(diff_ids: &[String], layers: usize) -> Result<()> {
    if diff_ids.len() != layers {
        let count = diff_ids.len();
        return Err(ImageError::Invalid(format!("mismatched image rootfs and manifest layers: {count} and {layers}")));
    }
    if layers > MAX_LAYERS {
        return Err(ImageError::Invalid(format!("{layers} layers, more than {MAX_LAYERS}")));
    }
    diff_ids.iter().try_for_each(|id| digest::check(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_an_index_or_a_manifest_and_never_both() {
        let (index, manifest) = (r#""manifests": []"#, r#""config": {}, "layers": []"#);
        let said = |kind: &str| format!(r#""mediaType": "application/vnd.{kind}+json""#);
        let (oci_index, oci_manifest) = (said("oci.image.index.v1"), said("oci.image.manifest.v1"));
        let (docker_index, docker_manifest) =
            (said("docker.distribution.manifest.list.v2"), said("docker.distribution.manifest.v2"));
        let other = said("example");
        for (parts, expected) in [
            (vec![index], Some(true)),
            (vec![manifest], Some(false)),
            (vec![index, &oci_index], Some(true)),
            (vec![index, &docker_index], Some(true)),
            (vec![manifest, &oci_manifest], Some(false)),
            (vec![manifest, &docker_manifest], Some(false)),
            (vec![manifest, &other], Some(false)),
            (vec![index, manifest], None),
            (vec![index, r#""layers": []"#], None),
            (vec![index, r#""config": {}"#, &oci_index], None),
            (vec![index, &oci_manifest], None),
            (vec![index, &docker_manifest], None),
            (vec![manifest, &oci_index], None),
            (vec![manifest, &docker_index], None),
        ] {
            let text = format!(r#"{{"schemaVersion": 2, {}}}"#, parts.join(", "));
            let kind: DocumentKind = parse("manifest", text.as_bytes()).unwrap();
            assert_eq!(kind.is_index().ok(), expected, "{text}");
        }
    }
}
