//! Edit, with scripted editors.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use super::*;

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {app: x}}
data: {key: old}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: 'localhost/busybox:1'}]}}
";

/// An editor that runs scripts, one each time it is opened, and saves what it was shown.
struct Editor {
    folder: tempfile::TempDir,
}

impl Editor {
    /// `rounds`: shell scripts in which `$1` is the file.
    fn new(rounds: &[&str]) -> Editor {
        let folder = tempfile::tempdir().unwrap();
        for (number, round) in rounds.iter().enumerate() {
            fs::write(folder.path().join(format!("do{number}")), round).unwrap();
        }
        let at = folder.path().display();
        let script = format!(
            "#!/bin/sh\nn=$(ls {at} | grep -c seen)\ncp \"$1\" {at}/seen$n\n\
             [ -e {at}/do$n ] || {{ echo opened once more than wanted >&2; exit 9; }}\n. {at}/do$n\n"
        );
        fs::write(folder.path().join("editor"), script).unwrap();
        fs::set_permissions(folder.path().join("editor"), fs::Permissions::from_mode(0o755)).unwrap();
        Editor { folder }
    }

    /// The file when it was opened.
    fn seen(&self, round: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("seen{round}"))).unwrap()
    }

    /// Exit code, standard output and standard error of an edit; its files are created in a separate folder.
    fn edit(&self, node: &TestNode, args: &[&str]) -> (Option<i32>, String, String) {
        let mut command = node.command(&[&["edit"], args].concat());
        command.env("KUBE_EDITOR", self.folder.path().join("editor")).env("TMPDIR", self.temp());
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn temp(&self) -> PathBuf {
        let temp = self.folder.path().join("tmp");
        fs::create_dir_all(&temp).unwrap();
        temp
    }

    /// The files left for the user.
    fn kept(&self) -> Vec<PathBuf> {
        fs::read_dir(self.temp()).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// The one saved copy, which must contain `text` and be named in the output.
    #[track_caller]
    fn copy(&self, said: &str, text: &str) -> String {
        let kept = self.kept();
        assert_eq!(kept.len(), 1, "{kept:?}");
        contains(&fs::read_to_string(&kept[0]).unwrap(), text).unwrap();
        let path = kept[0].display().to_string();
        contains(said, &path).unwrap();
        path
    }
}

const NO_CHANGE: &str = "Edit cancelled, no changes made.\n";
const NO_VALID: &str = "error: Edit cancelled, no valid changes were saved.\n";

#[test]
fn an_edit_is_taken_or_given_up() {
    let node = TestNode::start(&[]);
    node.apply(OBJECTS);
    let try_it = |rounds: &[&str], args: &[&str]| {
        let editor = Editor::new(rounds);
        let (code, out, err) = editor.edit(&node, args);
        (editor, code, out, err)
    };
    let (editor, code, out, err) = try_it(&["sed -i 's/key: old/key: new/' \"$1\""], &["cm", "one"]);
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "configmap/one edited\n", ""));
    says(&node, &["get", "cm", "one", "-o", "jsonpath={.data.key}"], "new");
    contains(&editor.seen(0), "# Please edit the object below. Lines beginning with a '#' will be ignored,\n").unwrap();
    assert_eq!(editor.kept().len(), 0);
    // Nothing to do: unchanged, an added comment, everything removed.
    for (round, said) in [
        ("true", NO_CHANGE),
        ("echo '# a thought' >> \"$1\"", NO_CHANGE),
        ("echo >> \"$1\"", NO_CHANGE),
        (": > \"$1\"", "Edit cancelled, saved file was empty.\n"),
    ] {
        let (editor, code, out, err) = try_it(&[round], &["cm/one"]);
        assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", said), "{round}");
        assert_eq!(editor.kept().len(), 0, "{round}");
    }
    let (_, code, _, err) = try_it(&["exit 3"], &["cm", "one"]);
    assert_eq!(code, Some(1));
    contains(&err, "error: there was a problem with the editor ").unwrap();
    refuses(&node, &["edit", "cm", "nobody"], "Error from server (NotFound): configmaps \"nobody\" not found");
}

#[test]
fn what_the_server_refuses_is_opened_again_and_kept_when_given_up() {
    let node = TestNode::start(&[]);
    node.apply(OBJECTS);
    let bad = "sed -i 's/app: x/app: \"not:a.label\"/' \"$1\"";
    let broken = "echo '  key: [' >> \"$1\"";
    let invalid = "error: configmaps \"one\" is invalid\n";

    // Rejected, fixed, accepted: the reason is at the top, the input is kept.
    let editor = Editor::new(&[bad, "sed -i 's/not:a.label/fine/' \"$1\""]);
    let (code, out, err) = editor.edit(&node, &["cm", "one"]);
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "configmap/one edited\n", invalid));
    let head = "# reopened with the relevant failures.\n#\n# configmaps \"one\" was not valid:\n# * metadata.labels: ";
    contains(&editor.seen(1), head).and(contains(&editor.seen(1), "not:a.label")).unwrap();
    assert_eq!(editor.kept().len(), 0);
    says(&node, &["get", "cm", "one", "-o", "jsonpath={.metadata.labels.app}"], "fine");
    node.ok(&["label", "cm", "one", "--overwrite", "app=x"]);

    // Rejected twice for different reasons: the second one is shown.
    let rounds = [bad, "sed -i 's/not:a.label/x/; s/key: old/_: a\\n  \"a b\": c/' \"$1\"", ": > \"$1\""];
    let editor = Editor::new(&rounds);
    let (code, _, err) = editor.edit(&node, &["cm", "one"]);
    assert_eq!((code, err), (Some(0), format!("{invalid}{invalid}Edit cancelled, saved file was empty.\n")));
    contains(&editor.seen(2), "# * data[a b]: ").unwrap();

    // Given up: the user's input is saved.
    let editor = Editor::new(&[bad, "true"]);
    let (code, out, err) = editor.edit(&node, &["cm", "one"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    let path = editor.copy(&err, "not:a.label");
    assert_eq!(err, format!("{invalid}A copy of your changes has been stored to \"{path}\"\n{NO_VALID}"));
    // Reverted: nothing to do.
    let editor = Editor::new(&[bad, "sed -i 's/app: .*not:a.label.*/app: x/' \"$1\""]);
    let (code, _, err) = editor.edit(&node, &["cm", "one"]);
    assert_eq!((code, err), (Some(0), format!("{invalid}{NO_CHANGE}")));
    // The editor fails the second time: the first input is saved.
    let editor = Editor::new(&[bad, "exit 1"]);
    let (code, _, err) = editor.edit(&node, &["cm", "one"]);
    assert_eq!(code, Some(1));
    editor.copy(&err, "not:a.label");
    contains(&err, "error: there was a problem with the editor").unwrap();

    // Not YAML: reported at the top, with the same text again.
    let editor = Editor::new(&[broken, "true"]);
    let (code, _, err) = editor.edit(&node, &["cm", "one"]);
    assert_eq!(code, Some(1));
    let path = editor.copy(&err, "key: [");
    assert_eq!(err, format!("A copy of your changes has been stored to \"{path}\"\n{NO_VALID}"));
    contains(&editor.seen(1), "# The edited file had a syntax error: ")
        .and(contains(&editor.seen(1), "key: ["))
        .unwrap();

    // It cannot become another object.
    for (round, why) in [
        ("sed -i 's/^  name: one/  name: two/' \"$1\"", "error: At least one of apiVersion, kind and name was changed"),
        (
            "sed -i 's/^kind: ConfigMap/kind: Secret/' \"$1\"",
            "error: At least one of apiVersion, kind and name was changed",
        ),
        (
            "sed -i 's/namespace: default/namespace: other/' \"$1\"",
            "error: the namespace from the provided object \"other\" does not match the namespace \"default\".",
        ),
    ] {
        let editor = Editor::new(&[round]);
        let (code, _, err) = editor.edit(&node, &["cm", "one"]);
        assert_eq!(code, Some(1), "{round}: {err}");
        contains(&err, why).unwrap();
        editor.copy(&err, "kind: ");
    }
    // Misspelt: the server's message at the top, with the same text again. Kinds of a group are named with it.
    let editor = Editor::new(&["sed -i 's/replicas:/replicass:/' \"$1\"", "true"]);
    let (_, _, err) = editor.edit(&node, &["deployment", "web"]);
    contains(&err, "error: deployments.apps \"web\" is invalid\n").unwrap();
    contains(&editor.seen(1), "unknown field \"spec.replicass\"").unwrap();
    let editor = Editor::new(&["sed -i 's/app: web/app: other/' \"$1\"", "true"]);
    let (_, _, err) = editor.edit(&node, &["deployment", "web"]);
    contains(&err, "error: deployments.apps \"web\" is invalid\n").unwrap();
    contains(&editor.seen(1), "# deployments.apps \"web\" was not valid:\n# * spec.selector: ").unwrap();

    // Deleted while being edited.
    let delete = format!(
        "PODWRIGHT_SERVER=unix://{} {} delete cm one >&2; sed -i 's/key: old/key: new/' \"$1\"",
        node.socket().display(),
        node.command(&[]).get_program().to_string_lossy()
    );
    let editor = Editor::new(&[&delete]);
    let (code, _, err) = editor.edit(&node, &["cm", "one"]);
    assert_eq!(code, Some(1), "{err}");
    let path = editor.copy(&err, "key: new");
    contains(&err, "error: configmaps \"one\" could not be found on the server\n")
        .and(contains(&err, &format!("The edits you made on deleted resources have been saved to \"{path}\"\n")))
        .unwrap();
}
