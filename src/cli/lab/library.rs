//! Where labs come from: built into the program, or a folder.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use flate2::read::DeflateDecoder;

use super::course::Lab;

const EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/labs.tar.deflate"));
/// What describes a lab, in its folder.
const DESCRIPTION: &str = "lab.yaml";
/// The largest file of a lab.
const LARGEST: u64 = 256 << 10;
/// The most files of a lab.
const MOST_FILES: usize = 50;

/// A lab's files, by their names in its folder.
pub type Files = BTreeMap<String, Vec<u8>>;

/// All labs by name, in their order.
pub struct Library(BTreeMap<String, Files>);

impl Library {
    /// Those of a folder, or else those built in.
    pub fn open(folder: Option<&Path>) -> anyhow::Result<Library> {
        match folder {
            Some(folder) => of_folder(folder).with_context(|| format!("--labs {}", folder.display())),
            None => built_in(),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A lab by its whole name, its name without the number, or its number.
    pub fn find(&self, word: &str) -> anyhow::Result<&str> {
        let same = |name: &&str| {
            let (number, rest) = name.split_once('-').unwrap_or((name, ""));
            *name == word || rest == word || number == word || number.trim_start_matches('0') == word
        };
        self.names().find(same).with_context(|| format!("no lab is named {word:?}; `podwright lab list` shows all"))
    }

    pub fn files(&self, name: &str) -> anyhow::Result<&Files> {
        self.0.get(name).with_context(|| format!("no lab is named {name:?}"))
    }

    pub fn lab(&self, name: &str) -> anyhow::Result<Lab> {
        parse(name, self.files(name)?)
    }
}

/// The lab that its files describe.
fn parse(name: &str, files: &Files) -> anyhow::Result<Lab> {
    let place = || format!("{name}/{DESCRIPTION}");
    let text = files.get(DESCRIPTION).with_context(|| format!("{} does not exist", place()))?;
    let text = std::str::from_utf8(text).with_context(place)?;
    Lab::parse(text).with_context(place)
}

fn built_in() -> anyhow::Result<Library> {
    let mut found: BTreeMap<String, Files> = BTreeMap::new();
    for entry in tar::Archive::new(DeflateDecoder::new(EMBEDDED)).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.display().to_string();
        let (lab, file) = path.split_once('/').context("a file beside the labs")?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        found.entry(lab.to_owned()).or_default().insert(file.to_owned(), content);
    }
    Ok(Library(found))
}

/// Each folder with a `lab.yaml` is a lab.
fn of_folder(folder: &Path) -> anyhow::Result<Library> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().join(DESCRIPTION).is_file() {
            let name = name(&entry.file_name())?;
            found.insert(name.clone(), files(&entry.path()).with_context(|| name)?);
        }
    }
    anyhow::ensure!(!found.is_empty(), "no folder in it has a {DESCRIPTION}");
    Ok(Library(found))
}

fn files(folder: &Path) -> anyhow::Result<Files> {
    let mut found = Files::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = name(&entry.file_name())?;
        // A link may lead to a file of somebody else, or to a device that never ends.
        anyhow::ensure!(entry.file_type()?.is_file(), "{name} is not a regular file");
        anyhow::ensure!(entry.metadata()?.len() <= LARGEST, "{name} is larger than {} KiB", LARGEST >> 10);
        let mut content = Vec::new();
        std::fs::File::open(entry.path())?.take(LARGEST).read_to_end(&mut content)?;
        found.insert(name, content);
        anyhow::ensure!(found.len() <= MOST_FILES, "more than {MOST_FILES} files");
    }
    Ok(found)
}

/// The name of a lab or file: it becomes part of paths and of command lines.
fn name(name: &std::ffi::OsStr) -> anyhow::Result<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let text = name.to_str().filter(|text| text.chars().all(allowed) && !text.starts_with(['.', '-']));
    text.map(str::to_owned).with_context(|| format!("{name:?}: a name has letters, digits, dots, dashes, underscores"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lab_that_is_built_in_is_well_formed() {
        let library = Library::open(None).unwrap();
        let names: Vec<&str> = library.names().collect();
        assert!(!names.is_empty());
        for name in names {
            let lab = library.lab(name).unwrap();
            assert!(lab.steps.iter().any(|step| !step.checks.is_empty()), "{name} checks nothing");
            assert!(lab.steps.iter().any(|step| step.question.is_some()), "{name} asks nothing");
            let files = library.files(name).unwrap();
            let text = String::from_utf8_lossy(&files[DESCRIPTION]).into_owned();
            for file in files.keys().filter(|file| *file != DESCRIPTION) {
                assert!(text.contains(file.as_str()), "{name} does not use {file}");
            }
            let prose = lab.steps.iter().flat_map(|step| {
                let question = step.question.iter().flat_map(|q| [&q.ask, &q.answer]);
                [&step.text].into_iter().chain(&step.observe).chain(question)
            });
            let long = prose.chain([&lab.goal]).flat_map(|text| text.lines()).find(|line| line.chars().count() > 90);
            assert_eq!(long, None, "{name} has a line too long for a terminal");
        }
    }

    #[test]
    fn a_lab_is_found_by_what_people_type() {
        let files = Files::new();
        let names = ["01-create-pod", "12-a-1"].map(|name| (name.to_owned(), files.clone()));
        let library = Library(names.into());
        for (word, name) in [("01-create-pod", 0), ("create-pod", 0), ("1", 0), ("01", 0), ("12", 1), ("a-1", 1)] {
            assert_eq!(library.find(word).unwrap(), library.names().nth(name).unwrap(), "{word}");
        }
        assert!(library.find("pod").is_err() && library.find("2").is_err() && library.find("").is_err());
    }

    #[test]
    fn a_folder_with_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let said = || format!("{:#}", Library::open(Some(folder.path())).err().expect("refused"));
        assert!(said().ends_with("no folder in it has a lab.yaml"), "{}", said());
        let lab = folder.path().join("01-x");
        std::fs::create_dir(&lab).unwrap();
        std::fs::write(lab.join("lab.yaml"), "title: x\n").unwrap();
        let library = Library::open(Some(folder.path())).unwrap();
        let why = format!("{:#}", library.lab("01-x").unwrap_err());
        assert!(why.starts_with("01-x/lab.yaml: missing field `goal`"), "{why}");
        std::os::unix::fs::symlink("/dev/zero", lab.join("zero")).unwrap();
        assert!(said().ends_with("01-x: zero is not a regular file"), "{}", said());
        std::fs::remove_file(lab.join("zero")).unwrap();
        std::fs::write(lab.join("a b"), "").unwrap();
        assert!(said().contains("a name has letters"), "{}", said());
    }
}
