//! `explain --linux`: which part of the kernel a field of a Pod becomes, and what it is for a Pod that runs.
//!
//! ```text
//!   pod.rs, container.rs, volume.rs   a row a field  --find--> Found --page--> text
//!                                                               |
//!              the Linux view of a Pod (`inspect`) --live-------'
//! ```

use serde_json::Value;

use super::super::page::Page;

mod container;
mod pod;
mod volume;

/// What a field becomes.
#[derive(Debug)]
pub struct Row {
    /// Its path below the Pod's spec, a container, or a volume.
    field: &'static str,
    /// The kernel's interface; empty: none.
    kernel: &'static str,
    how: &'static str,
    /// Manual pages, with their section, and files of the kernel's documentation.
    see: &'static str,
    live: Live,
    /// Whether it holds for all fields below.
    whole: bool,
}

/// Where its value is in the Linux view of a Pod, as a JSON pointer (RFC 6901).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Live {
    Nowhere,
    /// Of the whole view.
    Pod(&'static str),
    /// Of a container.
    Container(&'static str),
    /// Of a container's first process.
    Process(&'static str),
}

/// A field that becomes something of the kernel's.
const fn kernel(field: &'static str, kernel: &'static str, how: &'static str, see: &'static str) -> Row {
    Row { field, kernel, how, see, live: Live::Nowhere, whole: false }
}

/// A field that controllers, the scheduler or the node go by, and the kernel never sees.
const fn api(field: &'static str, how: &'static str) -> Row {
    kernel(field, "", how, "")
}

impl Row {
    const fn live(self, live: Live) -> Row {
        Row { live, ..self }
    }

    const fn whole(self) -> Row {
        Row { whole: true, ..self }
    }

    fn kernel(&self) -> &'static str {
        if self.kernel.is_empty() { "none" } else { self.kernel }
    }

    /// Whether this row is of `path`, or of something that it is a part of.
    fn covers(&self, path: &str) -> bool {
        path == self.field || (self.whole && is_below(path, self.field))
    }
}

fn is_below(path: &str, of: &str) -> bool {
    of.is_empty() || path.strip_prefix(of).is_some_and(|rest| rest.starts_with('.'))
}

/// All volumes of a kind that no node of ours sets up.
const FOREIGN: Row =
    api("", "This node does not set up volumes of this kind: the Pod waits, and its event FailedMount says why.")
        .whole();

/// What is known of a field.
#[derive(Debug)]
pub struct Found {
    /// Its own row, or that of something that it is a part of.
    row: Option<&'static Row>,
    /// Those of the fields below, with their paths from the field on.
    below: Vec<(String, &'static Row)>,
}

impl Found {
    /// Whether the field itself is not in the table, only something that it is a part of.
    pub fn is_part(&self, fields: &[&str]) -> bool {
        let last = |row: &Row| row.field.rsplit('.').next() == fields.last().copied();
        self.below.is_empty() && !self.row.is_some_and(last)
    }
}

/// The table of containers holds for these lists.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Finds a field, by its path below a Pod's spec.
pub fn find(fields: &[&str]) -> Option<Found> {
    let (rows, path) = match fields.split_first() {
        Some((list, rest)) if CONTAINERS.contains(list) => (container::ROWS, rest.join(".")),
        Some((&"volumes", rest)) if rest.first().is_some_and(|kind| volume::FOREIGN.contains(kind)) => {
            return Some(Found { row: Some(&FOREIGN), below: Vec::new() });
        }
        Some((&"volumes", rest)) => (volume::ROWS, rest.join(".")),
        _ => (pod::ROWS, fields.join(".")),
    };
    // A row further down says more.
    let row = rows.iter().filter(|row| row.covers(&path)).max_by_key(|row| row.field.len());
    let below = rows.iter().filter(|row| row.field != path && is_below(row.field, &path));
    let rest = |row: &Row| if path.is_empty() { row.field } else { &row.field[path.len() + 1..] }.to_owned();
    let mut below: Vec<(String, &Row)> = below.map(|row| (rest(row), row)).collect();
    below.sort_by(|(a, _), (b, _)| a.cmp(b));
    (row.is_some() || !below.is_empty()).then_some(Found { row, below })
}

/// The text for people. `live`: the Linux view of a Pod, its name, and the name of one of its containers.
pub fn page(field: &str, found: &Found, live: Option<(&Value, &str, &str)>) -> String {
    let mut page = Page::default();
    page.line(0, format!("FIELD:\t{field}"));
    if let Some(row) = found.row {
        page.line(0, format!("LINUX:\t{}", row.kernel()));
        if let Some((view, pod, container)) = live {
            page.line(0, format!("LIVE:\t{}", value(row, view, pod, container)));
        }
        page.line(0, "");
        page.line(2, super::wrapped(row.how, 76));
        if !row.see.is_empty() {
            page.line(0, "");
            page.line(0, format!("SEE:\t{}", row.see));
        }
    }
    if !found.below.is_empty() {
        page.line(0, "");
        page.line(0, "FIELDS:");
        found.below.iter().for_each(|(path, row)| page.line(1, format!("{path}\t{}", row.kernel())));
    }
    page.to_string()
}

/// What a row's field is for a Pod that runs.
fn value(row: &Row, view: &Value, pod: &str, container: &str) -> String {
    let named = || view["containers"].as_array()?.iter().find(|of| of["name"] == container);
    let (whose, found) = match row.live {
        Live::Nowhere => {
            return format!("pod/{pod} has no figure of it; `podwright inspect pod {pod}` shows all that there is");
        }
        Live::Pod(pointer) => (format!("pod/{pod}"), view.pointer(pointer)),
        Live::Container(pointer) => {
            (format!("container {container} of pod/{pod}"), named().and_then(|of| of.pointer(pointer)))
        }
        Live::Process(pointer) => {
            let first = named().and_then(|of| of["processes"].get(0));
            (format!("container {container} of pod/{pod}"), first.and_then(|process| process.pointer(pointer)))
        }
    };
    match found {
        None | Some(Value::Null) => format!("nothing for {whose}"),
        Some(Value::String(text)) => format!("{text} ({whose})"),
        Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            let between = if items.iter().any(|item| item.contains(' ')) { "\n\t" } else { " " };
            format!("{} ({whose})", items.join(between))
        }
        Some(other) => format!("{other} ({whose})"),
    }
}

#[cfg(test)]
mod tests {
    use podwright_api::schema::{self, Struct, Type};
    use serde_json::json;

    use super::*;

    fn text(field: &str) -> String {
        let fields: Vec<&str> = field.split('.').filter(|word| !word.is_empty()).collect();
        page(field, &find(&fields).expect(field), None)
    }

    #[test]
    fn a_field_is_explained_by_its_own_row() {
        let text = text("containers.resources.limits.memory");
        assert!(text.contains("LINUX:  cgroup files memory.max, memory.swap.max"), "{text}");
        assert!(text.contains("SEE:  cgroups(7)"), "{text}");
    }

    #[test]
    fn one_without_a_row_by_what_it_is_a_part_of() {
        assert!(text("containers.livenessProbe.httpGet.port").contains("LINUX:  exec: setns(2)"));
        assert!(text("initContainers.env.value").contains("environment of execve(2)"));
        assert!(text("affinity.nodeAffinity").contains("LINUX:  none"));
        assert!(text("volumes.nfs.server").contains("FailedMount"));
        assert!(find(&["nonsense"]).is_none());
        assert!(find(&["containers", "namespace"]).is_none());
    }

    #[test]
    fn one_that_holds_others_lists_them() {
        let text = text("volumes.emptyDir");
        assert!(text.contains("FIELDS:\n  medium     tmpfs\n  sizeLimit  size="), "{text}");
        assert!(super::find(&[]).expect("all").below.len() > 40);
    }

    #[test]
    fn a_live_value_is_of_the_container_that_is_named() {
        let view = json!({"containers": [
            {"name": "a", "cgroup": {"files": {"memory.max": "1"}}, "processes": [{"uid": 0}]},
            {"name": "b", "cgroup": {"files": {"memory.max": "2"}}, "processes": [{"uid": 7, "args": ["sleep", "1"]}]}]});
        let live = |field: &str| {
            let fields: Vec<&str> = field.split('.').collect();
            value(find(&fields).expect(field).row.expect(field), &view, "p", "b")
        };
        assert_eq!(live("containers.resources.limits.memory"), "2 (container b of pod/p)");
        assert_eq!(live("securityContext.runAsUser"), "7 (container b of pod/p)");
        assert_eq!(live("containers.command"), "sleep 1 (container b of pod/p)");
        assert_eq!(live("containers.resources.limits.cpu"), "nothing for container b of pod/p");
    }

    /// The fields of a struct, and of what is below them; what is of a row as a whole is not entered.
    fn walk(of: &Struct, at: &[&str], visit: &mut dyn FnMut(&[&str])) {
        for (name, field) in of.fields() {
            let path = [at, &[name]].concat();
            visit(&path);
            let mut inner = &field.of;
            while let Type::List(list) = inner {
                inner = &list.item;
            }
            let is_whole =
                find(&path).is_some_and(|found| found.row.is_some_and(|row| row.whole) && found.below.is_empty());
            match inner {
                Type::Struct(inner) if !is_whole => walk(inner, &path, visit),
                _ => {}
            }
        }
    }

    #[test]
    fn every_field_of_a_pods_spec_is_explained_and_no_other() {
        let (mut missing, mut there) = (Vec::new(), std::collections::HashSet::new());
        walk(&schema::of("io.k8s.api.core.v1.PodSpec"), &[], &mut |path| {
            missing.extend(find(path).is_none().then(|| path.join(".")));
            let list = path.split_first().filter(|(list, _)| CONTAINERS.contains(list));
            there.insert(list.map_or_else(|| path.join("."), |(_, rest)| format!("containers.{}", rest.join("."))));
        });
        assert_eq!(missing, [""; 0], "fields without a row");
        let placed = |prefix: &str, rows: &'static [Row]| {
            rows.iter().map(move |row| format!("{prefix}{}", row.field)).collect::<Vec<_>>()
        };
        let all =
            [placed("", pod::ROWS), placed("containers.", container::ROWS), placed("volumes.", volume::ROWS)].concat();
        let is_amount = |row: &&String| row.contains(".limits.") || row.contains(".requests.");
        let stale: Vec<&String> = all.iter().filter(|row| !is_amount(row) && !there.contains(*row)).collect();
        assert_eq!(stale, [""; 0], "rows without a field");
        let foreign: Vec<&&str> =
            volume::FOREIGN.iter().filter(|kind| !there.contains(&format!("volumes.{kind}"))).collect();
        assert_eq!(foreign, [&""; 0], "kinds of volumes that there are not");
    }

    /// A manual page, or a file of the kernel's documentation: nothing else can be looked up.
    #[test]
    fn what_the_kernel_has_can_be_looked_up() {
        for row in [pod::ROWS, container::ROWS, volume::ROWS].into_iter().flatten() {
            assert_eq!(row.kernel.is_empty(), row.see.is_empty(), "{}", row.field);
            for see in row.see.split(", ").filter(|see| !see.is_empty()) {
                assert!(
                    see.ends_with(')') || (see.starts_with("Documentation/") && see.ends_with(".rst")),
                    "{}: {see}",
                    row.field
                );
            }
        }
    }
}
