//! Namespaces: deletes the content of a terminating one, its Pods first, then finalizes it.
//!
//! Upstream: `pkg/controller/namespace/deletion/namespaced_resources_deleter.go`. As long as there are Pods, everything else stays:
//! NetworkPolicies apply and Secrets and ConfigMaps are available until the Pods end (KEP-5080, ordered namespace deletion).
//! Content on extension API servers is deleted as well; while their discovery fails, the namespace stays.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};

use super::{
    Context, Failure, MetadataInformers, Plan, Row, Writes,
    conditions::{self, Condition},
    live_reads::LiveReads,
    meta,
    metadata_informers::{
        IGNORED,
        elsewhere::{self, Elsewhere},
    },
    write::{Guard, Write},
};
use podwright_api::{
    Options, Request, Verb,
    request::{Body, List},
};
use podwright_client::{Key, Partial};

const FINALIZER: &str = "kubernetes";
const PODS: &str = "pods";
/// Upstream's condition reason for content that could not be deleted.
const FAILED: &str = "ContentDeletionFailed";
/// The longest message: each kind may have its own reason, and humans read conditions.
const LONGEST: usize = 32 * 1024;
/// When to check extension API servers again, which send no notifications.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// So many objects of a resource that is not followed are looked at; of the others their number is told.
const LISTED: u64 = 500;

pub const ROW: Row = Row {
    name: "namespace-controller",
    workers: 10,
    writes: Writes::Any,
    watch: |watches| {
        let world = watches.world.clone();
        watches.own(&world.informers.namespaces);
        watches.on_metadata(
            |informer| informer.namespaced,
            |world, queue, change| {
                let key = Key::new("", &change.key.namespace);
                let ending = |ns: &Namespace| meta::is_terminating(&ns.metadata);
                if world.informers.namespaces.get(&key).is_some_and(|namespace| ending(&namespace)) {
                    queue.add(key);
                }
            },
        );
    },
    reconcile,
};

fn reconcile(context: &Context<'_>, key: &Key) -> Plan {
    let Some(namespace) = context.world.informers.namespaces.get(key) else { return Plan::default() };
    if !meta::is_terminating(&namespace.metadata) {
        return Plan::default();
    }
    let metadata = &context.world.metadata;
    let revision = namespace.metadata.resource_version.as_deref().and_then(|revision| revision.parse().ok());
    let revision = revision.unwrap_or(u64::MAX);
    let defined = metadata.defined(revision).map(|resources| Guard::Defined { resources });
    let discovered = metadata.discovered(revision).map(|resources| Guard::Discovered { resources });
    let all = defined.into_iter().chain(discovered).collect();
    let (contents, others) = contents(metadata, &key.name);
    let is_empty = others.failing.is_empty() && contents.iter().all(|remains| remains.count == 0);
    let unwatched = match unwatched(context.live_reads, &key.name, others.unwatched.iter().filter(|_| is_empty)) {
        Ok(unwatched) => unwatched,
        Err(live_reads) => return Plan { live_reads, ..Plan::default() },
    };
    plan(&namespace, contents, &others, &unwatched, all, context.failures, context.now)
}

/// What is left of resources that are not followed, as their servers say once nothing else is left: who holds it up must be told, too.
fn unwatched<'a>(
    live_reads: &LiveReads,
    namespace: &str,
    resources: impl Iterator<Item = &'a String>,
) -> Result<Vec<Remains>, Vec<Request>> {
    let (mut found, mut asked) = (Vec::new(), Vec::new());
    for resource in resources {
        let list = Request {
            verb: Verb::List,
            resource: resource.clone(),
            namespace: Some(namespace.to_owned()),
            options: Options { limit: Some(LISTED), ..Options::default() },
            ..Request::default()
        };
        match live_reads.to(list) {
            Ok(Ok(Body::List(list))) => found.push(listed(resource, list)),
            // Its deletion meets the same, and tells it.
            Ok(_) => {}
            Err(request) => asked.push(request),
        }
    }
    if asked.is_empty() { Ok(found) } else { Err(asked) }
}

fn listed(resource: &str, list: &List) -> Remains {
    let objects: Vec<Partial> = list.items.iter().filter_map(|item| serde_json::from_slice(item).ok()).collect();
    let more = list.remaining_item_count.and_then(|more| usize::try_from(more).ok()).unwrap_or(0);
    let all = list.items.len().saturating_add(more);
    Remains { count: all, ..remains(resource, objects.iter()) }
}

/// The remaining objects of one kind in a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remains {
    pub resource: String,
    /// Their number.
    pub count: usize,
    /// How many are not terminating yet.
    pub untouched: usize,
    /// How many each finalizer blocks.
    pub finalizers: BTreeMap<String, usize>,
}

/// What is known to be left, and what of others is not known: of what is followed and cannot be seen an old copy says nothing.
fn contents(metadata: &MetadataInformers, namespace: &str) -> (Vec<Remains>, Elsewhere) {
    let informers = metadata.informers();
    let mut others = (*metadata.elsewhere()).clone();
    let mut contents = Vec::new();
    for informer in informers.iter().filter(|informer| informer.namespaced) {
        let (resource, objects) = (&informer.resource, &informer.objects);
        if !informer.is_blind() {
            contents.push(remains(resource, objects.list_namespace(namespace).iter().map(|o| &**o)));
        } else if objects.is_full() {
            others.full.push(resource.clone());
        } else {
            others.unwatched.push(resource.clone());
        }
    }
    (contents, others)
}

fn remains<'a>(resource: &str, objects: impl Iterator<Item = &'a Partial>) -> Remains {
    let mut remains = Remains { resource: resource.to_owned(), ..Remains::default() };
    for Partial { metadata } in objects {
        remains.count += 1;
        remains.untouched += usize::from(!meta::is_terminating(metadata));
        for finalizer in metadata.finalizers.iter().flatten() {
            *remains.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }
    remains
}

/// Plans a terminating namespace; `contents` has one entry for every followed namespaced kind, `all` are the guards that ensure
/// that these are complete, together with remote discovery; `unwatched` has what is left of others where nothing else is; `failures` are
/// the reasons why some of it could not be deleted.
pub fn plan(
    namespace: &Namespace,
    contents: Vec<Remains>,
    others: &Elsewhere,
    unwatched: &[Remains],
    all: Vec<Guard>,
    failures: &[Failure],
    now: Timestamp,
) -> Plan {
    let name = meta::name(&namespace.metadata);
    let mut plan = Plan::default();
    let held = |finalizer: &String| finalizer == FINALIZER;
    let ours = namespace.spec.iter().flat_map(|spec| spec.finalizers.iter().flatten()).any(held);
    let unseen = || others.unwatched.iter().chain(&others.full);
    let unfollowed = || IGNORED.iter().map(|resource| (*resource).to_owned()).chain(unseen().cloned());
    if ours && others.failing.is_empty() && contents.iter().all(|remains| remains.count == 0) {
        let mut done = namespace.clone();
        done.spec.get_or_insert_default().finalizers.get_or_insert_default().retain(|finalizer| !held(finalizer));
        let mut write = Write::create(&done);
        write.request.verb = Verb::Update;
        write.request.subresource = Some("finalize".into());
        // Other resources are deleted without observing them. Nothing can be created here any more.
        plan.then(unfollowed().map(|resource| clear(name, &resource)).collect());
        // As long as that succeeds there is nothing to tell: it is let go at once.
        if !failures.is_empty() || !others.full.is_empty() || unwatched.iter().any(|left| stays(namespace, left, now)) {
            plan.report = report(namespace, unwatched, others, failures, now);
        }
        // Caches may not show the latest objects yet: check once more before finalizing.
        let followed = contents.into_iter().map(|remains| remains.resource);
        let resources = followed.chain(unfollowed()).collect();
        write = write.reported(FAILED);
        if unseen().next().is_some() {
            // Nobody tells when the last of it goes.
            plan.requeue(LOOK_AGAIN);
        }
        write.guards = all.into_iter().chain([Guard::Empty { namespace: name.to_owned(), resources }]).collect();
        plan.then(vec![write]);
        return plan;
    }
    // The current step, which is reported: Pods as long as there are any.
    let due = contents.iter().find(|remains| remains.resource == PODS && remains.count > 0);
    let due = due.map_or(contents.as_slice(), std::slice::from_ref);
    if ours {
        let untouched = due.iter().filter(|remains| remains.untouched > 0);
        plan.then(untouched.map(|remains| clear_in_turn(name, &remains.resource)).collect());
    }
    if !others.failing.is_empty() {
        plan.requeue(LOOK_AGAIN);
    }
    plan.report = report(namespace, due, others, failures, now);
    plan
}

/// Whether what is left has been deleted before, and is still there.
fn stays(namespace: &Namespace, left: &Remains, now: Timestamp) -> bool {
    let begun = namespace.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let was_deleted = begun.is_some_and(|begun| meta::later(begun, LOOK_AGAIN) <= now);
    left.count > left.untouched || was_deleted && left.count > 0
}

/// Reports the progress, unless the status has it already.
fn report(
    namespace: &Namespace,
    contents: &[Remains],
    others: &Elsewhere,
    failures: &[Failure],
    now: Timestamp,
) -> Option<Write> {
    let mut new = namespace.clone();
    let conditions = new.status.get_or_insert_default().conditions.get_or_insert_default();
    for condition in told(contents, others, failures, now) {
        conditions::set(conditions, condition);
    }
    Write::status(namespace, &new)
}

/// Deletes all objects of one kind; other kinds than Pods only when no Pod is left, observed or not.
fn clear_in_turn(namespace: &str, resource: &str) -> Write {
    let write = clear(namespace, resource);
    match resource {
        PODS => write,
        _ => write.guarded(Guard::Empty { namespace: namespace.to_owned(), resources: vec![PODS.to_owned()] }),
    }
}

/// Deletes all objects of one kind in the namespace.
fn clear(namespace: &str, resource: &str) -> Write {
    let mut write = Write::new(Request {
        verb: Verb::DeleteCollection,
        resource: resource.to_owned(),
        namespace: Some(namespace.to_owned()),
        ..Request::default()
    });
    write.request.options.propagation_policy = Some("Background".into());
    write.reported(FAILED)
}

/// What could not be deleted, in upstream's words.
fn failed(failures: &[Failure]) -> String {
    let mut why: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
    why.sort_unstable();
    short(format!("Failed to delete all resource types, {} remaining: {}", why.len(), why.join(", ")))
}

/// Truncates a message that is too long for a condition.
fn short(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(LONGEST));
    message
}

/// The conditions that tell how far it is.
fn told(contents: &[Remains], others: &Elsewhere, failures: &[Failure], now: Timestamp) -> Vec<NamespaceCondition> {
    let (failing, full) = (&others.failing, &others.full);
    // Upstream writes the resource, a dot, and the group: the core group's have a dot at their end.
    let dotted = |resource: &str| match resource.contains('.') {
        true => resource.split('/').next().unwrap_or_default().to_owned(),
        false => format!("{resource}."),
    };
    let mut remaining: Vec<String> = contents
        .iter()
        .filter(|remains| remains.count > 0)
        .map(|remains| format!("{} has {} resource instances", dotted(&remains.resource), remains.count))
        .collect();
    remaining.sort_unstable();
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for (finalizer, count) in contents.iter().flat_map(|remains| &remains.finalizers) {
        *finalizers.entry(finalizer).or_default() += count;
    }
    let held: Vec<String> = finalizers.iter().map(|(name, n)| format!("{name} in {n} resource instances")).collect();
    let is = |kind: &str, status: &str, reason: &str, message: &str| {
        NamespaceCondition::new(kind, status, reason, message, now)
    };
    vec![
        match failing.is_empty() && full.is_empty() {
            true => is(
                "NamespaceDeletionDiscoveryFailure",
                "False",
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            false => {
                let message = short(elsewhere::failure(failing, full));
                is("NamespaceDeletionDiscoveryFailure", "True", "DiscoveryFailed", &message)
            }
        },
        is(
            "NamespaceDeletionGroupVersionParsingFailure",
            "False",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        match failures.is_empty() {
            true => is(
                "NamespaceDeletionContentFailure",
                "False",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            false => is("NamespaceDeletionContentFailure", "True", FAILED, &failed(failures)),
        },
        match remaining.is_empty() {
            true => is("NamespaceContentRemaining", "False", "ContentRemoved", "All content successfully removed"),
            false => {
                let message = short(format!("Some resources are remaining: {}", remaining.join(", ")));
                is("NamespaceContentRemaining", "True", "SomeResourcesRemain", &message)
            }
        },
        match held.is_empty() {
            true => is(
                "NamespaceFinalizersRemaining",
                "False",
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            ),
            false => {
                let message =
                    short(format!("Some content in the namespace has finalizers remaining: {}", held.join(", ")));
                is("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", &message)
            }
        },
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn servers_are_asked_for_what_is_not_watched() {
        let (mut answers, resources) = (LiveReads::default(), ["things.a.io/v1", "things.b.io/v1"].map(str::to_owned));
        let look = |answers: &LiveReads| unwatched(answers, "ns", resources.iter());
        let asked = look(&answers).expect_err("nobody has answered");
        let shape = |request: &Request| (request.resource.clone(), request.namespace.clone(), request.options.limit);
        let expected = resources.clone().map(|resource| (resource, Some("ns".to_owned()), Some(LISTED)));
        assert_eq!(asked.iter().map(shape).collect::<Vec<_>>(), expected);
        let item = |metadata: serde_json::Value| json!({ "metadata": metadata }).to_string().into_bytes().into();
        let items = vec![
            item(json!({ "name": "x", "finalizers": ["a/b"], "deletionTimestamp": "2026-01-01T00:00:00Z" })),
            item(json!({ "name": "y" })),
        ];
        let list = List { items, remaining_item_count: Some(7), ..List::default() };
        let [one, other] = <[Request; 2]>::try_from(asked).expect("two");
        answers.take(one, Ok(Body::List(list)));
        answers.take(other, Err(podwright_api::Status::unavailable("away")));
        let left = Remains {
            resource: resources[0].clone(),
            count: 9,
            untouched: 1,
            finalizers: [("a/b".to_owned(), 1)].into(),
        };
        assert_eq!(look(&answers).expect("all are asked"), [left], "who does not answer is left to the deletion");
    }
}
