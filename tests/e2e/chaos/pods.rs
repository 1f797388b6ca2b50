//! Pods that count, and Pods that end: they must not be restarted, or lose a log line or an exit code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use super::{Dice, Outcome, TIMEOUT, folder_of, list, names, write};
use crate::support::{TestNode, eventually};

/// Number of concurrent Pods.
const LIVING: usize = 14;

#[derive(Clone, Copy, Debug)]
enum Part {
    /// Counts until it is deleted.
    Counts,
    /// Prints this many numbers, and exits with a code.
    Ends { lines: u64, code: u64 },
}

/// Both keys of a volume have the same value, whatever is written meanwhile: in the current folder, and by the keys' own names,
/// between whose reads the folder may change; an outdated folder may be removed while being read. Then the Pod's name is in its
/// claim, and it has started up.
const WHOLE: &str = "
for volume in /conf /sealed; do
  for way in \"cd -P $volume/..data\" \"cd $volume\"; do
    n=0
    until v=$(exec 2>/dev/null; $way && a=$(cat one) && b=$(cat two) && [ \"$a\" = \"$b\" ] && echo whole); [ \"$v\" = whole ]; do
      n=$((n+1)); [ $n -lt 20 ] || { echo torn $way; exit 77; }; sleep 0.1
    done
  done
done
";

/// The request sent to the server, and whether it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    No,
    Unanswered,
    Acknowledged,
}

#[derive(Clone, Debug)]
struct Known {
    part: Part,
    created: Asked,
    deleted: Asked,
    uid: Option<String>,
    container: Option<String>,
    finished: bool,
}

pub struct Pods {
    socket: PathBuf,
    folder: PathBuf,
    pods: BTreeMap<String, Known>,
    next: u64,
    made: u64,
    deleted: u64,
    ended: u64,
    adopted: u64,
    /// Images whose `/word` is their number.
    images: Vec<String>,
    /// Those that have written their name into a claim.
    booted: BTreeSet<String>,
    /// How often the volumes of running ones were checked after a start.
    looked: u64,
}

impl Pods {
    pub fn new(node: &TestNode, images: Vec<String>) -> Pods {
        let (socket, folder) = (node.socket(), folder_of(node));
        let (pods, booted) = (BTreeMap::new(), BTreeSet::new());
        Pods { socket, folder, pods, next: 0, made: 0, deleted: 0, ended: 0, adopted: 0, images, booted, looked: 0 }
    }

    /// Creates and deletes until the server dies.
    pub fn write(&mut self, mut dice: Dice, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let free: Vec<String> =
                self.pods.iter().filter(|(_, p)| p.deleted == Asked::No).map(|(n, _)| n.clone()).collect();
            let delete = free.len() >= LIVING || (free.len() > LIVING / 2 && dice.roll(3) == 0);
            let answered = match delete {
                true => self.delete(&free[dice.roll(free.len() as u64) as usize]),
                false => self.create(&mut dice),
            };
            if !answered {
                return;
            }
            dice.pause(120);
        }
    }

    fn create(&mut self, dice: &mut Dice) -> bool {
        self.next += 1;
        let name = format!("p{}", self.next);
        let part = match dice.roll(5) < 2 {
            true => Part::Counts,
            false => Part::Ends { lines: dice.roll(300), code: dice.roll(4) * 41 },
        };
        let script = match part {
            Part::Counts => "trap 'exit 3' TERM; i=0; while :; do echo $i; i=$((i+1)); sleep 0.1; done".to_owned(),
            Part::Ends { lines, code } => format!(
                "i=0; while [ $i -lt {lines} ]; do echo $i; i=$((i+1)); done; sleep {}.{}; echo end; exit {code}",
                dice.roll(2),
                dice.roll(10)
            ),
        };
        let image = dice.roll(10) as usize;
        let word = if image < self.images.len() {
            format!("[ \"$(cat /word)\" = {image} ] || exit 78;")
        } else {
            String::new()
        };
        let image = self.images.get(image).map_or("localhost/busybox:1", String::as_str);
        let script = format!("{WHOLE}{word} echo {name} >> /claim/names; echo boot; {script}");
        // Some have an ephemeral volume, and some nothing persistent: they start at once.
        let own = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
        let claim = match self.next % 5 {
            n @ (0 | 1) => json!({"name": "claim", "persistentVolumeClaim": {"claimName": format!("claim-{n}")}}),
            2 => json!({"name": "claim", "ephemeral": {"volumeClaimTemplate": own}}),
            _ => json!({"name": "claim", "emptyDir": {}}),
        };
        let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": dice.roll(3),
            "containers": [{"name": "c", "image": image, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "conf", "mountPath": "/conf"},
                    {"name": "sealed", "mountPath": "/sealed"}, {"name": "claim", "mountPath": "/claim"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "pair"}},
                {"name": "sealed", "secret": {"secretName": "pair"}},
                claim]}});
        let unanswered =
            Known { part, created: Asked::Unanswered, deleted: Asked::No, uid: None, container: None, finished: false };
        let known = self.pods.entry(name).or_insert(unanswered);
        let params = json!({"resource": "pods", "namespace": "default", "body": body});
        let Outcome::Done(object) = write(&self.socket, "create", params) else { return false };
        known.created = Asked::Acknowledged;
        known.uid = object["metadata"]["uid"].as_str().map(str::to_owned);
        self.made += 1;
        true
    }

    fn delete(&mut self, name: &str) -> bool {
        let known = self.pods.get_mut(name).expect("it is known");
        known.deleted = Asked::Unanswered;
        let params = json!({"resource": "pods", "namespace": "default", "name": name});
        let Outcome::Done(_) = write(&self.socket, "delete", params) else { return false };
        known.deleted = Asked::Acknowledged;
        self.deleted += 1;
        true
    }

    /// Every Pod matches the acknowledged writes and its containers' state.
    pub fn check(&mut self) {
        let pods = list(&self.socket, "pods").unwrap_or_else(|e| panic!("{e:?}"));
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut found: BTreeMap<String, Value> = pods.into_iter().map(|pod| (name(&pod), pod)).collect();
        for pod in found.values() {
            check_container(pod);
        }
        found.retain(|_, pod| pod["metadata"]["labels"]["app"].is_null());
        let (folder, adopted, ended) = (self.folder.clone(), &mut self.adopted, &mut self.ended);
        let booted = &mut self.booted;
        self.pods.retain(|name, known| match found.remove(name) {
            Some(pod) => {
                known.compare(name, &pod);
                if known.deleted == Asked::No {
                    let was = known.finished;
                    let lasts = pod["spec"]["volumes"].to_string().contains("claimName");
                    if known.look(name, &pod, &folder) && lasts {
                        booted.insert(name.clone());
                    }
                    *ended += u64::from(known.finished && !was);
                    *adopted += u64::from(known.container.is_some() && !known.finished);
                }
                true
            }
            None => {
                let lost = known.created == Asked::Acknowledged && known.deleted == Asked::No;
                assert!(!lost, "Pod {name} was acknowledged and never deleted, but it is not there");
                false
            }
        });
        assert!(found.is_empty(), "nobody made {:?}", found.keys());
    }

    /// The volumes of every running container are complete, by the container's names for their files; those left half written are
    /// repaired soon after the next start.
    pub fn check_volumes(&mut self) {
        let running = |known: &Known| known.container.is_some() && !known.finished && known.deleted == Asked::No;
        let uids = self.pods.values().filter(|known| running(known)).filter_map(|known| known.uid.clone());
        for uid in uids.collect::<Vec<_>>() {
            let volumes = [
                self.folder.join("pods").join(&uid).join("volumes/conf"),
                self.folder.join("volumes").join(&uid).join("sealed"),
            ];
            eventually("the volumes of what runs are whole", TIMEOUT, || {
                // If it has ended meanwhile nothing need be there.
                match volumes.iter().try_for_each(|volume| whole(volume)) {
                    Err(why) if !self.has_ended(&uid) => Err(format!("Pod {uid}: {why}")),
                    _ => Ok(()),
                }
            });
            self.looked += 1;
        }
    }

    pub fn looked(&self) -> u64 {
        self.looked
    }

    fn has_ended(&self, uid: &str) -> bool {
        let pods = list(&self.socket, "pods").unwrap_or_default();
        let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == uid);
        pod.is_none_or(|pod| !pod["status"]["containerStatuses"][0]["state"]["terminated"].is_null())
    }

    /// Everything settles: counting Pods run, ending ones have ended.
    pub fn settle(&mut self) {
        eventually("all Pods come to rest", TIMEOUT, || {
            self.check();
            let rests = |known: &Known| match known.part {
                _ if known.deleted != Asked::No => false,
                Part::Counts => known.container.is_some(),
                Part::Ends { .. } => known.finished,
            };
            let restless: Vec<_> = self.pods.iter().filter(|(_, known)| !rests(known)).collect();
            let pods = list(&self.socket, "pods");
            if restless.is_empty() { Ok(()) } else { Err(format!("{restless:#?}\n{pods:#?}")) }
        });
        // What a Pod has written into its claim is there, once.
        let volumes = self.folder.join("local-volumes");
        let files = names(&volumes).into_iter().map(|volume| written(&volumes.join(volume)));
        let mut found = files.collect::<Vec<_>>().concat();
        found.sort();
        let twice: Vec<_> = found.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "started twice: {twice:?}");
        let lost: Vec<_> = self.booted.iter().filter(|name| !found.contains(name)).collect();
        assert!(lost.is_empty() && !found.is_empty(), "lost from their claims: {lost:?}");
    }
}

/// Whether the files of a pair exist by their own names, with the same value.
fn whole(volume: &std::path::Path) -> Result<(), String> {
    let read = |name: &str| {
        let path = volume.join(name);
        fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    match (read("one")?, read("two")?) {
        (one, two) if one == two && !one.is_empty() => Ok(()),
        (one, two) => Err(format!("{}: {} and {} bytes", volume.display(), one.len(), two.len())),
    }
}

/// The names that Pods have written into a volume of the node.
fn written(volume: &std::path::Path) -> Vec<String> {
    let own = fs::read_to_string(volume.join("names")).unwrap_or_default();
    let mut all: Vec<String> = own.lines().map(str::to_owned).collect();
    let folders =
        fs::read_dir(volume).into_iter().flatten().flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders.for_each(|folder| all.extend(written(&folder.path())));
    all
}

/// No container was ever restarted.
fn check_container(pod: &Value) {
    for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
        assert_eq!(status["restartCount"], 0, "a container was restarted: {pod:#}");
    }
}

impl Known {
    /// Compares the object with the acknowledged writes.
    fn compare(&mut self, name: &str, pod: &Value) {
        let uid = pod["metadata"]["uid"].as_str().map(str::to_owned);
        assert!(self.uid.is_none() || self.uid == uid, "Pod {name} is another one: {:?} {uid:?}", self.uid);
        (self.uid, self.created) = (uid, Asked::Acknowledged);
        let deleted = !pod["metadata"]["deletionTimestamp"].is_null();
        match (self.deleted, deleted) {
            (Asked::Acknowledged, false) => panic!("the deletion of Pod {name} was acknowledged and is lost: {pod:#}"),
            (Asked::No, true) => panic!("nobody deleted Pod {name}: {pod:#}"),
            (_, true) => self.deleted = Asked::Acknowledged,
            (_, false) => self.deleted = Asked::No,
        }
    }

    /// Status and log of a Pod that is not deleted; whether it has started up.
    fn look(&mut self, name: &str, pod: &Value, folder: &std::path::Path) -> bool {
        let status = &pod["status"]["containerStatuses"][0];
        if let Some(id) = status["containerID"].as_str() {
            let same = self.container.as_deref().is_none_or(|known| known == id);
            assert!(same, "Pod {name} has another container than {:?}: {pod:#}", self.container);
            self.container = Some(id.to_owned());
        }
        let exit = &status["state"]["terminated"];
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        if let (Part::Ends { code, .. }, false) = (self.part, exit.is_null()) {
            assert_eq!(exit["exitCode"], code, "{pod:#}");
            self.finished = phase == if code == 0 { "Succeeded" } else { "Failed" };
        }
        let over = !exit.is_null() || matches!(phase, "Failed" | "Succeeded");
        assert!(!over || matches!(self.part, Part::Ends { .. }), "Pod {name} has ended: {pod:#}");
        let uid = self.uid.as_deref().unwrap_or_default();
        let logs = folder.join("log").join(format!("default_{name}_{uid}")).join("c");
        self.read(name, &logs, over)
    }

    /// The log is of a single attempt, and complete so far.
    fn read(&self, name: &str, logs: &std::path::Path, over: bool) -> bool {
        let files = names(logs);
        assert!(files.iter().all(|file| file == "0.log"), "Pod {name} was started more than once: {files:?}");
        let text = fs::read_to_string(logs.join("0.log")).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let said: Vec<&str> = whole.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).collect();
        let mut wanted = std::iter::once("boot".to_owned()).chain((0u64..).map(|i| i.to_string()));
        let (numbers, end) = match (self.part, said.split_last()) {
            (Part::Ends { lines, .. }, Some((&"end", rest))) => {
                assert_eq!(rest.len() as u64, lines + 1, "Pod {name} lost lines: {text}");
                (rest, true)
            }
            _ => (&said[..], false),
        };
        assert!(numbers.iter().all(|line| wanted.next().as_deref() == Some(line)), "Pod {name}'s log: {text}");
        assert!(end || !over, "Pod {name} has ended but its log does not say so: {text}");
        !said.is_empty()
    }
}

impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pods { made, deleted, ended, adopted, looked, .. } = self;
        write!(
            f,
            "{made} Pods made and {deleted} deleted, {ended} ends told, {adopted} times found running, {looked} times with whole volumes"
        )
    }
}
