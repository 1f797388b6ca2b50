//! Permission for pulled images: records, names, and the effects of crashes, collection or damage.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::image::ImportOptions;

fn open(dir: &tempfile::TempDir) -> ImageStore {
    ImageStore::open(dir.path()).unwrap()
}

fn import(store: &ImageStore, name: &str, word: &str) -> Image {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(word.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    tar.append_data(&mut header, "word", word.as_bytes()).unwrap();
    store.import(&tar.into_inner().unwrap()[..], name, &ImportOptions::default()).unwrap()
}

/// The last step of a pull.
fn arrive(store: &ImageStore, name: &str, image: &Image) {
    let name = ImageName::parse(name).unwrap();
    let names = [name.with_digest(&image.digest), name.key()];
    let chain = digest::chain_ids(image.config.rootfs().diff_ids());
    store.inner.commit(&names, &image.digest, &image.digest, &chain, true).unwrap();
}

fn secret(uid: &str) -> Grant {
    let secret = SecretRef { uid: uid.into(), namespace: "n".into(), name: "s".into() };
    Grant::Secret(PullSecret { secret, credential_hash: format!("hash of {uid}") })
}

fn access(store: &ImageStore, name: &str) -> Option<Access> {
    match store.find(name).unwrap().expect("the image is here").1 {
        Provenance::Preloaded => None,
        Provenance::Pulled(access) => Some(access),
    }
}

fn of(grants: &[Grant]) -> Option<Access> {
    let mut access = Access::default();
    for grant in grants {
        access.add(grant);
    }
    Some(access)
}

#[test]
fn a_pulled_image_is_nobodys_until_it_is_granted_and_stays_so_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let image = import(&store, "r.io/app:1", "private");
    assert_eq!(access(&store, "r.io/app:1"), None, "imported, so preloaded");
    arrive(&store, "r.io/app:1", &image);
    // As after a crash between a pull and its record.
    drop(store);
    let store = open(&dir);
    let by_digest = format!("r.io/app@{}", image.digest);
    for name in ["r.io/app:1", &by_digest, &image.id, &image.digest] {
        assert_eq!(access(&store, name), of(&[]), "{name}");
    }
    store.grant(&image, "r.io/app:1", &secret("1")).unwrap();
    store.grant(&image, "r.io/app:other", &secret("2")).unwrap();
    drop(store);
    let store = open(&dir);
    for name in ["r.io/app:1", &by_digest] {
        assert_eq!(access(&store, name), of(&[secret("1"), secret("2")]), "{name}");
    }
    // By id, no accepted credential can match.
    assert_eq!(access(&store, &image.id), of(&[]));
    store.grant(&image, "r.io/app:1", &Grant::Anyone).unwrap();
    assert_eq!(access(&store, "r.io/app:1"), of(&[Grant::Anyone]));
    // The same content by another name is separate; and an import does not make a pulled image available to all.
    arrive(&store, "other.io/app:1", &image);
    assert_eq!(access(&store, "other.io/app:1"), of(&[]));
    import(&store, "other.io/app:1", "private");
    assert_eq!(access(&store, "other.io/app:1"), of(&[]));
    import(&store, "other.io/app:1", "another");
    assert_eq!(access(&store, "other.io/app:1"), None);
}

#[test]
fn what_somebody_pulls_takes_no_preloaded_name_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let image = import(&store, "localhost/tool:1", "tool");
    arrive(&store, "evil.io/tool:1", &image);
    assert_eq!(access(&store, "localhost/tool:1"), None);
    assert_eq!(access(&store, &image.id), None);
    assert_eq!(access(&store, "evil.io/tool:1"), of(&[]));
}

#[test]
fn names_of_earlier_versions_are_preloaded() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let image = import(&store, "r.io/app:1", "old");
    arrive(&store, "r.io/app:1", &image);
    drop(store);
    for path in read_dir(&dir.path().join("refs")).unwrap() {
        let mut known: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(known.as_object_mut().unwrap().remove("pulled"), Some(true.into()));
        fs::write(&path, known.to_string()).unwrap();
    }
    let store = open(&dir);
    assert_eq!(access(&store, "r.io/app:1"), None);
    arrive(&store, "r.io/app:1", &image);
    assert_eq!(access(&store, "r.io/app:1"), of(&[]), "from its next pull on it is verified");
}

#[test]
fn a_damaged_record_grants_nothing_and_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let (image, other) = (import(&store, "r.io/app:1", "a"), import(&store, "r.io/other:1", "b"));
    arrive(&store, "r.io/app:1", &image);
    store.grant(&image, "r.io/app:1", &Grant::Anyone).unwrap();
    let path = store.inner.record_path(&image.id);
    let good = fs::read(&path).unwrap();
    fs::copy(&path, store.inner.record_path(&other.id)).unwrap();
    arrive(&store, "r.io/other:1", &other);
    assert_eq!(access(&store, "r.io/other:1"), of(&[]), "the record is of another image");
    for damage in [&b""[..], &good[..good.len() - 3], b"null", b"{}", &[0; 100]] {
        fs::write(&path, damage).unwrap();
        assert_eq!(access(&store, "r.io/app:1"), of(&[]), "{:?}", String::from_utf8_lossy(damage));
    }
    store.grant(&image, "r.io/app:1", &secret("1")).unwrap();
    assert_eq!(access(&store, "r.io/app:1"), of(&[secret("1")]));
}

#[test]
fn records_go_with_their_images() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let (image, kept) = (import(&store, "r.io/app:1", "a"), import(&store, "r.io/kept:1", "b"));
    for (name, image) in [("r.io/app:1", &image), ("r.io/kept:1", &kept)] {
        arrive(&store, name, image);
        store.grant(image, name, &Grant::Anyone).unwrap();
    }
    store.hash_of(&Auth::Anonymous).unwrap();
    store.remove("r.io/app:1", &Default::default()).unwrap();
    let left: Vec<PathBuf> = read_dir(&dir.path().join("pulled")).unwrap();
    let mut left: Vec<_> = left.iter().map(|path| path.file_name().unwrap().to_string_lossy()).collect();
    left.sort_unstable();
    assert_eq!(left, {
        let mut all = vec![hex_of(&kept.id), "key"];
        all.sort_unstable();
        all
    });
    // A pull that ends after its image was removed leaves none either; and a new pull starts without grants.
    store.grant(&image, "r.io/app:1", &Grant::Anyone).unwrap();
    assert!(!store.inner.record_path(&image.id).exists());
    let again = import(&store, "r.io/app:1", "a");
    arrive(&store, "r.io/app:1", &again);
    assert_eq!(access(&store, "r.io/app:1"), of(&[]));
}

#[test]
fn credentials_are_kept_as_keyed_hashes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let basic = |username: &str, password: &str| Auth::Basic { username: username.into(), password: password.into() };
    let auths = [
        Auth::Anonymous,
        basic("user", "hunter2"),
        basic("userh", "unter2"),
        basic("user", "hunter3"),
        Auth::IdentityToken("hunter2".into()),
        Auth::RegistryToken("hunter2".into()),
    ];
    let hashes: Vec<String> = auths.iter().map(|auth| store.hash_of(auth).unwrap()).collect();
    let different: std::collections::HashSet<&String> = hashes.iter().collect();
    assert_eq!(different.len(), auths.len());
    let key = dir.path().join("pulled/key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    drop(store);
    assert_eq!(open(&dir).hash_of(&auths[1]).unwrap(), hashes[1], "the same after a restart");
    fs::write(&key, "short").unwrap();
    assert_ne!(open(&dir).hash_of(&auths[1]).unwrap(), hashes[1], "another key, another hash");
    let elsewhere = tempfile::tempdir().unwrap();
    assert_ne!(open(&elsewhere).hash_of(&auths[1]).unwrap(), hashes[1]);
}

#[test]
fn a_record_has_a_bound() {
    let mut access = Access::default();
    for number in 0..=MAX_SECRETS {
        assert!(access.add(&secret(&number.to_string())));
    }
    assert_eq!(access.secrets.len(), MAX_SECRETS);
    assert_eq!(access.secrets[0].secret.uid, "1", "the oldest has gone");
    assert!(!access.add(&secret("1")));
    assert!(access.add(&Grant::Anyone) && access.secrets.is_empty());
    assert!(!access.add(&secret("1")) && !access.add(&Grant::Anyone));
}
