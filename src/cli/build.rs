//! The build script: packs `manifests/labs` into one compressed archive for `lab`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::{Compression, write::DeflateEncoder};

/// Relative to this crate's folder.
const LABS: &str = "../../manifests/labs";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={LABS}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder for what is made"));
    let file = fs::File::create(out.join("labs.tar.deflate")).expect("the folder takes files");
    let mut archive = tar::Builder::new(DeflateEncoder::new(file, Compression::best()));
    for folder in entries(Path::new(LABS)).into_iter().filter(|path| path.join("lab.yaml").is_file()) {
        for file in entries(&folder) {
            append(&mut archive, &file);
        }
    }
    archive.into_inner().and_then(DeflateEncoder::finish).expect("the folder takes files");
}

/// The same order on every machine, so that builds can be compared.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder that can be read").path()).collect();
    paths.sort();
    paths
}

/// Name and content alone: no owner, no time.
fn append(archive: &mut tar::Builder<impl std::io::Write>, file: &Path) {
    let content = fs::read(file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    let name = file.strip_prefix(LABS).expect("it lies there");
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, name, content.as_slice()).expect("the folder takes files");
}
