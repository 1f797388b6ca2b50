//! Custom resources of many kinds, by the shapes that operators publish: each file of the folder `operators` is a definition, an
//! object, and objects that are refused. All of them live in one server at once.
//!
//! Expectations are in comments: `# explain: FIELD | WORDS`, `# columns: HEADER | ROW`, `# refused: WORDS`; `# status: JSON` is
//! what an object's status becomes.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{kubectl::Cluster, support::contains};

struct Operator {
    file: String,
    definition: String,
    object: String,
    refused: Vec<(String, String)>,
    /// `PLURAL.GROUP` and the name of the object.
    resource: String,
    name: String,
}

/// The content of a comment of this kind.
fn noted<'a>(text: &'a str, kind: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix("# ")?.strip_prefix(kind)?.strip_prefix(": "))
}

fn operators() -> Vec<Operator> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/kubectl/operators");
    let files: BTreeMap<String, String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|e| (e.file_name().to_string_lossy().into_owned(), std::fs::read_to_string(e.path()).unwrap()))
        .collect();
    let parse = |(file, text): (String, String)| {
        let mut documents = text.split("\n---\n").map(str::to_owned);
        let mut next = || documents.next().unwrap_or_else(|| panic!("{file}: a definition and an object"));
        let (definition, object) = (next(), next());
        let refused = documents.map(|document| {
            let words = noted(&document, "refused").unwrap_or_else(|| panic!("{file}: no words")).to_owned();
            (words, document)
        });
        let refused = refused.collect();
        let line = |text: &str, key: &str| {
            let found = text.lines().find_map(|line| line.trim().strip_prefix(key).map(str::to_owned));
            found.unwrap_or_else(|| panic!("{file}: no {key}"))
        };
        let named =
            |text: &str| line(text, "metadata: {name: ").split([',', '}']).next().unwrap_or_default().to_owned();
        let (resource, name) = (named(&definition), named(&object));
        Operator { file, definition, object, refused, resource, name }
    };
    files.into_iter().map(parse).collect()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

impl Operator {
    fn check(&self, cluster: &Cluster) -> Result<(), String> {
        let said = |line: &str| match cluster.sh(line) {
            answer if answer.code == 0 => Ok(answer.out),
            answer => Err(format!("$ {line}\n{}", answer.all())),
        };
        let Operator { resource, name, .. } = self;
        if let Some((field, part)) = noted(&self.definition, "explain").and_then(|noted| noted.split_once(" | ")) {
            let (plural, group) = resource.split_once('.').ok_or("PLURAL.GROUP")?;
            let version = self.object.lines().find_map(|line| line.strip_prefix("apiVersion: ")).ok_or("no version")?;
            contains(version, group)?;
            contains(&said(&format!("kubectl explain {plural}.{field} --api-version={version}"))?, part)?;
        }
        if let Some(status) = noted(&self.object, "status") {
            said(&format!(
                "kubectl patch {resource} {name} --subresource=status --type=merge -p '{{\"status\":{status}}}'"
            ))?;
        }
        if let Some((header, row)) = noted(&self.definition, "columns").and_then(|noted| noted.split_once(" | ")) {
            let printed = said(&format!("kubectl get {resource} {name}"))?;
            let mut lines = printed.lines();
            let (found, first) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
            let same = words(found) == words(header) && words(first).starts_with(&words(row));
            same.then_some(()).ok_or_else(|| format!("{header:?} and {row:?} are not:\n{printed}"))?;
        }
        for (words, object) in &self.refused {
            cluster.file("refused.yaml", object);
            let answer = cluster.sh("kubectl create -f refused.yaml");
            if answer.code != 1 {
                return Err(format!("not refused: {object}\n{}", answer.all()));
            }
            contains(&answer.err, words)?;
        }
        Ok(())
    }
}

#[test]
fn the_custom_resources_of_operators_are_served() {
    let Some(cluster) = Cluster::without_node() else { return };
    let operators = operators();
    assert!(operators.len() >= 30, "{} files", operators.len());
    for operator in &operators {
        cluster.file(&format!("definitions/{}", operator.file), &operator.definition);
        cluster.file(&format!("objects/{}", operator.file), &operator.object);
    }
    let count = |text: &str, end: &str| text.lines().filter(|line| line.ends_with(end)).count();
    assert_eq!(count(&cluster.says("kubectl apply -f definitions"), " created"), operators.len());
    cluster.says("kubectl wait --for=condition=Established crd --all --timeout=60s");
    assert_eq!(count(&cluster.says("kubectl apply -f objects"), " created"), operators.len());
    for folder in ["definitions", "objects"] {
        let again = cluster.says(&format!("kubectl apply -f {folder}"));
        assert_eq!(count(&again, " unchanged"), operators.len(), "{again}");
        assert_eq!(cluster.says(&format!("kubectl diff -f {folder}")), "");
    }
    let wrong: Vec<String> =
        operators.iter().filter_map(|o| o.check(&cluster).err().map(|why| format!("{}: {why}", o.file))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    cluster.says("kubectl delete -f objects --timeout=60s");
    cluster.says("kubectl delete -f definitions --timeout=60s");
    assert_eq!(cluster.says("kubectl get crd -o name"), "");
    println!("{} definitions, {} refusals", operators.len(), operators.iter().map(|o| o.refused.len()).sum::<usize>());
}
