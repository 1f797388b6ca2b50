//! Files that people write, and what lies in archives and logs.

use std::path::Path;

use podwright::api::yaml;
use podwright::cli;
use podwright::node::logs::cri;
use podwright::node::static_pods;
use podwright::server::audit::Policy;
use podwright::server::encryption::Rules;
use podwright::server::{PodSecurity, StaticTokens};
use podwright_runtime::cgroup;
use podwright_runtime::image::{ImageStore, ImportOptions, Keyring, SecretRef};

use super::{Target, parts};

pub const TARGETS: &[Target] = &[
    Target::text(
        "audit_policy",
        audit_policy,
        &[
            "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata, users: [a], \
         verbs: [get], resources: [{group: '', resources: ['pods/*']}]}, {level: None, nonResourceURLs: ['/health*']}]}",
        ],
    ),
    Target::text(
        "encryption_config",
        encryption_config,
        &[
            "{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: [{resources: [secrets, '*.apps'], \
         providers: [{aesgcm: {keys: [{name: a, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]}}, {identity: {}}]}]}",
        ],
    ),
    Target::text("token_file", token_file, &["secret,ann,7,\"people,admins\"\nother,\"b\"\"o\",8\n"]),
    Target::text(
        "pod_security",
        pod_security,
        &["{apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, \
         defaults: {enforce: baseline, enforce-version: latest, audit-version: v1.30}, exemptions: {namespaces: [kube-system]}}"],
    ),
    Target::text(
        "docker_config",
        docker_config,
        &[
            r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"*.example.com:5000/a":{"username":"u","password":"p"}}}"#,
            r#"{"r.io":{"identitytoken":"t"}}"#,
        ],
    ),
    Target::text(
        "static_pod",
        static_pod,
        &[
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - {name: c, image: i}\n---\n{apiVersion: v1, kind: Pod}",
        ],
    ),
    Target::bytes("log_line", log_line, || {
        vec![b"2026-11-20T17:00:00.123456789Z stdout F text\n".to_vec(), b"t stderr P x\n".to_vec()]
    }),
    Target::text(
        "cgroup_files",
        cgroup_files,
        &["4096\0inactive_file 12\nfile 3\0usage_usec 5\n\x003\0oom_kill 1\0max\n"],
    ),
    Target::bytes("rootfs_archive", rootfs, || {
        vec![archive(&[("etc/passwd", b"root:x:0:0::/:"), ("bin/.wh.sh", b""), ("a/b", &[7; 700])])]
    }),
    Target::bytes("compressed_layer", compressed, || {
        let tar = archive(&[("etc/passwd", b"root:x:0:0::/:"), ("a/b", &[7; 700])]);
        let (first, last) = tar.split_at(700);
        // Several members, and a frame that is to be skipped.
        let members = [gzip(first), gzip(last)].concat();
        let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
        vec![gzip(&tar), members, zstd(&tar), [&zstd(first)[..], skipped, &zstd(last)].concat()]
    }),
    Target::bytes("image_archive", image_archive, image_archives),
    Target::text(
        "image_documents",
        image_documents,
        &[concat!(
            r#"{"schemaVersion":2,"manifests":[{"mediaType":"m","digest":"MANIFEST","size":1,"annotations":"#,
            r#"{"org.opencontainers.image.ref.name":"b:1"},"platform":{"architecture":"amd64","os":"linux"}}]}"#,
            "\0",
            r#"{"schemaVersion":2,"config":{"mediaType":"c","digest":"CONFIG","size":1},"#,
            r#""layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"LAYER","size":3}]}"#,
            "\0",
            r#"{"architecture":"amd64","os":"linux","config":{"User":"1:2","Cmd":["sh"],"Volumes":{"/v":{}}},"#,
            r#""rootfs":{"type":"layers","diff_ids":["LAYER"]}}"#,
        )],
    ),
    Target::bytes("cp_download", cp_download, || {
        vec![
            archive(&[
                ("tmp/up/good", b"good"),
                ("tmp/up/deep/er", b"x"),
                ("tmp/up/trap", b"bad"),
                ("tmp/other", b"bad"),
            ]),
            archive(&[("tmp/up", b"one file")]),
        ]
    }),
];

fn audit_policy(text: &str) {
    let _ = Policy::parse(text);
}

fn encryption_config(text: &str) {
    if let Ok(rules) = Rules::parse(text) {
        assert!(!format!("{rules:?}").contains("AAAAAAAA"), "keys are not shown");
    }
}

fn token_file(text: &str) {
    let _ = StaticTokens::parse(text);
}

fn pod_security(text: &str) {
    for document in yaml::documents(text).unwrap_or_default() {
        let _ = PodSecurity::from_json(&document);
    }
}

fn docker_config(text: &str) {
    for legacy in [false, true] {
        for family in ["docker.io/library/a", "a.example.com:5000/a/b", "r.io/x"] {
            let mut keyring = Keyring::of(family.to_owned());
            let added = if legacy {
                keyring.add_dockercfg(text.as_bytes(), &SecretRef::default())
            } else {
                keyring.add_docker_config_json(text.as_bytes(), &SecretRef::default())
            };
            assert!(added.is_ok() || keyring.fitting().is_empty(), "what is damaged adds nothing");
        }
    }
}

fn static_pod(text: &str) {
    let read = || static_pods::read(text, Path::new("/etc/pods/a.yaml"), "n");
    let Ok(pods) = read() else { return };
    for pod in &pods {
        assert!(pod.metadata.name.as_deref().is_some_and(|name| name.ends_with("-n")), "it is named after its node");
    }
    assert_eq!(pods, read().unwrap(), "the same file makes the same Pods");
}

fn log_line(bytes: &[u8]) {
    if let Some(line) = cri::parse(bytes) {
        assert!(line.content().len() <= bytes.len());
        assert!(line.partial || line.content().ends_with(b"\n"));
    }
}

/// A folder in memory, gone with what is done in it.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn cgroup_files(text: &str) {
    let folder = folder();
    let folder = folder.path();
    let files = ["memory.current", "memory.stat", "cpu.stat", "pids.current", "memory.events", "memory.max"];
    for (file, content) in files.into_iter().zip(parts::<6>(text)) {
        std::fs::write(folder.join(file), content).unwrap();
    }
    cgroup::stats(folder);
    cgroup::read_back(folder);
}

/// A store with a neighbour that nobody may touch.
fn in_store(use_it: impl FnOnce(&ImageStore)) {
    let folder = folder();
    let (inside, beside) = (folder.path().join("store"), folder.path().join("precious"));
    std::fs::write(&beside, "as it was").unwrap();
    let store = ImageStore::open(&inside).unwrap();
    use_it(&store);
    for image in store.list().unwrap() {
        for name in image.names {
            assert!(store.resolve(&name).unwrap().is_some(), "what is listed is there: {name}");
        }
    }
    assert_eq!(std::fs::read_to_string(&beside).unwrap(), "as it was");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is made outside");
}

/// The checksums of the headers, mended: nothing else would be read but the first.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(512) {
        if &block[257..262] == b"ustar" {
            let mut header = tar::Header::new_old();
            header.as_mut_bytes().copy_from_slice(block);
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
    }
    bytes
}

fn rootfs(bytes: &[u8]) {
    let bytes = mended(bytes);
    in_store(|store| drop(store.import(&bytes[..], "localhost/a:1", &ImportOptions::default())));
}

/// As they come: what is packed has sums of its own.
fn compressed(bytes: &[u8]) {
    in_store(|store| drop(store.import(bytes, "localhost/a:1", &ImportOptions::default())));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// A frame of one raw block (RFC 8878), whose header has its length as two bytes.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let (length, block) = ((bytes.len() - 256) as u16, ((bytes.len() as u32) << 3) | 1);
    [&b"\x28\xb5\x2f\xfd\x60"[..], &length.to_le_bytes(), &block.to_le_bytes()[..3], bytes].concat()
}

fn image_archive(bytes: &[u8]) {
    let bytes = mended(bytes);
    in_store(|store| {
        for name in [None, Some("localhost/a:1")] {
            drop(store.load(&bytes[..], name));
        }
    });
}

/// An OCI layout of an index, a manifest and a config as they are given, each under its own digest, with that where a word
/// stands for it.
fn image_documents(text: &str) {
    let [index, manifest, config] = parts::<3>(text);
    let layer = archive(&[("a", b"b")]);
    let digest = |bytes: &[u8]| format!("sha256:{}", sha(bytes));
    let config = config.replace("LAYER", &digest(&layer));
    let manifest = manifest.replace("LAYER", &digest(&layer)).replace("CONFIG", &digest(config.as_bytes()));
    let index = index.replace("MANIFEST", &digest(manifest.as_bytes()));
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", sha(bytes));
    let layout = archive(&[
        ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#),
        ("index.json", index.as_bytes()),
        (&blob(manifest.as_bytes()), manifest.as_bytes()),
        (&blob(config.as_bytes()), config.as_bytes()),
        (&blob(&layer), &layer),
    ]);
    in_store(|store| {
        for image in store.load(&layout[..], Some("localhost/a:1")).unwrap_or_default() {
            if let Ok(ids) = image.resolve_user("") {
                assert!(ids.uid <= i32::MAX as u32 && ids.gid <= i32::MAX as u32, "{ids:?}");
            }
        }
    });
}

/// What a container's tar sends to `cp` stays in the folder that it is for, and brings no link.
fn cp_download(bytes: &[u8]) {
    let bytes = mended(bytes);
    let folder = folder();
    let (to, outside) = (folder.path().join("to"), folder.path().join("outside"));
    std::fs::create_dir(&to).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, to.join("trap")).unwrap();
    let _ = cli::fuzz::cp(&bytes[..], Path::new("tmp/up"), &to);
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "nothing goes through a link");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is made outside");
    let mut folders = vec![to.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let of_type = entry.file_type().unwrap();
            assert!(of_type.is_file() || of_type.is_dir() || entry.path() == to.join("trap"), "{:?}", entry.path());
            if of_type.is_dir() {
                folders.push(entry.path());
            }
        }
    }
}

fn sha(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, *content).unwrap();
    }
    tar.into_inner().unwrap()
}

/// A docker archive and an OCI layout that `load` takes.
fn image_archives() -> Vec<Vec<u8>> {
    let layer = archive(&[("a", b"b")]);
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","config":{{"Cmd":["sh"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#,
        if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        sha(&layer)
    );
    let docker = r#"[{"Config":"config.json","RepoTags":["a:1"],"Layers":["layer.tar"]}]"#;
    let of = |media: &str, bytes: &[u8]| {
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{media}","digest":"sha256:{}","size":{}}}"#,
            sha(bytes),
            bytes.len()
        )
    };
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#,
        of("config.v1+json", config.as_bytes()),
        of("layer.v1.tar", &layer)
    );
    let entry = of("manifest.v1+json", manifest.as_bytes());
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{},"annotations":{{"org.opencontainers.image.ref.name":"b:1"}}}}]}}"#,
        entry.trim_end_matches('}')
    );
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", sha(bytes));
    vec![
        archive(&[("manifest.json", docker.as_bytes()), ("config.json", config.as_bytes()), ("layer.tar", &layer)]),
        archive(&[
            ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#),
            ("index.json", index.as_bytes()),
            (&blob(manifest.as_bytes()), manifest.as_bytes()),
            (&blob(config.as_bytes()), config.as_bytes()),
            (&blob(&layer), &layer),
        ]),
    ]
}
